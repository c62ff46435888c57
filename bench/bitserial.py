"""Bit-serial convolutions against 8-bit and float32 ones: `python -m bench.bitserial`.

    python -m bench.bitserial                         # ResNet-18's convolutions, one and two threads
    python -m bench.bitserial --only 14x14 --threads 1 --rounds 20

Each layer is compiled as a model of its own: bytes (levels of the activations) in, levels of the next layer out, with
the packing of bit planes and the requantisation of results. W1A1 has bipolar weights and activations, W1A2 bipolar
weights and unsigned activations of two bits, W2A2 signed weights and unsigned activations of two bits; float32 has a
bias and ReLU, by the quickest algorithm. All forms of a layer run in turn, a few milliseconds each, round after round;
figures are medians of ratios in the same round. `bound` is the ratio of the peaks of W1A1 and 8 bits: counting takes
three instructions for 32 products a lane, where a dot product is one for four. The last mean leaves out layers whose
channels fill no word of 32. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench import harness
from bench.kernels import arrays_of, bare_call
from tilewright.backends.llvm import deploy
from tilewright.cli.options import positive_int
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Var, constant
from tilewright.graph.ir.op import call
from tilewright.graph.ops.bitserial import bit_planes, plane_bytes
from tilewright.ir.dtype import FLOAT32, INT32, UINT8
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError
from tilewright.support.text import table
from tilewright.target import Target

_SLICE_SECONDS = 0.004
_TOLERANCE = 2e-4
"""Of float32, relative to the largest result: Winograd's algorithm rounds differently."""
_COUNTING = 3
"""Instructions on a vector: bits meet, are counted, are added."""
_WORD, _GROUP = 32, 4
"""Products of a lane that counting and a dot product take at once."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A square convolution of a square image."""

    size: int
    channels: int
    outputs: int
    kernel: int
    stride: int

    @property
    def name(self) -> str:
        """As in tables."""
        return f"{self.size}x{self.size}x{self.channels} {self.kernel}x{self.kernel}/{self.stride} {self.outputs}"

    @property
    def window(self) -> dict[str, tuple[int, ...]]:
        """Attributes of the convolution."""
        pad = self.kernel // 2
        return {"strides": (self.stride, self.stride), "padding": (pad, pad, pad, pad)}

    @property
    def bound(self) -> float:
        """How many times quicker than dot products of bytes counting can be, for one bit."""
        return (-(-self.channels // _GROUP)) / (_COUNTING * plane_bytes(self.channels) / _GROUP)


LAYERS = (
    Layer(224, 3, 64, 7, 2),
    Layer(56, 64, 64, 3, 1),
    Layer(56, 64, 128, 3, 2),
    Layer(56, 64, 128, 1, 2),
    Layer(28, 128, 128, 3, 1),
    Layer(28, 128, 256, 3, 2),
    Layer(28, 128, 256, 1, 2),
    Layer(14, 256, 256, 3, 1),
    Layer(14, 256, 512, 3, 2),
    Layer(14, 256, 512, 1, 2),
    Layer(7, 512, 512, 3, 1),
)
"""The different convolutions of ResNet-18."""


def _input(layer: Layer, dtype: str) -> Var:
    return Var("x", tensor_type((1, layer.size, layer.size, layer.channels), dtype))


def _taps(layer: Layer) -> tuple[int, int, int, int]:
    return (layer.kernel, layer.kernel, layer.channels, layer.outputs)


def _planes(levels: np.ndarray, bits: int) -> GraphExpr:
    """Weights of (height, width, channels, outputs) as planes."""
    packed = bit_planes(levels.transpose(0, 1, 3, 2).astype(np.uint8), bits)
    return constant(np.ascontiguousarray(packed.transpose(0, 1, 3, 4, 2)))


def _counted(layer: Layer, x: Var, bits: int, weights: GraphExpr, mode: str, signed: bool = False) -> Call:
    planes = call("nn.bitpack", x, bits=bits)
    return call(
        "nn.bitserial_conv2d", planes, weights, mode=mode, signed=signed, channels=layer.channels, **layer.window
    )


def _levels(product: GraphExpr, most: int, spread: float) -> GraphExpr:
    """A sum of integers as levels of a few bits."""
    scaled = call("multiply", call("cast", product, dtype=FLOAT32), constant(np.float32(most / spread)))
    return call("cast", call("clip", call("round", scaled), minimum=0.0, maximum=float(most)), dtype=UINT8)


def w1a1(layer: Layer, random: np.random.Generator) -> tuple[Var, GraphExpr]:
    """Bipolar weights and activations: depth - 2 popcount(a ^ w), and a threshold for each output."""
    x, signs = _input(layer, "uint8"), random.integers(0, 2, _taps(layer))
    ones = _counted(layer, x, 1, _planes(signs, 1), "xor")
    depth = layer.kernel**2 * layer.channels
    product = call("subtract", constant(np.int32(depth)), call("multiply", ones, constant(np.int32(2))))
    limits = constant(random.integers(-9, 9, layer.outputs).astype(np.int32))
    return x, call("cast", call("greater_equal", product, limits), dtype=UINT8)


def w1a2(layer: Layer, random: np.random.Generator) -> tuple[Var, GraphExpr]:
    """Bipolar weights, activations of 0 to 3: sum of 2^i (popcount(w) - popcount(a_i ^ w))."""
    x, signs = _input(layer, "uint8"), random.integers(0, 2, _taps(layer))
    ones = _counted(layer, x, 2, _planes(signs, 1), "xor")
    all_ones = 3 * signs.sum(axis=(0, 1, 2)).astype(np.int32)
    return x, _levels(call("subtract", constant(all_ones), ones), 3, 9 * layer.kernel * layer.channels**0.5)


def w2a2(layer: Layer, random: np.random.Generator) -> tuple[Var, GraphExpr]:
    """Weights of -2 to 1, activations of 0 to 3."""
    x, weights = _input(layer, "uint8"), random.integers(-2, 2, _taps(layer))
    product = _counted(layer, x, 2, _planes(weights & 3, 2), "and", signed=True)
    return x, _levels(product, 3, 9 * layer.kernel * layer.channels**0.5)


def int8(layer: Layer, random: np.random.Generator) -> tuple[Var, GraphExpr]:
    """Unsigned bytes with a zero point times signed bytes, scaled back to bytes."""
    x = _input(layer, "uint8")
    shifted = call("subtract", call("cast", x, dtype=INT32), constant(np.int32(121)))
    weight = constant(random.integers(-127, 128, _taps(layer)).astype(np.int32))
    product = call("nn.conv2d", shifted, weight, data_layout="NHWC", kernel_layout="HWIO", **layer.window)
    return x, _levels(product, 255, 2e4 * layer.kernel * layer.channels**0.5)


def float32(layer: Layer, random: np.random.Generator) -> tuple[Var, GraphExpr]:
    """A convolution with bias and ReLU."""
    x = _input(layer, "float32")
    weight = constant((random.standard_normal(_taps(layer)) / layer.kernel).astype(np.float32))
    product = call("nn.conv2d", x, weight, data_layout="NHWC", kernel_layout="HWIO", **layer.window)
    return x, call("nn.relu", call("add", product, constant(random.standard_normal(layer.outputs).astype(np.float32))))


@dataclass(frozen=True, slots=True)
class Form:
    """One way to compute a layer."""

    name: str
    make: Callable[[Layer, np.random.Generator], tuple[Var, GraphExpr]]
    levels: int = 256
    """Of the activations; 0 for numbers."""
    without: tuple[str, ...] = ()
    """Features of the processor that are not used."""


FORMS = (
    Form("float32", float32, 0),
    Form("int8", int8),
    Form("W1A1", w1a1, 2),
    Form("W1A2", w1a2, 4),
    Form("W2A2", w2a2, 4),
)


def forms_for(target: Target) -> tuple[Form, ...]:
    """All forms; where bytes have matrix tiles, those by the vector instruction as well."""
    by_vectors = (Form("int8 dot", int8, without=("amx-tile",)),) if target.has_amx else ()
    return (*FORMS[:2], *by_vectors, *FORMS[2:])


def build(layer: Layer, form: Form, target: Target, threads: int) -> Callable[[], object]:
    """The compiled layer as a call without arguments, after a comparison with the interpreter."""
    x, body = form.make(layer, np.random.default_rng(0))
    module = IRModule([Function("main", (x,), body)], attributes={"model_name": form.name})
    narrow = target.without(*form.without).replace(cores=threads)
    executable = deploy.executable(Compilation(module, narrow, threads=threads).artifact(), threads)
    given, results, workspace = arrays_of(executable)
    random, shape = np.random.default_rng(1), given[0].shape
    given[0][...] = random.integers(0, form.levels, shape) if form.levels else random.standard_normal(shape)
    run = bare_call(executable, given, results, workspace)
    run()
    expected = evaluate(module, given[0])
    assert isinstance(expected, np.ndarray)
    error = float(np.abs(results[0].astype(np.float64) - expected).max())
    if error > (0 if form.levels else _TOLERANCE * float(np.abs(expected).max())):
        raise UserError(f"{layer.name} in {form.name} is wrong by {error}")
    return run


def _seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds a call."""
    start = clock()
    run()
    count = max(1, int(_SLICE_SECONDS / max(clock() - start, 1e-7)))
    start = clock()
    for _ in range(count):
        run()
    return (clock() - start) / count


def measure(layer: Layer, target: Target, threads: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each form of a layer, and how many times quicker than float32 and 8 bits."""
    runs = {form.name: build(layer, form, target, threads) for form in forms_for(target)}
    clock = time.thread_time if threads == 1 else time.perf_counter
    samples: list[dict[str, float]] = []
    for _ in range(rounds):
        samples.append({name: _seconds(run, clock) for name, run in runs.items()})
    figures = {}
    for name in runs:
        figures[name] = {
            "ms": 1e3 * statistics.median(item[name] for item in samples),
            "min_ms": 1e3 * min(item[name] for item in samples),
            **{f"over {base}": statistics.median(item[base] / item[name] for item in samples) for base in _bases(runs)},
        }
    return figures


def _bases(names: Sequence[str] | dict[str, Callable[[], object]]) -> list[str]:
    """What forms are compared with."""
    return [name for name in names if name == "float32" or name.startswith("int8")]


def _geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if values else 0.0


def render(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """The table of one number of threads, with geometric means."""
    names = list(next(iter(results.values())))
    bit = [name for name in names if name.startswith("W")]
    pairs = [(form, base) for base in _bases(names) for form in bit]
    rows = []
    for layer, figures in results.items():
        times = [f"{figures[name]['ms']:.3f}" for name in names]
        ratios = [f"{figures[form][f'over {base}']:.2f}" for form, base in pairs]
        rows.append([layer, *times, *ratios, f"{_layer(layer).bound:.2f}"])
    whole = [layer for layer in results if _layer(layer).channels % _WORD == 0]
    for label, layers in (("geometric mean", list(results)), ("of whole words", whole)):
        means = [_geometric_mean([results[layer][form][f"over {base}"] for layer in layers]) for form, base in pairs]
        rows.append([label, *[""] * len(names), *(f"{mean:.2f}" if layers else "" for mean in means), ""])
    head = ["layer", *(f"{name} ms" for name in names), *(f"{form}/{base}" for form, base in pairs), "bound"]
    return table(head, rows)


def _layer(name: str) -> Layer:
    return next(layer for layer in LAYERS if layer.name == name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.bitserial", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="layers whose names contain this text")
    parser.add_argument("--threads", default="1,2", help="numbers of threads (default: 1,2)")
    parser.add_argument("--rounds", type=positive_int, default=15, help="rounds of all forms (default: 15)")
    options = parser.parse_args(arguments)
    layers = [layer for layer in LAYERS if options.only in layer.name]
    if not layers:
        print(f"error: no layer has {options.only!r} in its name", file=sys.stderr)
        return 2
    target = Target("native")
    harness.say(harness.machine_line())
    summary: dict[str, object] = {"machine": harness.machine(), "rounds": options.rounds}
    for threads in (int(text) for text in options.threads.split(",")):
        results = {}
        with harness.pinned(threads):
            for layer in layers:
                results[layer.name] = measure(layer, target, threads, options.rounds)
                harness.say(f"{layer.name}, {threads} threads: done")
        print(f"{threads} thread{'s' if threads > 1 else ''}")
        print(render(results))
        summary[f"threads {threads}"] = results
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
