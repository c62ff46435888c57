"""Whole models on the tensor processor: `python -m bench.accel_models`.

    python -m bench.accel_models                                # five models: where their kernels run, and the answers
    python -m bench.accel_models --models resnet18 --breakdown  # layer by layer: a CPU alone, and with the processor
    python -m bench.accel_models --config block_in:32,block_out:32 --clock 200

Each model is quantised in fixed point (`tw.quantize(arithmetic="fixed_point")`) and compiled twice: for this CPU, and
for the processor with this CPU as its host. The table says how many kernels and products of bytes run on it, how many
cycles the processor's programs take (by the timing model, `tune/accel_cycles.py`), and whether the answers on the
functional simulator are those of the CPU alone, bit for bit. `--breakdown` gives milliseconds of each layer: those of
the CPU alone, and those of processor (cycles at `--clock` MHz) and host. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

# The simulator's matrix products are small: threads of numpy's library wait for each other longer than they compute.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import tilewright as tw
from bench import zoo
from tilewright.accel.config import AccelConfig
from tilewright.accel.instructions import Gemm
from tilewright.accel.kernel import AccelKernel, from_text
from tilewright.cli.options import positive_int
from tilewright.graph.ir.expr import Call
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.passes.accelerator_layers import accelerator_layers
from tilewright.graph.passes.channel_blocks import Blocks
from tilewright.graph.passes.fixed_point import fixed_point
from tilewright.ir.function import IRModule
from tilewright.quantization.layers import CONTRACTIONS
from tilewright.runtime.core.artifact import KernelInfo
from tilewright.runtime.device.frame import PlannedStep
from tilewright.support.text import table
from tilewright.target import Target
from tilewright.tune.accel_cycles import cycles

MODELS: dict[str, dict[str, Any]] = {
    "resnet18": {},
    "resnet50": {},
    "mobilenet_v1": {},
    "dcgan": {},
    # Products of two activations have no zero points.
    "bert_small": {"products": True, "activations": "int8"},
}
"""Models of `bench.zoo`, with what is said to quantise them."""
_PAGE = 4096


def quantized(name: str, examples: int = 1) -> IRModule:
    """A model in fixed point, calibrated on random inputs."""
    data = [zoo.inputs(name, seed) for seed in range(examples)]
    return tw.quantize(zoo.build(name), data, arithmetic="fixed_point", threads=1, **MODELS[name]).module


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel of a model: how long it takes, on the processor or on the host."""

    kernel: KernelInfo
    cycles: int = 0
    steps: int = 0
    """Cycles in which the processor's array multiplies."""
    seconds: float = 0.0
    """Of the host."""

    @property
    def on_chip(self) -> bool:
        """Whether the processor computes it."""
        return bool(self.cycles)


def kernel_cycles(kernel: AccelKernel, sizes: Sequence[int]) -> int:
    """Cycles of a kernel with arguments of some sizes, one after another in DRAM."""
    data = kernel.micro_op_bytes()
    places, address = [], -(-len(data) // _PAGE) * _PAGE
    for size in sizes:
        places.append(address)
        address += -(-size // _PAGE) * _PAGE

    def read(start: int, size: int) -> bytes:
        return data[start : start + size].ljust(size, b"\0")

    return cycles(kernel.at(places, 0), kernel.config, read).total


def _steps(kernel: AccelKernel) -> int:
    steps = 0
    for item in kernel.instructions:
        if isinstance(item, Gemm) and not item.reset:
            steps += item.outer * item.inner * (item.uop_end - item.uop_begin)
    return steps


def _host_seconds(step: PlannedStep, repeat: int = 5) -> float:
    """The best time of a kernel on the host, on zeros; copies to it are not counted."""
    arrays = [np.zeros(getattr(arg, "size", 1) or 1, np.uint8) for arg in step.args]
    values = [getattr(arg, "bits", array.ctypes.data) for arg, array in zip(step.args, arrays, strict=True)]
    packed = (ctypes.c_int64 * max(len(values), 1))(*values)
    best = float("inf")
    for _ in range(repeat):
        began = time.perf_counter()
        step.native(packed)
        best = min(best, time.perf_counter() - began)
    return best


def parts_of(exe: Any, inputs: Sequence[np.ndarray]) -> list[Part]:
    """The kernels of a model for the processor, in the order in which they run."""
    codes = zip(exe.artifact.device.kernels, exe.artifact.device_code, strict=True)
    programs = {info.symbol: from_text(code.decode())[0] for info, code in codes if code}
    known: dict[str, tuple[int, int]] = {}
    result = []
    for step in exe._runner.prepare(inputs).steps:
        symbol = step.info.symbol
        if symbol not in programs:
            result.append(Part(step.kernel, seconds=_host_seconds(step)))
            continue
        if symbol not in known:
            known[symbol] = kernel_cycles(programs[symbol], step.info.sizes), _steps(programs[symbol])
        result.append(Part(step.kernel, *known[symbol]))
    return result


def _arrays(results: Any) -> list[np.ndarray]:
    return [np.asarray(item) for item in (results if isinstance(results, (list, tuple)) else [results])]


@dataclass(frozen=True, slots=True)
class Measured:
    """A model on both."""

    parts: list[Part]
    equal: bool
    seconds: float
    """What the functional simulator took, with the host's part."""
    alone: Any
    """The executable of the CPU alone."""
    inputs: list[np.ndarray]
    macs: tuple[int, int]
    """Multiplications of the model, and those that are left to the host."""

    @property
    def cycles(self) -> int:
        """Cycles of the processor."""
        return sum(part.cycles for part in self.parts)

    @property
    def host_seconds(self) -> float:
        """Seconds of the host."""
        return sum(part.seconds for part in self.parts)

    def figures(self) -> dict[str, float]:
        """What the table says, as numbers."""
        on_chip = [part for part in self.parts if part.on_chip]
        return {
            "kernels": len(self.parts),
            "on_chip": len(on_chip),
            "macs": self.macs[0],
            "macs_on_chip": self.macs[0] - self.macs[1],
            "cycles": self.cycles,
            "steps": sum(part.steps for part in on_chip),
            "host_ms": self.host_seconds * 1e3,
            "simulator_s": self.seconds,
            "equal": float(self.equal),
        }


def products_of(module: IRModule) -> int:
    """Multiplications of a graph's convolutions and matrix products."""
    total = 0
    for item in post_order(module["main"]):
        if not isinstance(item, Call) or not any(is_call_to(item, name) for name in CONTRACTIONS):
            continue
        data, weight, result = (value.tensor_type.static_shape for value in (*item.args[:2], item))
        assert data is not None and weight is not None and result is not None
        if is_call_to(item, "matmul"):
            total += prod(result) * data[-1]
        else:
            total += prod(result if is_call_to(item, "nn.conv2d") else data) * prod(weight[1:])
    return total


def measure(name: str, config: AccelConfig) -> Measured:
    """A model, quantised, on the CPU and on the processor's functional simulator."""
    module = quantized(name)
    inputs = [np.asarray(item) for item in zoo.inputs(name, seed=7).values()]
    alone = tw.compile(module, threads=1)
    exe = tw.compile(module, target=f"accel -config={config.to_text()}", threads=1)
    expected = _arrays(alone(*inputs))
    began = time.process_time()
    answers = _arrays(exe(*inputs))
    seconds = time.process_time() - began
    equal = all(np.array_equal(a, b) for a, b in zip(answers, expected, strict=True))
    left = accelerator_layers(fixed_point(infer_types(module)), Blocks.of(Target(exe.artifact.device.target)))
    macs = products_of(module), products_of(infer_types(left))
    return Measured(parts_of(exe, inputs), equal, seconds, alone, inputs, macs)


def breakdown(measured: Measured, clock: float) -> str:
    """Milliseconds of each layer: the CPU alone, and processor and host."""
    alone: dict[str, float] = {}
    for row in measured.alone.profile(*measured.inputs, repeat=5).rows:
        alone[_layer(row.kernel)] = alone.get(_layer(row.kernel), 0.0) + row.min_seconds
    both: dict[str, list[float]] = {}
    for part in measured.parts:
        times = both.setdefault(_layer(part.kernel), [0, 0.0, 0.0])
        times[0] += part.cycles
        times[1] += part.cycles / clock
        times[2] += part.seconds
    rows = []
    for name in dict.fromkeys([*alone, *both]):
        count, chip, host = both.get(name, [0, 0.0, 0.0])
        rows.append((name, *(_milliseconds(item) for item in (alone.get(name, 0.0), chip, host)), f"{int(count)}"))
    totals = [sum(alone.values()), measured.cycles / clock, measured.host_seconds]
    rows.append(("all", *map(_milliseconds, totals), f"{measured.cycles}"))
    return table(("layer", "CPU alone, ms", "processor, ms", "its host, ms", "cycles"), rows)


def _layer(kernel: KernelInfo) -> str:
    """The name of a kernel's last node that computes something."""
    return kernel.nodes[-1] if kernel.nodes else kernel.op


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}" if seconds else ""


TITLES = ("model", "kernels", "products", "of them", "cycles", "array", "ms", "host, ms", "answers", "simulator, s")


def _row(name: str, measured: Measured, numbers: dict[str, float], clock: int) -> tuple[str, ...]:
    """What the table says of a model."""
    return (
        name,
        f"{numbers['on_chip']} of {numbers['kernels']}",
        f"{numbers['macs'] / 1e6:.0f} M",
        f"{numbers['macs_on_chip'] / max(numbers['macs'], 1):.1%}",
        f"{measured.cycles / 1e6:.2f} M",
        f"{numbers['steps'] / max(measured.cycles, 1):.0%}",
        f"{measured.cycles / clock / 1e3:.1f}",
        f"{measured.host_seconds * 1e3:.1f}",
        "equal" if measured.equal else "DIFFERENT",
        f"{measured.seconds:.1f}",
    )


def main() -> None:
    """Measure models and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--config", default="default", help="a configuration, as in targets")
    parser.add_argument("--clock", type=positive_int, default=100, help="MHz of the processor")
    parser.add_argument("--breakdown", action="store_true", help="milliseconds of each layer")
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args()
    config = AccelConfig.from_text(Target(f"accel -config={options.config}").arch)
    rows, figures = [], {}
    for name in options.models.split(","):
        measured = measure(name, config)
        numbers = figures[name] = measured.figures()
        rows.append(_row(name, measured, numbers, options.clock))
        print(f"{name}: {measured.cycles} cycles", file=sys.stderr, flush=True)
        if options.breakdown:
            print(f"{name}, at {options.clock} MHz:\n{breakdown(measured, options.clock * 1e6)}\n")
    print(table(TITLES, rows))
    line = json.dumps({"config": config.to_text(), "clock": options.clock, "models": figures})
    if options.json:
        Path(options.json).write_text(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
