"""Whole programs: scheduled, lowered pass by pass and compiled; every stage agrees with the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codegen.compiled import assert_stages_agree, integers
from tilewright import te
from tilewright.ir import intrinsics
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import Schedule


def matmul(m: int, n: int, k: int) -> PrimFunc:
    a = te.placeholder((m, k), name="A")
    b = te.placeholder((k, n), name="B")
    axis = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis=axis), name="C")
    return te.create_prim_func([a, b, c])


def tiled_matmul(m: int, n: int, k: int, rows: int, columns: int, lanes: int) -> PrimFunc:
    s = Schedule(matmul(m, n, k))
    block = s.get_block("C")
    written = s.cache_write(block, 0, "local")
    i, j = s.get_loops(written)
    io, ii = s.split(i, [None, rows])
    jo, ji = s.split(j, [None, columns])
    s.reorder(io, jo, ii, ji)
    s.compute_at(block, jo)
    ci, cj, ck = s.get_loops(block)[-3:]
    s.reorder(ck, ci, cj)
    outer, inner = s.split(cj, [None, lanes])
    s.unroll(ci)
    s.unroll(outer)
    s.vectorize(inner)
    s.unroll(ii)
    outer, inner = s.split(ji, [None, lanes])
    s.unroll(outer)
    s.vectorize(inner)
    s.decompose_reduction(block, ck)
    s.parallel(io)
    return s.func


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((12, 64, 8), (6, 32, 16)),
        ((13, 50, 7), (6, 32, 16)),
        ((5, 9, 3), (4, 8, 8)),
        ((3, 17, 4), (2, 8, 4)),
    ],
)
def test_register_tiled_matmul(shape: tuple[int, int, int], tile: tuple[int, int, int]) -> None:
    m, n, k = shape
    func = tiled_matmul(m, n, k, *tile)
    a, b = integers(m, k), integers(k, n, seed=1)
    result = assert_stages_agree(func, a, b, integers(m, n, seed=2))
    np.testing.assert_array_equal(result[2], a @ b)


def test_unscheduled_reduction_initialises_before_its_loop() -> None:
    a, b = integers(4, 6), integers(6, 5, seed=1)
    result = assert_stages_agree(matmul(4, 5, 6), a, b, integers(4, 5, seed=2))
    np.testing.assert_array_equal(result[2], a @ b)


def convolution(height: int, width: int, ci: int, co: int, stride: int) -> tuple[PrimFunc, tuple[int, int, int]]:
    x = te.placeholder((height, width, ci), name="X")
    w = te.placeholder((3, 3, ci, co), name="W")

    def padded(h, v, c):  # type: ignore[no-untyped-def]
        inside = te.all_of([h >= 1, h < height + 1, v >= 1, v < width + 1])
        return te.select(inside, x[h - 1, v - 1, c], te.const(0.0))

    p = te.compute((height + 2, width + 2, ci), padded, name="P")
    oh, ow = (height - 1) // stride + 1, (width - 1) // stride + 1
    r, q, c = (te.reduce_axis((0, size), name=name) for size, name in ((3, "r"), (3, "q"), (ci, "c")))
    y = te.compute(
        (oh, ow, co),
        lambda h, v, o: te.sum(p[h * stride + r, v * stride + q, c] * w[r, q, c, o], axis=[r, q, c]),
        name="Y",
    )
    z = te.compute((oh, ow, co), lambda h, v, o: te.maximum(y[h, v, o], 0.0), name="Z")
    return te.create_prim_func([x, w, z]), (oh, ow, co)


@pytest.mark.grid
@pytest.mark.parametrize(
    ("problem", "tile"),
    [((6, 7, 3, 20, 1), (1, 4, 16)), ((8, 8, 4, 16, 2), (2, 2, 8)), ((5, 5, 2, 5, 1), (2, 3, 4))],
)
@pytest.mark.parametrize("inline", [True, False])
def test_tiled_convolution_with_padding(
    problem: tuple[int, int, int, int, int], tile: tuple[int, int, int], inline: bool
) -> None:
    height, width, ci, co, _ = problem
    func, shape = convolution(*problem)
    s = Schedule(func)
    h, v, o = s.get_loops(s.get_block("Z"))
    (ho, hi), (vo, vi), (oo, oi) = (s.split(loop, [None, f]) for loop, f in zip((h, v, o), tile, strict=True))
    s.reorder(ho, vo, oo, hi, vi, oi)
    y = s.get_block("Y")
    s.compute_at(y, oo)
    s.set_scope(y, 0, "local")
    inner = s.get_loops(y)[3:]
    spatial, reducing = inner[:-3], inner[-3:]
    s.reorder(*reducing, *spatial)
    s.vectorize(spatial[-1])
    for loop in (*spatial[:-1], vi, hi):
        s.unroll(loop)
    s.vectorize(oi)
    s.decompose_reduction(y, reducing[0])
    if inline:
        s.compute_inline(s.get_block("P"))
    else:
        s.compute_at(s.get_block("P"), ho)
    s.parallel(ho)
    x, w = integers(height, width, ci), integers(3, 3, ci, co, seed=1)
    assert_stages_agree(s.func, x, w, integers(*shape, seed=2))


def test_fused_chain_in_parallel_tiles() -> None:
    a = te.placeholder((100,), name="A")
    b = te.compute((100,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((100,), lambda i: b[i] + 1.0, name="C")
    s = Schedule(te.create_prim_func([a, c]))
    outer, inner = s.split(s.get_loops(s.get_block("C"))[0], [None, 16])
    s.vectorize(inner)
    s.compute_at(s.get_block("B"), outer)
    s.vectorize(s.get_loops(s.get_block("B"))[-1])
    s.parallel(outer)
    assert_stages_agree(s.func, integers(100), integers(100, seed=1))


def test_long_chain_shares_scratch_memory() -> None:
    a = te.placeholder((3000,), name="A")
    stages = [a]
    for number in range(5):
        last = stages[-1]
        stages.append(te.compute((3000,), lambda i: last[i] + float(number), name=f"T{number}"))  # noqa: B023
    func = te.create_prim_func([a, stages[-1]])
    assert_stages_agree(func, integers(3000), integers(3000))


def test_softmax() -> None:
    a = te.placeholder((5, 37), name="A")
    k, k2 = te.reduce_axis((0, 37), name="k"), te.reduce_axis((0, 37), name="k2")
    peak = te.compute((5,), lambda i: te.max(a[i, k], axis=k), name="peak")
    grown = te.compute((5, 37), lambda i, j: intrinsics.exp(a[i, j] - peak[i]), name="grown")
    total = te.compute((5,), lambda i: te.sum(grown[i, k2], axis=k2), name="total")
    result = te.compute((5, 37), lambda i, j: grown[i, j] / total[i], name="result")
    s = Schedule(te.create_prim_func([a, result]))
    _, inner = s.split(s.get_loops(s.get_block("result"))[1], [None, 8])
    s.vectorize(inner)
    data = np.random.default_rng(0).normal(size=(5, 37)).astype("float32")
    out = assert_stages_agree(s.func, data, np.zeros_like(data), tolerance=1e-5)[1]
    np.testing.assert_allclose(out.sum(axis=1), 1.0, rtol=1e-5)


@settings(max_examples=25)
@given(data=st.data())
def test_random_schedules_of_a_chain(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(2, 9)), data.draw(st.integers(2, 40))
    a = te.placeholder((rows, columns), name="A")
    b = te.compute((rows, columns), lambda i, j: a[i, j] * 2.0 - 1.0, name="B")
    shift = data.draw(st.integers(0, columns - 1))
    c = te.compute(
        (rows, columns),
        lambda i, j: te.select(te.all_of([j >= shift]), b[i, j - shift], te.const(0.0)) + b[i, j],
        name="C",
    )
    k = te.reduce_axis((0, columns), name="k")
    d = te.compute((rows,), lambda i: te.sum(c[i, k], axis=k), name="D")
    s = Schedule(te.create_prim_func([a, d, c]))
    last = s.get_block("C")
    i, j = s.get_loops(last)
    if data.draw(st.booleans()):
        fused = s.fuse(i, j)
        outer, inner = s.split(fused, [None, data.draw(st.sampled_from([2, 4, 7, 8, 16]))])
        loops = [outer]
    else:
        outer, inner = s.split(j, [None, data.draw(st.sampled_from([2, 3, 8, 16]))])
        loops = [i, outer]
    match data.draw(st.sampled_from(["vector", "unroll", "serial"])):
        case "vector":
            s.vectorize(inner)
        case "unroll":
            s.unroll(inner)
        case _:
            pass
    if data.draw(st.booleans()):
        s.parallel(loops[0])
    if data.draw(st.booleans()):
        s.compute_inline(s.get_block("B"))
    elif data.draw(st.booleans()):
        block = s.get_block("D")
        outer, inner = s.split(s.get_loops(block)[1], [None, data.draw(st.sampled_from([2, 5, 8]))])
        if data.draw(st.booleans()):
            s.unroll(inner)
    assert_stages_agree(s.func, integers(rows, columns), integers(rows), integers(rows, columns))
