"""`tilewright check` of models of other formats than ONNX: against their own runtimes, layer by layer.

A format without a runtime here is converted to ONNX and compared with onnxruntime: that tells of the compiled code, not
of the importer.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.cli.onnx_models import Array, parse_sizes, run_reference
from tilewright.cli.options import compile_options, compile_target, load_inputs
from tilewright.cli.own_runtimes import NO_RUNTIME, RUNTIMES, OwnRun
from tilewright.cli.trial import difference
from tilewright.front import compile
from tilewright.frontend.format import Format
from tilewright.frontend.formats import from_file, identify
from tilewright.frontend.onnx.reader import onnx_package
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, Let, Tuple
from tilewright.graph.ir.traverse import post_order
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType
from tilewright.onnx_writer import to_onnx
from tilewright.runtime.core.artifact import TensorInfo
from tilewright.runtime.core.shapes import symbols_in

_DEFAULT_SIZES = (2, 1, 5)
Row = list[str]


def check_own(options: argparse.Namespace, rows: list[Row], text_of: Any) -> str | None:
    """Fill the rows of the table; what is at fault where outputs differ, or None if none do."""
    chosen = compile_options(options)
    source = identify(options.model)
    module = from_file(options.model, chosen.shapes)
    executable = compile(options.model, compile_target(options), options=chosen)
    own = RUNTIMES.get(source.key)
    if own is None:
        reason = f" ({NO_RUNTIME[source.key]})" if source.key in NO_RUNTIME else ""
        print(f"{source.title} has no runtime here{reason}: compared with onnxruntime on the model converted to ONNX")
    found: str | None = None
    for sizes in _size_choices(executable.input_info, parse_sizes(options.sizes)):
        inputs = load_inputs(executable.input_info, [], options.seed, sizes)
        expected = _converted(module, inputs) if own is None else own(options.model, inputs)
        results = executable.run(inputs)
        differs = False
        for info, ours, theirs in zip(executable.output_info, results, expected.outputs, strict=True):
            error = difference(ours, theirs)
            differs |= error > options.tolerance
            verdict = "differs" if error > options.tolerance else "ok"
            rows.append(
                [text_of(sizes), info.name, "x".join(map(str, theirs.shape)) or "scalar", f"{error:.1e}", verdict]
            )
        if differs and found is None:
            found = _fault(module, inputs, expected, options.tolerance, source)
    return found


def _converted(module: IRModule, inputs: Mapping[str, Array]) -> OwnRun:
    return OwnRun(run_reference(onnx_package().load_from_string(to_onnx(module)), inputs))


def _size_choices(infos: Sequence[TensorInfo], wanted: Mapping[str, tuple[int, ...]]) -> list[dict[str, int]]:
    """The first sizes of all symbols together, then the second ones, and so on."""
    names = list(dict.fromkeys(name for info in infos for extent in info.shape for name in symbols_in(extent)))
    if not names:
        return [{}]
    columns = [wanted.get(name, _DEFAULT_SIZES) for name in names]
    longest = max(map(len, columns))
    turns = zip(*(itertools.islice(itertools.cycle(column), longest) for column in columns), strict=True)
    return [dict(zip(names, turn, strict=True)) for turn in turns]


def _layer_values(main: Function, arguments: Sequence[Array]) -> dict[str, Any]:
    """The values that layers have in the graph interpreter, by the names that their nodes came from."""
    calls: dict[str, Call] = {}
    for item in post_order(main.body):
        if isinstance(item, Let):
            return {}
        if isinstance(item, Call) and item.span is not None and isinstance(item.type, TensorType):
            calls[str(item.span)] = item
    values = evaluate(Function("main", main.params, Tuple(tuple(calls.values()))), *arguments)
    assert isinstance(values, tuple)
    return dict(zip(calls, values, strict=True))


def _fault(module: IRModule, inputs: Mapping[str, Array], expected: OwnRun, tolerance: float, source: Format) -> str:
    """The first layer whose value differs where the runtime tells values, and whether the importer is at fault."""
    main = module["main"]
    assert isinstance(main, Function)
    arguments = [inputs[param.name] for param in main.params]
    layers = _layer_values(main, arguments) if expected.layers else {}
    for name, theirs in expected.layers.items():
        if name in layers and (error := difference(layers[name], theirs)) > tolerance:
            return f"the first difference: layer '{name}', error {error:.1e}, in the meaning that the importer gives it"
    result = evaluate(module, *arguments)
    values = list(result) if isinstance(result, tuple) else [result]
    agree = all(difference(a, b) <= tolerance for a, b in zip(values, expected.outputs, strict=True))
    if agree:
        return "the compiled code is at fault: the graph interpreter agrees with the reference"
    return f"the importer of {source.title} is at fault: the graph interpreter differs from the reference too"
