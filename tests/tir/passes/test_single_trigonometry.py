"""Angles and powers in float32 alone: errors in units of the last place, and no float64 anywhere."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.compiled import run
from tests.codegen.test_emit_math import COUNT, arguments, errors, kernel
from tilewright.ir import intrinsics
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import ZERO, Call, FloatImm, IntImm, PrimExpr, Sub
from tilewright.ir.visit import pre_order
from tilewright.tir.buffer import BufferLoad, make_buffer
from tilewright.tir.expansion.exponentials import MAGIC
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes import lower_intrinsics as passes
from tilewright.tir.passes.lower_intrinsics import LowerIntrinsicsOptions, lower_intrinsics
from tilewright.tir.stmt import BufferStore

BOUNDS = {"sin": 2.0, "cos": 2.0, "tan": 4.0, "pow": 16.0}


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_errors(name: str) -> None:
    args = arguments(intrinsics.table[name].arity or 1, 7)
    func = lower_intrinsics(kernel(name, COUNT, 16), LowerIntrinsicsOptions(has_double=False))
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
    assert lower_intrinsics(func, LowerIntrinsicsOptions(frozenset(["expm1"]))).body is func.body
    assert lower_intrinsics(func, LowerIntrinsicsOptions(frozenset(["erf"]))).body is not func.body


def test_nothing_rounds_by_a_large_addend() -> None:
    # Compilers of shaders take (x + c) - c for x.
    expanded = 0
    for name in sorted(passes._FLOAT32):
        for given in _arguments(name):
            body = BufferStore(make_buffer("C", (1,)), (ZERO,), Call(name, given, FLOAT32))
            func = lower_intrinsics(
                PrimFunc("f", (make_buffer("A", (2,)),), body), LowerIntrinsicsOptions(has_double=False)
            )
            constants = {item.value for item in pre_order(func.body) if isinstance(item, FloatImm)}
            assert not any(abs(value) == MAGIC for value in constants), name
            expanded += func.body is not body
    assert expanded > 20


def _arguments(name: str) -> list[tuple[PrimExpr, ...]]:
    """A plain value, and a difference, which may have an expansion of its own."""
    a = make_buffer("A", (2,))
    one, other = BufferLoad(a, (ZERO,)), BufferLoad(a, (IntImm(1),))
    # What the pass makes of sums has a name inside of it only.
    known = intrinsics.table.get(name)
    rest = (other,) * ((known.arity if known is not None and known.arity is not None else 1) - 1)
    return [(one, *rest), (Sub(one, other), *rest)]
