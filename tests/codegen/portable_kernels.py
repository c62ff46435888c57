"""Whole kernels that every device must run: tiles with barriers, operators, large grids, scalars, symbolic sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tilewright as tw
import tilewright.topi.library
from tests.codegen.portable import Build
from tests.tir.passes.test_bind_threads import tiled_product
from tests.topi.differential import Array, operator_program, results_of, run_reference
from tests.topi.scheduling import schedule_gpu
from tilewright import te
from tilewright.ir import expr as e
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import ZERO, IntImm, PrimExpr, Var
from tilewright.target import Target
from tilewright.tir.buffer import make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import BufferStore, For, LoopKind, Stmt

Case = tuple[str, Sequence[Array], dict[str, Any]]


def check_tiles(device: Build) -> None:
    """Products with remainders in every direction, through shared memory."""
    cases = [(12, 10, 6, (4, 4), (2, 1), 3), (9, 17, 8, (2, 8), (3, 2), 4), (16, 16, 16, (8, 8), (1, 2), 8)]
    cases += [(5, 7, 9, (3, 2), (1, 3), 3), (11, 3, 4, (4, 1), (3, 1), 2)]
    functions = [tiled_product(*case) for case in cases]
    module = device(functions)
    rng = np.random.default_rng(0)
    for (m, n, depth, *_), func in zip(cases, functions, strict=True):
        a, b = rng.random((m, depth), np.float32), rng.random((depth, n), np.float32)
        c = np.full((m, n), np.nan, np.float32)
        module[func.name](a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=1e-5)


def scheduled_operator(case: Case, name: str, target: Target) -> PrimFunc:
    """An operator under its default schedule."""
    return schedule_gpu(operator_program(case[0], case[1], name, **case[2]), target)


_TOGETHER = 16
"""Operators in one text."""


def check_operators(device: Build, target: Target, cases: Sequence[Case]) -> None:
    """Operators against their references."""
    programs = [scheduled_operator(case, f"case{n}", target) for n, case in enumerate(cases)]
    # Drivers look at a whole text for each of its kernels: many short ones are quicker than one that is long.
    modules = [device(programs[first : first + _TOGETHER]) for first in range(0, len(programs), _TOGETHER)]
    for number, (case, func) in enumerate(zip(cases, programs, strict=True)):
        got = results_of(func, case[1])
        modules[number // _TOGETHER][f"case{number}"](*case[1], *got)
        for one, other in zip(got, run_reference(case[0], case[1], **case[2]), strict=True):
            if one.dtype.kind == "f":
                tolerance = 1e-2 if one.dtype == np.float16 else 2e-5
                np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=case[0])
            else:
                np.testing.assert_array_equal(one, other, err_msg=case[0])


def check_large_grids(device: Build) -> None:
    """More blocks than a device takes along an axis, whichever it is, of bytes that share words."""
    module = device([_many_blocks(number) for number in range(len(GRIDS))])
    for number, grid in enumerate(GRIDS):
        got = np.zeros((*grid, 3), np.uint8)
        module[f"many{number}"](got)
        x, y, z, thread = np.indices(got.shape)
        np.testing.assert_array_equal(got, (x * 7 + y * 31 + z * 101 + thread).astype(np.uint8))


GRIDS = ((70001, 2, 1), (2, 70001, 1), (1, 2, 66000))
"""Blocks along the three axes."""


def _many_blocks(number: int) -> PrimFunc:
    grid = GRIDS[number]
    x, y, z, thread = Var("x"), Var("y"), Var("z"), Var("thread")
    out = make_buffer("out", (*grid, 3), "uint8")
    value: PrimExpr = e.Cast(x * 7 + y * 31 + z * 101 + thread, DataType.of("uint8"))
    body: Stmt = BufferStore(out, (x, y, z, thread), value)
    body = For(thread, ZERO, IntImm(3), LoopKind.THREAD, body, "threadIdx.x")
    for var, extent, axis in zip((x, y, z), grid, "xyz", strict=True):
        body = For(var, ZERO, IntImm(extent), LoopKind.THREAD, body, f"blockIdx.{axis}")
    return PrimFunc(f"many{number}", (out,), body)


def check_symbolic_sizes(target: str) -> None:
    """One program for all sizes, through `tw.build`."""
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), name="A")
    b = te.compute((n, m), lambda i, j: a[n - 1 - i, j] * 2.0 + 1.0, name="B")
    s = te.create_schedule(b.op)
    block, thread = s[b].split(b.op.axis[1], factor=64)
    s[b].bind(b.op.axis[0], te.thread_axis("blockIdx.y"))
    s[b].bind(block, te.thread_axis("blockIdx.x"))
    s[b].bind(thread, te.thread_axis("threadIdx.x"))
    module = tw.build(s, [a, b], target=target)
    for shape in ((1, 1), (5, 13), (70, 1000), (66000, 3), (0, 4)):
        values = np.random.default_rng(1).random(shape, np.float32)
        result = np.zeros(shape, np.float32)
        module(values, result)
        np.testing.assert_allclose(result, values[::-1] * 2 + 1, rtol=1e-6)
    timing = module.time_evaluator("main", number=2, repeat=2)(values, result)
    assert len(timing.results) == 2


SCALARS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
SCALARS += ("float16", "bfloat16", "float32")


def check_scalars(device: Build, dtypes: Sequence[str] = SCALARS) -> None:
    """Scalars of every type, positive and negative, beside an array."""
    scalars = [te.var(f"x_{name}", name) for name in dtypes]
    a = te.placeholder((3,), name="A")

    def total(i: Var) -> PrimExpr:
        result: PrimExpr = a[i]
        for scalar in scalars:
            result = result + e.Cast(scalar, DataType.of("float32"))
        return result

    b = te.compute((3,), total, name="B")
    values: list[Any] = [-3 if name.startswith(("int", "float")) else name == "bool" or 200 for name in dtypes]
    out = np.zeros(3, np.float32)
    func = te.create_schedule(b.op).func([a, *scalars, b])
    device([func])[func.name](np.arange(3, dtype=np.float32), *values, out)
    np.testing.assert_array_equal(out, np.arange(3, dtype=np.float32) + sum(values))
