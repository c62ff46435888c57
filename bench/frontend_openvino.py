"""The suite of OpenVINO in `bench.frontends`: single operators of the onnx package converted to IR, and its own opsets.

What OpenVINO itself cannot convert or run is left out. Its CPU plugin computes in float32.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.frontend_case import Case, LeftOut, Result, Trial
from bench.openvino_cases import own_cases
from tilewright.cli import own_runtimes
from tilewright.cli.trial import difference

_MOST_APART = 1e-2
"""Cases in which OpenVINO is further from what ONNX defines are left out."""
_FOLDER = tempfile.TemporaryDirectory(prefix="tilewright-openvino-")


Made = tuple[Path, Mapping[str, Any], Sequence[Any]]


def _made(path: Path, inputs: Mapping[str, Any]) -> Made:
    return path, inputs, own_runtimes.openvino(path, inputs).outputs


@dataclass(frozen=True)
class NodeTrial:
    """A single node of the onnx package, converted when it is run."""

    name: str
    content: bytes
    inputs: Mapping[str, Any]
    expected: Sequence[Any]

    def run(self) -> Result:
        """What became of it; left out where OpenVINO cannot run it, or gives other numbers than ONNX defines."""
        path = Path(_FOLDER.name) / f"{self.name}.xml"
        apart = _converted(self.content, path, self.inputs, self.expected)
        if apart >= _MOST_APART:
            return LeftOut(self.name, "OpenVINO cannot run it, or gives other numbers than ONNX defines").run()
        # OpenVINO computes halves in float32, and rounds at other places.
        has_halves = any(value.dtype == np.float16 for value in self.inputs.values())
        tolerance = apart + (4e-3 if has_halves else 1e-4)
        # `bench.onnx_suite` compiles the same nodes.
        return Case(self.name, partial(_made, path, self.inputs), tolerance, reference=True).run()


def cases() -> Iterator[Trial]:
    """Cases of single nodes of the onnx package, and of OpenVINO's own operators."""
    import openvino

    for name, build, inputs in own_cases():
        path = Path(_FOLDER.name) / f"{len(list(Path(_FOLDER.name).iterdir()))}.xml"
        openvino.save_model(build(), path, compress_to_fp16=False)
        yield Case(name, partial(_made, path, inputs), 1e-4)
    for name, content, inputs, expected in _nodes():
        yield NodeTrial(name, content, inputs, expected)


def _converted(content: bytes, path: Path, inputs: Mapping[str, Any], expected: Sequence[Any]) -> float:
    """Write the IR of an ONNX model; how far OpenVINO is from what ONNX defines, infinity if it cannot run it."""
    import openvino

    source = path.with_suffix(".onnx")
    source.write_bytes(content)
    try:
        openvino.save_model(openvino.Core().read_model(str(source)), path, compress_to_fp16=False)
        outputs = own_runtimes.openvino(path, inputs).outputs
    except Exception:  # OpenVINO's own errors have no common class
        return math.inf
    if len(outputs) != len(expected):
        return math.inf
    return max(difference(ours, theirs) for ours, theirs in zip(outputs, expected, strict=True))


def _nodes() -> Iterator[tuple[str, bytes, dict[str, Any], list[Any]]]:
    """Models of single nodes, inputs and what ONNX defines; whole numbers behind the first input are constants.

    Where an operator of one input does nothing, input and output are one tensor with two names: no case.
    """
    from onnx import numpy_helper

    from bench.onnx_cases import load_cases

    for case in load_cases(("node",)):
        given, expected = next(case.data_sets())
        if (
            "expanded" in case.name
            or "one_input" in case.name
            or not given
            or not all(map(_is_plain, (*given, *expected)))
        ):
            continue
        model = type(case.model)()
        model.CopyFrom(case.model)
        arrays = dict(zip((item.name for item in model.graph.input), given, strict=False))
        fixed = [name for at, (name, value) in enumerate(arrays.items()) if at and value.dtype.kind in "iu"]
        for name in fixed:
            model.graph.initializer.append(numpy_helper.from_array(arrays.pop(name), name))
        kept = [item for item in model.graph.input if item.name not in fixed]
        del model.graph.input[:]
        model.graph.input.extend(kept)
        yield case.name, model.SerializeToString(), arrays, expected


def _is_plain(value: Any) -> bool:
    """Whether a value is an array of a type that numpy has itself."""
    return isinstance(value, np.ndarray) and value.dtype.isbuiltin == 1 and value.dtype.kind in "fiub"
