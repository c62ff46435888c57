"""A TFLite model as plain Python data: what the importer sees of it, free of flatbuffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import DataType


@dataclass(frozen=True, slots=True)
class Quantization:
    """What integers stand for: (q - zero) * scale, with one of each for the tensor or for each place along an axis."""

    scales: Array
    """float32."""
    zeros: Array
    """int64, as many as scales."""
    axis: int
    block: int = 0
    """How many elements along the last axis share a scale; 0 where scales are not those of blocks."""

    @property
    def by_tensor(self) -> bool:
        """Whether there is one scale."""
        return self.scales.size == 1

    @property
    def scale(self) -> float:
        """The scale of the whole tensor, as kernels read it."""
        return float(self.scales[0])

    @property
    def zero(self) -> int:
        """The zero point of the whole tensor."""
        return int(self.zeros[0])


@dataclass(frozen=True, slots=True)
class TfliteTensor:
    """A tensor of a graph; constants have data."""

    name: str
    kind: str
    """The element type as the format calls it."""
    dtype: DataType | None
    """None for resources and variants."""
    dims: tuple[int | None, ...] | None
    """Open dimensions are None; None if not even their number is known."""
    data: Array | None
    quantization: Quantization | None
    is_variable: bool


@dataclass(frozen=True, slots=True)
class TfliteOperator:
    """A node: tensors by their number, -1 for an input that is left out."""

    name: str
    """The built-in operator, or the name of a custom one."""
    is_custom: bool
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...]
    options: Mapping[str, Any]
    custom_options: bytes = b""


@dataclass(frozen=True, slots=True)
class TfliteGraph:
    """A subgraph."""

    name: str
    tensors: tuple[TfliteTensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[TfliteOperator, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """An entry of a model: names of inputs and outputs of a subgraph."""

    key: str
    graph: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TfliteModel:
    """A whole file."""

    source: str
    description: str
    graphs: tuple[TfliteGraph, ...]
    signatures: tuple[Signature, ...]
    metadata: Mapping[str, bytes] = field(default_factory=dict)
