"""Linear forms."""

from __future__ import annotations

from tilewright.arith import linear
from tilewright.arith.linear import Linear
from tilewright.ir.expr import Var

X, Y = Var("x"), Var("y")


def test_linear_forms():
    form = Linear({X: 2, Y: -4}, 6)
    assert form.common_divisor() == 2
    assert form.divided(2).same_as(Linear({X: 1, Y: -2}, 3))
    assert form.scaled(0) is linear.ZERO
    assert form.minus(form).is_constant
    assert form.weight == 3
    assert form.single() is None
    assert linear.term(X).single() is X
    assert repr(linear.constant(3)) == "3"
    assert form.plus(Linear({X: -2}, 1)).same_as(Linear({Y: -4}, 7))
    assert form.shifted(0) is form
    assert form.scaled(1) is form
