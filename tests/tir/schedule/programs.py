"""Small programs to schedule, and the comparison of a scheduled program with the original by interpretation."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.node import Node
from tilewright.ir.structural import assert_same_ir, structural_equal
from tilewright.ir.visit import transform
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.schedule import Schedule, replay
from tilewright.tir.schedule.state import substitute_loops
from tilewright.tir.stmt import Block, For, LoopKind
from tilewright.tir.verify import verify


def run(func: PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """The arrays of all parameters after running a program on random integers."""
    random = np.random.default_rng(seed)
    arrays = []
    for buffer in func.buffers:
        shape = buffer.static_shape
        assert shape is not None
        arrays.append(random.integers(-5, 6, shape).astype(buffer.dtype.numpy()))
    interpret(func, *arrays)
    return arrays


def check(schedule: Schedule, original: PrimFunc) -> None:
    """The scheduled program is well-formed, computes what the original does, and its trace replays to it."""
    verify(schedule.func, "scheduled")
    for expected, found in zip(run(original), run(schedule.func), strict=True):
        np.testing.assert_array_equal(expected, found)
    backwards = with_parallel_loops_backwards(schedule.func)
    if backwards is not schedule.func:
        for expected, found in zip(run(original), run(backwards), strict=True):
            np.testing.assert_array_equal(expected, found)
    replayed = replay(schedule.trace, original)
    if not structural_equal(replayed.func, schedule.func):
        assert_same_ir(replayed.func, schedule.func)


def compiled(func: PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """As `run`, by machine code."""
    random = np.random.default_rng(seed)
    arrays = [random.integers(-5, 6, buffer.static_shape or ()).astype(buffer.dtype.numpy()) for buffer in func.buffers]
    tw.build(func, target="native")(*arrays)
    return arrays


def check_compiled(schedule: Schedule, original: PrimFunc) -> None:
    """As `check`, and the compiled program too computes what the original does."""
    check(schedule, original)
    for expected, found in zip(run(original), compiled(schedule.func), strict=True):
        np.testing.assert_array_equal(expected, found)


def with_parallel_loops_backwards(func: PrimFunc) -> PrimFunc:
    """The program with parallel and vectorized loops run from the last iteration to the first."""

    def visit(item: Node) -> Node | None:
        if isinstance(item, For) and item.kind in (LoopKind.PARALLEL, LoopKind.VECTORIZED):
            last = item.min + item.extent - 1
            return item.replace(body=substitute_loops(item.body, {item.var: item.min + last - item.var}))
        return None

    return func.replace(body=transform(func.body, visit))


def elementwise(shape: tuple[int, ...] = (12, 20), stages: int = 3) -> PrimFunc:
    """A chain B0, B1, ... of elementwise stages."""
    first = te.placeholder(shape, name="A", dtype="int32")
    value = first
    for stage in range(stages):
        source = value
        value = te.compute(shape, lambda *i, s=source, n=stage: s[i] * (n + 2) + 1, name=f"B{stage}")
    return te.create_prim_func([first, value])


def matmul(n: int = 8, m: int = 12, k: int = 10) -> PrimFunc:
    """C = A @ B."""
    a = te.placeholder((n, k), name="A", dtype="int32")
    b = te.placeholder((k, m), name="B", dtype="int32")
    axis = te.reduce_axis((0, k), name="k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis=axis), name="C")
    return te.create_prim_func([a, b, c])


def matmul_relu(n: int = 8, m: int = 12, k: int = 10) -> PrimFunc:
    """D = max(A @ B + bias, 0)."""
    a = te.placeholder((n, k), name="A", dtype="int32")
    b = te.placeholder((k, m), name="B", dtype="int32")
    bias = te.placeholder((m,), name="bias", dtype="int32")
    axis = te.reduce_axis((0, k), name="k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis=axis), name="C")
    d = te.compute((n, m), lambda i, j: te.maximum(c[i, j] + bias[j], 0), name="D")
    return te.create_prim_func([a, b, bias, d])


def convolution(channels: int = 3, size: int = 9, filters: int = 4, stride: int = 1) -> PrimFunc:
    """out = max(conv(pad(A), W) + 1, 0) with a 3x3 window."""
    a = te.placeholder((channels, size, size), name="A", dtype="int32")
    w = te.placeholder((filters, channels, 3, 3), name="W", dtype="int32")

    def padded(c: Var, h: Var, x: Var) -> PrimExpr:
        inside = te.all_of([h >= 1, h < size + 1, x >= 1, x < size + 1])
        return te.select(inside, a[c, h - 1, x - 1], 0)

    pad = te.compute((channels, size + 2, size + 2), padded, name="pad")
    c = te.reduce_axis((0, channels), name="c")
    r = te.reduce_axis((0, 3), name="r")
    q = te.reduce_axis((0, 3), name="q")
    out_size = (size - 1) // stride + 1
    conv = te.compute(
        (filters, out_size, out_size),
        lambda k, h, x: te.sum(pad[c, h * stride + r, x * stride + q] * w[k, c, r, q], axis=[c, r, q]),
        name="conv",
    )
    out = te.compute((filters, out_size, out_size), lambda k, h, x: te.maximum(conv[k, h, x] + 1, 0), name="out")
    return te.create_prim_func([a, w, out])


def row_sum(n: int = 6, m: int = 24) -> PrimFunc:
    """S[i] = sum over j of A[i, j]."""
    a = te.placeholder((n, m), name="A", dtype="int32")
    j = te.reduce_axis((0, m), name="j")
    s = te.compute((n,), lambda i: te.sum(a[i, j], axis=j), name="S")
    return te.create_prim_func([a, s])


def row_argmax(n: int = 4, m: int = 12) -> PrimFunc:
    """(index, value) of the greatest element of each row."""
    a = te.placeholder((n, m), name="A", dtype="int32")
    j = te.reduce_axis((0, m), name="j")
    index, value = te.compute_many((n,), lambda i: te.argmax((j.var, a[i, j]), axis=j), name="arg")
    return te.create_prim_func([a, index, value])


def stencil(size: int = 16) -> PrimFunc:
    """B = A * 2; C[i] = B[i] + B[i + 1] + B[i + 2]."""
    a = te.placeholder((size + 2,), name="A", dtype="int32")
    b = te.compute((size + 2,), lambda i: a[i] * 2, name="B")
    c = te.compute((size,), lambda i: b[i] + b[i + 1] + b[i + 2], name="C")
    return te.create_prim_func([a, c])


def loops_of(schedule: Schedule, block: str) -> list[tuple[str, int, str]]:
    """(name, extent, kind) of the loops around a block."""
    index = schedule._state.index
    return [
        (loop.var.name, int(loop.extent.value), loop.kind.value)  # type: ignore[attr-defined]
        for loop in index.loops_above(index.blocks[block])
    ]


def block_of(schedule: Schedule, name: str) -> Block:
    """A block as it is now."""
    return schedule._state.index.blocks[name]


def only_loop(schedule: Schedule, name: str) -> For:
    """The loop with a variable of a name."""
    (loop,) = [item for item in schedule._state.index.loops.values() if item.var.name == name]
    return loop
