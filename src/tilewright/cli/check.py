"""`tilewright check`: run a model against onnxruntime at several sizes; name the first node that differs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.cli.check_own import check_own
from tilewright.cli.models import is_onnx
from tilewright.cli.onnx_models import (
    Array,
    Proto,
    Values,
    cut_out,
    make_inputs,
    model_inputs,
    names_read,
    node_name,
    parse_sizes,
    record_values,
    run_reference,
    size_choices,
    with_outputs,
)
from tilewright.cli.options import add_model, compile_target
from tilewright.cli.reduce import add_run_arguments, open_model
from tilewright.cli.trial import difference
from tilewright.front import compile
from tilewright.frontend import from_onnx
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function
from tilewright.options import CompileOptions
from tilewright.support.errors import UserError
from tilewright.support.text import table

DESCRIPTION = """\
Run a model in Tilewright and in the runtime of its format (onnxruntime for ONNX) on random inputs and compare all
outputs. Open dimensions take several sizes. Where the outputs differ, the first node whose inputs agree and whose
outputs do not is named. A format whose runtime is not known is compared with onnxruntime on the converted model.

  tilewright check model.onnx
  tilewright check model.onnx --sizes batch=1,8 --sizes sequence=1,7,128

Inputs fit their types: normal floats, indices within the tables they pick from, 0 and 1 for masks. The exit code
is 4 when outputs differ.
"""
_CHECK_FAILED = 4
Run = Callable[[Proto, Mapping[str, Array]], list[Array]]
"""Gives the outputs of a model, compiled as the user asked."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model(parser, threads=1)
    add_run_arguments(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if not is_onnx(options.model):
        return _check_other(options)
    model, chosen = open_model(options)
    run = partial(run_here, target=compile_target(options), options=chosen)
    specs = model_inputs(model)
    generator = np.random.default_rng(options.seed)
    names = [info.name for info in model.graph.output]
    rows: list[list[str]] = []
    guilty: Values | None = None
    for sizes in size_choices(specs, parse_sizes(options.sizes)):
        inputs = make_inputs(model, specs, sizes, generator)
        expected = run_reference(model, inputs)
        results = run(model, inputs)
        for name, ours, theirs in zip(names, results, expected, strict=True):
            error = difference(ours, theirs)
            differs = error > options.tolerance
            if differs and guilty is None:
                guilty = inputs
            rows.append([_sizes_text(sizes), name, _shape_text(theirs), f"{error:.1e}", "differs" if differs else "ok"])
    print(table(["sizes", "output", "shape", "max rel err", ""], rows))
    if guilty is None:
        return 0
    found = find_fault(model, guilty, options.tolerance, run)
    print(found.text() if found is not None else "no single node shows the difference when the model is taken apart")
    return _CHECK_FAILED


def _check_other(options: argparse.Namespace) -> int:
    """Compare a model of another format with its own runtime."""
    rows: list[list[str]] = []
    fault = check_own(options, rows, _sizes_text)
    print(table(["sizes", "output", "shape", "max rel err", ""], rows))
    if fault is None:
        return 0
    print(fault)
    return _CHECK_FAILED


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed"


def _shape_text(value: object) -> str:
    return "x".join(map(str, value.shape)) or "scalar" if isinstance(value, np.ndarray) else type(value).__name__


def run_here(model: Proto, inputs: Mapping[str, Array], target: str, options: CompileOptions) -> list[Array]:
    """The outputs of a model, compiled with its open dimensions left open (compiling it again comes from the cache)."""
    return compile(model.SerializeToString(), target, options=options).run(inputs)


@dataclass(frozen=True)
class Fault:
    """A node whose inputs agree with onnxruntime and whose outputs do not."""

    name: str
    operator: str
    output: str
    error: float
    stage: str
    """What is at fault, as far as can be told."""

    def text(self) -> str:
        """Several lines for the user."""
        return (
            f"the first difference: node '{self.name}' ({self.operator}), output '{self.output}', "
            f"error {self.error:.1e}\n  {self.stage}\n"
            "  `tilewright reduce` makes a small model of it"
        )


def find_fault(model: Proto, inputs: Values, tolerance: float, run: Run) -> Fault | None:
    """The first node at fault; None if no single node can be told."""
    values = record_values(model, inputs)
    names = [name for node in model.graph.node for name in node.output if name in values]
    try:
        results = run(with_outputs(model, names), inputs)
    except UserError:
        # With every value an output the model is another one, which may not compile.
        return _search(model, inputs, values, names, tolerance, run)
    errors = {name: difference(ours, values[name]) for name, ours in zip(names, results, strict=True)}
    for place, node in enumerate(model.graph.node):
        wrong = next((name for name in node.output if errors.get(name, 0.0) > tolerance), None)
        if wrong is not None and all(errors.get(name, 0.0) <= tolerance for name in names_read(node)):
            stage = _stage(model, place, values, tolerance)
            return Fault(node_name(node), node.op_type, wrong, errors[wrong], stage)
    return _search(model, inputs, values, names, tolerance, run)


def _stage(model: Proto, place: int, values: Values, tolerance: float) -> str:
    """Whether the graph interpreter gives the right values for a node on its own."""
    part = cut_out(model, [place], values)
    if part is None:
        return "it cannot be taken out of the model"
    alone, inputs = part
    module = from_onnx(alone)
    main = module["main"]
    assert isinstance(main, Function)
    result = evaluate(module, *(inputs[param.name] for param in main.params))
    results = list(result) if isinstance(result, tuple) and len(alone.graph.output) > 1 else [result]
    wanted = [values[info.name] for info in alone.graph.output]
    if any(difference(ours, theirs) > tolerance for ours, theirs in zip(results, wanted, strict=True)):
        return "its meaning is at fault: the graph interpreter differs from onnxruntime too (importer or operator)"
    return "the compiled code is at fault: the graph interpreter agrees with onnxruntime"


def _search(
    model: Proto, inputs: Values, values: Values, names: Sequence[str], tolerance: float, run: Run
) -> Fault | None:
    """The first value that differs when it is the only output: what is around a node decides how it is compiled."""

    def error_of(name: str) -> float:
        [ours] = run(with_outputs(model, [name]), inputs)
        return difference(ours, values[name])

    low, high = 0, len(names) - 1
    while low < high:
        middle = (low + high) // 2
        if error_of(names[middle]) > tolerance:
            high = middle
        else:
            low = middle + 1
    if not names or (error := error_of(names[low])) <= tolerance:
        return None
    node = next(node for node in model.graph.node if names[low] in node.output)
    stage = "it shows only when the node is compiled together with those before it"
    return Fault(node_name(node), node.op_type, names[low], error, stage)
