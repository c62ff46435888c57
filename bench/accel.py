"""ResNet-18's convolutions on the tensor processor: `python -m bench.accel`.

    python -m bench.accel                              # eleven layers, two virtual threads against one
    python -m bench.accel --only C3,C5 --config wide.json --check
    python -m bench.accel --tune 24 --hardware         # the best of 24 tilings, confirmed by the hardware's simulation

For each layer the program's cycles by the timing model of the hardware (`tune/accel_cycles.py`) at the configuration's
memory latency and bus, against the array's products and the words of the bus that no schedule avoids. `alone` is the
same without virtual threads: loads, products and stores take turns. `--tune N` takes the best of N tilings by the
timing model. `--check` runs each program on the functional simulator and compares it with the operator's reference,
bit for bit. `--hardware` runs it on the hardware as Verilator simulates it, compares cycles with the model's and
results with the reference's, and times both. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright import te
from tilewright.accel.config import PARAMETER_WORDS, AccelConfig, Memory
from tilewright.accel.functional import FunctionalMachine
from tilewright.accel.instructions import Instruction
from tilewright.accel.kernel import AccelKernel, from_text
from tilewright.accel.machine import Counters, Machine
from tilewright.accel.program import Program
from tilewright.accel.verilated import VerilatedMachine
from tilewright.backends.device import device_kernels, device_source
from tilewright.cli.options import positive_int
from tilewright.graph.ir.op import get_operator
from tilewright.graph.ops.accelerator import AccelConv2dAttributes
from tilewright.lower.schedules import schedule_kernel
from tilewright.support.errors import CompilerBug
from tilewright.support.text import table
from tilewright.target import Target
from tilewright.topi.accel import Windows, conv2d
from tilewright.topi.fixed_point import Requantization
from tilewright.topi.schedule.choices import Choices
from tilewright.tune.accel_cycles import cycles

LAYERS = {
    "C2": (56, 64, 64, 3, 1),
    "C3": (56, 64, 64, 1, 1),
    "C4": (56, 64, 128, 3, 2),
    "C5": (56, 64, 128, 1, 2),
    "C6": (28, 128, 128, 3, 1),
    "C7": (28, 128, 256, 3, 2),
    "C8": (28, 128, 256, 1, 2),
    "C9": (14, 256, 256, 3, 1),
    "C10": (14, 256, 512, 3, 2),
    "C11": (14, 256, 512, 1, 2),
    "C12": (7, 512, 512, 3, 1),
}
"""Height and width, input and output channels, kernel, stride."""
OFFLOADED = {"C2": 4, "C4": 1, "C5": 1, "C6": 3, "C7": 1, "C8": 1, "C9": 3, "C10": 1, "C11": 1, "C12": 3}
"""How often each layer is in ResNet-18."""
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Layer:
    """One convolution, for a configuration."""

    name: str
    config: AccelConfig

    @property
    def output(self) -> int:
        """Height and width of the results."""
        size, _, _, kernel, stride = LAYERS[self.name]
        return (size + 2 * (kernel // 2) - kernel) // stride + 1

    def shapes(self) -> list[tuple[int, ...]]:
        """Data, weight, parameters, results."""
        size, inputs, outputs, kernel, _ = LAYERS[self.name]
        config = self.config
        ci, co = -(-inputs // config.block_in), -(-outputs // config.block_out)
        return [
            (1, ci, size, size, config.batch, config.block_in),
            (co, ci, kernel, kernel, config.block_out, config.block_in),
            (co, PARAMETER_WORDS, config.block_out),
            (1, co, self.output, self.output, config.batch, config.block_out),
        ]

    @property
    def windows(self) -> Windows:
        """Strides and padding."""
        _, _, _, kernel, stride = LAYERS[self.name]
        return Windows((stride, stride), (kernel // 2,) * 4)

    def kernel(self, threads: int, tiling: int = 0) -> AccelKernel:
        """The compiled layer, with the tiling of a place among those that the schedule's model finds best."""
        *shapes, _ = self.shapes()
        inputs = [
            te.placeholder(shape, dtype, name=name)
            for shape, dtype, name in zip(
                shapes, ("int8", "int8", "int32"), ("data", "weight", "parameters"), strict=True
            )
        ]
        result = conv2d(inputs[0], inputs[1], inputs[2], None, self.windows, Requantization())
        target = Target(f"accel -config={self.config.to_text()}")
        func = te.create_prim_func([*inputs, result], self.name.lower())
        scheduled = schedule_kernel(func, target, Choices({"threads": threads, "tiling": tiling}))
        (kernel,) = from_text(device_source(device_kernels(scheduled.func, target).kernels, target))
        return kernel

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


def _program(layer: Layer, kernel: AccelKernel) -> tuple[Program, list[np.ndarray]]:
    """The kernel with random arguments in DRAM."""
    random = np.random.default_rng(0)
    shapes = layer.shapes()
    arrays = [random.integers(-128, 128, shape).astype(np.int8) for shape in shapes[:2]]
    words = np.zeros(shapes[2], np.int32)
    words[:, 0], words[:, 1] = random.integers(-999, 999, words[:, 0].shape), random.integers(999, 32767)
    words[:, 3] = 24
    arrays += [words, np.zeros(shapes[3], np.int8)]
    segments: dict[int, bytes] = {}
    places: list[int] = []
    address = 0
    for array in (*arrays, np.frombuffer(kernel.micro_op_bytes(), np.uint8)):
        places.append(address)
        segments[address] = array.tobytes()
        address += -(-array.nbytes // _PAGE) * _PAGE
    instructions: tuple[Instruction, ...] = kernel.at(places[:-1], places[-1])
    return Program(layer.config, instructions, segments, ((places[3], arrays[3].nbytes),)), arrays


def _check(layer: Layer, program: Program, arrays: list[np.ndarray], machine: Machine) -> Counters:
    """Run a program and compare its results with the operator's reference."""
    counters, (data,) = program.run_on(machine)
    windows = layer.windows
    attributes = AccelConv2dAttributes(windows.strides, windows.padding)
    reference = get_operator("accel.conv2d").reference
    assert reference is not None
    expected = reference(arrays[:3], attributes)
    if not np.array_equal(np.frombuffer(data, np.int8).reshape(arrays[3].shape), expected):
        raise CompilerBug(f"the results of {layer.name} are not the operator's")
    return counters


@dataclass(frozen=True, slots=True)
class Measured:
    """A compiled layer and its cycles by the model."""

    cycles: int
    program: Program
    arrays: list[np.ndarray]
    seconds: float
    """What the model took."""


def _measure(layer: Layer, threads: int, tilings: int = 1) -> Measured:
    """The quickest of some tilings of a layer."""
    best: Measured | None = None
    for tiling in range(tilings):
        program, arrays = _program(layer, layer.kernel(threads, tiling))

        def read(address: int, size: int, program: Program = program) -> bytes:
            start = max(place for place in program.segments if place <= address)
            return program.segments[start][address - start : address - start + size].ljust(size, b"\0")

        began = time.process_time()
        total = cycles(program.instructions, layer.config, read).total
        measured = Measured(total, program, arrays, time.process_time() - began)
        if best is None or total < best.cycles:
            best = measured
    assert best is not None
    return best


def _on_hardware(layer: Layer, measured: Measured) -> dict[str, float]:
    """Cycles of the simulated hardware, how far the model is from them, and how much quicker it is."""
    machine = VerilatedMachine(layer.config, measured.program.dram_bytes)
    began = time.process_time()
    counters = _check(layer, measured.program, measured.arrays, machine)
    seconds = time.process_time() - began
    machine.close()
    assert counters.cycles is not None
    error = measured.cycles / counters.cycles - 1
    rate = counters.cycles / seconds
    return {"hardware": counters.cycles, "error": error, "cycles_a_second": rate, "quicker": seconds / measured.seconds}


def main() -> None:
    """Measure the layers and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="layers, such as C3,C5")
    parser.add_argument("--config", default="default", help="a configuration, as in targets")
    parser.add_argument("--tune", type=positive_int, default=1, help="tilings to try for each layer")
    parser.add_argument("--check", action="store_true", help="compare results with the reference, bit for bit")
    parser.add_argument("--hardware", action="store_true", help="run on the simulated hardware too (Verilator)")
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args()
    config = AccelConfig.from_text(Target(f"accel -config={options.config}").arch)
    names = options.only.split(",") if options.only else list(LAYERS)
    rows, figures = [], {}
    for name in names:
        layer = Layer(name, config)
        products, words = layer.bound()
        measured, alone = _measure(layer, 2, options.tune), _measure(layer, 1)
        if options.check:
            _check(layer, measured.program, measured.arrays, FunctionalMachine(config, measured.program.dram_bytes))
        share = max(products, words) / measured.cycles
        figures[name] = {
            "cycles": measured.cycles,
            "instructions": len(measured.program.instructions),
            "utilization": products / measured.cycles,
            "of_bound": share,
            "alone": alone.cycles,
            **(_on_hardware(layer, measured) if options.hardware else {}),
        }
        hardware = [f"{figures[name]['hardware']}"] if options.hardware else []
        rows.append(
            (name, f"{products}", f"{words}", f"{len(measured.program.instructions)}", f"{measured.cycles}", *hardware,
             f"{products / measured.cycles:.1%}", f"{share:.1%}", f"{alone.cycles}", f"{products / alone.cycles:.1%}")
        )  # fmt: skip
        print(f"{name}: {measured.cycles} cycles", file=sys.stderr, flush=True)
    more = ("hardware",) if options.hardware else ()
    titles = ("layer", "products", "words", "instructions", "cycles", *more, "array", "of bound", "alone", "array")
    print(table(titles, rows))
    total = sum(figures[name]["cycles"] * OFFLOADED.get(name, 0) for name in names)
    if set(OFFLOADED) <= set(names):
        print(f"ResNet-18's offloaded convolutions: {total / 1e6:.2f} M cycles")
    result = {"config": config.to_text(), "latency": config.memory_latency, "tilings": options.tune}
    line = json.dumps({**result, "total": total, "layers": figures})
    if options.json:
        Path(options.json).write_text(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
