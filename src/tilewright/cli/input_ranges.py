"""Which whole numbers suit an input of an ONNX model, by what the model does with it: indices, lengths, masks.

This file loads nothing of the compiler, so that a model from the cache runs without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.support.errors import MissingDependencyError

Proto = Any
"""Protobuf messages have no static types here."""

_INTEGERS_BELOW = 8
"""Integers whose use says nothing stay below this: they are often indices into something."""
_PASSED_ON = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators behind which an index is still an index."""
_PICK_ALONG_AXIS = frozenset({"Gather", "GatherElements", "Scatter", "ScatterElements"})
_PICK_BY_COORDINATES = frozenset({"GatherND", "ScatterND"})
_RECURRENT = frozenset({"RNN", "LSTM", "GRU"})
"""Operators whose fifth argument is how many steps each sequence has."""


def draw_integers(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], allowed: range | None, generator: np.random.Generator
) -> npt.NDArray[Any]:
    """Whole numbers for an input, in the range that its use allows, if that is known: 0 and 1 for masks."""
    if "mask" in name.lower():
        allowed = range(2)
    elif allowed is None and dtype.itemsize == 1:
        bounds = np.iinfo(dtype)
        allowed = range(bounds.min, bounds.max + 1)
    elif allowed is None:
        allowed = range(_INTEGERS_BELOW)
    return generator.integers(allowed.start, max(allowed.stop, allowed.start + 1), shape).astype(dtype)


def integer_ranges(model: Proto, inputs: Mapping[str, tuple[int, ...]]) -> dict[str, range]:
    """For inputs that pick from something of a known size, or count parts of it, the values that they may have."""
    shapes = _inferred_shapes(model, inputs)
    sources: dict[str, str] = {}
    found: dict[str, range] = {}
    for node in model.graph.node:
        if node.op_type in _PASSED_ON and node.input and node.output:
            sources[node.output[0]] = sources.get(node.input[0], node.input[0])
            continue
        place, allowed = _allowed(node, shapes)
        if allowed is not None:
            name = sources.get(node.input[place], node.input[place])
            before = found.get(name, allowed)
            found[name] = range(max(before.start, allowed.start), min(before.stop, allowed.stop))
    return found


def _allowed(node: Proto, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, range | None]:
    """Which argument of a node picks or counts, and its values; None where there is none or the sizes are not known."""
    place = 4 if node.op_type in _RECURRENT else 1
    data = shapes.get(node.input[0]) if len(node.input) > place and node.input[place] else None
    indices = shapes.get(node.input[place]) if data is not None else None
    if data is None or indices is None:
        return place, None
    numbers = {attribute.name: attribute.i for attribute in node.attribute}
    axis = numbers.get("axis", 0)
    if node.op_type in _PICK_ALONG_AXIS and -len(data) <= axis < len(data):
        return place, range(data[axis])
    if node.op_type in _PICK_BY_COORDINATES and indices:
        first = numbers.get("batch_dims", 0)
        picked = data[first : first + indices[-1]]
        return place, range(min(picked)) if picked else None
    if node.op_type in _RECURRENT or node.op_type == "ReverseSequence":
        steps = 1 if node.op_type in _RECURRENT and numbers.get("layout", 0) else numbers.get("time_axis", 0)
        return place, range(1, data[steps] + 1) if steps < len(data) else None
    return place, None


def _inferred_shapes(model: Proto, inputs: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of values, as far as they follow from those of the inputs."""
    onnx = _package()
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for info in fixed.graph.input:
        for dim, size in zip(info.type.tensor_type.shape.dim, inputs.get(info.name, ()), strict=False):
            dim.dim_value = size
    graph = onnx.shape_inference.infer_shapes(fixed).graph
    found = {item.name: tuple(item.dims) for item in graph.initializer}
    for info in (*graph.input, *graph.value_info):
        dims = info.type.tensor_type.shape.dim
        if info.type.tensor_type.HasField("shape") and all(dim.WhichOneof("value") == "dim_value" for dim in dims):
            found[info.name] = tuple(dim.dim_value for dim in dims)
    return found


def ranges_in_file(path: Path, inputs: Mapping[str, tuple[int, ...]]) -> dict[str, range]:
    """`integer_ranges` of the model in a file."""
    return integer_ranges(_package().load(path, load_external_data=False), inputs)


def _package() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise MissingDependencyError.for_extra("onnx", "onnx", "making up indices for an ONNX model") from error
    return onnx
