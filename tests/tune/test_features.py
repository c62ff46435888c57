"""Features: a fixed length, and numbers that follow what a schedule does."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import te
from tilewright.target import Target
from tilewright.tir.annotations import PREFETCH
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.stmt import LoopKind
from tilewright.tune.features import Described, _traffic, describe, extract

TARGET = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512")


def _matmul(size: int = 64) -> PrimFunc:
    a = te.placeholder((size, size), "float32", "a")
    b = te.placeholder((size, size), "float32", "b")
    k = te.reduce_axis((0, size), "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    return te.create_schedule(c.op).func([a, b, c])


def _scheduled(rows: int, columns: int) -> PrimFunc:
    sch = Schedule(_matmul())
    block = sch.get_block("c")
    i, j, k = sch.get_loops(block)
    i0, i1 = sch.split(i, [None, rows])
    j0, j1 = sch.split(j, [None, columns])
    sch.reorder(i0, j0, k, i1, j1)
    sch.unroll(i1)
    sch.vectorize(j1)
    sch.parallel(i0)
    return sch.func


def _main(func: PrimFunc) -> Described:
    return describe(func)[0]


def test_the_length_is_fixed() -> None:
    x = te.placeholder((100,), "float32", "x")
    y = te.compute((100,), lambda i: te.exp(x[i]) + 1.0, "y")
    plain = te.create_schedule(y.op).func([x, y])
    features = np.stack([extract(func, TARGET) for func in (_matmul(), _scheduled(4, 16), plain)])
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    assert len({tuple(row) for row in features}) == 3


def test_loops_and_arithmetic() -> None:
    block = _main(_scheduled(4, 16))
    assert block.instances == 64**3
    assert [loop.kind for loop in block.loops] == [
        LoopKind.PARALLEL,
        LoopKind.SERIAL,
        LoopKind.SERIAL,
        LoopKind.UNROLLED,
        LoopKind.VECTORIZED,
    ]
    assert block.operations[0] == 2


def test_touched_elements() -> None:
    block = _main(_scheduled(4, 16))
    by_name = {access.buffer.name: access for access in block.accesses}
    assert by_name["a"].reach(0) == by_name["b"].reach(0) == by_name["c"].reach(0) == 64 * 64
    # One tile: 4 rows of a, 16 columns of b, all of k.
    assert by_name["a"].reach(2) == 4 * 64
    assert by_name["b"].reach(2) == 64 * 16
    assert by_name["c"].reach(2) == 4 * 16
    assert by_name["b"].stride(4, 16) == 1
    assert by_name["b"].stride(2, 64) == 64


@pytest.mark.parametrize("capacity", [1 << 11, 1 << 12, 1 << 14])
def test_larger_tiles_move_less(capacity: int) -> None:
    """A register tile of more rows reads the columns' operand fewer times."""
    small, large = (sum(_traffic(_main(_scheduled(rows, 16)), capacity)) for rows in (1, 8))
    assert large <= small


def test_what_fits_moves_once() -> None:
    block = _main(_scheduled(4, 16))
    assert sum(_traffic(block, 1 << 30)) == 3 * 64 * 64 * 4


def test_data_dependent_indices_count_as_unknown() -> None:
    index = te.placeholder((10,), "int64", "index")
    table = te.placeholder((50, 8), "float32", "table")
    out = te.compute((10, 8), lambda i, j: table[index[i], j], "out")
    assert np.isfinite(extract(te.create_schedule(out.op).func([index, table, out]), TARGET)).all()


@pytest.mark.parametrize("name", ["a", "another"])
def test_what_is_fetched_ahead_is_seen(name: str) -> None:
    """Also a buffer that the block itself does not touch: places of the next results, say."""
    sch = Schedule(_scheduled(4, 16))
    before = extract(sch.func, TARGET)
    sch.annotate(sch.get_loops(sch.get_block("c"))[2], PREFETCH, {name: 64})
    after = extract(sch.func, TARGET)
    assert after.shape == before.shape
    assert np.count_nonzero(after != before) == 1


def test_the_register_tile_is_seen() -> None:
    columns = [extract(_scheduled(rows, 16), TARGET) for rows in (2, 4, 8)]
    # One of a, sixteen of b, rows times sixteen of c, for each of the three tiles.
    for rows, features in zip((2, 4, 8), columns, strict=True):
        assert np.float32(np.log2(1 + 4 * (rows + 16 + rows * 16))) in features
