"""Operators of the tensor processor beside plain convolutions: bit for bit what references and CPUs compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.backends.accel_layers import SMALL, target_of
from tests.requirements import need
from tilewright import te
from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.instructions import Alu, Epi, Gemm, Load, Store
from tilewright.accel.kernel import AccelKernel, from_text
from tilewright.accel.program import Program
from tilewright.accel.verilated import VerilatedMachine
from tilewright.backends.accel.lowering import accel_pipeline
from tilewright.graph.ir.op import get_operator
from tilewright.graph.ops.accelerator import AccelConv2dAttributes, AccelPool2dAttributes, AccelSpreadAttributes
from tilewright.graph.passes.channel_blocks import Blocks
from tilewright.ir.types import tensor_type
from tilewright.lower.schedules import schedule_kernel
from tilewright.support.errors import UserError
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.script import parse_script, to_script
from tilewright.topi.registry import compute_operator
from tilewright.topi.schedule.choices import Choices
from tilewright.tune.accel_cycles import cycles

WIDE = replace(SMALL, block_in=8, bus_bytes=8, block_out=8, acc_bytes=4096, out_bytes=512, wgt_bytes=4096)
ROWS = replace(SMALL, batch=2, inp_bytes=1024, acc_bytes=2048, out_bytes=512)
UNEVEN = replace(SMALL, block_out=8, acc_bytes=2048, out_bytes=512, wgt_bytes=2048)
NARROW = replace(SMALL, block_in=8, inp_bytes=1024, wgt_bytes=2048)
CONFIGS = {"small": SMALL, "wide": WIDE, "rows": ROWS, "uneven": UNEVEN, "narrow": NARROW}


@dataclass(frozen=True)
class Case:
    """An operator on blocks of channels, for a configuration: `c` is its number of input channels."""

    name: str
    attributes: Any
    size: tuple[int, int]
    channels: int
    number: int = 1
    weight: tuple[int, ...] = ()
    """Blocks and window of random weights; none: ones on the diagonal, or no weights at all."""
    residual: bool = False
    sums: bool = False

    def arrays(self, config: AccelConfig, seed: int = 0) -> list[np.ndarray]:
        random = np.random.default_rng(seed)
        blocks = Blocks(config.batch, config.block_in, config.block_out)

        def integers(*shape: int) -> np.ndarray:
            return random.integers(-128, 128, shape).astype(np.int8)

        if self.name == "accel.spread":
            return [integers(self.number, self.channels, *self.size, config.batch, config.block_out)]
        inputs = self.channels * blocks.whole // config.block_in
        data = integers(self.number, inputs, *self.size, config.batch, config.block_in)
        weight = blocks.diagonal()
        if self.weight:
            weight = integers(*self.weight, config.block_out, config.block_in)
            return [data, weight] if self.sums else [data, weight, self._words(random, weight.shape[0], config)]
        count = self.channels * blocks.whole // config.block_out
        arrays = [data, weight, self._words(random, count, config)]
        if self.residual:
            arrays.append(integers(self.number, count, *self.size, config.batch, config.block_out))
        return arrays

    @staticmethod
    def _words(random: np.random.Generator, blocks: int, config: AccelConfig) -> np.ndarray:
        ends = ((-5000, 5000), (-(1 << 15), 1 << 15), (-(1 << 15), 1 << 15), (16, 22))
        words = [random.integers(*pair, (blocks, config.block_out)) for pair in ends]
        return np.stack(words, axis=1).astype(np.int32)

    def attributes_for(self, config: AccelConfig) -> Any:
        """The attributes, with as many groups as the blocks of a configuration make of the channels."""
        if self.name == "accel.spread" or self.weight:
            return self.attributes
        return self.attributes.replace(groups=self.channels)

    def program(self, config: AccelConfig) -> PrimFunc:
        inputs = [
            te.placeholder(item.shape, str(item.dtype), name=f"input{n}") for n, item in enumerate(self.arrays(config))
        ]
        operator = get_operator(self.name)
        types = [tensor_type(item.shape, str(item.dtype)) for item in self.arrays(config)]
        attributes = self.attributes_for(config)
        (result,) = compute_operator(self.name, inputs, attributes, operator.infer(types, attributes))
        return te.create_prim_func([*inputs, result], "layer")

    def expected(self, arrays: list[np.ndarray], config: AccelConfig) -> np.ndarray:
        reference = get_operator(self.name).reference
        assert reference is not None
        return np.asarray(reference(arrays, self.attributes_for(config)))


def _average(kernel: tuple[int, int], **more: Any) -> AccelConv2dAttributes:
    return AccelConv2dAttributes(kernel=kernel, shared=True, **more)


CASES = {
    "max 3x3/2": Case("accel.max_pool2d", AccelPool2dAttributes((3, 3), (2, 2), (1, 1, 1, 1)), (6, 6), 1),
    "max 2x2/2": Case("accel.max_pool2d", AccelPool2dAttributes((2, 2), (2, 2), low=-9), (6, 8), 3, number=2),
    "max 1x3": Case("accel.max_pool2d", AccelPool2dAttributes((1, 3), (1, 1), (0, 1, 0, 2)), (4, 5), 1),
    "max 4x1/3": Case("accel.max_pool2d", AccelPool2dAttributes((4, 1), (3, 2)), (7, 5), 2),
    "max 1x1": Case("accel.max_pool2d", AccelPool2dAttributes((1, 1)), (3, 4), 1),
    "average 2x2/2": Case("accel.conv2d", _average((2, 2), strides=(2, 2), offset=3), (6, 4), 2),
    "average 3x3, padded": Case("accel.conv2d", _average((3, 3), padding=(1, 1, 1, 1), pad=7), (4, 4), 3),
    "global average": Case("accel.conv2d", _average((5, 4)), (5, 4), 4, number=2),
    "addition": Case("accel.conv2d", AccelConv2dAttributes(shared=True, low=-100), (4, 6), 3, residual=True),
    "other scale": Case("accel.conv2d", AccelConv2dAttributes(shared=True, offset=-3), (5, 3), 2),
    "sums": Case("accel.conv2d", AccelConv2dAttributes((1, 2), (1, 1, 1, 0)), (4, 5), 2, 1, (3, 2, 3, 3), sums=True),
    "sums of groups": Case("accel.conv2d", AccelConv2dAttributes(groups=2), (4, 1), 2, weight=(4, 1, 1, 1), sums=True),
    "depthwise": Case("accel.conv2d", AccelConv2dAttributes((1, 1), (1, 1, 1, 1), 2), (4, 4), 2, 1, (2, 1, 3, 3)),
    "spread 2x2": Case("accel.spread", AccelSpreadAttributes((2, 2), (8, 12)), (4, 6), 3),
    "spread 3x1": Case("accel.spread", AccelSpreadAttributes((3, 1), (12, 5)), (4, 5), 2, number=2),
    "spread 1x4": Case("accel.spread", AccelSpreadAttributes((1, 4), (3, 8)), (3, 2), 1),
    "phases 2x2": Case("accel.spread", AccelSpreadAttributes((2, 2), (8, 12), (1, 1), True), (5, 7), 8),
    "phases of one pixel": Case("accel.spread", AccelSpreadAttributes((2, 3), (2, 3), phases=True), (1, 1), 12),
    "phases 2x3": Case("accel.spread", AccelSpreadAttributes((2, 3), (6, 6), (0, 2), True), (3, 3), 6),
}  # fmt: skip
"""By what they are; channels are in the fewest that are whole blocks, those of `accel.spread` in blocks."""


def _run(case: Case, config: AccelConfig, threads: int = 2) -> AccelKernel:
    arrays = case.arrays(config)
    expected = case.expected(arrays, config)
    scheduled = schedule_kernel(case.program(config), target_of(config), Choices({"threads": threads}))
    module = tw.build(scheduled.func, target=target_of(config))
    result = np.zeros(expected.shape, expected.dtype)
    module(*arrays, result)
    np.testing.assert_array_equal(result, expected)
    (kernel,) = from_text(module.source)
    return kernel


def _pairs() -> list[tuple[str, str, int]]:
    """Each case on two configurations, with two virtual threads and without them."""
    result = []
    for number, (name, case) in enumerate(CASES.items()):
        # Random weights are for tensors of as many inputs as outputs.
        names = [key for key, config in CONFIGS.items() if not case.weight or config.block_in == config.block_out]
        result += [(name, names[(number + turn) % len(names)], 2 - turn) for turn in range(2)]
    return result


@pytest.mark.parametrize(("name", "config", "threads"), _pairs())
def test_operators_are_exact(name: str, config: str, threads: int) -> None:
    _run(CASES[name], CONFIGS[config], threads)


@pytest.mark.parametrize("name", ["max 3x3/2", "sums", "global average", "phases 2x2"])
def test_every_stage_computes_the_same(name: str) -> None:
    case, config = CASES[name], SMALL
    arrays, program = case.arrays(config), case.program(config)
    expected = case.expected(arrays, config)
    on_cpu = np.zeros(expected.shape, expected.dtype)
    tw.build(program, target="llvm")(*arrays, on_cpu)
    np.testing.assert_array_equal(on_cpu, expected)
    func = schedule_kernel(program, target_of(config)).func
    for item in (None, *accel_pipeline(target_of(config)).passes):
        func = func if item is None else item(func)  # type: ignore[assignment]
        again = parse_script(to_script(func))
        given = [*arrays, np.zeros(expected.shape, expected.dtype)]
        shaped = [array.reshape(buffer.static_shape or ()) for array, buffer in zip(given, func.buffers, strict=True)]
        interpret(again, *shaped)
        np.testing.assert_array_equal(shaped[-1].reshape(expected.shape), expected, str(item))


def test_weights_that_are_shared_are_loaded_once() -> None:
    kernel = _run(CASES["global average"], AccelConfig())
    loads = [item for item in kernel.instructions if isinstance(item, Load) and item.memory is Memory.WGT]
    assert sum(item.y_size * item.x_size for item in loads) == 1


def test_sums_are_stored_as_they_are() -> None:
    kernel = _run(CASES["sums"], SMALL)
    assert not any(isinstance(item, Epi) for item in kernel.instructions)
    assert {item.memory for item in kernel.instructions if isinstance(item, Store)} == {Memory.ACC}


def test_copies_are_dma_alone() -> None:
    kernel = _run(CASES["spread 2x2"], AccelConfig())
    assert not any(isinstance(item, (Gemm, Alu, Epi)) for item in kernel.instructions)
    loads = [item for item in kernel.instructions if isinstance(item, Load) and item.memory is Memory.OUT]
    assert sum(item.y_size * item.x_size for item in loads) == 3 * 4 * 6


def test_phases_of_one_pixel_are_loaded_once() -> None:
    kernel = _run(CASES["phases of one pixel"], AccelConfig())
    loads = [item for item in kernel.instructions if isinstance(item, Load) and item.memory is Memory.OUT]
    assert sum(item.y_size * item.x_size for item in loads) == 12


def test_maxima_compare_rows_and_then_columns() -> None:
    kernel = _run(CASES["max 3x3/2"], AccelConfig())
    steps = [
        item.outer * item.inner * (item.uop_end - item.uop_begin)
        for item in kernel.instructions
        if isinstance(item, Alu)
    ]
    # Three for each of 7 x 3 pixels, then for each of 3 x 3; both at once they would be nine.
    assert sum(steps) == 3 * (7 * 3 + 3 * 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_hardware_computes_the_same_in_the_cycles_of_the_model(name: str) -> None:
    need("verilator", "amaranth", "c++-compiler")
    case, config = CASES[name], SMALL
    kernel, arrays = _run(case, config), case.arrays(config)
    expected = case.expected(arrays, config)
    places, segments, address = [], {}, 0
    for array in (*arrays, np.zeros(expected.shape, expected.dtype), np.frombuffer(kernel.micro_op_bytes(), np.uint8)):
        places.append(address)
        segments[address] = array.tobytes()
        address += -(-array.nbytes // 64) * 64 + 64
    program = Program(config, kernel.at(places[:-1], places[-1]), segments, ((places[-2], expected.nbytes),))
    machine = VerilatedMachine(config, program.dram_bytes)
    counters, (data,) = program.run_on(machine)
    machine.close()
    assert cycles(program.instructions, config, program.read).total == counters.cycles
    np.testing.assert_array_equal(np.frombuffer(data, expected.dtype).reshape(expected.shape), expected)


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        ("global average", {"groups": 3}, "not in blocks of the same channels"),
        ("average 2x2/2", {"kernel": (9, 9)}, r"windows of \(9, 9\) do not fit"),
        ("max 2x2/2", {"kernel": (7, 2)}, r"windows of \(7, 2\) do not fit"),
        ("spread 2x2", {"size": (9, 12)}, "are not within"),
        ("phases 2x2", {"strides": (3, 3)}, "no|are not blocks of channels of 9 phases"),
    ],
)
def test_what_is_no_layer(case: str, change: dict[str, Any], message: str) -> None:
    item = CASES[case]
    types = [tensor_type(array.shape, str(array.dtype)) for array in item.arrays(SMALL)]
    with pytest.raises(UserError, match=message):
        get_operator(item.name).infer(types, item.attributes_for(SMALL).replace(**change))
