"""Swizzled shared memory: the same values at other places, whole runs of 16 bytes, addresses of tiles that stay."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import te
from tilewright.arith.analyzer import Analyzer
from tilewright.backends.backend import lower
from tilewright.ir.expr import Add, Call, Mul, PrimExpr, Ramp, const_value
from tilewright.ir.visit import substitute
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.te.program import create_prim_func
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.swizzle_storage import swizzle_storage
from tilewright.tir.rewrite.statements import all_statements
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.stmt import BufferStore, For

CUDA = Target("cuda -arch=sm_80")


def transposed(lanes: int, swizzled: bool = True) -> PrimFunc:
    """A tile of 32 x 32 floats that goes through shared memory on its way to its transpose."""
    a = te.placeholder((32, 32), "float32", "a")
    b = te.compute((32, 32), lambda i, j: a[j, i] + 1.0, "b")
    sch = Schedule(create_prim_func([a, b], "transposed"))
    block = sch.get_block("b")
    row, column = sch.get_loops(block)
    outer = sch.add_unit_loop(row)
    copy = sch.cache_read(block, "a", "shared")
    sch.compute_at(copy, outer)
    own_row, own_column = sch.get_loops(copy)[-2:]
    vector, lane = sch.split(own_column, [None, lanes])
    sch.vectorize(lane)
    sch.bind(own_row, "threadIdx.y")
    sch.bind(vector, "threadIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(outer, "blockIdx.x")
    sch.bind(column, "threadIdx.x")
    if swizzled:
        sch.storage_swizzle(copy, 0)
    return sch.func


def number(index: PrimExpr) -> int:
    """The value of an index without variables."""
    if isinstance(index, Add):
        return number(index.a) + number(index.b)
    if isinstance(index, Mul):
        return number(index.a) * number(index.b)
    if isinstance(index, Call):
        return number(index.args[0]) ^ number(index.args[1])
    found = const_value(Analyzer().simplify(index))
    assert found is not None
    return found


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_values_stay_and_places_change(lanes: int) -> None:
    values = np.arange(1024, dtype=np.float32).reshape(32, 32)
    results = []
    for swizzled in (False, True):
        lowered = lower(transposed(lanes, swizzled), CUDA)
        result = np.zeros((32, 32), np.float32)
        interpret(lowered, values, result)
        np.testing.assert_array_equal(result, values.T + 1)
        results.append(str(lowered))
    assert "bitwise_xor" in results[1] and "bitwise_xor" not in results[0]


def test_runs_change_places_within_their_row() -> None:
    lowered = lower(transposed(4), CUDA)
    store = next(s for s in all_statements(lowered.body) if isinstance(s, BufferStore) and s.buffer.scope == "shared")
    threads = {loop.thread: loop.var for loop in all_statements(lowered.body) if isinstance(loop, For) and loop.thread}
    (index,) = store.indices
    assert isinstance(index, Ramp)
    for y in range(32):
        for x in range(8):
            at = substitute(index.base, {threads["threadIdx.y"]: te.const(y), threads["threadIdx.x"]: te.const(x)})
            assert number(at) == y * 32 + (x ^ y % 8) * 4


def test_vectors_that_cross_runs_are_refused() -> None:
    with pytest.raises(UserError, match="not within runs of 16 bytes"):
        lower(transposed(8), CUDA)


def test_what_cannot_be_swizzled_is_refused() -> None:
    a = te.placeholder((32, 24), "float32", "a")
    b = te.compute((32, 24), lambda i, j: a[i, j] + 1.0, "b")
    c = te.compute((32, 24), lambda i, j: b[i, j] * 2.0, "c")
    sch = Schedule(create_prim_func([a, c], "f"))
    with pytest.raises(ScheduleError, match="not made of 128 bytes"):
        sch.storage_swizzle(sch.get_block("b"), 0)
    with pytest.raises(ScheduleError, match="is a parameter"):
        sch.storage_swizzle(sch.get_block("c"), 0)


def test_programs_without_notes_stay() -> None:
    func = lower(transposed(4, swizzled=False), CUDA)
    assert swizzle_storage(func) is func
