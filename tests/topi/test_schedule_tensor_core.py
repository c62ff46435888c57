"""Products on tensor cores: fragments as the instructions have them, schedules of one meaning, text that compiles."""

from __future__ import annotations

import importlib
import re

import numpy as np
import pytest

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.codegen.on_device import require_nvrtc
from tests.topi.scheduling import schedule_gpu
from tilewright import te
from tilewright.arith.analyzer import Analyzer
from tilewright.backends.backend import lower
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.backends.cuda.dialect import CudaDialect
from tilewright.codegen.c.kernels import emit_kernels
from tilewright.graph.interpreter import to_bfloat16, to_float32
from tilewright.ir.build import cast
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.expr import const_value
from tilewright.support.errors import UnsupportedError
from tilewright.target import Target
from tilewright.te.program import create_prim_func
from tilewright.tir.function import PrimFunc
from tilewright.tir.index_map import IndexMap
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.split_host_device import split_host_device
from tilewright.tir.schedule.schedule import Schedule
from tilewright.topi.intrinsics.tensor_core import WarpProduct, warp_product
from tilewright.topi.intrinsics.warp_group import GroupProduct, group_product
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.matrix_form import matrix_form
from tilewright.topi.schedule.gpu.warp_groups import GroupTile, producer_registers, schedule_group_tiles
from tilewright.topi.schedule.packing import CONSTANTS, packing_of, with_packing

HOPPER = Target("cuda -arch=sm_90 -num-cores=132 -shared-bytes=232448")
WGMMA = HOPPER.replace(arch="sm_90a")
TF32 = HOPPER.replace(features="+tf32")
HALF = DataType.of("float16")


def product(rows: int, columns: int, depth: int, dtype: str, out: str, lead: tuple[int, ...] = ()) -> PrimFunc:
    """A matrix product (or several) with sums in the wide type, and its result in another."""
    total = DataType.of("float32" if DataType.of(dtype).is_float else "int32")
    a = te.placeholder((*lead, rows, depth), dtype, "a")
    b = te.placeholder((*lead, depth, columns), dtype, "b")
    k = te.reduce_axis((0, depth), "k")

    def wide(x: te.Tensor) -> te.Tensor:
        return x if str(total) == dtype else cast(x, total)  # type: ignore[arg-type, return-value]

    c = te.compute(
        (*lead, rows, columns),
        lambda *i: te.sum(wide(a[(*i[:-1], k)]) * wide(b[(*i[:-2], k, i[-1])]), axis=k),  # type: ignore[arg-type]
        "c",
    )
    d = te.compute(c.shape, lambda *i: cast(c[i] * 2, DataType.of(out)), "d")
    return create_prim_func([a, b, d], "product")


def text(func: PrimFunc, target: Target = HOPPER) -> str:
    """The CUDA text of a scheduled function."""
    return emit_kernels(split_host_device(lower(func, target), target).kernels, CudaDialect())


def arrays(func: PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """Random operands, small enough that sums are exact in any order, and a result that is not a number."""
    random = np.random.default_rng(seed)
    made = []
    for buffer in func.buffers:
        shape, kind = buffer.static_shape, buffer.dtype.numpy()
        assert shape is not None
        values = random.integers(0 if buffer.dtype.is_uint else -3, 4, shape)
        made.append(to_bfloat16(values.astype(np.float32)) if buffer.dtype.name == "bfloat16" else values.astype(kind))
    return made


@pytest.mark.parametrize(
    ("dtype", "out", "shape", "tile", "target"),
    [
        ("float16", "float16", (32, 32, 32), (16, 16, 2, 2, 16, 3), HOPPER),
        ("float16", "float32", (20, 24, 36), (16, 16, 1, 2, 32, 2), HOPPER),
        ("float16", "float32", (20, 32, 100), (16, 16, 2, 1, 64, 2, 4), HOPPER),
        ("float16", "float16", (20, 40, 100), (16, 32, 1, 1, 32, 2, 2, 2), HOPPER),
        ("float16", "float32", (16, 16, 96), (16, 16, 1, 1, 16, 2, 1, 4), HOPPER),
        ("bfloat16", "float32", (16, 16, 64), (16, 16, 1, 1, 64, 2, 2), HOPPER),
        ("float32", "float32", (16, 32, 16), (16, 32, 1, 1, 8, 2), TF32),
        ("int8", "int32", (16, 16, 64), (16, 16, 1, 1, 32, 2), HOPPER),
        ("uint8", "int32", (16, 24, 32), (16, 16, 1, 1, 32, 1), HOPPER),
    ],
)
def test_scheduled_products_mean_the_same(
    dtype: str, out: str, shape: tuple[int, int, int], tile: tuple[int, ...], target: Target
) -> None:
    func = product(*shape, dtype, out)
    choices = Choices(answer=lambda question: tile if question.name == "warp_tile" else question.default)
    scheduled = schedule_gpu(func, target, choices)
    assert "warp_tile" in choices.answers
    operands = arrays(func)
    wide = [to_float32(item) if dtype == "bfloat16" else item.astype(np.float64) for item in operands[:2]]
    interpret(scheduled, *operands)
    wanted = (wide[0] @ wide[1] * 2).astype(operands[2].dtype)
    np.testing.assert_array_equal(operands[2], wanted)
    assert "tw_mma" in text(scheduled, target)


def test_convolutions_and_batches_of_products_use_them() -> None:
    x, w = te.placeholder((1, 14, 14, 16), "float16", "x"), te.placeholder((3, 3, 16, 32), "float16", "w")
    how = {"strides": (2, 2), "padding": (1, 1, 1, 1), "data_layout": "NHWC", "kernel_layout": "HWIO"}
    (y,) = apply_operator("nn.conv2d", [x, w], **how)
    z = te.compute(y.shape, lambda *i: te.maximum(y[i], te.const(0.0, "float16")), "z")
    source = text(schedule_gpu(create_prim_func([x, w, z], "conv"), HOPPER))
    assert all(
        word in source for word in ("tw_mma_f16(", "tw_ldmatrix_x4(", "tw_ldmatrix_x4_trans(", "tw_copy_async_16(")
    )
    assert source.count("__global__") == 1
    assert "tw_mma_bf16(" in text(schedule_gpu(product(64, 64, 32, "bfloat16", "bfloat16", lead=(3,)), HOPPER))
    several = text(schedule_gpu(product(64, 64, 32, "float16", "float16", lead=(1, 3)), HOPPER))
    assert several.count("__global__") == 1 and "tw_mma_f16(" in several
    # What was rounded to a half is stored as it is.
    assert "tw_half_bits_float(tw_half_value(" not in several


def test_true_float32_stays_true_float32() -> None:
    func = product(64, 64, 64, "float32", "float32")
    assert "tw_mma" not in text(schedule_gpu(func, HOPPER))
    assert "tw_mma_tf32" in text(schedule_gpu(func, TF32), TF32)


def test_older_gpus_have_none() -> None:
    old = Target("cuda -arch=sm_70")
    assert warp_product(old, HALF, HALF) is None
    func = schedule_gpu(product(64, 64, 64, "float16", "float16"), HOPPER)
    with pytest.raises(UnsupportedError, match=r"cuda.ldmatrix.x4 needs \+sm_75"):
        text(func, old.replace(shared_bytes=232448))
    assert "tw_mma" not in text(schedule_gpu(product(64, 64, 64, "float16", "float16"), old), old)


def place(layout: object, *index: int) -> list[int]:
    """Where an element goes."""
    found = IndexMap.of(layout, len(index)).apply([te.const(i, "int64") for i in index])  # type: ignore[arg-type]
    return [const_value(Analyzer().simplify(item)) or 0 for item in found]


@pytest.mark.parametrize(("dtype", "group"), [("float16", 2), ("float32", 1), ("int8", 4)])
def test_fragments_lie_as_the_instruction_has_them(dtype: str, group: int) -> None:
    item = WarpProduct(DataType.of(dtype), DataType.of(dtype))
    half = 4 * group
    for lane in range(32):
        for register in range(4):
            for part in range(group):
                # Upper and lower eight rows of the first half of steps, then of the rest.
                row, step = lane // 4 + register % 2 * 8, lane % 4 * group + part + register // 2 * half
                assert place(item.rows_layout, row, step) == [0, 0, lane, register // 2, register % 2, part]
        for register in range(2):
            for part in range(group):
                step = lane % 4 * group + part + register * half
                assert place(item.columns_layout, step, lane // 4) == [0, 0, lane, register, part]
        for register in range(4):
            row, column = lane // 4 + register // 2 * 8, lane % 4 * 2 + register % 2
            assert place(item.sums_layout, row, column) == [0, 0, lane, register // 2, register % 2]
    assert place(item.rows_layout, 5, 17 % item.depth + item.depth)[:2] == [0, 1]
    assert place(item.sums_layout, 37, 19)[:2] == [2, 2]


def test_the_text_compiles() -> None:
    require_nvrtc()
    for dtype, target in (("float16", HOPPER), ("bfloat16", HOPPER), ("float32", TF32), ("int8", HOPPER)):
        out = "int32" if dtype == "int8" else dtype
        source = text(schedule_gpu(product(128, 128, 64, dtype, out), target), target)
        assert b"ELF" in compile_cuda(source, "sm_90")[:8]


def grouped(func: PrimFunc, tile: GroupTile, dtype: str = "float16", panels: bool = True) -> PrimFunc:
    """A product by warp groups."""
    context = ScheduleContext(Schedule(func), WGMMA)
    anchor, output = context.sch.blocks()
    item = group_product(WGMMA, DataType.of(dtype), DataType.of(dtype), tile.columns, panels)
    assert item is not None
    schedule_group_tiles(context, matrix_form(context, anchor, output, steps_last=not panels), item, tile)
    return with_packing(context.sch.func, context.packing)


def with_constant(func: PrimFunc) -> PrimFunc:
    """The product with a second operand that is a constant: schedules may rearrange it."""
    return func.replace(attributes={**func.attributes, CONSTANTS: (1,)})


def test_warp_groups_mean_the_same() -> None:
    func = product(60, 64, 128, "float16", "float32")
    scheduled = grouped(func, GroupTile(1, 64, 3))
    operands = arrays(func)
    interpret(scheduled, *operands)
    np.testing.assert_array_equal(operands[2], operands[0].astype(np.float32) @ operands[1].astype(np.float32) * 2)


@pytest.mark.parametrize(
    ("dtype", "shape", "tile"),
    [
        ("float16", (60, 32, 128), GroupTile(1, 32, 3)),
        ("bfloat16", (64, 40, 72), GroupTile(1, 48, 3)),
        ("float32", (70, 16, 64), GroupTile(2, 16, 4)),
    ],
)
def test_constants_of_warp_groups_lie_in_rows_of_steps(
    dtype: str, shape: tuple[int, int, int], tile: GroupTile
) -> None:
    func = with_constant(product(*shape, dtype, "float32"))
    scheduled = grouped(func, tile, dtype, panels=False)
    operands = arrays(func)
    wide = [to_float32(item) if dtype == "bfloat16" else item.astype(np.float32) for item in operands[:2]]
    # The schedule has the constant by columns.
    assert packing_of(scheduled)[1].apply(list(map(te.const, (3, 5))))[0] is te.const(5)
    operands[1] = np.ascontiguousarray(operands[1].T)
    interpret(scheduled, *operands)
    np.testing.assert_array_equal(operands[2], wide[0] @ wide[1] * 2)
    source = text(scheduled, WGMMA)
    kind = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32"}[dtype]
    assert f"tw_wgmma_{kind}_n{tile.columns}(" in source and "tw_copy_async_16(" in source


@pytest.mark.parametrize("shape", [(60, 48, 128), (64, 42, 100)])
def test_parts_of_the_steps_are_added_up_by_a_second_kernel(shape: tuple[int, int, int]) -> None:
    func = with_constant(product(*shape, "float16", "float32"))
    scheduled = grouped(func, GroupTile(1, 48, 3, parts=2), panels=False)
    operands = arrays(func)
    wanted = operands[0].astype(np.float32) @ operands[1].astype(np.float32) * 2
    operands[1] = np.ascontiguousarray(operands[1].T)
    interpret(scheduled, *operands)
    np.testing.assert_array_equal(operands[2], wanted)
    assert text(scheduled, WGMMA).count("__global__") == 2


@pytest.mark.parametrize("neighbours", [4, 8, 16])
def test_threads_of_warp_groups_have_neighbouring_columns(neighbours: int) -> None:
    item = GroupProduct(HALF, 64, neighbours=neighbours)
    eights = neighbours // 2
    for lane in range(0, 128, 13):
        for eight in range(8):
            for half in range(2):
                # By the manual: rows of a warp, and two columns of each eight; the columns are those of our order.
                row = lane // 32 * 16 + lane % 32 // 4 + half * 8
                for part in range(2):
                    own = eight % eights * 2 + part
                    column = eight // eights * 4 * neighbours + lane % 4 * neighbours + own
                    assert place(item.vectors_layout, row, column) == [0, 0, lane, eight // eights, half, own]
                    assert place(item.sums_layout, row, column) == [0, 0, lane, eight, half, part]
                    # That column is where the instruction reads the one that it gives this thread.
                    at = place(item.columns_layout, 7, column)
                    assert (
                        np.ravel_multi_index(at, (8 // eights, eights, 4, 2, 64))
                        == (eight * 8 + lane % 4 * 2 + part) * 64 + 7
                    )


def test_large_products_choose_warp_groups() -> None:
    for dtype, target in (("float16", WGMMA), ("float32", WGMMA.replace(features="+tf32"))):
        kind = "f16" if dtype == "float16" else "tf32"
        func = with_constant(product(1024, 1024, 1024, dtype, dtype))
        assert f"tw_wgmma_{kind}_packed_n" in text(schedule_gpu(func, target), target)
    assert "tw_wgmma_f16_panels_n" in text(schedule_gpu(product(1024, 1024, 1024, "float16", "float16"), WGMMA), WGMMA)
    assert "tw_wgmma" not in text(schedule_gpu(product(1024, 1024, 1024, "float32", "float32"), WGMMA), WGMMA)


def test_warp_groups_read_ahead_and_wait() -> None:
    # With three copies of the tiles all threads copy.
    source = text(grouped(product(512, 512, 512, "float16", "float16"), GroupTile(2, 256, 3, 2)), WGMMA)
    body = source[source.index("__global__") :]
    # The first copies stand in front of the loop, so that its products are under no condition.
    assert 0 < body.index("tw_copy_async_16(") < body.index("tw_async_wait_0()")
    body = body[body.index("tw_async_wait_0()") :]
    order = ["tw_async_wait_0()", "tw_fence_async()", "__syncthreads()", "tw_copy_async_16(", "tw_async_commit()"]
    order += [
        "tw_wgmma_fence_n256(",
        "tw_wgmma_f16_panels_n256(",
        "tw_wgmma_commit()",
        "tw_wgmma_wait_1()",
        "tw_wgmma_finish_n256(",
    ]
    places = [body.index(word) for word in order]
    assert places == sorted(places)
    # One copy more than the pipeline is deep: products of the step before may still read theirs.
    assert "% 3)" in body
    require_nvrtc()
    assert len(compile_cuda(source, "sm_90a")) > 10000
    with pytest.raises(UnsupportedError, match=r"needs \+sm_90a"):
        text(grouped(product(128, 256, 128, "float16", "float16"), GroupTile(2, 256, 4)), HOPPER)


@pytest.mark.parametrize("tile", [GroupTile(2, 256, 4, 2), GroupTile(3, 192, 4, 2)])
def test_a_warp_group_copies_for_the_others(tile: GroupTile) -> None:
    func = with_constant(product(512, 512, 512, "float16", "float16"))
    scheduled = grouped(func, tile, panels=False)
    source = text(scheduled, WGMMA)
    body = source[source.index("__global__") :]
    less, more = producer_registers(tile, 8, WGMMA) or (0, 0)
    copying, computing = body.split("} else {", 1)
    order = [f"tw_registers_less_{less}()", "tw_mbarrier_wait(", "tw_copy_async_16(", "tw_mbarrier_copied("]
    places = [copying.index(word) for word in order]
    assert places == sorted(places) and "tw_wgmma" not in copying
    order = [f"tw_registers_more_{more}()", "tw_mbarrier_wait(", "tw_fence_async()", f"tw_wgmma_f16_n{tile.columns}("]
    order += ["tw_wgmma_wait_1()", "tw_mbarrier_arrive(", f"tw_wgmma_finish_n{tile.columns}(", "launch_dependents"]
    places = [computing.index(word) for word in order]
    assert places == sorted(places) and "tw_copy_async" not in computing
    # Threads meet once, when the barriers are there; what fills a thread is read through a pointer that moves.
    assert body.count("__syncthreads()") == 1
    assert copying.count(" + (k_0_ * 64), ") == copying.count("tw_copy_async_16(") == 2
    # One group more than compute; its registers and theirs are what a multiprocessor has.
    assert f"__launch_bounds__({128 * (tile.groups + 1)})" in source
    assert less + tile.groups * more <= 65536 // 128
    # Barriers lie behind the tiles, which start at multiples of 1024 bytes.
    offsets = [int(number) for number in re.findall(r"tw_shared \+ (\d+)", body)]
    assert sorted(offsets)[-1] == tile.shared_bytes - 16 * tile.stages and all(item % 1024 == 0 for item in offsets)
    require_nvrtc()
    assert len(compile_cuda(source, "sm_90a")) > 10000


def test_where_no_warp_group_copies_for_others() -> None:
    assert producer_registers(GroupTile(2, 256, 4), 5, WGMMA) is not None
    for tile, steps in (
        (GroupTile(2, 256, 4), 4),  # too few steps to run ahead
        (GroupTile(2, 64, 4), 64),  # another block shares the multiprocessor
        (GroupTile(1, 256, 3), 64),  # too few copies to run ahead
        (GroupTile(3, 256, 4), 64),  # the sums leave too few registers
        (GroupTile(2, 192, 5), 64),
    ):
        assert producer_registers(tile, steps, WGMMA) is None, tile
    source = text(grouped(product(512, 512, 512, "float16", "float16"), GroupTile(2, 64, 4)), WGMMA)
    assert "tw_wgmma" in source and "mbarrier" not in source


def test_residuals_are_read_before_results_are_written() -> None:
    a, b = te.placeholder((2, 4, 8, 64), "float16", "a"), te.placeholder((64, 32), "float16", "b")
    other = te.placeholder((2, 4, 8, 32), "float16", "other")
    k = te.reduce_axis((0, 64), "k")
    c = te.compute(
        (2, 4, 8, 32),
        lambda n, y, x, o: te.sum(cast(a[n, y, x, k], FLOAT32) * cast(b[k, o], FLOAT32), axis=k),
        "c",
    )
    d = te.compute(c.shape, lambda *i: cast(c[i], HALF) + other[i], "d")
    func = with_constant(create_prim_func([a, b, other, d], "residual"))
    scheduled = grouped(func, GroupTile(1, 32, 3), panels=False)
    operands = arrays(func)
    wanted = (operands[0].astype(np.float32) @ operands[1].astype(np.float32)).astype(np.float16) + operands[2]
    operands[1] = np.ascontiguousarray(operands[1].T)
    interpret(scheduled, *operands)
    np.testing.assert_array_equal(operands[3], wanted)
    source = text(scheduled, WGMMA)
    assert source.rindex("(other_ + ") < source.index("(d_ + ")


@pytest.mark.parametrize("depth", [128, 512])
def test_compilers_do_not_wait_for_single_products(depth: int) -> None:
    """NVRTC read sums too early that are rounded to halves at once: it serialized products, or got them wrong."""
    require_nvrtc()
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    x = te.placeholder((256, depth), "float16", "x")
    w = te.placeholder((depth, 128), "float16", "w")
    bias = te.placeholder((128,), "float16", "bias")
    k = te.reduce_axis((0, depth), "k")
    wide = [lambda i, j: cast(x[i, j], FLOAT32), lambda i, j: cast(w[i, j], FLOAT32)]
    y = te.compute((256, 128), lambda i, j: te.sum(wide[0](i, k) * wide[1](k, j), axis=k), "y")
    z = te.compute((256, 128), lambda i, j: cast(y[i, j], HALF) + bias[j], "z")
    func = with_constant(create_prim_func([x, w, bias, z], "layer"))
    source = text(grouped(func, GroupTile(2, 128, 3), panels=False), WGMMA)
    assert "#pragma unroll 1\n" in source
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], [])
    nvrtc.nvrtcCompileProgram(program, 2, [b"--gpu-architecture=sm_90a", b"--ptxas-options=-v"])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    assert b"registers" in log and b"serialized" not in log
