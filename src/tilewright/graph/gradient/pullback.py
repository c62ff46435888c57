"""The cotangents of the inputs of an expression, for rules that are written as what their operator computes.

    given = pull_back(lambda x, w: multiply(sin(x), w), [x, w], cotangent)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.graph.gradient.accumulate import Cotangent, Parts
from tilewright.graph.gradient.expressions import substituted
from tilewright.graph.gradient.program import Program
from tilewright.graph.gradient.reverse import Reverse
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType


def pull_back(
    build: Callable[..., GraphExpr], inputs: Sequence[GraphExpr], cotangent: Sequence[GraphExpr | None] | GraphExpr
) -> list[GraphExpr | None]:
    """The cotangents of inputs (None where there is none) of what `build` makes of them.

    Of a tuple the cotangent is a sequence, with None for items that have none.
    """
    actual: dict[int, GraphExpr] = {}

    def standing_for(value: GraphExpr) -> Var:
        var = Var("input")
        var.type = value.type
        actual[id(var)] = value
        return var

    variables = [standing_for(value) for value in inputs]
    body = build(*variables)
    wrt = [var for var in variables if isinstance(var.type, TensorType) and var.type.dtype.is_float]
    reverse = Reverse(Program(IRModule()), Function("", tuple(variables), body), wrt)
    reverse.forward(reverse.regions.body)
    given: Cotangent
    if isinstance(cotangent, GraphExpr):
        given = standing_for(cotangent)
    else:
        given = Parts(tuple(None if part is None else standing_for(part) for part in cotangent))
    left = reverse.backward(reverse.regions.body, given)

    def result(var: Var) -> GraphExpr | None:
        if id(var) not in left:
            return None
        total = reverse.program.data.combine(left[id(var)], var.type)
        assert isinstance(total, GraphExpr)
        return substituted(total, actual)

    return [result(var) for var in variables]
