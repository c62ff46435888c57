"""Products on dot-product and matrix instructions: every stage of lowering agrees, on whole and partial tiles."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.codegen.compiled import HOST, run
from tests.requirements import needs
from tests.topi.scheduling import schedule_cpu
from tests.topi.test_schedule_cpu import kernel
from tilewright.backends.host import compile_functions, host_source
from tilewright.graph.ir.expr import GraphExpr, Var
from tilewright.graph.ir.op import call, get_operator
from tilewright.graph.ops.half import HalfConv2dAttributes
from tilewright.graph.ops.window_dots import windows_together
from tilewright.ir.dtype import INT64
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.expr import const_value
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import find_all
from tilewright.target import Target
from tilewright.tir.annotations import PREFETCH, PREFETCH_NEAR, WOVEN, ZIGZAG
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.pipeline import cpu_pipeline
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.script.printer import to_script
from tilewright.tir.stmt import For, LoopKind
from tilewright.topi.schedule.packing import CONSTANTS, packing_of

TARGETS = {
    "vnni": "llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server",
    "avxvnni": "llvm -mtriple=x86_64-linux-gnu -mcpu=alderlake",
    "amx": "llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids",
    "dotprod": "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1",
    "i8mm": "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1",
}
Arrays = list[np.ndarray]


def target_of(name: str) -> Target:
    return Target(TARGETS[name]).replace(cores=1)


def product(m: int | Symbol, n: int, k: int, rows: str = "uint8", epilogue: bool = False) -> PrimFunc:
    a, b = Var("a", tensor_type((m, k), rows)), Var("b", tensor_type((k, n), "int8"))
    body: GraphExpr = call("qnn.matmul", a, b)
    return kernel([a, b], call("maximum", body, call("negative", body)) if epilogue else body)


def convolution(
    size: int, channels: int, outputs: int, window: int, stride: int, rows: str = "uint8", epilogue: bool = False
) -> PrimFunc:
    data = Var("data", tensor_type((1, size, size, channels), rows))
    weight = Var("weight", tensor_type((window, window, channels, outputs), "int8"))
    zero, pad = Var("zero", tensor_type((), rows)), window // 2
    body: GraphExpr = call("qnn.conv2d", data, weight, zero, strides=(stride, stride), padding=(pad, pad, pad, pad))
    return kernel([data, weight, zero], call("maximum", body, call("negative", body)) if epilogue else body)


def half_product(m: int | tuple[int, ...], n: int, k: int, block: int, epilogue: bool = False) -> PrimFunc:
    rows = (m,) if isinstance(m, int) else m
    a, b = Var("a", tensor_type((*rows, k), "float16")), Var("b", tensor_type((k, n), "float16"))
    body: GraphExpr = call("half.matmul", a, b, block=block)
    return kernel([a, b], call("nn.relu", call("add", body, body)) if epilogue else body)


def arguments(func: PrimFunc) -> Arrays:
    random = np.random.default_rng(0)
    found: Arrays = []
    for buffer in func.buffers:
        shape, dtype = buffer.static_shape, buffer.dtype.numpy()
        assert shape is not None
        if buffer.dtype.is_float:
            found.append((random.integers(-8, 9, shape) / 8).astype(dtype))
        else:
            limits = np.iinfo(dtype)
            low, high = max(limits.min, -128), min(limits.max, 255)
            found.append(random.integers(low, high + 1, shape).astype(dtype))
    return found


def scheduled(func: PrimFunc, target: Target) -> tuple[PrimFunc, Arrays, Arrays]:
    """The scheduled program, its arguments (weights packed) and what they are after a run of the plain program."""
    made = schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), target)
    before = arguments(func)
    expected = [array.copy() for array in before]
    interpret(func, *expected)
    given = [array.copy() for array in before]
    for number, index_map in packing_of(made).items():
        given[number] = np.ascontiguousarray(index_map.rearrange(given[number]))
    return made, given, expected


def check(func: PrimFunc, target: Target, instruction: str, tolerance: float = 0.0) -> None:
    made, given, expected = scheduled(func, target)
    lowered = made
    stages = [("schedule", made)]
    for name, step in cpu_pipeline(target):
        lowered = step(lowered)
        if name in ("lower_tensor_intrinsics", "lower_intrinsics"):
            stages.append((name, lowered))
    for name, stage in stages:
        actual = [array.copy() for array in given]
        interpret(stage, *actual)
        np.testing.assert_allclose(
            actual[-1], expected[-1], rtol=0, atol=tolerance, err_msg=f"{name}\n{to_script(stage)}"
        )
    assert instruction in host_source([made], target)
    if target.is_host:
        np.testing.assert_allclose(run(made, *given, target=target)[-1], expected[-1], rtol=0, atol=tolerance)


@pytest.mark.parametrize(("name", "rows", "instruction"), [
    ("vnni", "uint8", "vpdpbusd.512"),
    ("avxvnni", "uint8", "vpdpbusd.256"),
    ("dotprod", "int8", "neon.sdot"),
    ("i8mm", "uint8", "neon.usdot"),
])  # fmt: skip
def test_dot_products(name: str, rows: str, instruction: str) -> None:
    target = target_of(name)
    check(product(3, 16, 8, rows, epilogue=True), target, instruction)
    if name == "vnni":
        check(product(31, 16, 4, rows), target, instruction)
        check(convolution(3, 4, 16, 3, 2, rows), target, instruction)


@pytest.mark.parametrize(("name", "rows", "lane"), [("dotprod", "int8", "neon.sdot"), ("i8mm", "uint8", "neon.usdot")])
def test_rows_of_whole_registers_are_loaded_once(name: str, rows: str, lane: str) -> None:
    """Arm multiplies by a lane of a register: four steps of the reduction are one load of a row."""
    target = target_of(name)
    check(product(3, 8, 32, rows, epilogue=True), target, lane)
    check(convolution(2, 16, 4, 1, 1, rows), target, lane)
    last_lane = r"shufflevector <4 x i32> %\w+, <4 x i32> poison, <4 x i32> <i32 3, i32 3, i32 3, i32 3>"
    for func in (product(4, 8, 64, rows), product(Symbol("m", INT64), 8, 64, rows)):
        text = host_source([schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), target)], target)
        assert re.search(last_lane, text)
    # Sixteen bytes around the last step of an odd number of rows of eight would end beyond them.
    short = product(Symbol("m", INT64), 8, 8, rows).replace(attributes={CONSTANTS: (1,)})
    text = host_source([schedule_cpu(short, target)], target)
    assert not re.search(r"<i32 ([13]), i32 \1, i32 \1, i32 \1>", text)


def computed(rows: str, columns: str, batch: int | Symbol = 2) -> PrimFunc:
    a, b = Var("a", tensor_type((batch, 9, 32), rows)), Var("b", tensor_type((batch, 32, 16), columns))
    body: GraphExpr = call("qnn.matmul", a, b)
    return kernel([a, b], call("maximum", body, call("negative", body)))


@pytest.mark.parametrize(("name", "rows", "columns", "instruction"), [
    ("dotprod", "int8", "int8", "neon.sdot"),
    ("dotprod", "uint8", "uint8", "neon.udot"),
    ("i8mm", "uint8", "int8", "neon.usdot"),
    ("vnni", "uint8", "int8", "vpdpbusd.512"),
])  # fmt: skip
def test_columns_that_are_computed(name: str, rows: str, columns: str, instruction: str) -> None:
    """They are packed as the kernel runs: no parameter is a constant."""
    target = target_of(name)
    func = computed(rows, columns)
    made = schedule_cpu(func, target)
    given = arguments(func)
    expected = [array.copy() for array in given]
    interpret(func, *expected)
    actual = [array.copy() for array in given]
    interpret(made, *actual)
    np.testing.assert_array_equal(actual[-1], expected[-1])
    assert instruction in host_source([made], target)
    if target.is_host:
        np.testing.assert_array_equal(run(made, *given, target=target)[-1], expected[-1])
    assert instruction in host_source([schedule_cpu(computed(rows, columns, Symbol("n", INT64)), target)], target)


def depthwise(size: int, channels: int, stride: int, zero: int, rows: str) -> PrimFunc:
    data = Var("data", tensor_type((1, size, size, channels), rows))
    weight = Var("weight", tensor_type((3, 3, 1, channels), "int8"))
    body: GraphExpr = call(
        "qnn.depthwise_conv2d", data, weight, strides=(stride, stride), padding=(1, 1, 1, 1), zero=zero
    )
    return kernel([data, weight], call("maximum", body, call("negative", body)))


@pytest.mark.parametrize(
    ("name", "rows", "zero"), [("vnni", "uint8", 0), ("avxvnni", "uint8", 130), ("vnni", "int8", -5)]
)
def test_depthwise_convolutions(name: str, rows: str, zero: int) -> None:
    check(depthwise(3, 16, 1, zero, rows), target_of(name), "vpdpwssd")


def test_depthwise_convolutions_on_arm() -> None:
    check(depthwise(3, 4, 2, 3, "int8"), target_of("dotprod"), "mul <4 x i32>")


def test_lines_of_few_channels_on_tiles() -> None:
    """Rows of a tile overlap in memory: windows of neighbouring pixels."""
    data = Var("data", tensor_type((1, 5, 64), "uint8"))
    weight = Var("weight", tensor_type((3, 32, 16), "int8"))
    zero = Var("zero", tensor_type((), "uint8"))
    body: GraphExpr = call("qnn.line_conv2d", data, weight, zero, strides=(2, 8), padding=(1, 4, 1, 20))
    check(kernel([data, weight, zero], call("maximum", body, call("negative", body))), target_of("amx"), "tdpbusd")


@pytest.mark.parametrize(("channels", "stride"), [(3, 2), (3, 1), (1, 1), (2, 3)])
def test_lines_of_few_channels_by_groups_in_memory(channels: int, stride: int) -> None:
    """Windows begin anywhere in a line, and their last group ends where the next window's pixels lie."""
    run_length = 7 * channels + -7 * channels % 4
    params = [
        Var("data", tensor_type((1, 4, 12 * channels), "uint8")),
        Var("weight", tensor_type((3, run_length, 32), "int8")),
        Var("zero", tensor_type((), "uint8")),
    ]
    padding = (1, 3 * channels, 1, run_length - 4 * channels)
    body: GraphExpr = call("qnn.line_conv2d", *params, strides=(stride, stride * channels), padding=padding)
    check(kernel(params, call("maximum", body, call("negative", body))), target_of("vnni"), "vpdpbusd.512")


@pytest.mark.parametrize(
    ("channels", "stride", "border"), [(3, 2, 1), (3, 1, 1), (1, 1, 1), (2, 3, 1), (3, 2, 0), (1, 1, 0)]
)
def test_lines_of_few_channels_by_lanes_of_a_load(channels: int, stride: int, border: int) -> None:
    """Windows begin anywhere in a line. Without a border some loads would leave the image, and are of one group."""
    run_length = 3 * channels + -3 * channels % 4 if border else 4 * channels
    params = [
        Var("data", tensor_type((1, 5, 16 * channels), "int8")),
        Var("weight", tensor_type((3, run_length, 16), "int8")),
        Var("zero", tensor_type((), "int8")),
    ]
    left, right = border * channels, border * (run_length - 2 * channels)
    padding = (border, left, border, right)
    body: GraphExpr = call("qnn.line_conv2d", *params, strides=(stride, stride * channels), padding=padding)
    func = kernel(params, call("maximum", body, call("negative", body)))
    target = target_of("dotprod")
    check(func, target, "neon.sdot.v4i32")
    made = schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), target)
    spread = re.findall(r"load <4 x i8>, ptr %\S+, align 1$", host_source([made], target), re.MULTILINE)
    assert not spread or not border


@pytest.mark.grid
@pytest.mark.parametrize(("width", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2), (4, 1)])
@pytest.mark.parametrize(
    ("channels", "epilogue", "padding", "l1_bytes"),
    [
        (32, False, (1, 2, 1, 2), 1 << 16),
        (32, True, (0, 1, 2, 0), 64),
        (24, True, (1, 2, 1, 2), 1 << 16),
        (24, True, (0, 0, 0, -1), 1 << 16),
    ],
)
def test_dots_of_pixels(
    width: int, stride: int, channels: int, epilogue: bool, padding: tuple[int, ...], l1_bytes: int
) -> None:
    """Lines and pixels that tiles do not divide, borders, half vectors of channels, and weights that are not near."""
    several, groups = windows_together(width, stride)
    data = Var("data", tensor_type((1, 5, 9, channels), "int8"))
    weight = Var("weight", tensor_type((several, 3, groups, channels, 4), "int8"))
    zero = Var("zero", tensor_type((), "int8"))
    body: GraphExpr = call(
        "qnn.window_dots", data, weight, zero, strides=(stride, stride), padding=padding, width=width
    )
    func = kernel([data, weight, zero], call("maximum", body, call("negative", body)) if epilogue else body)
    target = target_of("dotprod").replace(l1_bytes=l1_bytes)
    check(func, target, "neon.sdot.v4i32")
    is_near = l1_bytes > channels * several * groups * 12
    assert (1 in packing_of(schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), target))) != is_near


@pytest.mark.parametrize(("lines", "width", "channels"), [(5, 5, 16), (6, 5, 8), (6, 3, 16)])
def test_sums_of_pixels_stay_in_registers(lines: int, width: int, channels: int) -> None:
    """Two lines of four windows each are too many sums for a whole vector of channels; one line is not, nor are two."""
    several, groups = windows_together(width, 1)
    shapes = {"data": (1, lines, 10, 32), "weight": (several, 3, groups, 32, 4), "zero": ()}
    params = [Var(name, tensor_type(shape, "int8")) for name, shape in shapes.items()]
    func = kernel(params, call("qnn.window_dots", *params, padding=(1, 1, 1, 1), width=width))
    check(func, target_of("dotprod"), "neon.sdot.v4i32")
    assert f"arm.interleave4.{channels}" in to_script(schedule_cpu(func, target_of("dotprod")))


def test_images_with_a_border_are_read_as_they_are() -> None:
    """Windows of three, two of which share four pixels: those of eight windows are ten."""
    for width, is_copied in ((10, False), (9, True)):
        params = [
            Var("data", tensor_type((1, 5, width, 16), "int8")),
            Var("weight", tensor_type((2, 3, 1, 16, 4), "int8")),
            Var("zero", tensor_type((), "int8")),
        ]
        body = call("qnn.window_dots", *params, padding=(0, 0, 0, 10 - width), width=3)
        assert ("pad_data" in to_script(kernel(params, body))) == is_copied


@pytest.mark.parametrize(("height", "stride", "cores"), [(8, 1, 1), (8, 2, 2), (7, 1, 2)])
def test_large_images_get_their_border_some_lines_at_a_time(height: int, stride: int, cores: int) -> None:
    """Where the second cache level does not hold the image, and cores have equal parts of it."""
    several, groups = windows_together(3, stride)
    shapes = {"data": (1, height, 3, 16), "weight": (several, 3, groups, 16, 4), "zero": ()}
    params = [Var(name, tensor_type(shape, "int8")) for name, shape in shapes.items()]
    body = call("qnn.window_dots", *params, strides=(stride, stride), padding=(1, 1, 1, 1), width=3)
    func = kernel(params, body)
    target = target_of("dotprod").replace(cores=cores, l1_bytes=512)
    large = target.replace(l2_bytes=1 << 10)
    check(func, large, "neon.sdot.v4i32")
    for where, is_near in ((target, False), (large, height % cores == 0)):
        sch = Schedule(schedule_cpu(func, where))
        loops = [{loop.var for loop in sch.get_loops(block)} for block in sch.blocks() if "init" not in block.name]
        assert bool(loops[0] & loops[-1]) == is_near


def test_tiles() -> None:
    target = target_of("amx")
    check(product(14, 32, 32), target, "tdpbusd")
    check(product(8, 16, 32, "int8", epilogue=True), target, "tdpbssd")


@pytest.mark.grid
@pytest.mark.parametrize(
    ("shape", "notes"),
    [
        ((28, 32, 64), 0),  # One block of tiles: nothing to overlap.
        ((14, 128, 64), 1),  # One step for 14 rows.
        ((56, 32, 160), 1),  # Five steps for 28 rows: six in each of the first four, four after them.
        ((56, 64, 64), 1),
    ],
)
@pytest.mark.parametrize("epilogue", [False, True])
@pytest.mark.parametrize("cores", [1, 2])
def test_epilogues_run_between_the_products_of_the_next_tiles(
    shape: tuple[int, int, int], notes: int, cores: int, epilogue: bool
) -> None:
    target = target_of("amx").replace(cores=cores)
    func = product(*shape, epilogue=epilogue)
    check(func, target, "tdpbusd")
    made = schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), target)
    found = sum(WOVEN.is_on(loop) for loop in find_all(made.body, For))
    # Several cores share the blocks of tiles; one of them may have a single one at a time.
    assert found == notes or (cores > 1 and found <= notes)


@pytest.mark.parametrize("epilogue", [False, True])
@pytest.mark.parametrize("depth", [64, 192])
def test_a_tile_is_stored_when_the_next_block_needs_it(epilogue: bool, depth: int) -> None:
    """Operands come first, then each tile goes and starts anew just before its first product."""
    target = target_of("amx")
    func = product(56, 64, depth, epilogue=epilogue).replace(attributes={CONSTANTS: (1,)})
    text = host_source([schedule_cpu(func, target)], target)
    calls = re.findall(r"call .*@llvm.x86.(tileload|tilestore|tilezero|tdp)", text)
    block = ["tileload"] * 4 + ["tilestore", "tilezero", "tdp"] * 4
    assert any(calls[n : n + len(block)] == block for n in range(len(calls)))
    assert calls[-4:] == ["tilestore"] * 4 and calls.count("tilestore") == 8, "the last block is stored after all"


def test_steps_of_tiles_are_written_once() -> None:
    """Whether a step has rows of the epilogue is asked in it: the loops over taps are not cut where these end."""
    func = convolution(32, 64, 64, 3, 1, epilogue=True).replace(attributes={CONSTANTS: (1,)})
    text = host_source([schedule_cpu(func, target_of("amx"))], target_of("amx"))
    assert len(re.findall(r"call .*@llvm.x86.tdp", text)) == 2 * 4, "before the first block, and beside its epilogue"


@pytest.mark.parametrize("epilogue", [False, True])
def test_one_block_of_tiles_for_each_of_some_cores(epilogue: bool) -> None:
    func, target = product(56, 64, 256, epilogue=epilogue), target_of("amx").replace(cores=2)
    check(func, target, "tdpbusd")
    made = schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), target)
    assert any(loop.kind is LoopKind.PARALLEL for loop in find_all(made.body, For))


@pytest.mark.parametrize("epilogue", [False, True])
def test_deep_products_walk_to_and_fro(epilogue: bool) -> None:
    """Operands of a block that fill the first cache level: every second block begins at the end, where the last was."""
    target = target_of("amx").replace(l1_bytes=12 << 10)
    func = product(56, 64, 256, epilogue=epilogue)
    check(func, target, "tdpbusd")
    made = schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), target)
    (walk,) = (loop for loop in find_all(made.body, For) if ZIGZAG.is_on(loop))
    assert const_value(walk.extent) == 4
    near = schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), target.replace(l1_bytes=48 << 10))
    assert not any(ZIGZAG.is_on(loop) for loop in find_all(near.body, For))


@needs("amx-int8")
@pytest.mark.parametrize(("shape", "cores"), [((64, 96, 1024), 1), ((512, 64, 640), 2)])
def test_deep_products_on_tiles(shape: tuple[int, int, int], cores: int) -> None:
    func, target = product(*shape, epilogue=True), HOST.replace(cores=cores)
    made, given, expected = scheduled(func, target)
    assert any(ZIGZAG.is_on(loop) for loop in find_all(made.body, For))
    np.testing.assert_array_equal(run(made, *given, target=target)[-1], expected[-1])


@needs("amx-int8")
@pytest.mark.parametrize(("size", "channels"), [(14, 64), (7, 128), (56, 32)])
@pytest.mark.parametrize("cores", [1, 2])
def test_convolutions_on_tiles(size: int, channels: int, cores: int) -> None:
    """Taps and steps of channels are one walk, in which rows of the epilogue have their places."""
    func, target = convolution(size, channels, 64, 3, 1, epilogue=True), HOST.replace(cores=cores)
    made = schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), target)
    data, weight, zero, result = arguments(func)
    packed = np.ascontiguousarray(packing_of(made)[1].rearrange(weight))
    padded = np.pad(data[0].astype(np.int64), ((1, 1), (1, 1), (0, 0)), constant_values=int(zero))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(0, 1))
    expected = np.abs(np.einsum("yxcij,ijco->yxo", windows, weight.astype(np.int64)))
    np.testing.assert_array_equal(run(made, data, packed, zero, result, target=target)[-1][0], expected)
    assert "tdpbusd" in host_source([made], target)


@pytest.mark.parametrize("cores", [1, 2])
def test_weights_that_do_not_stay_near_are_read_once(cores: int) -> None:
    """A panel of them meets the whole image before the next: lines are inside panels, not around them."""
    target = target_of("amx").replace(cores=cores, l2_bytes=16 << 10)
    func = convolution(7, 32, 64, 3, 1, epilogue=True)
    if cores == 1:
        check(func, target, "tdpbusd")
    text = to_script(schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), target))
    line = next(item for item in text.splitlines() if "v_c_o = spatial(2, " in item)
    assert re.search(r"// 7\)$|spatial\(2, i\w+\)$", line), line
    near = to_script(schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), target.replace(l2_bytes=2 << 20)))
    assert "// 7" not in near


@pytest.mark.parametrize(
    ("name", "rows", "depth", "is_fetched"),
    [("vnni", 28, 1024, True), ("vnni", 28, 64, False), ("vnni", 7, 1024, False), ("dotprod", 28, 1024, False)],
)
def test_weights_are_fetched_ahead_that_pass_again_from_the_second_level(
    name: str, rows: int, depth: int, is_fetched: bool
) -> None:
    """Some steps before their use; not where they stay in the first level, nor where they pass once."""
    kind = "uint8" if name == "vnni" else "int8"
    func = product(rows, 64, depth, kind).replace(attributes={CONSTANTS: (1,)})
    made = schedule_cpu(func, target_of(name).replace(l1_bytes=32768))
    notes = [PREFETCH_NEAR.of(loop) for loop in find_all(made.body, For) if PREFETCH_NEAR.is_on(loop)]
    assert [run.start for note in notes if note for run in note.values()] == ([512] if is_fetched else [])


def test_shapes_that_tiles_do_not_cover_go_to_dot_products() -> None:
    check(product(5, 16, 8), target_of("amx"), "vpdpbusd.512")


def test_products_of_halves() -> None:
    target = Target(TARGETS["amx"]).replace(cores=1)
    check(half_product(3, 32, 16, 8), target, "half")
    check(half_product(2, 16, 6, 6), target, "half")


@needs("avx512fp16")
@pytest.mark.parametrize(
    ("rows", "columns", "depth", "block"),
    [
        (13, 128, 64, 64),  # One block; a tile of fewer rows at the end.
        ((2, 3, 5), 48, 96, 32),
        (1, 16, 130, 130),
        (64, 1024, 512, 256),
    ],
)
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("cores", [1, 2])
def test_products_of_halves_on_this_machine(
    rows: int | tuple[int, ...], columns: int, depth: int, block: int, far: bool, cores: int
) -> None:
    """Weights and results that stay in the near caches, or are fetched ahead."""
    target = HOST.replace(cores=cores, l2_bytes=1 << (12 if far else 22))
    func = half_product(rows, columns, depth, block, epilogue=True)
    made = schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), target)
    a, b, result = arguments(func)
    packed = np.ascontiguousarray(packing_of(made)[1].rearrange(b))
    expected = np.maximum(2 * (a.astype(np.float32) @ b.astype(np.float32)), 0)
    actual = run(made, a, packed, result, target=target)[-1]
    np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=0.02 * np.sqrt(depth))
    # Two steps of 16 columns in a vector, and a tile of them in registers: no sum leaves these inside a block.
    assert "<16 x i32>" in host_source([made], target)


def test_products_of_halves_with_weights_that_are_computed_take_the_plain_way() -> None:
    made = schedule_cpu(half_product(4, 32, 16, 16), target_of("amx"))
    assert "half_multiply_add" not in to_script(made)


Options = dict[str, tuple[int, ...] | int]


def half_convolution(shape: tuple[int, ...], weight: tuple[int, ...], options: Options) -> PrimFunc:
    data, taps = Var("data", tensor_type(shape, "float16")), Var("taps", tensor_type(weight, "float16"))
    return kernel([data, taps], call("nn.relu", call("half.conv2d", data, taps, **options)))


@pytest.mark.parametrize("block", [16, 24])
def test_convolutions_of_halves_at_every_stage(block: int) -> None:
    """Blocks of channels, and of some channels of a row of taps."""
    options: Options = {"padding": (0, 1, 0, 1), "block": block}
    check(half_convolution((1, 1, 2, 16), (1, 3, 16, 32), options), target_of("amx"), "half")


@needs("avx512fp16")
@pytest.mark.parametrize(
    ("shape", "weight", "options"),
    [
        ((1, 7, 8, 16), (3, 3, 16, 32), {"padding": (1, 1, 1, 1), "block": 16}),
        ((2, 9, 8, 16), (3, 3, 16, 64), {"padding": (1, 1, 1, 1), "strides": (2, 2), "block": 48}),
        ((1, 14, 14, 64), (1, 1, 64, 128), {"block": 32}),
        ((1, 5, 11, 8), (3, 1, 8, 32), {"dilation": (2, 1), "block": 8}),
        ((1, 6, 7, 16), (3, 3, 16, 16), {"padding": (1, 1, 1, 1), "block": 24}),
    ],
)
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("cores", [1, 2])
def test_convolutions_of_halves(
    shape: tuple[int, ...], weight: tuple[int, ...], options: Options, far: bool, cores: int
) -> None:
    """Weights that stay in the near caches, or are fetched ahead."""
    target = HOST.replace(cores=cores, l2_bytes=1 << (12 if far else 20))
    func = half_convolution(shape, weight, options)
    made = schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), target)
    assert any(PREFETCH.is_on(loop) for loop in find_all(made.body, For)) == far
    data, taps, result = arguments(func)
    expected = get_operator("half.conv2d").reference([data, taps], HalfConv2dAttributes(**options))
    packed = np.ascontiguousarray(packing_of(made)[1].rearrange(taps))
    actual = run(made, data, packed, result, target=target)[-1]
    np.testing.assert_allclose(actual, np.maximum(expected, 0), rtol=2e-3, atol=0.05)


def test_computed_columns_that_are_no_whole_vectors_take_the_plain_way() -> None:
    for func in (product(4, 15, 8), product(4, 16, 7)):
        made = schedule_cpu(func, target_of("vnni"))
        assert "vpdpbusd" not in host_source([made], target_of("vnni"))


@needs("vnni")
@pytest.mark.parametrize(("shape", "cores"), [((64, 32, 64), 2), ((37, 48, 128), 1), ((1, 64, 64), 1)])
def test_compiled_for_this_machine(shape: tuple[int, int, int], cores: int) -> None:
    func, target = product(*shape), HOST.replace(cores=cores)
    made = schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), target)
    a, b, c = arguments(func)
    packed = np.ascontiguousarray(packing_of(made)[1].rearrange(b))
    np.testing.assert_array_equal(run(made, a, packed, c, target=target)[-1], a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize(("name", "rows"), [("dotprod", "int8"), ("i8mm", "uint8")])
def test_arm_code_runs_under_emulation(arm_tools: tuple[str, str], name: str, rows: str, tmp_path: Path) -> None:
    compiler, emulator = arm_tools
    made, (a, b, c), expected = scheduled(product(7, 16, 12, rows), target_of(name))
    (tmp_path / "k.o").write_bytes(compile_functions([made], target_of(name)))
    lists = [", ".join(str(int(value)) for value in array.reshape(-1)) for array in (a, b)]
    left = "int8_t" if rows == "int8" else "uint8_t"
    (tmp_path / "main.c").write_text(f"""#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int32_t k(const {left} *, const int8_t *, int32_t *);
void *tw_alloc(int64_t size) {{ return aligned_alloc(64, (size + 63) / 64 * 64); }}
void tw_free(void *memory) {{ free(memory); }}
static const {left} a[] = {{{lists[0]}}};
static const int8_t b[] = {{{lists[1]}}};
int main(void) {{
    static int32_t c[{c.size}];
    int32_t code = k(a, b, c);
    for (int i = 0; i < {c.size}; i++) printf("%d\\n", c[i]);
    return code;
}}
""")
    built = tmp_path / "main"
    subprocess.run([compiler, "-static", "main.c", "k.o", "-o", str(built)], cwd=tmp_path, check=True)
    done = subprocess.run([emulator, "-cpu", "max", str(built)], check=True, capture_output=True, text=True)
    actual = np.array([int(line) for line in done.stdout.split()], np.int32).reshape(expected[-1].shape)
    np.testing.assert_array_equal(actual, expected[-1])
