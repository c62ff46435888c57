"""Operands whose steps are no neighbours, as those of gradients are: products on tensor cores read them as they lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.codegen.on_device import require_nvrtc
from tests.topi.scheduling import schedule_gpu
from tests.topi.test_schedule_tensor_core import HOPPER, WGMMA, arrays, place, text
from tilewright import te
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.graph.interpreter import to_float32
from tilewright.graph.ops.convolution_gradient import Conv2dWeightGradientAttributes
from tilewright.graph.ops.convolution_gradient import _weight_gradient as weight_gradient
from tilewright.ir.build import cast
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.target import Target
from tilewright.te.program import create_prim_func
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.topi.intrinsics.warp_group import GroupProduct, group_product
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.choices import Choices

HALF = DataType.of("float16")


def product(
    rows: int, columns: int, depth: int, turned: tuple[bool, bool], dtype: str = "float16", lead: Sequence[int] = ()
) -> PrimFunc:
    """A product whose operands have steps first (the first) and last (the second), where they are turned."""
    a = te.placeholder((*lead, *((depth, rows) if turned[0] else (rows, depth))), dtype, "a")
    b = te.placeholder((*lead, *((columns, depth) if turned[1] else (depth, columns))), dtype, "b")
    k = te.reduce_axis((0, depth), "k")

    def term(*index: te.Var) -> te.Tensor:
        *o, i, j = index
        left = a[(*o, k, i) if turned[0] else (*o, i, k)]
        right = b[(*o, j, k) if turned[1] else (*o, k, j)]
        return te.sum(cast(left, FLOAT32) * cast(right, FLOAT32), axis=k)  # type: ignore[no-any-return]

    c = te.compute((*lead, rows, columns), term, "c")
    d = te.compute(c.shape, lambda *i: c[i] * 2, "d")
    return create_prim_func([a, b, d], "product")


def by_tile(func: PrimFunc, question: str, tile: tuple[int, ...]) -> PrimFunc:
    """The function scheduled by a tile that the tuner might have chosen."""
    choices = Choices(answer=lambda asked: tile if asked.name == question else asked.default)
    scheduled = schedule_gpu(func, WGMMA, choices)
    assert choices.answers[question] == tile
    return scheduled


def check_product(func: PrimFunc, scheduled: PrimFunc, turned: tuple[bool, bool]) -> None:
    operands = arrays(func)
    wide = [to_float32(x) if x.dtype == np.uint16 else x.astype(np.float32) for x in operands[:2]]
    left, right = (x.swapaxes(-1, -2) if turn else x for x, turn in zip(wide, turned, strict=True))
    interpret(scheduled, *operands)
    np.testing.assert_array_equal(operands[2], left @ right * 2)


@pytest.mark.parametrize(
    ("turned", "shape", "dtype", "tile"),
    [
        ((True, False), (40, 64, 72), "bfloat16", (1, 64, 3, 8, 1)),
        ((True, True), (64, 32, 128), "float16", (1, 32, 3, 8, 1)),
    ],
)
def test_warp_groups_read_rows_that_are_neighbours(
    turned: tuple[bool, bool], shape: tuple[int, int, int], dtype: str, tile: tuple[int, ...]
) -> None:
    func = product(*shape, turned, dtype)
    scheduled = by_tile(func, "group_tile", tile)
    check_product(func, scheduled, turned)
    source = text(scheduled, WGMMA)
    kind = "f16" if dtype == "float16" else "bf16"
    assert f"tw_wgmma_{kind}_across_{'' if turned[1] else 'panels_'}n{tile[1]}(" in source
    assert f"p, 1, 1, 1, {int(not turned[1])};" in source and "tw_copy_async_16(" in source


def test_rows_lie_as_the_instruction_reads_them() -> None:
    item = GroupProduct(HALF, 64, across=True)
    for row, step in ((0, 0), (7, 1), (8, 7), (63, 8), (37, 61)):
        # By the manual: runs of eight rows, eight of them a line of 128 bytes; a line for each step, blocks of eight
        # lines 1024 bytes apart, as the descriptor says.
        at = row % 8 + row // 8 * 8 + step % 8 * 64 + step // 8 * (1024 // 2)
        assert np.ravel_multi_index(place(item.rows_layout, row, step), (1, 64, 64)) == at
    assert place(item.rows_layout, 3, 130, 5) == [3, 2, 5, 2]
    assert place(GroupProduct(HALF, 64).rows_layout, 130, 5) == [130, 5]


def test_only_types_of_16_bits_lie_across() -> None:
    for dtype in ("float32", "int8", "float8_e4m3fn"):
        item = DataType.of(dtype)
        assert group_product(WGMMA, item, item, 64) is not None
        assert group_product(WGMMA, item, item, 64, across=True) is None


def test_rows_of_odd_lengths_are_copied_by_words() -> None:
    func = product(50, 42, 98, (True, False))
    scheduled = by_tile(func, "group_tile", (1, 64, 3, 8, 1))
    check_product(func, scheduled, (True, False))
    source = text(scheduled, WGMMA)
    assert "tw_copy_async_4(" in source and "tw_copy_async_16(" not in source
    # Halves at odd places are copied by no instruction that threads need not wait for.
    odd = text(schedule_gpu(product(511, 1001, 513, (True, False)), WGMMA), WGMMA)
    assert "tw_wgmma" not in odd


def test_results_of_odd_lengths_are_written_by_pairs() -> None:
    func = product(32, 42, 64, (False, True))
    scheduled = by_tile(func, "group_tile", (1, 48, 3, 8, 1))
    check_product(func, scheduled, (False, True))
    assert "*(float2*)(d_ + " in text(scheduled, WGMMA)


def test_products_of_gradients_choose_tensor_cores() -> None:
    for turned, words in (((True, False), "across_panels_"), ((True, True), "across_"), ((False, True), "")):
        source = text(schedule_gpu(product(768, 768, 2048, turned), WGMMA), WGMMA)
        assert f"tw_wgmma_f16_{words}n" in source, turned
        if turned == (True, False):
            require_nvrtc()
            assert b"ELF" in compile_cuda(source, "sm_90a")[:8]


def test_warps_read_columns_with_rows_of_steps() -> None:
    func = product(16, 32, 64, (False, True), "bfloat16", (3,))
    scheduled = by_tile(func, "warp_tile", (16, 32, 1, 1, 32, 2, 1, 1))
    check_product(func, scheduled, (False, True))
    source = text(scheduled, HOPPER)
    assert "tw_ldmatrix_x4(" in source and "tw_ldmatrix_x4_trans(" not in source
    assert source.count("tw_copy_async_16(") >= 2


@pytest.mark.parametrize(
    ("size", "channels", "outputs", "kernel", "stride", "tile"),
    [
        (6, 16, 32, 2, 1, (1, 64, 3, 8, 1)),
        (13, 16, 40, 2, 2, (1, 64, 3, 8, 2)),
    ],
)
def test_weight_gradients_are_products_over_pixels(
    size: int, channels: int, outputs: int, kernel: int, stride: int, tile: tuple[int, ...]
) -> None:
    around = kernel // 2
    pixels = (size + 2 * around - kernel) // stride + 1
    x = te.placeholder((2, size, size, channels), "float16", "x")
    g = te.placeholder((2, pixels, pixels, outputs), "float16", "g")
    attributes = {
        "strides": (stride, stride),
        "padding": (around,) * 4,
        "data_layout": "NHWC",
        "kernel_layout": "HWIO",
        "kernel": (kernel, kernel),
    }
    (y,) = apply_operator("nn.conv2d_weight_gradient", [x, g], **attributes)
    func = create_prim_func([x, g, y], "gradient")
    scheduled = by_tile(func, "group_tile", tile)
    operands = arrays(func)
    interpret(scheduled, *operands)
    wanted = weight_gradient(operands[:2], Conv2dWeightGradientAttributes(**attributes))  # type: ignore[arg-type]
    np.testing.assert_array_equal(operands[2], wanted)
    source = text(scheduled, WGMMA)
    assert f"tw_wgmma_f16_across_panels_n{tile[1]}(" in source and source.count("__global__") == min(2, tile[-1])


def test_weight_gradients_of_many_pixels_have_many_parts() -> None:
    x, g = (te.placeholder((32, 56, 56, 64), "float16", name) for name in "xg")
    attributes = {"padding": (1, 1, 1, 1), "data_layout": "NHWC", "kernel_layout": "HWIO", "kernel": (3, 3)}
    (y,) = apply_operator("nn.conv2d_weight_gradient", [x, g], **attributes)
    choices = Choices()
    schedule_gpu(create_prim_func([x, g, y], "gradient"), WGMMA, choices)
    tile = choices.answers["group_tile"]
    assert isinstance(tile, tuple) and tile[-1] >= 32


TF32_GROUPS = WGMMA.replace(features="+tf32")


@pytest.mark.parametrize(
    ("target", "question", "tile", "shape", "turned"),
    [
        (TF32_GROUPS, "warp_tile", (16, 16, 2, 1, 8, 3, 1, 1), (32, 32, 24), (True, False)),
        (TF32_GROUPS, "warp_tile", (32, 16, 1, 2, 16, 2, 1, 1), (40, 24, 36), (True, False)),
        (TF32_GROUPS, "warp_tile", (16, 16, 1, 1, 16, 2, 2, 1), (32, 32, 64), (True, False)),
        (TF32_GROUPS, "warp_tile", (16, 16, 2, 1, 8, 3, 1, 1, 3), (36, 24, 100), (True, False)),
        (WGMMA, "tile", (8, 8, 2, 4, 1, 8, 3, 1), (32, 64, 40), (True, False)),
        (WGMMA, "tile", (4, 8, 4, 4, 1, 8, 2, 1, 5), (36, 40, 160), (True, False)),
        (WGMMA, "tile", (8, 4, 2, 4, 2, 16, 2, 1), (20, 36, 50), (True, False)),
        (WGMMA, "tile", (4, 4, 4, 8, 1, 8, 2, 1, 2), (32, 44, 70), (False, False)),
    ],
)
def test_words_are_read_along_rows(
    target: Target, question: str, tile: tuple[int, ...], shape: tuple[int, int, int], turned: tuple[bool, bool]
) -> None:
    """Gradients of float32 weights: the first operand is copied as it lies, blocks may share the steps."""
    func = product(*shape, turned, "float32")
    answer = {question: tile, "group_tile": ()}
    choices = Choices(answer=lambda asked: answer.get(asked.name, asked.default))
    scheduled = schedule_gpu(func, target, choices)
    assert choices.answers[question] == tile
    check_product(func, scheduled, turned)
    source = text(scheduled, target)
    assert source.count("__global__") == 1 + (len(tile) > 8)
    if turned[0]:
        assert source.count("tw_copy_async_16(") >= 2
        assert "tw_mma_tf32(" in source or target is WGMMA
    require_nvrtc()
    assert b"ELF" in compile_cuda(source, "sm_90a")[:8]


def test_large_products_in_tf32_do_not_round_again() -> None:
    """The graph has rounded what they read, since warp groups would cut bits off."""
    source = text(schedule_gpu(product(768, 768, 2048, (True, False), "float32"), TF32_GROUPS), TF32_GROUPS)
    assert "tw_mma_tf32_rounded(" in source and "cvt.rna" not in source
    small = text(schedule_gpu(product(64, 64, 64, (True, False), "float32"), TF32_GROUPS), TF32_GROUPS)
    assert "tw_mma_tf32(" in small and "cvt.rna.tf32" in small


@pytest.mark.parametrize("features", ["", "+tf32"])
def test_weight_gradients_of_words_fill_the_device(features: str) -> None:
    """Few results, many pixels: so many blocks share the steps that every multiprocessor has one."""
    target = WGMMA.replace(features=features)
    x, g = (te.placeholder((32, 56, 56, 64), "float32", name) for name in "xg")
    attributes = {"data_layout": "NHWC", "kernel_layout": "HWIO", "kernel": (1, 1)}
    (y,) = apply_operator("nn.conv2d_weight_gradient", [x, g], **attributes)
    choices = Choices()
    source = text(schedule_gpu(create_prim_func([x, g, y], "gradient"), target, choices), target)
    tile = choices.answers["warp_tile" if features else "tile"]
    assert isinstance(tile, tuple) and len(tile) == 9 and tile[-1] >= 32
    assert source.count("__global__") == 2 and "tw_copy_async_16(" in source and "tw_copy_async_4(" not in source


@pytest.mark.parametrize("target", ["cuda -arch=sm_90a", "cuda -arch=sm_90a -mattr=+tf32", "opencl"])
def test_products_of_any_size_have_a_tile(target: str) -> None:
    """Also where rows are read along vectors of them, and there are few."""
    for rows, columns, depth in ((4, 4, 8), (6, 12, 8), (12, 4, 40), (32, 4, 8), (36, 8, 60)):
        func = product(rows, columns, depth, (True, False), "float32")
        check_product(func, schedule_gpu(func, Target(target)), (True, False))


def test_products_that_no_pass_rounds_do_it_themselves() -> None:
    """Transposed convolutions, say: warps multiply those whose second operand alone lies across."""
    func = product(768, 768, 2048, (False, False), "float32")
    assert "tw_mma_tf32(" in text(schedule_gpu(func, TF32_GROUPS), TF32_GROUPS)
