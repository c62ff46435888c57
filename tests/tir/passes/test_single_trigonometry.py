"""Angles and powers in float32 alone: errors in units of the last place, and no float64 anywhere."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.compiled import run
from tests.codegen.test_emit_math import COUNT, arguments, errors, kernel
from tilewright.ir import intrinsics
from tilewright.ir.expr import PrimExpr
from tilewright.ir.visit import pre_order
from tilewright.tir.passes.lower_intrinsics import lower_intrinsics

BOUNDS = {"sin": 2.0, "cos": 2.0, "tan": 4.0, "pow": 16.0}


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_errors(name: str) -> None:
    args = arguments(intrinsics.table[name].arity or 1, 7)
    func = lower_intrinsics(kernel(name, COUNT, 16), has_double=False)
    kinds = {item.dtype.element.name for item in pre_order(func.body) if isinstance(item, PrimExpr)}
    assert "float64" not in kinds
    found = errors(name, args, run(func, *args, np.zeros(COUNT, "float32"))[-1])
    if name != "pow":
        # Near the zeros of an angle's function the result is as exact as the argument allows in float32.
        with np.errstate(all="ignore"):
            exact = intrinsics.table[name].reference(args[0].astype(np.float64))
        found = np.where(np.abs(exact) < 1e-3, 0.0, found)
    worst = int(np.argmax(found))
    assert found[worst] <= BOUNDS[name], f"{name}{[float(a[worst]) for a in args]}: {found[worst]} units off"


def test_only_what_is_named_is_expanded() -> None:
    func = kernel("erf", 16, 1)
    assert lower_intrinsics(func, names=frozenset(["expm1"])).body is func.body
    assert lower_intrinsics(func, names=frozenset(["erf"])).body is not func.body
