"""The suite of OpenVINO in `bench.frontends`: single operators of the onnx package converted to IR, and its own opsets.

What OpenVINO itself cannot convert or run is no case. Its CPU plugin computes in float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.frontend_case import Case
from bench.openvino_cases import own_cases
from tilewright.cli import own_runtimes

_FOLDER = tempfile.TemporaryDirectory(prefix="tilewright-openvino-")


def cases() -> Iterator[Case]:
    """Cases of single nodes of the onnx package, and of OpenVINO's own operators."""
    import openvino

    def make(path: Path, inputs: Mapping[str, Any]) -> tuple[Path, Mapping[str, Any], Sequence[Any]]:
        return path, inputs, own_runtimes.openvino(path, inputs).outputs

    for name, build, inputs in own_cases():
        path = Path(_FOLDER.name) / f"{len(list(Path(_FOLDER.name).iterdir()))}.xml"
        openvino.save_model(build(), path, compress_to_fp16=False)
        yield Case(name, partial(make, path, inputs), 1e-4)
    for name, content, inputs in _nodes():
        path = Path(_FOLDER.name) / f"{name}.xml"
        if _converted(openvino, content, path, inputs):
            yield Case(name, partial(make, path, inputs), 1e-4)


def _converted(openvino: Any, content: bytes, path: Path, inputs: Mapping[str, Any]) -> bool:
    """Write the IR of an ONNX model; whether OpenVINO can, and runs it."""
    source = path.with_suffix(".onnx")
    source.write_bytes(content)
    try:
        openvino.save_model(openvino.convert_model(str(source)), path, compress_to_fp16=False)
        own_runtimes.openvino(path, inputs)
    except Exception:  # OpenVINO's own errors have no common class
        return False
    return True


def _nodes() -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Models of the onnx package with tensors of numbers alone; whole numbers behind the first input are constants."""
    from onnx import numpy_helper

    from bench.onnx_cases import load_cases

    for case in load_cases(("node",)):
        model = type(case.model)()
        model.CopyFrom(case.model)
        arrays = dict(zip((item.name for item in model.graph.input), next(case.data_sets())[0], strict=False))
        if not arrays or not all(
            isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in arrays.values()
        ):
            continue
        fixed = [name for at, (name, value) in enumerate(arrays.items()) if at and value.dtype.kind in "iu"]
        for name in fixed:
            model.graph.initializer.append(numpy_helper.from_array(arrays.pop(name), name))
        kept = [item for item in model.graph.input if item.name not in fixed]
        del model.graph.input[:]
        model.graph.input.extend(kept)
        yield case.name, model.SerializeToString(), arrays
