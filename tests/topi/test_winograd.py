"""Winograd convolutions: what the tensor expressions, their schedules and the compiled code compute."""

from __future__ import annotations

import functools
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.topi.scheduling import schedule_cpu
from tilewright.backends.backend import lower
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call, get_operator
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.ops.winograd import WinogradWeightAttributes, plain_weight
from tilewright.ir.expr import Mul, PrimExpr, const_value
from tilewright.ir.expr import Var as SymbolicVar
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import find_all
from tilewright.lower.primitive import lower_primitive
from tilewright.target import Target
from tilewright.tir.annotations import PREFETCH, PREFETCH_NEAR
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.script import to_script
from tilewright.tir.stmt import Allocate, Block, BufferStore, For, LoopKind
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.packing import packing_of
from tilewright.topi.winograd import padded_tiles

TARGETS = {
    "avx512": Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=4),
    "neon": Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1").replace(cores=1),
}
TOLERANCE = {2: 1e-5, 3: 2e-5, 4: 2e-5, 6: 2e-4}
Pads = tuple[int, int, int, int]


class Case:
    """A convolution with random values: its inputs, its kernel by Winograd's algorithm, and the expected result.

    `batch` is the number of images as the kernel knows it, where that is not the number at hand; `pixels` are their
    height and width, where those are open. Weights of a `taps_type` are the 3 x 3 taps themselves.
    """

    def __init__(
        self,
        size: tuple[int, int, int, int],
        outputs: int,
        tile: int = 4,
        pads: Pads = (1, 1, 1, 1),
        epilogue: str = "relu",
        axes: tuple[int, ...] = (0, 3, 1, 2),
        plain: bool = False,
        batch: PrimExpr | None = None,
        pixels: tuple[PrimExpr | int, PrimExpr | int] | None = None,
        taps_type: str = "",
    ) -> None:
        rng = np.random.default_rng(sum(size) + outputs)
        channels = size[-1]
        data = rng.standard_normal(size).astype(np.float32)
        taps = (rng.standard_normal((3, 3, channels, outputs)) / np.sqrt(9 * channels)).astype(np.float32)
        taps = taps.astype(taps_type or "float32").astype(np.float32)
        transformed = get_operator("nn.winograd_weight").reference([taps], WinogradWeightAttributes(tile=tile))
        attributes = Conv2dAttributes(padding=pads, data_layout="NHWC", kernel_layout="HWIO")
        expected = get_operator("nn.conv2d").reference([data.astype(np.float64), taps.astype(np.float64)], attributes)
        assert isinstance(expected, np.ndarray) and isinstance(transformed, np.ndarray)
        if plain:
            transformed = plain_weight(taps, tile)
        elif taps_type:
            transformed = taps.astype(taps_type)
        bias = rng.standard_normal(outputs).astype(np.float32)
        other = rng.standard_normal(expected.shape).astype(np.float32)
        images = size[0] if batch is None else batch
        height, width = pixels or size[1:3]
        open_result = (height + pads[0] + pads[2] - 2, width + pads[1] + pads[3] - 2)
        shapes = (height, width, channels), (*(open_result if pixels else expected.shape[1:3]), outputs)
        x, r = (Var(name, tensor_type((images, *shape), "float32")) for name, shape in zip("xr", shapes, strict=True))
        u, b = (Var(name, tensor_type(a.shape, str(a.dtype))) for name, a in (("u", transformed), ("b", bias)))
        name = "nn.conv2d_winograd_plain" if plain else "nn.conv2d_winograd"
        body: GraphExpr = call(name, x, u, tile=tile, padding=pads)
        self.inputs = [data, transformed]
        params = [x, u]
        if epilogue != "none":
            body = call("nn.relu", call("add", call("add", body, b), r))
            expected = np.maximum(expected + bias + other, 0)
            self.inputs += [bias, other]
            params += [b, r]
        if epilogue == "transpose":
            body = call("transpose", body, axes=axes)
            expected = expected.transpose(axes)
        function = infer_types(Function("k", tuple(params), body))
        assert isinstance(function, Function)
        self.func = lower_primitive(function, "k", (1, 2) if epilogue != "none" else (1,))
        self.expected, self.tile = expected, tile

    def check(self, func: PrimFunc, run: object = interpret) -> None:
        """Run a version of the kernel, its constants arranged as its schedule wants them."""
        packing = packing_of(func)
        arrays = [
            np.ascontiguousarray(packing[n].rearrange(array)) if n in packing else array
            for n, array in enumerate(self.inputs)
        ]
        out = np.full(self.expected.shape, np.nan, np.float32)
        if run is interpret:
            interpret(func, *arrays, out)
        else:
            run(*arrays, out)  # type: ignore[operator]
        scale = float(np.abs(self.expected).max(initial=1.0))
        np.testing.assert_allclose(out, self.expected, rtol=0, atol=TOLERANCE[self.tile] * scale)


@pytest.mark.parametrize("tile", [2, 3, 4, 6])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 0, 0, 0), (2, 0, 1, 3)])
def test_expressions_compute_a_convolution(tile: int, pads: Pads) -> None:
    case = Case((2, 7, 5, 3), 4, tile, pads)
    case.check(case.func)


def test_weights_of_variables_are_transformed_in_code() -> None:
    taps = np.random.default_rng(0).standard_normal((3, 3, 2, 5)).astype(np.float32)
    w = Var("w", tensor_type(taps.shape, "float32"))
    function = infer_types(Function("k", (w,), call("nn.winograd_weight", w, tile=4)))
    assert isinstance(function, Function)
    func = lower_primitive(function, "k")
    expected = get_operator("nn.winograd_weight").reference([taps], WinogradWeightAttributes(tile=4))
    for version in (func, schedule_cpu(func, TARGETS["avx512"])):
        out = np.zeros((6, 6, 2, 5), np.float32)
        interpret(version, taps, out)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.grid
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(("size", "pads"), [(7, (1, 1, 1, 1)), (6, (0, 0, 0, 0)), (5, (2, 0, 1, 3)), (4, (1, 1, 1, 1))])
def test_expressions_with_plain_weights(tile: int, size: int, pads: Pads) -> None:
    """Whole tiles, and tiles of one, two and three results at the borders."""
    case = Case((2, size, size + 1, 3), 4, tile, pads, plain=True)
    case.check(case.func)


@pytest.mark.grid
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
class TestPlainSchedule:
    @pytest.mark.parametrize("size", [1, 4, 7, 8])
    @pytest.mark.parametrize(("channels", "outputs"), [(16, 32), (6, 20), (48, 7)])
    def test_sizes(self, target: Target, size: int, channels: int, outputs: int) -> None:
        case = Case((1, size, size, channels), outputs, plain=True)
        case.check(schedule_cpu(case.func, target))

    @pytest.mark.parametrize("epilogue", ["none", "relu", "transpose"])
    def test_epilogues(self, target: Target, epilogue: str) -> None:
        case = Case((1, 7, 6, 16), 16, epilogue=epilogue, plain=True)
        case.check(schedule_cpu(case.func, target))

    def test_weights_are_read_in_order_and_fetched_ahead(self, target: Target) -> None:
        scheduled = schedule_cpu(Case((1, 7, 7, 64), 64, plain=True).func, target)
        lanes = target.lanes(32)
        assert packing_of(scheduled)[1].rearrange(np.zeros((3, 3, 64, 64))).shape == (64 // lanes, 64, 3, 3, lanes)
        (row,) = (loop for loop in find_all(scheduled.body, For) if PREFETCH.is_on(loop))
        assert row.kind is LoopKind.UNROLLED and row.annotations[PREFETCH.name] == {"p1": 32 * 9 * lanes}

    def test_the_image_of_the_next_row_is_fetched_nearer(self, target: Target) -> None:
        """It lies right after that of the row at hand: 6 points of 4 tiles for the 32 channels of a part."""
        scheduled = schedule_cpu(Case((1, 7, 7, 64), 64, plain=True).func, target)
        (walk,) = (loop for loop in find_all(scheduled.body, For) if PREFETCH_NEAR.is_on(loop))
        assert walk.annotations[PREFETCH_NEAR.name] == {"winograd_input": 6 * 4 * 32}
        (image,) = {load.buffer for load in find_all(walk, BufferLoad) if load.buffer.name == "winograd_input"}
        assert image.static_shape == (1, 2, 6, 6, 4, 32)

    def test_the_border_is_made_for_one_vector_of_channels_at_a_time(self, target: Target) -> None:
        scheduled = schedule_cpu(Case((1, 7, 7, 64), 64, plain=True).func, target)
        names = ({block.name for block in find_all(loop, Block)} for loop in find_all(scheduled.body, For))
        assert {"pad_data", "winograd_input_rows", "winograd_input"} in names

    @pytest.mark.parametrize("part", [1, 12, 48])
    @pytest.mark.parametrize("together", [1, 2, 4])
    def test_choices(self, target: Target, part: int, together: int) -> None:
        """Parts of one channel, of some, and all at once; several channels an iteration where there are enough."""
        case = Case((1, 7, 5, 48), 16, plain=True)
        case.check(schedule_cpu(case.func, target, Choices({"part": part, "channels_together": together})))

    def test_products_that_nobody_needs_are_left_out(self, target: Target) -> None:
        """7 x 7 results are tiles of 4 and 3: 11 x 11 products instead of 12 x 12."""
        case = Case((1, 7, 7, 64), target.lanes(32), epilogue="none", plain=True)
        scheduled = schedule_cpu(case.func, target, Choices({"channels_together": 1}))
        lowered = lower(scheduled, target)
        sums = [
            item for item in find_all(lowered.body, BufferStore) if item.buffer.name.startswith("winograd_product_rf")
        ]
        products = [item for item in sums if find_all(item.value, Mul)]
        assert len(products) == 121


def test_compiled_with_plain_weights() -> None:
    target = Target("native").replace(cores=2)
    for size, channels, outputs in ((7, 32, 48), (3, 33, 16)):
        case = Case((1, size, size, channels), outputs, plain=True)
        scheduled = schedule_cpu(case.func, target)
        case.check(scheduled, tw.build(scheduled, target=target))


@pytest.mark.grid
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
class TestSchedule:
    @pytest.mark.parametrize("size", [1, 3, 4, 7, 10])
    @pytest.mark.parametrize("outputs", [16, 20, 7])
    def test_sizes(self, target: Target, size: int, outputs: int) -> None:
        case = Case((1, size, size, 8), outputs)
        case.check(schedule_cpu(case.func, target))

    @pytest.mark.parametrize("tile", [2, 3, 4, 6])
    def test_tiles(self, target: Target, tile: int) -> None:
        case = Case((2, 5, 9, 4), 16, tile, (1, 0, 1, 2))
        case.check(schedule_cpu(case.func, target))

    def test_groups_of_tiles_lie_in_one_image_or_are_whole_images(self, target: Target) -> None:
        # 4 x 49 tiles: blocks of 14 would begin in one image and end in the next.
        case = Case((4, 28, 28, 4), 16)
        case.check(schedule_cpu(case.func, target))

    @pytest.mark.parametrize("channels", [1, 3, 17, 32])
    def test_channels(self, target: Target, channels: int) -> None:
        case = Case((1, 6, 6, channels), 33)
        case.check(schedule_cpu(case.func, target))

    @pytest.mark.parametrize("epilogue", ["none", "relu", "transpose"])
    def test_epilogues(self, target: Target, epilogue: str) -> None:
        case = Case((1, 7, 6, 4), 16, epilogue=epilogue)
        case.check(schedule_cpu(case.func, target))

    def test_a_number_of_tiles_without_good_divisors(self, target: Target) -> None:
        # 17 tiles become 18; the last one repeats a window and its results are dropped.
        case = Case((1, 2, 34, 4), 16, 2)
        case.check(schedule_cpu(case.func, target))

    @pytest.mark.parametrize("cores", [1, 16])
    @pytest.mark.parametrize("size", [(8, 56), (13, 8), (2, 112)])
    def test_rows_of_tiles(self, target: Target, size: tuple[int, int], cores: int) -> None:
        case = Case((2, *size, 4), 16)
        case.check(schedule_cpu(case.func, target.replace(cores=cores)))

    @pytest.mark.parametrize("axes", [(0, 2, 1, 3), (0, 1, 3, 2)])
    def test_results_at_other_pixels(self, target: Target, axes: tuple[int, ...]) -> None:
        case = Case((1, 8, 8, 4), 8, epilogue="transpose", axes=axes)
        case.check(schedule_cpu(case.func, target))

    def test_groups_that_fit_a_small_cache(self, target: Target) -> None:
        case = Case((1, 24, 24, 16), 16)
        case.check(schedule_cpu(case.func, target.replace(l2_bytes=64 << 10)))


@pytest.mark.grid
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("tile", [2, 3, 4])
def test_weights_that_are_streamed(cores: int, tile: int) -> None:
    # The weights are larger than this cache: each slice of them meets all tiles, and the next is fetched.
    target = Target("native").replace(cores=cores, l2_bytes=256 << 10)
    case = Case((1, 14, 14, 64), 96, tile)
    scheduled = schedule_cpu(case.func, target)
    assert any(PREFETCH.is_on(loop) for loop in find_all(scheduled.body, For))
    case.check(scheduled, tw.build(scheduled, target=target))


@pytest.mark.parametrize("tile", [2, 3, 4])
def test_expressions_with_taps(tile: int) -> None:
    case = Case((2, 7, 5, 3), 4, tile, taps_type="float16")
    case.check(case.func)


@pytest.mark.grid
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("taps_type", ["float16", "float32"])
class TestWeightsTransformedInTheKernel:
    @pytest.mark.parametrize("size", [1, 7, 10])
    @pytest.mark.parametrize(("channels", "outputs"), [(8, 16), (17, 20), (6, 7), (16, 80)])
    def test_sizes(self, target: Target, taps_type: str, size: int, channels: int, outputs: int) -> None:
        case = Case((1, size, size, channels), outputs, taps_type=taps_type)
        case.check(schedule_cpu(case.func, target))

    @pytest.mark.parametrize("tile", [2, 3])
    @pytest.mark.parametrize("epilogue", ["none", "relu", "transpose"])
    def test_epilogues_of_several_images(self, target: Target, taps_type: str, tile: int, epilogue: str) -> None:
        case = Case((2, 5, 9, 4), 16, tile, (1, 0, 1, 2), epilogue, taps_type=taps_type)
        case.check(schedule_cpu(case.func, target))

    def test_an_open_batch(self, target: Target, taps_type: str) -> None:
        case = Case((3, 9, 9, 8), 32, batch=SymbolicVar("n"), taps_type=taps_type)
        case.check(schedule_cpu(case.func, target))

    def test_a_row_of_points_at_a_time(self, target: Target, taps_type: str) -> None:
        """One row of a panel is all that is kept of transformed weights; the image is fetched a block ahead."""
        func = schedule_cpu(Case((1, 32, 32, 64), 128, taps_type=taps_type).func, target)
        lowered = lower(func, target)
        panels, _, *rest = packing_of(func)[1].new_shape((3, 3, 64, 128))
        assert rest[:2] == [3, 3] and panels > 1
        (kept,) = {
            store.buffer for store in find_all(lowered.body, BufferStore) if store.buffer.name == "winograd_weight"
        }
        assert prod(kept.static_shape or ()) == 6 * 64 * 128 // panels
        (notes,) = (loop.annotations[PREFETCH.name] for loop in find_all(func.body, For) if PREFETCH.is_on(loop))
        assert list(notes) == ["winograd_input"]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("taps_type", ["float16", "float32"])
def test_compiled_with_taps(cores: int, taps_type: str) -> None:
    target = Target("native").replace(cores=cores, l2_bytes=256 << 10)
    case = Case((1, 22, 14, 64), 160, taps_type=taps_type)
    scheduled = schedule_cpu(case.func, target)
    case.check(scheduled, tw.build(scheduled, target=target))


def parallel_loops(func: PrimFunc) -> int:
    return sum(loop.kind is LoopKind.PARALLEL for loop in find_all(func.body, For))


def test_cores_share_groups_or_panels() -> None:
    target = TARGETS["avx512"].replace(l2_bytes=2 << 20)
    many, few = (Case((1, size, size, 64), 64, epilogue="none").func for size in (56, 28))
    for cores in (1, 2, 4, 16):
        here = target.replace(cores=cores)
        # Rows of tiles go to cores where there are enough; else all cores make the input, then the products.
        assert parallel_loops(schedule_cpu(many, here)) == {1: 0, 2: 1, 4: 1, 16: 1}[cores]
        assert parallel_loops(schedule_cpu(few, here)) == {1: 0, 2: 1, 4: 1, 16: 2}[cores]


def test_the_number_of_tiles_is_rounded_up_by_little() -> None:
    assert [padded_tiles(n) for n in (1, 4, 14, 16, 49, 196)] == [1, 4, 14, 16, 49, 196]
    assert padded_tiles(17) == 18
    assert padded_tiles(289) == 290
    assert all(n <= padded_tiles(n) <= n + 5 for n in range(1, 2000))


def test_more_tiles_where_those_come_in_fewer_groups() -> None:
    """Weights that do not stay near are read for each group of tiles that do."""
    tile = 36 * 256 * 4
    assert padded_tiles(49, tile, 256 * tile) == 52
    assert padded_tiles(49, tile // 2, 128 * tile // 2) == 49, "all tiles stay near"
    assert padded_tiles(49, tile, 16 * tile) == 49, "the weights stay near"
    assert padded_tiles(64, tile, 128 * tile) == 64, "four groups already"
    for outputs, count in ((256, 52), (16, 49)):
        (stage,) = (
            block
            for block in find_all(Case((1, 26, 26, 256), outputs).func.body, Block)
            if block.name == "winograd_input"
        )
        assert (stage.writes[0].buffer.static_shape or ())[3] == count


@pytest.mark.parametrize(
    ("size", "channels", "outputs", "groups"),
    [
        (16, 512, 32, 1),  # 1.2 MB of 2 for 16 tiles, where 8 do not hide the reading of weights
        (32, 128, 64, 2),  # the same for 64 tiles: 32 do
        (32, 128, 32, 8),  # weights stay near: one row of tiles after the other
    ],
)
def test_groups_of_tiles_stay_in_the_second_cache_level(size: int, channels: int, outputs: int, groups: int) -> None:
    target = TARGETS["avx512"].replace(l2_bytes=2 << 20, cores=1)
    func = schedule_cpu(Case((1, size, size, channels), outputs, epilogue="none").func, target)
    loops = [
        loop for loop in find_all(func.body, For) if any(b.name == "winograd_input" for b in find_all(loop, Block))
    ]
    outer = [loop for loop in loops if any(b.name == "winograd_product" for b in find_all(loop, Block))]
    assert [loop.extent.value for loop in outer] == [groups]  # type: ignore[attr-defined]


def test_pixels_from_beyond_the_second_cache_level_are_fetched_a_group_ahead() -> None:
    """While a group is multiplied: what the next reads, what is added to its results, and their places."""
    case = Case((1, 56, 56, 16), 16)
    target = TARGETS["avx512"].replace(cores=1)
    small, large = (schedule_cpu(case.func, target.replace(l2_bytes=size)) for size in (256 << 10, 2 << 20))
    notes = [loop.annotations[PREFETCH.name] for loop in find_all(small.body, For) if PREFETCH.is_on(loop)]
    line, rows = 56 * 16, 8  # A group is two rows of tiles.
    result = small.params[-1].name
    length = rows * line
    assert notes == [{result: [length, length], "p3": [length, length], "p0": [length, length + 2 * line]}]
    assert not any(PREFETCH.is_on(loop) for loop in find_all(large.body, For)), "all of it stays near"
    here = Target("native").replace(cores=1, l2_bytes=256 << 10)
    native = schedule_cpu(case.func, here)
    assert any(PREFETCH.is_on(loop) for loop in find_all(native.body, For))
    case.check(native, tw.build(native, target=here))


@pytest.mark.grid
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
class TestOpenBatch:
    """One kernel for any number of images."""

    @pytest.mark.parametrize("plain", [False, True], ids=["transformed", "plain"])
    @pytest.mark.parametrize("epilogue", ["none", "relu", "transpose"])
    @pytest.mark.parametrize("cores", [1, 2])
    def test_numbers_of_images(self, target: Target, plain: bool, epilogue: str, cores: int) -> None:
        symbol = tw.te.var("n")
        cases = [Case((n, 7, 6, 16), 16, epilogue=epilogue, plain=plain, batch=symbol) for n in (0, 1, 3)]
        scheduled = schedule_cpu(cases[0].func, target.replace(cores=cores))
        for case in cases:
            case.check(case.func)
            case.check(scheduled)

    @pytest.mark.parametrize("tile", [2, 3, 4])
    def test_tiles(self, target: Target, tile: int) -> None:
        case = Case((2, 5, 9, 4), 16, tile, (1, 0, 1, 2), batch=tw.te.var("n"))
        case.check(schedule_cpu(case.func, target))

    @pytest.mark.parametrize("axes", [(0, 2, 1, 3), (1, 0, 2, 3), (3, 1, 2, 0)])
    def test_results_at_other_pixels(self, target: Target, axes: tuple[int, ...]) -> None:
        case = Case((2, 8, 8, 4), 8, epilogue="transpose", axes=axes, batch=tw.te.var("n"))
        case.check(schedule_cpu(case.func, target))

    def test_a_number_of_tiles_without_good_divisors(self, target: Target) -> None:
        # 17 tiles become 18, in each image.
        case = Case((2, 2, 34, 4), 16, 2, batch=tw.te.var("n"))
        case.check(schedule_cpu(case.func, target))

    @pytest.mark.parametrize(("cores", "l2_bytes"), [(1, 2 << 20), (2, 64 << 10), (16, 2 << 20)])
    @pytest.mark.parametrize(("size", "tile", "plain"), [(24, 4, False), (14, 3, False), (4, 4, True)])
    def test_images_are_a_loop_around_the_schedule_of_one(
        self, target: Target, size: int, tile: int, plain: bool, cores: int, l2_bytes: int
    ) -> None:
        """The same choices, the same parallel loops, and no more scratch memory."""
        here = target.replace(cores=cores, l2_bytes=l2_bytes)
        choices = Choices(), Choices()
        batches = None, tw.te.var("n")
        one, any_number = (
            schedule_cpu(Case((1, size, size, 16), 32, tile, plain=plain, batch=batch).func, here, asked)
            for batch, asked in zip(batches, choices, strict=True)
        )
        # Vectors of the padding are a question of stages that stand alone only.
        asked = {name: question for name, question in choices[0].asked.items() if name != "vector"}
        assert asked and asked == choices[1].asked
        assert parallel_loops(one) == parallel_loops(any_number)
        assert _scratch(lower(any_number, here)) <= _scratch(lower(one, here))


def _scratch(func: PrimFunc) -> int:
    """Elements that a program allocates."""
    sizes = [item.buffer.static_shape for item in find_all(func.body, Allocate)]
    assert all(size is not None for size in sizes)
    return sum(prod(size or ()) for size in sizes)


@pytest.mark.grid
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    ("size", "outputs", "tile", "plain"),
    [((28, 28, 32), 64, 4, False), ((14, 14, 48), 96, 3, False), ((7, 7, 32), 48, 4, True)],
)
def test_compiled_for_any_number_of_images(
    size: tuple[int, int, int], outputs: int, tile: int, plain: bool, cores: int
) -> None:
    # Weights are larger than this cache.
    target = Target("native").replace(cores=cores, l2_bytes=256 << 10)
    symbol = tw.te.var("n")
    cases = [Case((n, *size), outputs, tile, plain=plain, batch=symbol) for n in (1, 0, 2, 3, 17)]
    scheduled = schedule_cpu(cases[0].func, target)
    module = tw.build(scheduled, target=target)
    for case in cases:
        case.check(scheduled, module)


N, H, W = (tw.te.var(name) for name in "nhw")


@pytest.mark.grid
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
class TestOpenPixels:
    """One kernel for any height and width."""

    @pytest.mark.parametrize(("epilogue", "cores"), [("none", 1), ("relu", 2), ("transpose", 1)])
    def test_heights_and_widths(self, target: Target, epilogue: str, cores: int) -> None:
        sizes = ((1, 1, 1), (2, 3, 5), (0, 4, 4), (1, 9, 6), (1, 0, 6))
        cases = [Case((*size, 4), 16, epilogue=epilogue, batch=N, pixels=(H, W)) for size in sizes]
        scheduled = schedule_cpu(cases[0].func, target.replace(cores=cores))
        assert bool(parallel_loops(scheduled)) == (cores > 1)
        for case in cases:
            case.check(scheduled)

    @pytest.mark.parametrize(("tile", "pads"), [(2, (0, 0, 0, 0)), (3, (2, 0, 1, 3)), (6, (0, 1, 0, 2))])
    def test_tiles_and_borders(self, target: Target, tile: int, pads: Pads) -> None:
        for size in ((1, 3, 3, 4), (1, 7, 6, 4)):
            case = Case(size, 8, tile, pads, epilogue="none", batch=N, pixels=(H, W))
            case.check(case.func)
            case.check(schedule_cpu(case.func, target))

    @pytest.mark.parametrize("pixels", [(8, W), (H, 8)], ids=["width", "height"])
    def test_only_one_is_open(self, target: Target, pixels: tuple[PrimExpr | int, PrimExpr | int]) -> None:
        case = Case((2, 8, 8, 3), 5, pixels=pixels)
        case.check(schedule_cpu(case.func, target))

    def test_tiles_past_the_end_are_left_out(self, target: Target) -> None:
        """A single tile is one block of them, whatever the size of a group is."""
        func = schedule_cpu(Case((1, 4, 4, 16), 16, batch=N, pixels=(H, W)).func, target)
        text = to_script(lower(func, target))
        assert "// 5:" in text, "blocks of tiles are asked for, and no tile again"

    def test_code_is_written_once(self, target: Target) -> None:
        """Windows and results have code for the inside and loops for the edges; transforms and products do not."""
        fixed, open_sizes = (
            lower(schedule_cpu(Case((1, 40, 40, 32), 32, epilogue="none", pixels=pixels).func, target), target)
            for pixels in (None, (H, W))
        )
        counts = [len(find_all(func.body, BufferStore)) for func in (fixed, open_sizes)]
        assert counts[1] <= 1.5 * counts[0]


def test_weights_for_open_pixels_are_fetched_a_slice_ahead() -> None:
    func = schedule_cpu(Case((1, 12, 12, 64), 64, epilogue="none", pixels=(H, W)).func, TARGETS["avx512"])
    (columns,) = (item.shape[-1] for item in func.params if isinstance(item, Buffer) and item.ndim == 5)
    (fetched,) = (found for loop in find_all(func.body, For) if (found := PREFETCH.of(loop)) is not None)
    assert [item.start for item in fetched.values()] == [64 * (const_value(columns) or 0)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 23), st.integers(1, 23)), min_size=1, max_size=6))
@settings(max_examples=8, deadline=None)
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_for_any_height_and_width(threads: int, sizes: list[tuple[int, int, int]]) -> None:
    target = Target("native").replace(cores=threads)
    cases = [Case((*size, 8), 24, batch=N, pixels=(H, W)) for size in [(1, 1, 1), *sizes]]
    scheduled, module = _built(target)
    for case in cases:
        case.check(scheduled, module)


@functools.cache
def _built(target: Target) -> tuple[PrimFunc, tw.Module]:
    scheduled = schedule_cpu(Case((1, 4, 4, 8), 24, batch=N, pixels=(H, W)).func, target)
    return scheduled, tw.build(scheduled, target=target)


@pytest.mark.grid
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    ("size", "outputs", "tile"),
    [((1, 28, 28, 32), 64, 4), ((1, 14, 14, 48), 96, 4), ((2, 7, 7, 32), 40, 2)],
)
def test_compiled(size: tuple[int, int, int, int], outputs: int, tile: int, cores: int) -> None:
    case = Case(size, outputs, tile)
    target = Target("native").replace(cores=cores)
    scheduled = schedule_cpu(case.func, target)
    case.check(scheduled, tw.build(scheduled, target=target))


@settings(max_examples=20, deadline=None)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    channels=st.integers(1, 10),
    outputs=st.integers(1, 20),
    tile=st.sampled_from([2, 3, 4]),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    target=st.sampled_from(list(TARGETS.values())),
    images=st.integers(1, 3),
    batch=st.sampled_from([None, tw.te.var("n")]),
)
def test_any_convolution(
    height: int,
    width: int,
    channels: int,
    outputs: int,
    tile: int,
    pads: Pads,
    target: Target,
    images: int,
    batch: PrimExpr | None,
) -> None:
    if height + pads[0] + pads[2] < 3 or width + pads[1] + pads[3] < 3:
        return
    case = Case((images, height, width, channels), outputs, tile, pads, batch=batch)
    case.check(schedule_cpu(case.func, target))
