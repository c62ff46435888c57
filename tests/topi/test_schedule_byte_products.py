"""Products of 8-bit integers and floats on tensor cores: layouts, schedules of one meaning, text that compiles."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.codegen.on_device import require_nvrtc
from tests.topi.scheduling import schedule_gpu
from tests.topi.test_schedule_tensor_core import HOPPER, WGMMA, place, text
from tilewright import te
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.ir.build import cast
from tilewright.ir.dtype import FLOAT32, UINT8, DataType
from tilewright.target import Target
from tilewright.te.program import create_prim_func
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.schedule.schedule import Schedule
from tilewright.topi.intrinsics.tensor_core import WarpProduct
from tilewright.topi.intrinsics.warp_group import group_product
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.topi.schedule.gpu.group_choice import ranked_group_tiles
from tilewright.topi.schedule.gpu.matrix_form import matrix_form
from tilewright.topi.schedule.gpu.warp_groups import GroupTile, schedule_group_tiles
from tilewright.topi.schedule.packing import packing_of, with_packing

BYTES = ("int8", "int8"), ("uint8", "int8"), ("int8", "uint8")
FLOATS = ("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn")


def layer(shape: tuple[int, int, int], row: str, column: str, residual: bool = True) -> PrimFunc:
    """A product with scales, a residual of bytes, and rounding to bytes; the second operand is constant."""
    rows, columns, depth = shape
    total = DataType.of("float32" if DataType.of(row).is_float else "int32")
    a, b = te.placeholder((rows, depth), row, "a"), te.placeholder((depth, columns), column, "b")
    scale, other = te.placeholder((columns,), "float32", "scale"), te.placeholder((rows, columns), "uint8", "other")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(cast(a[i, k], total) * cast(b[k, j], total), axis=k), "c")

    def element(i: te.ExprLike, j: te.ExprLike) -> te.PrimExpr:
        value = cast(c[i, j], FLOAT32) * scale[j]
        if residual:
            value = value + cast(other[i, j], FLOAT32) * te.const(0.5, "float32")
        return cast(te.round(value), UINT8)

    d = te.compute(c.shape, element, "d")
    func = create_prim_func([a, b, scale, *([other] if residual else []), d], "layer")
    return func.replace(attributes={**func.attributes, CONSTANTS: (1, 2)})


def check(func: PrimFunc, scheduled: PrimFunc) -> None:
    """Interpret a scheduled layer and compare it with numpy, integer for integer."""
    random = np.random.default_rng(0)
    operands: list[np.ndarray] = []
    numbers: list[np.ndarray] = []
    for buffer in func.buffers:
        name, sizes = buffer.dtype.name, buffer.static_shape
        assert sizes is not None
        values = random.integers(0 if name == "uint8" else -4, 5, sizes).astype(np.float32)
        if name == "float32":
            values = values / 64
        numbers.append(values)
        is_small = name.startswith("float8")
        operands.append(values.astype(getattr(ml_dtypes, name)).view(np.uint8) if is_small else values.astype(name))
    wanted = numbers[0] @ numbers[1] * numbers[2]
    if len(numbers) == 5:
        wanted = wanted + numbers[3] * np.float32(0.5)
    if 1 in packing_of(scheduled):
        operands[1] = np.ascontiguousarray(operands[1].T)
    interpret(scheduled, *operands)
    np.testing.assert_array_equal(operands[-1], np.clip(np.rint(wanted), 0, 255).astype(np.uint8))


@pytest.mark.parametrize("vector", [4, 8, 16])
def test_neighbouring_columns_are_one_threads(vector: int) -> None:
    item = WarpProduct(DataType.of("uint8"), DataType.of("int8"), vector)
    width = 4 * vector
    for column in range(width):
        # A thread has `vector` neighbours; two of them are of the same instruction.
        thread, eight, part = column // vector, column % vector // 2, column % 2
        assert place(item.sums_layout, 9, column) == [0, 0, 4 + thread, eight, 1, part]
        # By the manual, the instruction's column n is in the registers of the threads 4 n to 4 n + 3.
        n = thread * 2 + part
        assert place(item.columns_layout, 21, column) == [0, 0, n * 4 + 1, eight, 1, 1]
        # What the epilogue reads beside the sum lies in a row with what the thread's other neighbours read.
        assert place(item.vectors_layout, 9, column) == [0, 0, 4 + thread, 1, column % vector]
        # And in shared memory it is row n of the eight.
        at = place(item.shared_layout, 5, width + column)
        assert np.ravel_multi_index(at, (2, vector // 2, 4, 2, 32)) == ((vector // 2 + eight) * 8 + n) * 32 + 5


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((32, 32, 64), (16, 16, 2, 2, 32, 3, 1, 1)),
        ((32, 64, 64), (32, 32, 1, 2, 64, 2, 1, 1)),
        ((20, 40, 100), (16, 32, 1, 1, 32, 2, 2, 2)),
    ],
)
def test_warps_mean_the_same(shape: tuple[int, int, int], tile: tuple[int, ...]) -> None:
    func = layer(shape, "uint8", "int8")
    given: dict[str, tuple[int, ...]] = {"warp_tile": tile, "group_tile": ()}
    choices = Choices(answer=lambda question: given.get(question.name, question.default))
    scheduled = schedule_gpu(func, WGMMA, choices)
    assert choices.answers.get("warp_tile") == tile
    check(func, scheduled)
    source = text(scheduled, WGMMA)
    # Both operands come by the instruction, and the residual of whole tiles is read before anything is written.
    assert "tw_mma_u8s8(" in source and source.count("tw_ldmatrix_x4(") >= 3 and "tw_round_uint8(" in source
    if shape[0] % 16 == 0:
        assert source.index("*)(other_") < source.index("*)(d_")


def test_bytes_of_warp_groups_are_read_and_written_sixteen_at_a_time() -> None:
    func = layer((64, 64, 128), "uint8", "int8")
    scheduled = schedule_gpu(func, WGMMA, Choices(given={"group_tile": (1, 64, 3, 8, 1)}))
    check(func, scheduled)
    source = text(scheduled, WGMMA)
    assert "*(const uint4*)(other_" in source and "*(uint4*)(d_" in source
    # A single step has one copy of its tiles, which threads do not hold in registers on their way.
    assert "tw_memory[16384]" in source and "tw_copy_async_16(" in source


def test_ragged_tiles_of_bytes_cost_more() -> None:
    tiles = ranked_group_tiles(1, 784, 2048, 512, DataType.of("uint8"), False, False, WGMMA)
    assert 2048 % tiles[0].columns == 0


def grouped(func: PrimFunc, tile: GroupTile, row: str, column: str) -> PrimFunc:
    context = ScheduleContext(Schedule(func), WGMMA)
    anchor, output = context.sch.blocks()
    item = group_product(WGMMA, DataType.of(row), DataType.of(column), tile.columns)
    assert item is not None
    schedule_group_tiles(context, matrix_form(context, anchor, output, steps_last=True), item, tile)
    return with_packing(context.sch.func, context.packing)


@pytest.mark.parametrize(("row", "column"), [BYTES[1], FLOATS[1]])
def test_warp_groups_mean_the_same(row: str, column: str) -> None:
    func = layer((60, 32, 128), row, column)
    scheduled = grouped(func, GroupTile(1, 32, 3), row, column)
    check(func, scheduled)
    kind, sums = ("u8s8", "s32_") if row == "uint8" else ("e5m2e4m3", "")
    source = text(scheduled, WGMMA)
    assert f"tw_wgmma_{kind}_n32(" in source and f"tw_wgmma_finish_{sums}n32(" in source


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("columns", [16, 32, 64])
def test_tiles_of_warp_groups_of_any_width_mean_the_same(columns: int, groups: int) -> None:
    func = layer((130, 2 * columns, 128), "uint8", "int8", residual=False)
    check(func, grouped(func, GroupTile(groups, columns, 3), "uint8", "int8"))


@pytest.mark.parametrize(("row", "column"), [*BYTES, *FLOATS])
def test_large_products_choose_warp_groups_and_compile(row: str, column: str) -> None:
    func = layer((512, 512, 512), row, column)
    source = text(schedule_gpu(func, WGMMA), WGMMA)
    assert "tw_wgmma_" in source and "panels" not in source
    require_nvrtc()
    assert b"ELF" in compile_cuda(source, "sm_90a")[:8]
    # Older GPUs: integers by warps, and so are floats from sm_89 on.
    ada = Target("cuda -arch=sm_89 -num-cores=128 -shared-bytes=101376")
    source = text(schedule_gpu(layer((64, 64, 128), row, column), ada), ada)
    assert "tw_mma_" in source and b"ELF" in compile_cuda(source, "sm_89")[:8]
    ampere = ada.replace(arch="sm_80")
    assert ("tw_mma_" in text(schedule_gpu(layer((64, 64, 128), row, column), ampere), ampere)) is (row[-1] == "8")


def test_bytes_that_lie_by_columns_are_multiplied_too() -> None:
    """Computed second operands are not rearranged: fragments are filled byte by byte."""
    func = layer((32, 32, 64), "int8", "int8", residual=False)
    func = func.replace(attributes={key: value for key, value in func.attributes.items() if key != CONSTANTS})
    scheduled = schedule_gpu(func, HOPPER)
    check(func, scheduled)
    assert "tw_mma_s8(" in text(scheduled, HOPPER)
