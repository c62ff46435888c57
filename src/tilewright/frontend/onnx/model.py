"""An ONNX model as plain Python data: what the importer sees of it, free of protobuf.

Weights stay undecoded until they are used (`Lazy`), so that reading a model costs little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.frontend.core.scopes import Lazy
from tilewright.ir.dtype import DataType


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute of a function's body that stands for an attribute of the call."""

    name: str


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """An input or output of a graph: dimensions are numbers, names, or None (unknown)."""

    name: str
    dtype: DataType | None
    dims: tuple[int | str | None, ...] | None
    kind: str = "tensor"
    """What it is if it is no tensor: `sequence`, `optional`, or something that is not supported, for messages."""
    item: ValueInfo | None = None
    """What a sequence holds, and an optional if it holds something."""


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One operation."""

    op_type: str
    domain: str
    name: str
    """The node's own name, or one made of its operator and first output."""
    inputs: tuple[str, ...]
    """Names; an empty one is an optional input left out."""
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue]
    overload: str = ""
    proto: Any = field(default=None, compare=False, repr=False)
    """The node as it was read, for ONNX's own definition of its operator; None if attributes were filled in since."""


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A graph, or the body of a control-flow operator."""

    name: str
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    nodes: tuple[OnnxNode, ...]
    initializers: Mapping[str, Lazy]


@dataclass(frozen=True, slots=True)
class OnnxFunction:
    """A function whose calls are replaced by its body."""

    name: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[OnnxNode, ...]
    opsets: Mapping[str, int]
    defaults: Mapping[str, AttributeValue] = field(default_factory=dict)
    attribute_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A whole model; `source` names it in messages."""

    source: str
    graph: OnnxGraph
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], OnnxFunction]
    metadata: Mapping[str, str]
    """What the exporter says of the model, in words of its own."""


AttributeValue = (
    int
    | float
    | str
    | bytes
    | Lazy
    | OnnxGraph
    | ValueInfo
    | Reference
    | tuple[int, ...]
    | tuple[float, ...]
    | tuple[bytes, ...]
    | tuple[()]
    | None
)
"""What attributes hold; None stands for a kind that this importer does not know."""


def canonical_domain(domain: str) -> str:
    """The standard operators' domain has two spellings; the short one is kept."""
    return "" if domain == "ai.onnx" else domain
