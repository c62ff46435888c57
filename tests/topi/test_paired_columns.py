"""Products whose even and odd columns meet in the epilogue (SwiGLU): one kernel, with the results of two."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.graph.ops
import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.codegen.cuda_on_fibers import on_cuda
from tests.codegen.on_device import OPENCL, on_opencl
from tests.topi.differential import Array
from tests.topi.scheduling import schedule_gpu
from tilewright.target import Target
from tilewright.te.language import placeholder
from tilewright.te.program import create_prim_func
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.gpu.strategy import schedule_gpu as schedule
from tilewright.topi.schedule.packing import packing_of

HOPPER = Target("cuda -arch=sm_90a -num-cores=132 -l2-bytes=52428800 -shared-bytes=232448")
Sizes = tuple[int, int, int]


def gated(sizes: Sizes, dtype: str, name: str = "gated", has_row: bool = False, residual: bool = False) -> PrimFunc:
    """silu(y[:, ::2]) * y[:, 1::2] of y = x times w (with a row), and something for each result added."""
    rows, steps, count = sizes
    x, w = placeholder((rows, steps), dtype, "x"), placeholder((steps, 2 * count), dtype, "w")
    inputs = [x, w]
    (product,) = apply_operator("matmul", [x, w])
    if has_row:
        inputs.append(placeholder((2 * count,), dtype, "row"))
        (product,) = apply_operator("add", [product, inputs[-1]])
    parts = [
        apply_operator("slice", [product], begin=(0, first), end=(rows, 2 * count), strides=(1, 2))[0]
        for first in (0, 1)
    ]
    (gate,) = apply_operator("sigmoid", [parts[0]])
    (gate,) = apply_operator("multiply", [gate, parts[0]])
    (result,) = apply_operator("multiply", [gate, parts[1]])
    if residual:
        inputs.append(placeholder((rows, count), dtype, "residual"))
        (result,) = apply_operator("add", [result, inputs[-1]])
    func = create_prim_func([*inputs, result], name)
    return func.replace(attributes={CONSTANTS: (1, 2) if has_row else (1,)})


def operands(sizes: Sizes, dtype: str, has_row: bool, residual: bool) -> tuple[list[Array], Array]:
    """Operands, and the results in float64."""
    rows, steps, count = sizes
    rng = np.random.default_rng(rows + count)
    shapes = [(rows, steps), (steps, 2 * count), *[(2 * count,)] * has_row, *[(rows, count)] * residual]
    given = [rng.uniform(-1, 1, shape).astype(dtype) for shape in shapes]
    wide = [array.astype(np.float64) for array in given]
    product = wide[0] @ wide[1] + (wide[2] if has_row else 0)
    gate, up = product[:, ::2], product[:, 1::2]
    return given, gate / (1 + np.exp(-gate)) * up + (wide[-1] if residual else 0)


def check(got: Array, wanted: Array, dtype: str) -> None:
    error = 2e-2 if dtype == "float16" else 1e-4
    np.testing.assert_allclose(got, wanted, rtol=error, atol=error * np.abs(wanted).max())


def packed(func: PrimFunc, given: list[Array]) -> list[Array]:
    """Operands as a scheduled program has them."""
    packing = packing_of(func)
    return [packing[n].rearrange(array) if n in packing else array for n, array in enumerate(given)]


CASES: list[tuple[Sizes, str, bool, bool]] = [
    ((512, 128, 512), "float16", False, False),
    ((300, 192, 200), "float16", True, False),
    ((640, 512, 192), "float16", False, True),
    ((40, 128, 256), "float16", False, False),
    ((1, 512, 300), "float16", False, False),
    ((1, 300, 64), "float16", True, True),
    ((3, 256, 96), "float16", False, False),
    ((1, 256, 65), "float32", False, False),
    ((70, 64, 72), "float32", True, True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_cuda(case: tuple[Sizes, str, bool, bool]) -> None:
    """As a GPU of sm_90 would compute it, on fibers of this machine."""
    sizes, dtype, *more = case
    func = schedule_gpu(gated(sizes, dtype, "gated", *more), HOPPER)
    given, wanted = operands(sizes, dtype, *more)
    got = np.full(wanted.shape, np.nan, dtype)
    on_cuda([func], HOPPER)["gated"](*packed(func, given), got)
    check(got, wanted, dtype)


@pytest.mark.parametrize("case", [case for case in CASES if case[1] == "float32"], ids=str)
def test_on_a_device(case: tuple[Sizes, str, bool, bool]) -> None:
    """Where there are no tensor cores: vectors in one kernel, matrices in two."""
    sizes, dtype, *more = case
    func = schedule_gpu(gated(sizes, dtype, "gated", *more), OPENCL)
    given, wanted = operands(sizes, dtype, *more)
    got = np.full(wanted.shape, np.nan, dtype)
    on_opencl([func])["gated"](*packed(func, given), got)
    check(got, wanted, dtype)


@pytest.mark.parametrize("tile", [(1, 64, 4, 1, 1), (2, 128, 4, 1, 1), (2, 256, 4, 1, 1), (1, 128, 3, 1, 2), ()])
def test_every_tile_of_warp_groups(tile: tuple[int, ...]) -> None:
    """Tiles of one and two groups, with a group that copies, with steps shared by blocks; and no warp groups."""
    sizes = (256, 512, 256)
    func = schedule(gated(sizes, "float16"), HOPPER, Choices({"group_tile": tile})).func
    given, wanted = operands(sizes, "float16", False, False)
    got = np.full(wanted.shape, np.nan, "float16")
    on_cuda([func], HOPPER)["gated"](*packed(func, given), got)
    check(got, wanted, "float16")
