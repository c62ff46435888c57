"""Layers of the models for microcontrollers against CMSIS-NN itself, in the same emulator.

    python -m bench.micro_cmsis --against CHECKOUT

compiles the kernels in a checkout of https://github.com/ARM-software/CMSIS-NN (`-Ofast`, as its page asks; ours are
compiled with `-O2`), runs each convolution and each dense layer of the models of `bench.micro` on emulated boards with
both, and prints the instructions of each (counted by QEMU: no cycles). Theirs are called through the wrappers that
choose the quickest kernel; sums over weights that a program makes once when it starts are not counted. A residual sum
is part of our layer where it was fused, and is not of theirs.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import onnx

from bench import harness
from bench.micro_models import MODELS, MicroModel
from bench.micro_runner import make_example, run_micro, step_counts
from tilewright.compiler import Compilation
from tilewright.support.text import table

BOARDS = ("cortex-m4", "cortex-m7", "cortex-m55")
_SCRATCH = 32 << 10

_PROGRAM = """
#include "arm_nnfunctions.h"
#include "semihosting.h"

void start_clock(void);
uint32_t clock_ticks(void);
uint32_t clock_between(uint32_t begin, uint32_t end);

void example_step(int number) {{ (void)number; }}

static int8_t data[{data}], weights[{weights}], results[{results}];
static int32_t scratch[{scratch} / 4], bias[{channels}], multiplier[{channels}], shift[{channels}];

static void measured(int number, uint32_t begin, arm_cmsis_nn_status status) {{
  const uint32_t end = clock_ticks();
  print(status ? "failed " : "step ");
  print_number((uint32_t)number);
  print(" ");
  print_number(clock_between(begin, end));
  print("\\n");
}}

int main(void) {{
  uint32_t state = 1;
  for (unsigned i = 0; i < sizeof data; i++) data[i] = (int8_t)((state = state * 1664525u + 1013904223u) >> 24);
  for (unsigned i = 0; i < sizeof weights; i++) weights[i] = (int8_t)((state = state * 1664525u + 1013904223u) >> 24);
  for (int i = 0; i < {channels}; i++) {{
    multiplier[i] = 1 << 30;
    shift[i] = -9;
  }}
  start_clock();
{calls}
  return 0;
}}
"""

_CONVOLUTION = """  {{
    const cmsis_nn_tile stride = {{{stride}, {stride}}}, padding = {{{left}, {top}}}, dilation = {{1, 1}};
    const cmsis_nn_{kind}_params params = {{3, -3, {multiple}stride, padding, dilation, {{-128, 127}}}};
    const cmsis_nn_per_channel_quant_params scales = {{multiplier, shift}};
    const cmsis_nn_dims input = {{1, {rows}, {columns}, {channels}}}, filter = {{{filters}, {tall}, {wide}, {deep}}};
    const cmsis_nn_dims outputs = {{1, {after_rows}, {after_columns}, {outputs}}}, biases = {{1, 1, 1, {outputs}}};
    const cmsis_nn_context context = {{scratch, sizeof scratch}};
    if (arm_{function}_wrapper_s8_get_buffer_size(&params, &input, &filter, &outputs) > (int)sizeof scratch) return 1;
    const uint32_t begin = clock_ticks();
    const arm_cmsis_nn_status status = arm_{function}_wrapper_s8(
        &context, &params, &scales, &input, data, &filter, weights, &biases, bias, &outputs, results);
    measured({number}, begin, status);
  }}"""

_DENSE = """  {{
    const cmsis_nn_fc_params params = {{3, 0, -3, {{-128, 127}}}};
    const cmsis_nn_quant_params scales = {{multiplier, shift, 1}};
    const cmsis_nn_dims input = {{1, 1, 1, {channels}}}, filter = {{{channels}, 1, 1, {outputs}}};
    const cmsis_nn_dims outputs = {{1, 1, 1, {outputs}}}, biases = {{1, 1, 1, {outputs}}};
    const cmsis_nn_context context = {{scratch, sizeof scratch}};
    if (arm_fully_connected_s8_get_buffer_size(&filter) > (int)sizeof scratch) return 1;
    arm_vector_sum_s8(scratch, {channels}, {outputs}, weights, params.input_offset, params.filter_offset, bias);
    const uint32_t begin = clock_ticks();
    const arm_cmsis_nn_status status = arm_fully_connected_wrapper_s8(
        &context, &params, &scales, &input, data, &filter, weights, &biases, bias, &outputs, results);
    measured({number}, begin, status);
  }}"""


@dataclass(frozen=True, slots=True)
class ProductLayer:
    """A convolution or a dense layer: its node, and the geometry of what it reads and writes."""

    node: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int
    pads: tuple[int, int]

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is for itself."""
        return len(self.before) == 4 and self.kernel[1] == 1 and self.before[1] > 1

    @property
    def products(self) -> int:
        """Multiplications."""
        return prod(self.after[2:]) * prod(self.kernel)

    @property
    def label(self) -> str:
        """For people."""
        if len(self.before) == 2:
            return f"dense {self.kernel[1]} to {self.kernel[0]}"
        kind = "depthwise" if self.is_depthwise else "convolution"
        size = f"{self.kernel[2]} x {self.kernel[3]}" + (f" / {self.stride}" if self.stride > 1 else "")
        return f"{kind} {size}, {self.before[1]} to {self.after[1]}, {self.after[2]} x {self.after[3]}"

    def call(self, number: int) -> str:
        """The C code that times CMSIS-NN's kernel for it."""
        if len(self.before) == 2:
            return _DENSE.format(number=number, channels=self.kernel[1], outputs=self.kernel[0])
        deep = self.is_depthwise
        return _CONVOLUTION.format(
            kind="dw_conv" if deep else "conv",
            function="depthwise_conv" if deep else "convolve",
            multiple="1, " if deep else "",
            stride=self.stride,
            top=self.pads[0],
            left=self.pads[1],
            rows=self.before[2],
            columns=self.before[3],
            channels=self.before[1],
            filters=1 if deep else self.after[1],
            tall=self.kernel[2],
            wide=self.kernel[3],
            deep=self.before[1],
            after_rows=self.after[2],
            after_columns=self.after[3],
            outputs=self.after[1],
            number=number,
        )


def layers_of(model: MicroModel) -> list[ProductLayer]:
    """The layers of a model that multiply, in order."""
    inferred = onnx.shape_inference.infer_shapes(model.proto)
    values = [*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output]
    shapes = {item.name: tuple(axis.dim_value for axis in item.type.tensor_type.shape.dim) for item in values}
    found = []
    for node in inferred.graph.node:
        if node.op_type not in ("Conv", "Gemm"):
            continue
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        found.append(
            ProductLayer(
                f"{node.op_type}:{node.output[0]}",
                shapes[node.input[0]],
                shapes[node.output[0]],
                shapes[node.input[1]],
                attributes.get("strides", [1])[0],
                tuple(attributes.get("pads", [0, 0])[:2]),
            )
        )
    return found


def program(layers: Sequence[ProductLayer]) -> str:
    """A program for a board that calls CMSIS-NN for each layer."""
    return _PROGRAM.format(
        data=max(prod(layer.before) for layer in layers),
        weights=max(prod(layer.kernel) for layer in layers),
        results=max(prod(layer.after) for layer in layers),
        channels=max(layer.after[1] for layer in layers),
        scratch=_SCRATCH,
        calls="\n".join(layer.call(number) for number, layer in enumerate(layers)),
    )


def measure(name: str, board: str, checkout: Path) -> list[tuple[ProductLayer, int, int]]:
    """The layers of a model, with our instructions and CMSIS-NN's."""
    model = MODELS[name]()
    layers = layers_of(model)
    with tempfile.TemporaryDirectory(prefix="tilewright-") as work:
        folder = Path(work) / name
        Compilation(model.proto.SerializeToString(), target=board).export_library(folder)
        steps = json.loads((folder / "model.json").read_text(encoding="utf-8"))["steps"]
        values = np.random.default_rng(1).integers(-128, 128, model.shape, np.int8)
        counts = run_micro(folder, {"input": values}).instructions
        (folder / "example" / "main.c").write_text(program(layers), encoding="utf-8")
        sources = [
            path for path in checkout.glob("Source/*/*.c") if not re.search(r"_f(16|32)\.c$|/Bindings/", str(path))
        ]
        flags = " ".join(["-Ofast", "-w", f"-I{checkout}/Include", *map(str, sorted(sources))])
        theirs = step_counts(make_example(folder / "example", "run", flags))
    if len(theirs) != len(layers):
        raise RuntimeError(f"{name} on {board}: CMSIS-NN refused a layer")
    ours = [sum(n for step, n in zip(steps, counts, strict=True) if layer.node in step["nodes"]) for layer in layers]
    return list(zip(layers, ours, theirs, strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.micro_cmsis", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, required=True, metavar="CHECKOUT", help="a checkout of CMSIS-NN")
    parser.add_argument("--models", default=",".join(MODELS), help="names with commas between (default: all)")
    parser.add_argument("--boards", default=",".join(BOARDS), help="names with commas between (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    options = parser.parse_args(arguments)
    checkout = options.against.resolve()
    if not (checkout / "Include" / "arm_nnfunctions.h").is_file():
        parser.error(f"{options.against} is no checkout of CMSIS-NN: it has no Include/arm_nnfunctions.h")
    rows, figures = [], []
    for board in options.boards.split(","):
        for name in options.models.split(","):
            harness.say(f"{name}: on {board}")
            found = measure(name, board, checkout)
            for layer, ours, theirs in found:
                figures.append(
                    {"board": board, "model": name, "layer": layer.label, "products": layer.products}
                    | {"instructions": ours, "cmsis_nn": theirs}
                )
            total = [sum(item[place] for item in found) for place in (1, 2)]
            lines = [(layer.label, layer.products, ours, theirs) for layer, ours, theirs in found]
            for label, products, ours, theirs in [*lines, ("all", sum(line[1] for line in lines), *total)]:
                each = [f"{ours / products:.2f}", f"{theirs / products:.2f}", f"{theirs / ours:.2f}x"]
                rows.append([board, name, label, f"{products / 1e6:.3f}", *each])
    print(table(["board", "model", "layer", "M products", "ours, a product", "CMSIS-NN", "ratio"], rows))
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    summary = {"layers": figures, "cmsis_nn": commit.stdout.strip() or "unknown", "machine": harness.machine()}
    if options.json:
        harness.write_json(options.json, summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
