"""Small GraphDefs written by hand, for what no fixture has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.tensorflow.schema import SCHEMA, TYPES

NodeText = tuple[str, str, Sequence[str], dict[str, Any]]
"""Name, operator, inputs, attributes: numbers that are types for `dtype` and `T`, lists of sizes, texts, arrays."""
_NUMBERS = {name: number for number, (_, name) in TYPES.items()}


def fill(message: Any, name: str, value: Any) -> None:
    """Set an attribute by the kind of a Python value."""
    if isinstance(value, np.ndarray):
        message.tensor.dtype = _NUMBERS[value.dtype.name]
        for size in value.shape:
            message.tensor.tensor_shape.dim.add(size=size)
        message.tensor.tensor_content = value.tobytes()
    elif isinstance(value, bool):
        message.b = value
    elif isinstance(value, int) and name in ("dtype", "T", "DstT", "Tout"):
        message.type = value
    elif isinstance(value, int):
        message.i = value
    elif isinstance(value, float):
        message.f = value
    elif isinstance(value, str):
        message.s = value.encode()
    elif name == "shape":
        for size in value:
            message.shape.dim.add(size=-1 if size is None else size)
    else:
        message.list.i.extend(value)


def nodes_of(target: Any, nodes: Sequence[NodeText]) -> None:
    """Add nodes to a graph or a function."""
    for name, op, inputs, attributes in nodes:
        node = target.add(name=name, op=op, input=list(inputs))
        for key, value in attributes.items():
            fill(node.attr[key], key, value)


def graph(*nodes: NodeText) -> bytes:
    """A GraphDef of nodes."""
    message = SCHEMA.message("Graph")()
    nodes_of(message.node, nodes)
    return bytes(message.SerializeToString())
