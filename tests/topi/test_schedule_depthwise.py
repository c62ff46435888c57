"""Depthwise convolutions with the 1 x 1 convolution of their results in one kernel: the right numbers, row by row."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.topi.scheduling import schedule_cpu
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import find_all
from tilewright.lower.primitive import lower_primitive
from tilewright.target import Target
from tilewright.tir.annotations import PREFETCH
from tilewright.tir.function import PrimFunc
from tilewright.tir.script import to_script
from tilewright.tir.stmt import For, LoopKind
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.packing import packing_of

LAYOUT = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
NEOVERSE = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
SKYLAKE = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512")


class Case:
    """A separable convolution: its program and arrays for its parameters, the last for the result."""

    def __init__(
        self,
        size: tuple[int, int, int, int],
        outputs: int,
        *,
        stride: int = 1,
        epilogue: str = "both",
        dtype: str = "float32",
        constants: bool = True,
    ) -> None:
        channels = size[-1]
        rng = np.random.default_rng(sum(size))

        def made(name: str, *shape: int) -> Var:
            self.arrays.append(rng.standard_normal(shape).astype(dtype))
            params.append(Var(name, tensor_type(shape, dtype)))
            return params[-1]

        self.arrays: list[np.ndarray] = []
        params: list[Var] = []
        x, w, u = made("x", *size), made("w", 3, 3, 1, channels), made("u", 1, 1, channels, outputs)
        body: GraphExpr = call(
            "nn.conv2d", x, w, groups=channels, padding=(1, 1, 1, 1), strides=(stride, stride), **LAYOUT
        )
        if epilogue == "both":
            body = call("nn.relu", call("add", body, made("b", channels)))
        body = call("nn.conv2d", body, u, **LAYOUT)
        if epilogue == "both":
            rows, columns = -(-size[1] // stride), -(-size[2] // stride)
            body = call("add", call("add", body, made("d", outputs)), made("r", size[0], rows, columns, outputs))
        function = infer_types(Function("main", tuple(params), body))
        assert isinstance(function, Function)
        self.expected = evaluate(IRModule([function]), *self.arrays)
        self.tolerance = 1e-5 if dtype == "float32" else 1e-2
        numbers = tuple(range(1, len(params))) if constants else ()
        self.func = lower_primitive(function, "k", numbers, on_cpu=True)

    def check(self, func: PrimFunc, target: Target) -> None:
        """Run a scheduled version, compiled, and compare."""
        packing = packing_of(func)
        arrays = [
            np.ascontiguousarray(packing[n].rearrange(array)) if n in packing else array
            for n, array in enumerate(self.arrays)
        ]
        out = np.full(self.expected.shape, np.nan, self.expected.dtype)
        tw.build(func, target=target)(*arrays, out)
        scale = float(np.abs(self.expected.astype(np.float64)).max())
        np.testing.assert_allclose(out / scale, self.expected / scale, rtol=0, atol=self.tolerance)


@pytest.mark.grid
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("epilogue", ["both", "none"])
def test_separable(epilogue: str, stride: int, cores: int) -> None:
    target = Target("native").replace(cores=cores)
    case = Case((2, 14, 28, 48), 64, stride=stride, epilogue=epilogue)
    scheduled = schedule_cpu(case.func, target)
    assert len(packing_of(scheduled)) == 2
    assert any(loop.kind is LoopKind.PARALLEL for loop in find_all(scheduled.body, For)) == (cores > 1)
    case.check(scheduled, target)


@pytest.mark.parametrize(
    ("size", "outputs", "dtype", "constants"),
    [
        ((1, 5, 13, 7), 11, "float32", True),
        ((1, 1, 1, 16), 16, "float32", True),
        ((1, 6, 14, 32), 32, "float32", False),
        ((1, 6, 14, 32), 32, "float16", True),
    ],
)
def test_odd_shapes_and_types(size: tuple[int, int, int, int], outputs: int, dtype: str, constants: bool) -> None:
    target = Target("native").replace(cores=1)
    case = Case(size, outputs, dtype=dtype, constants=constants)
    case.check(schedule_cpu(case.func, target), target)


@pytest.mark.parametrize("outputs", [24, 40, 72])
def test_columns_that_do_not_fill_vectors_are_computed_in_whole_ones(outputs: int) -> None:
    target = Target("native").replace(cores=1)
    lanes = target.lanes(32)
    case = Case((1, 6, 14, 32), outputs)
    scheduled = schedule_cpu(case.func, target)
    panels = [shape for shape in (buffer.static_shape for buffer in scheduled.buffers) if shape and len(shape) == 5]
    (pointwise,) = [shape for shape in panels if shape[3] == 32]
    assert pointwise[-1] % lanes == 0 or outputs % lanes == 0
    case.check(scheduled, target)


@pytest.mark.parametrize("stride", [1, 2])
def test_rows_and_results_are_fetched_ahead(stride: int) -> None:
    target = Target("native").replace(cores=1, l2_bytes=64 << 10)
    case = Case((1, 14, 28, 48), 64, stride=stride)
    choices = Choices()
    scheduled = schedule_cpu(case.func, target, choices)
    (notes,) = [loop.annotations[PREFETCH.name] for loop in find_all(scheduled.body, For) if PREFETCH.is_on(loop)]
    image, result = scheduled.buffers[0], scheduled.buffers[-1]
    residual = scheduled.buffers[-2]
    row = 28 * 48
    assert isinstance(notes, dict)
    # Where rows of results are made in fewer steps than they have lines, these are left to the processor.
    wanted = {image.name, residual.name, result.name} if stride == 1 or target.lanes(32) > 4 else {image.name}
    assert {*notes} == wanted
    lines = choices.answers["lines"]
    assert isinstance(lines, int)
    assert list(notes[image.name]) == [lines * stride * row, ((lines - 1) * stride + 3) * row]
    case.check(scheduled, target)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("lines", [1, 2])
def test_rows_of_separable_convolutions_are_worked_on_together(lines: int, stride: int) -> None:
    target = Target("native").replace(cores=2)
    case = Case((1, 8 * stride, 8 * stride, 24), 16, stride=stride)
    choices = Choices({"lines": lines, "pixels": 2})
    scheduled = schedule_cpu(case.func, target, choices)
    assert choices.answers["lines"] == lines
    case.check(scheduled, target)


@pytest.mark.parametrize(
    ("height", "cores", "lines"), [(14, 1, 2), (14, 2, 1), (16, 2, 2), (16, 3, 2), (16, 8, 2), (16, 16, 1), (7, 1, 1)]
)
def test_two_rows_are_together_where_cores_share_them_evenly(height: int, cores: int, lines: int) -> None:
    func = Case((1, height, 28, 48), 64).func
    for target, expected in ((NEOVERSE, lines), (SKYLAKE, 1)):
        choices = Choices()
        schedule_cpu(func, target.replace(cores=cores), choices)
        assert choices.answers["lines"] == expected


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "expected"),
    [
        ((8, 8), 3, 1, (2, 2)),
        ((8, 8), 3, 2, (2, 2)),
        ((6, 9), 3, 1, (2, 3)),
        ((7, 8), 3, 1, (1, 4)),
        ((7, 7), 3, 1, (1, 7)),
        ((8, 8), 5, 1, (1, 8)),
    ],
)
@pytest.mark.parametrize("cores", [1, 4])
def test_windows_of_a_tile_lie_in_registers(
    size: tuple[int, int], kernel: int, stride: int, expected: tuple[int, int], cores: int
) -> None:
    """A tile of lines and pixels whose elements fit; where none does, a row of pixels. Right in any case."""
    height, width = (extent * stride for extent in size)
    rng = np.random.default_rng(3)
    arrays = [
        rng.standard_normal(shape).astype(np.float32) for shape in ((2, height, width, 32), (kernel, kernel, 1, 32))
    ]
    x, w = (Var(name, tensor_type(array.shape, "float32")) for name, array in zip("xw", arrays, strict=True))
    pad = (kernel - 1) // 2
    body = call("nn.relu", call("nn.conv2d", x, w, groups=32, padding=(pad,) * 4, strides=(stride, stride), **LAYOUT))
    function = infer_types(Function("main", (x, w), body))
    assert isinstance(function, Function)
    choices = Choices()
    target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=cores)
    schedule_cpu(lower_primitive(function, "main", (1,), on_cpu=True), target, choices)
    assert (choices.answers["lines"], choices.answers["pixels"]) == expected
    native = Target("native").replace(cores=cores)
    scheduled = schedule_cpu(lower_primitive(function, "main", (1,), on_cpu=True), native)
    result = np.full((2, *size, 32), np.nan, np.float32)
    packed = np.ascontiguousarray(packing_of(scheduled)[1].rearrange(arrays[1]))
    tw.build(scheduled, target=native)(arrays[0], packed, result)
    np.testing.assert_allclose(result, evaluate(IRModule([function]), *arrays), rtol=0, atol=1e-5)


@pytest.mark.grid
@pytest.mark.parametrize(
    ("near", "far", "expected"),
    [
        (48 << 10, 2 << 20, 6),  # All channels of a tile stay near.
        (12 << 10, 2 << 20, 1),  # They do not: some at a time.
        (20 << 10, 2 << 20, 2),
        (12 << 10, 64 << 10, 6),  # The image comes from farther away: in order.
    ],
)
@pytest.mark.parametrize("cores", [1, 4])
def test_many_channels_are_taken_some_at_a_time(near: int, far: int, expected: int, cores: int) -> None:
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((1, 8, 8, 96), (3, 3, 1, 96))]
    x, w = (Var(name, tensor_type(array.shape, "float32")) for name, array in zip("xw", arrays, strict=True))
    body = call("nn.relu", call("nn.conv2d", x, w, groups=96, padding=(1, 1, 1, 1), **LAYOUT))
    function = infer_types(Function("main", (x, w), body))
    assert isinstance(function, Function)
    choices = Choices()
    target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(
        cores=cores, l1_bytes=near, l2_bytes=far
    )
    schedule_cpu(lower_primitive(function, "main", (1,), on_cpu=True), target, choices)
    assert choices.answers["channels_together"] == (expected if cores == 1 else 6)
    native = Target("native").replace(cores=cores)
    scheduled = schedule_cpu(
        lower_primitive(function, "main", (1,), on_cpu=True), native, Choices({"channels_together": expected})
    )
    result = np.full((1, 8, 8, 96), np.nan, np.float32)
    packed = np.ascontiguousarray(packing_of(scheduled)[1].rearrange(arrays[1]))
    tw.build(scheduled, target=native)(arrays[0], packed, result)
    np.testing.assert_allclose(result, evaluate(IRModule([function]), *arrays), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("window", "expected"),
    [((5, 5), {"kh"}), ((7, 3), {"kh"}), ((3, 5), set()), ((1, 7), set()), ((7, 1), set()), ((1, 1), set())],
)
def test_rows_of_large_windows_are_a_loop(window: tuple[int, int], expected: set[str]) -> None:
    """Each reads other elements: unrolled they are as quick, and take twice the time to compile."""
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((1, 7, 7, 16), (*window, 1, 16))]
    x, w = (Var(name, tensor_type(array.shape, "float32")) for name, array in zip("xw", arrays, strict=True))
    padding = tuple(size // 2 for size in window) * 2
    body = call("nn.relu", call("nn.conv2d", x, w, groups=16, padding=padding, **LAYOUT))
    function = infer_types(Function("main", (x, w), body))
    assert isinstance(function, Function)
    native = Target("native").replace(cores=1)
    scheduled = schedule_cpu(lower_primitive(function, "main", (1,), on_cpu=True), native)
    kept = {loop.var.name for loop in find_all(scheduled.body, For) if loop.kind is LoopKind.SERIAL}
    assert kept & {"kh", "kw"} == expected
    result = np.full((1, 7, 7, 16), np.nan, np.float32)
    packed = arrays[1] if 1 not in packing_of(scheduled) else packing_of(scheduled)[1].rearrange(arrays[1])
    tw.build(scheduled, target=native)(arrays[0], np.ascontiguousarray(packed), result)
    np.testing.assert_allclose(result, evaluate(IRModule([function]), *arrays), rtol=0, atol=1e-5)


def _alone(epilogue: str, stride: int = 1) -> PrimFunc:
    """A depthwise convolution of 8 x 8 pixels with a bias, a residual and ReLU, or some of them, scheduled."""
    params = [Var("x", tensor_type((1, 8, 8, 32), "float32")), Var("w", tensor_type((3, 3, 1, 32), "float32"))]
    strides = (stride, stride)
    body: GraphExpr = call("nn.conv2d", *params, groups=32, strides=strides, padding=(1, 1, 1, 1), **LAYOUT)
    for name, shape in (("bias", (32,)), ("residual", (1, 8, 8, 32))):
        if name in epilogue:
            params.append(Var(name, tensor_type(shape, "float32")))
            body = call("add", body, params[-1])
    function = infer_types(Function("main", tuple(params), call("nn.relu", body)))
    assert isinstance(function, Function)
    constants = [n for n, item in enumerate(params) if item.name in ("w", "bias")]
    return schedule_cpu(lower_primitive(function, "k", tuple(constants), on_cpu=True), Target("native"))


def test_sums_begin_at_the_bias() -> None:
    """No zeros to begin with, no addition at the end. A residual is read where results are written."""
    text = to_script(_alone("bias, residual"))
    assert "depthwise_conv2d[v_i0, v_i1, v_i2, v_i3] = p2[v_i3]" in text
    assert "max(depthwise_conv2d[v_i0, v_i1, v_i2, v_i3] + p3[v_i0, v_i1, v_i2, v_i3], 0.0)" in text
    for other in (_alone("residual"), _alone("bias", stride=2)):
        assert "depthwise_conv2d[v_i0, v_i1, v_i2, v_i3] = 0.0" in to_script(other)


def test_windows_past_the_image_add_up_less() -> None:
    """No products with the zeros around it."""
    text = to_script(_alone("bias"))
    assert "where(" in text
    assert " else 0.0" not in text


def _windows_of(size: int, channels: int, taps: int, stride: int = 1) -> PrimFunc:
    """A depthwise convolution of a square image, scheduled for a processor of 32 registers of 16 lanes."""
    shape, pad = (1, size, size, channels), taps // 2
    x, w = Var("x", tensor_type(shape, "float32")), Var("w", tensor_type((taps, taps, 1, channels), "float32"))
    body = call("nn.conv2d", x, w, groups=channels, strides=(stride, stride), padding=(pad,) * 4, **LAYOUT)
    function = infer_types(Function("main", (x, w), body))
    assert isinstance(function, Function)
    target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=1)
    return schedule_cpu(lower_primitive(function, "k", (1,), on_cpu=True), target)


@pytest.mark.parametrize(
    ("size", "taps", "stride", "tile"),
    [
        (14, 3, 1, [2, 2]),  # all elements of the windows fit
        (14, 5, 1, [2, 7]),  # a row of them, and the sums of two lines
        (14, 5, 2, [7]),  # rows of elements are longer, by the stride
        (7, 5, 1, [7]),  # lines do not come in pairs
    ],
)
def test_lines_that_share_rows_of_elements_are_together(size: int, taps: int, stride: int, tile: list[int]) -> None:
    func = _windows_of(size, 32, taps, stride)
    unrolled = [loop for loop in find_all(func.body, For) if loop.kind is LoopKind.UNROLLED]
    found = [loop.extent.value for loop in unrolled if loop.var.name in ("i1", "i2")]  # type: ignore[attr-defined]
    assert found[: len(tile)] == tile


@pytest.mark.parametrize(("channels", "lanes"), [(116, 16), (24, 16), (16, 16), (12, 4), (8, 8)])
def test_a_rest_of_channels_is_a_shorter_vector(channels: int, lanes: int) -> None:
    func = _windows_of(14, channels, 3)
    vectors = [loop for loop in find_all(func.body, For) if loop.kind is LoopKind.VECTORIZED]
    assert {loop.extent.value for loop in vectors} == {lanes}  # type: ignore[attr-defined]
