"""ResNet-18's convolutions as programs of the tensor processor, with arguments, and what they must give."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.accel.config import PARAMETER_WORDS, AccelConfig, Memory
from tilewright.accel.encoding import encode
from tilewright.accel.instructions import Instruction
from tilewright.accel.kernel import AccelKernel
from tilewright.accel.machine import Counters, Machine
from tilewright.accel.program import Program
from tilewright.graph.ir.op import get_operator
from tilewright.graph.ops.accelerator import AccelConv2dAttributes
from tilewright.support.errors import CompilerBug
from tilewright.tir.function import PrimFunc
from tilewright.topi.schedule.choices import Answer
from tilewright.tune.accel_cycles import cycles_of_code
from tilewright.tune.accel_workload import LayerShape, compiled

LAYERS = {
    "C2": LayerShape(56, 56, 64, 64, 3, uses=4),
    "C3": LayerShape(56, 56, 64, 64, 1, uses=0),
    "C4": LayerShape(56, 56, 64, 128, 3, 2),
    "C5": LayerShape(56, 56, 64, 128, 1, 2),
    "C6": LayerShape(28, 28, 128, 128, 3, uses=3),
    "C7": LayerShape(28, 28, 128, 256, 3, 2),
    "C8": LayerShape(28, 28, 128, 256, 1, 2),
    "C9": LayerShape(14, 14, 256, 256, 3, uses=3),
    "C10": LayerShape(14, 14, 256, 512, 3, 2),
    "C11": LayerShape(14, 14, 256, 512, 1, 2),
    "C12": LayerShape(7, 7, 512, 512, 3, uses=3),
}
"""The published names, and how often ResNet-18 runs each (C3 is of the published list, and not of the network)."""
SHIFT = 24
_PAGE = 4096


def workload_text() -> str:
    """The layers that ResNet-18 offloads, as `tilewright accel explore --layers` takes them."""
    used = [shape for shape in LAYERS.values() if shape.uses]
    return ",".join(
        f"{item.height}x{item.width}x{item.inputs}-{item.outputs}x{item.kernel}/{item.stride}*{item.uses}"
        for item in used
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """One convolution, for a configuration."""

    name: str
    config: AccelConfig

    @property
    def shape(self) -> LayerShape:
        """Its sizes."""
        return LAYERS[self.name]

    @property
    def output(self) -> int:
        """Height and width of the results."""
        shape = self.shape
        return (shape.height + 2 * (shape.kernel // 2) - shape.kernel) // shape.stride + 1

    def shapes(self) -> list[tuple[int, ...]]:
        """Data, weight, parameters, results."""
        shape, config = self.shape, self.config
        ci, co = -(-shape.inputs // config.block_in), -(-shape.outputs // config.block_out)
        return [
            (1, ci, shape.height, shape.width, config.batch, config.block_in),
            (co, ci, shape.kernel, shape.kernel, config.block_out, config.block_in),
            (co, PARAMETER_WORDS, config.block_out),
            (1, co, self.output, self.output, config.batch, config.block_out),
        ]

    def program(self) -> PrimFunc:
        """The unscheduled program."""
        return self.shape.program(self.config).replace(name=self.name.lower())

    def kernel(self, answers: Mapping[str, Answer]) -> AccelKernel:
        """The compiled layer, with the schedule of some answers."""
        return compiled(self.program(), self.config, dict(answers))

    def bound(self) -> tuple[int, int]:
        """Cycles of the array, and words of the bus that are moved once each; rows that nothing reads are not moved."""
        data, weight, parameters, result = self.shapes()
        kernel = weight[2]
        products = result[1] * result[2] * result[3] * weight[1] * kernel * kernel
        rows = self.output if kernel == 1 else data[2]
        words = {memory: self.config.dma_bytes[memory] // self.config.bus_bytes for memory in Memory}
        moved = data[1] * rows * data[3] * words[Memory.INP] + int(np.prod(weight[:4])) * words[Memory.WGT]
        moved += result[1] * result[2] * result[3] * words[Memory.OUT] + parameters[0] * words[Memory.PAR]
        return products, moved


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel with random arguments in DRAM, and the cycles that the model counts."""

    layer: Layer
    program: Program
    arrays: list[np.ndarray]
    cycles: int

    def counted(self) -> tuple[int, float]:
        """Cycles by the model, and the seconds that it took for them."""
        code = encode(self.program.instructions, self.layer.config)
        began = time.process_time()
        total = cycles_of_code(code, self.layer.config, self.program.read).total
        return total, time.process_time() - began


def loaded(layer: Layer, kernel: AccelKernel, *, plain: bool = False) -> Loaded:
    """The kernel with random arguments. `plain` has no bias and no multiplier: a shift is all of the requantisation."""
    random = np.random.default_rng(0)
    shapes = layer.shapes()
    arrays: list[np.ndarray] = [random.integers(-128, 128, shape).astype(np.int8) for shape in shapes[:2]]
    words = np.zeros(shapes[2], np.int32)
    words[:, 0], words[:, 1], words[:, 3] = (
        (0, 1, SHIFT // 2)
        if plain
        else (random.integers(-999, 999, words[:, 0].shape), random.integers(999, 32767), SHIFT)
    )
    arrays += [words, np.zeros(shapes[3], np.int8)]
    segments: dict[int, bytes] = {}
    places: list[int] = []
    address = 0
    for array in (*arrays, np.frombuffer(kernel.micro_op_bytes(), np.uint8)):
        places.append(address)
        segments[address] = array.tobytes()
        address += -(-array.nbytes // _PAGE) * _PAGE
    instructions: tuple[Instruction, ...] = kernel.at(places[:-1], places[-1])
    program = Program(layer.config, instructions, segments, ((places[3], arrays[3].nbytes),))
    total = cycles_of_code(encode(instructions, layer.config), layer.config, program.read).total
    return Loaded(layer, program, arrays, total)


def run_seconds(item: Loaded, machine: Machine) -> float:
    """The seconds of a run, of a program that the machine's DRAM holds."""
    began = time.process_time()
    machine.run(item.program.entry, len(item.program.instructions))
    return time.process_time() - began


def checked(item: Loaded, machine: Machine) -> Counters:
    """Run a program, and compare its results with the operator's reference."""
    item.program.write_to(machine)
    counters = machine.run(item.program.entry, len(item.program.instructions))
    (data,) = (machine.read(address, size) for address, size in item.program.results)
    shape = item.layer.shape
    attributes = AccelConv2dAttributes((shape.stride, shape.stride), (shape.kernel // 2,) * 4)
    reference = get_operator("accel.conv2d").reference
    assert reference is not None
    expected = reference(item.arrays[:3], attributes)
    if not np.array_equal(np.frombuffer(data, np.int8).reshape(item.arrays[3].shape), expected):
        raise CompilerBug(f"the results of {item.layer.name} are not the operator's")
    return counters
