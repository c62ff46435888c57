"""Tiles of warp groups one after the other in a block; second operands that are stored as shared memory has them."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.codegen.cuda_on_fibers import on_cuda
from tests.codegen.on_device import require_nvrtc
from tests.topi.test_schedule_tensor_core import product, text
from tilewright import te
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.ir.dtype import FLOAT16
from tilewright.target import Target
from tilewright.te.program import create_prim_func
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.gpu.group_choice import ranked_group_tiles
from tilewright.topi.schedule.gpu.strategy import schedule_gpu
from tilewright.topi.schedule.gpu.warp_groups import ONE_ROUND, GroupTile, Rounds, rounds_of
from tilewright.topi.schedule.packing import packing_of

FEW_CORES = Target("cuda -arch=sm_90a -num-cores=2 -l2-bytes=52428800 -shared-bytes=232448")
Sizes = tuple[tuple[int, ...], int, int]


def layer(rows: tuple[int, ...], depth: int, columns: int, dtype: str, residual: bool = False) -> PrimFunc:
    """A dense layer with constant weights and a bias, and a value that is added."""
    x, w = te.placeholder((*rows, depth), dtype, "x"), te.placeholder((depth, columns), dtype, "w")
    bias, other = te.placeholder((columns,), dtype, "bias"), te.placeholder((*rows, columns), dtype, "other")
    (y,) = apply_operator("matmul", [x, w])
    (z,) = apply_operator("add", [y, bias])
    operands = [x, w, bias]
    if residual:
        (z,) = apply_operator("add", [z, other])
        operands.append(other)
    func = create_prim_func([*operands, z], "layer")
    return func.replace(attributes={**func.attributes, CONSTANTS: (1, 2)})


def scheduled(func: PrimFunc, tile: tuple[int, ...]) -> PrimFunc:
    """The function by a tile of warp groups."""
    choices = Choices(answer=lambda asked: tile if asked.name == "group_tile" else asked.default)
    result = schedule_gpu(func, FEW_CORES, choices)
    assert choices.answers["group_tile"] == tile
    return result.func


def check_on_fibers(sizes: Sizes, dtype: str, tile: tuple[int, ...], residual: bool) -> str:
    """Compare a layer with float64; gives the text of the kernel."""
    rows, depth, columns = sizes
    func = scheduled(layer(rows, depth, columns, dtype, residual), tile)
    random = np.random.default_rng(0)
    shapes = [(*rows, depth), (depth, columns), (columns,), *([(*rows, columns)] if residual else [])]
    given = [(random.random(shape) - 0.5).astype(dtype) for shape in shapes]
    x, w, *more = (item.astype(np.float64) for item in given)
    wanted = sum(more, x @ w)
    packing = packing_of(func)
    arrays = [packing[n].rearrange(array) if n in packing else array for n, array in enumerate(given)]
    got = np.full((*rows, columns), np.nan, dtype)
    on_cuda([func], FEW_CORES)["layer"](*arrays, got)
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=1e-2, atol=1e-2)
    return text(func, FEW_CORES)


CASES = [
    # Rounds of rows, and of columns.
    (((512,), 512, 128), (2, 128, 4, 1, 1), False, (2, 1)),
    (((128,), 512, 512), (2, 128, 4, 8, 1), True, (1, 2)),
    # Rows that are digits of two axes, and tiles that they do not fill.
    (((3, 70), 512, 256), (2, 128, 4, 8, 1), True, (1, 2)),
    # One group computes beside the one that copies: five copies of the tiles, which steps fill evenly, and do not.
    (((256,), 640, 128), (1, 128, 5, 1, 1), False, (2, 1)),
    (((70,), 512, 128), (1, 128, 5, 8, 1), True, (1, 1)),
    # A last tile of 40 columns, with zeros behind them.
    (((70,), 512, 200), (2, 160, 4, 8, 1), True, (1, 1)),
    # Steps in parts, which are rounds too.
    (((256,), 1024, 128), (2, 128, 4, 8, 2), False, (2, 1)),
]


@pytest.mark.parametrize(("sizes", "tile", "residual", "turns"), CASES, ids=str)
def test_blocks_compute_several_tiles(
    sizes: Sizes, tile: tuple[int, ...], residual: bool, turns: tuple[int, int]
) -> None:
    rows, depth, columns = sizes
    chosen = GroupTile(*tile)
    found = rounds_of(chosen.parts, int(np.prod(rows)), columns, chosen, depth // 64 // chosen.parts, FEW_CORES)
    kernel = check_on_fibers(sizes, "float16", tile, residual)
    assert "tw_bulk_copy" in kernel and "packed" in kernel
    assert found == Rounds(*turns)


def test_a_block_with_one_tile_copies_at_once_too() -> None:
    kernel = text(scheduled(layer((128,), 512, 128, "float16"), (2, 128, 4, 8, 1)), FEW_CORES)
    assert len(re.findall(r"tw_bulk_copy\(", kernel)) == 2 + 4  # the function, its call, and those before the pipeline
    require_nvrtc()
    compile_cuda(kernel, "sm_90a")


def test_rounds_are_the_same_for_all_blocks() -> None:
    """Where tiles cannot be divided so, or steps end between two copies of the buffers, each block has one."""
    tile = GroupTile(2, 128, 4, 8)
    assert rounds_of(1, 7 * 128, 128, tile, 8, FEW_CORES) == ONE_ROUND
    assert rounds_of(1, 8 * 128, 128, tile, 8, FEW_CORES) == ONE_ROUND  # eight rows of blocks run together
    assert rounds_of(2, 8 * 128, 128, tile, 8, FEW_CORES) == ONE_ROUND
    assert rounds_of(1, 128, 8 * 128, tile, 8, FEW_CORES) == Rounds(1, 4)
    assert rounds_of(1, 128, 8 * 128, tile, 9, FEW_CORES) == ONE_ROUND
    assert rounds_of(1, 128, 2 * 128, tile, 8, FEW_CORES) == ONE_ROUND


def test_constants_may_have_tiles_that_do_not_divide_them() -> None:
    """Five tiles of 160 columns for 768: 125 of 132 multiprocessors, where four of 192 are for 100. Others are copied
    by threads, which takes longer."""
    target = Target("cuda -arch=sm_90a -num-cores=132 -l2-bytes=52428800 -shared-bytes=232448")
    sizes = (1, 3152, 768, 3072, FLOAT16, False)
    chosen, other = (ranked_group_tiles(*sizes, is_constant, target)[0] for is_constant in (True, False))
    assert (chosen.rows, chosen.columns, other.columns) == (128, 160, 192)


@pytest.mark.parametrize(("dtype", "out"), [("int8", "int32"), ("bfloat16", "float32"), ("float8_e4m3fn", "float32")])
def test_other_types_are_packed_too(dtype: str, out: str) -> None:
    """Pieces have 16 bytes of steps, of any type; each block has two tiles."""
    func = product(256, 256, 1024, dtype, out)
    func = scheduled(func.replace(attributes={**func.attributes, CONSTANTS: (1,)}), (2, 128, 4, 8, 1))
    random = np.random.default_rng(0)
    numbers = [random.integers(-8, 9, shape) for shape in ((256, 1024), (1024, 256))]
    rows, weights = (array.astype(getattr(np, dtype, None) or getattr(ml_dtypes, dtype)) for array in numbers)
    plain = [array if dtype == "int8" else array.view(f"u{array.itemsize}") for array in (rows, weights)]
    got = np.zeros((256, 256), out)
    on_cuda([func], FEW_CORES)[func.name](plain[0], packing_of(func)[1].rearrange(plain[1]), got)
    np.testing.assert_array_equal(got, 2 * (numbers[0] @ numbers[1]))
    assert "tw_bulk_copy" in text(func, FEW_CORES)
