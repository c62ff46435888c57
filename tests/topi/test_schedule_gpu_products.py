"""Products and convolutions on GPUs: matrix form, tiles, the reduction in slices, copies ahead of their use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.codegen.on_device import OPENCL, cuda_text, on_opencl, require_nvrtc
from tests.topi.differential import Array, operator_program, random_array, results_of, run_reference
from tests.topi.scheduling import schedule_gpu
from tilewright import te
from tilewright.backends.backend import lower
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.ir.expr import const_value
from tilewright.target import Target
from tilewright.te.program import create_prim_func
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.split_host_device import split_host_device
from tilewright.tir.schedule import Schedule
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.matrix_form import find_product, lanes_along, matrix_form, pad_form
from tilewright.topi.schedule.gpu.products import tileable_output
from tilewright.topi.schedule.gpu.register_tiles import Tile
from tilewright.topi.schedule.gpu.tile_choice import Shape, ranked_tiles, tile_options
from tilewright.topi.schedule.packing import packing_of

HOPPER = Target("cuda -arch=sm_90a -num-cores=132 -shared-bytes=232448")
Case = tuple[str, Sequence[Array], dict[str, Any]]
RNG = np.random.default_rng(7)


def _(*shape: int) -> Array:
    return random_array(RNG, shape)


def _conv(shape: tuple[int, ...], weight: tuple[int, ...], **attributes: Any) -> Case:
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return "nn.conv2d", [_(*shape), _(*weight)], {**layouts, **attributes}


CASES: list[Case] = [
    ("matmul", [_(64, 48), _(48, 80)], {}),
    ("matmul", [_(3, 17, 32), _(3, 32, 13)], {}),
    ("matmul", [_(33, 24), _(40, 24)], {"transpose_b": True}),
    ("matmul", [_(24, 31), _(24, 37)], {"transpose_a": True}),
    ("matmul", [_(5, 200), _(200, 7)], {}),
    _conv((1, 9, 9, 8), (3, 3, 8, 16), padding=(1, 1, 1, 1)),
    _conv((2, 11, 7, 3), (5, 5, 3, 10), strides=(2, 2), padding=(2, 2, 2, 2)),
    _conv((1, 9, 9, 6), (3, 3, 6, 5), dilation=(2, 2), padding=(0, 1, 2, 0)),
    _conv((1, 8, 8, 20), (1, 1, 20, 12), strides=(2, 2)),
    _conv((1, 7, 7, 8), (3, 3, 4, 8), groups=2),
    ("nn.conv2d", [_(2, 6, 9, 9), _(8, 6, 3, 3)], {"padding": (1, 1, 1, 1)}),
    (
        "nn.conv2d_transpose",
        [_(1, 5, 5, 12), _(4, 4, 12, 8)],
        {"strides": (2, 2), "padding": (1, 1, 1, 1), "data_layout": "NHWC", "kernel_layout": "HWIO"},
    ),
]


def _unscheduled(case: Case, name: str = "kernel") -> PrimFunc:
    return operator_program(case[0], case[1], name, **case[2])


def _check(case: Case, got: Array) -> None:
    (wanted,) = run_reference(case[0], case[1], **case[2])
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5, err_msg=f"{case[0]} {case[2]}")


@pytest.mark.grid
@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("target", [OPENCL, HOPPER], ids=["opencl", "cuda"])
def test_lowered_programs_compute_the_same(number: int, target: Target) -> None:
    """Interpreted, threads in step from barrier to barrier: one that is missing gives other results."""
    case = CASES[number]
    func = _unscheduled(case)
    (got,) = results_of(func, case[1])
    lowered = lower(schedule_gpu(func, target), target)
    interpret(lowered, *[array.reshape(-1) for array in case[1]], got.reshape(-1))
    _check(case, got)


def test_products_on_a_device() -> None:
    programs = [_unscheduled(case, f"case{n}") for n, case in enumerate(CASES)]
    module = on_opencl([schedule_gpu(func, OPENCL) for func in programs])
    for number, (case, func) in enumerate(zip(CASES, programs, strict=True)):
        (got,) = results_of(func, case[1])
        module[f"case{number}"](*case[1], got)
        _check(case, got)


@cache
def _layer(rows: int = 14, channels: int = 64, columns: int = 32) -> tuple[PrimFunc, list[Array]]:
    """A convolution with bias, an addition and ReLU."""
    shapes = [(1, rows, rows, channels), (3, 3, channels, columns), (columns,), (1, rows, rows, columns)]
    x, w, bias, other = (te.placeholder(shape, "float32", f"in{n}") for n, shape in enumerate(shapes))
    (y,) = apply_operator("nn.conv2d", [x, w], padding=(1, 1, 1, 1), data_layout="NHWC", kernel_layout="HWIO")
    z = te.compute(
        shapes[3],
        lambda n, i, j, c: te.maximum(y[n, i, j, c] + bias[c] + other[n, i, j, c], te.const(0.0, "float32")),
        "z",
    )
    func = create_prim_func([x, w, bias, other, z], "layer")
    arrays = [random_array(np.random.default_rng(3), shape) for shape in shapes]
    return func.replace(attributes={**func.attributes, CONSTANTS: (1, 2)}), arrays


TILES = [
    Tile(7, 8, 4, 4, slices=4, step=32, stages=3),
    Tile(3, 4, 4, 8, slices=1, step=16, stages=2),
    Tile(5, 8, 2, 4, slices=8, step=64, stages=1),
    Tile(2, 4, 16, 2, slices=2, step=128, stages=4),
    Tile(4, 4, 4, 4, slices=2, step=8, stages=2, cluster=4),
    Tile(2, 8, 4, 2, slices=1, step=16, stages=3, cluster=2),
    Tile(4, 8, 4, 2, slices=1, step=16, stages=3, transposed=1),
]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles_compute_the_same(tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    func, arrays = _layer(6, 8, 16)
    monkeypatch.setattr("tilewright.topi.schedule.gpu.products.ranked_tiles", lambda shape, target: [tile])
    wanted, got = (np.zeros((1, 6, 6, 16), "float32") for _ in range(2))
    interpret(func, *arrays, wanted)
    lowered = lower(schedule_gpu(func, HOPPER), HOPPER)
    interpret(lowered, *[array.reshape(-1) for array in arrays], got.reshape(-1))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)


def test_large_matrices_are_transposed_on_the_way_to_shared_memory() -> None:
    """Words of eight steps of four rows are copied by a warp: whole sectors, and all banks."""

    def text_of(case: Case) -> str:
        return cuda_text([schedule_gpu(_unscheduled(case), HOPPER)], HOPPER)

    source = text_of(("matmul", [_(4096, 768), _(768, 3072)], {}))
    assert "tw_copy_async_4(" in source and "* 68)" in source and "tw_copy_async_16(" in source
    assert ": (7 - " in source, "rows run to and fro"
    require_nvrtc()
    compile_cuda(source, "sm_90a")
    assert "tw_copy_async_4(" not in text_of(_conv((4, 56, 56, 128), (3, 3, 128, 256), padding=(1, 1, 1, 1)))


def test_a_convolution_is_one_kernel_of_asynchronous_copies_and_vectors() -> None:
    func, _ = _layer()
    choices = Choices()
    scheduled = schedule_gpu(func, HOPPER, choices)
    assert list(choices.asked) == ["tile"]
    text = cuda_text([scheduled], HOPPER)
    assert text.count("__global__") == 1
    assert "cp.async.cg.shared.global" in text and "tw_copy_async_16(" in text
    assert "*(float4*)(z_" in text and "*(const float4*)(in3_" in text
    main = text[text.rindex("tw_async_wait_") :]
    main = main[: main.index("tw_async_commit();")]
    assert main.count("__syncthreads();") == 1
    require_nvrtc()
    assert len(compile_cuda(text, "sm_90a")) > 5000


def test_weights_are_on_their_way_before_the_kernel_waits_for_others() -> None:
    func, _ = _layer()
    text = cuda_text([schedule_gpu(func, HOPPER)], HOPPER)
    body = text[text.index("__global__") :]
    before, after = body.split("griddepcontrol.wait", 1)
    # Constants alone: what other kernels write is not promised to be read-only either.
    assert "tw_copy_async_16(in1" in before and "tw_copy_async_16(pad" not in before
    assert (
        "tw_copy_async_16(pad" in after and "const float* in0_" in before and "const float* __restrict__ in1_" in before
    )
    # The first groups of copies have the rows of one iteration each, the first of them all constants.
    prologue = after[: after.index("tw_async_wait_")]
    assert prologue.count("tw_async_commit();") == 1 and "tw_async_commit" not in before


def test_blocks_of_a_cluster_share_the_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    func, _ = _layer(14, 64, 32)
    tile = Tile(4, 8, 8, 4, slices=2, step=16, stages=4, cluster=4)
    monkeypatch.setattr("tilewright.topi.schedule.gpu.products.ranked_tiles", lambda shape, target: [tile])
    scheduled = schedule_gpu(func, HOPPER)
    (kernel,) = split_host_device(lower(scheduled, HOPPER), HOPPER).kernels
    assert kernel.cluster == 4
    assert [const_value(extent) for extent in kernel.grid] == [4, 7, 1]
    assert {buffer.scope for buffer in kernel.shared} == {"shared", "shared.cluster"}
    text = cuda_text([scheduled], HOPPER)
    assert text.count("barrier.cluster.arrive.aligned") == 2
    # Neighbouring threads read neighbouring vectors of another block's memory.
    assert re.search(r"tw_cluster_load_float4\(.*\(thread_x_ \* 4\)\)", text)
    require_nvrtc()
    assert len(compile_cuda(text, "sm_90a")) > 5000
    monkeypatch.undo()
    assert any(option.cluster > 1 for option in tile_options(ranked_tiles(Shape(1, 49, 512, 4608), HOPPER)))
    assert all(option.cluster == 1 for option in ranked_tiles(Shape(1, 49, 512, 4608), Target("cuda -arch=sm_80")))


@pytest.mark.parametrize(
    "tile",
    [
        Tile(7, 8, 4, 4, slices=16, step=128, stages=3),
        Tile(8, 4, 1, 4, slices=8, step=64, stages=2),
        Tile(4, 4, 8, 1, slices=4, step=32, stages=2),
    ],
    ids=str,
)
def test_tiles_are_as_large_as_they_were_asked_for(tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    func, _ = _layer(28, 128, 128)
    monkeypatch.setattr("tilewright.topi.schedule.gpu.products.ranked_tiles", lambda shape, target: [tile])
    (kernel,) = split_host_device(lower(schedule_gpu(func, HOPPER), HOPPER), HOPPER).kernels
    assert 0 <= tile.shared_bytes(4) - kernel.shared_bytes <= 64
    assert kernel.block == (tile.column_threads, tile.row_threads, tile.slices)


def test_constant_weights_are_stored_in_the_order_of_their_copy() -> None:
    func = _unscheduled(CASES[2])
    func = func.replace(attributes={**func.attributes, CONSTANTS: (1,)})
    packing = packing_of(schedule_gpu(func, HOPPER))
    assert packing[1].rearrange(np.zeros((40, 24), "float32")).shape == (24, 40)


def test_the_form_knows_what_can_be_read_at_once() -> None:
    func, _ = _layer(9, 8, 12)
    context = ScheduleContext(Schedule(func), HOPPER)
    sch = context.sch
    anchor = sch.get_block("conv2d")
    product = find_product(context.block(anchor))
    assert product is not None
    assert [product.size(group) for group in (product.row, product.column, product.depth)] == [81, 12, 72]
    output = tileable_output(context, anchor)
    assert not isinstance(output, str) and output.name == "z"
    form = matrix_form(context, anchor, output)
    pad_form(context, form, 24, 16, 32)
    assert [item.domain.extent.value for item in context.block(form.anchor).iters] == [96, 16, 96]
    assert lanes_along(context, form.rows, 1) == 4
    assert lanes_along(context, form.rows, 0) == 1
    assert lanes_along(context, form.columns, 1) == 4
    # Three channels: neighbours along the steps are not at multiples of anything.
    odd = _unscheduled(CASES[6])
    context = ScheduleContext(Schedule(odd), HOPPER)
    anchor = context.sch.get_block("conv2d")
    form = matrix_form(context, anchor, anchor)
    assert lanes_along(context, form.rows, 1) == 1


def test_the_model_fills_the_machine() -> None:
    """Few rows and columns: the reduction is shared, so that most multiprocessors have something to do."""
    best = ranked_tiles(Shape(1, 196, 256, 2304), HOPPER)[0]
    blocks = -(-196 // best.block_rows) * -(-256 // best.block_columns)
    assert best.parts >= 4 and blocks * best.cluster >= 66
    large = ranked_tiles(Shape(1, 4096, 4096, 4096), HOPPER)[0]
    assert large.rows * large.columns >= 48 and not large.transposed
    matrix = ranked_tiles(Shape(1, 4096, 4096, 4096, is_matrix=True), HOPPER)[0]
    assert matrix.transposed and Tile(*matrix.answer) == matrix and len(large.answer) == 8
    assert not any(tile.transposed for tile in ranked_tiles(Shape(1, 512, 512, 512, is_matrix=True), OPENCL))
    for tile in ranked_tiles(Shape(1, 64, 64, 64), OPENCL)[:50]:
        assert tile.threads <= OPENCL.max_threads and tile.shared_bytes(4, reused=False) <= OPENCL.shared_bytes
