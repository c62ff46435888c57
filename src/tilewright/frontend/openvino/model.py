"""An OpenVINO model as plain Python data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Port:
    """An output of a layer."""

    number: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PortMap:
    """How an input or output of a layer with a body belongs to a layer of the body; numbers by their names."""

    is_input: bool
    external: int
    internal: int
    options: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Layer:
    """One operation."""

    number: int
    name: str
    kind: str
    opset: str
    options: Mapping[str, str]
    inputs: tuple[tuple[int, int] | None, ...]
    """The layer and the port that each input comes from, in order."""
    outputs: tuple[Port, ...]
    output_names: tuple[str, ...] = ()
    bodies: Mapping[str, Net] = field(default_factory=dict)
    port_maps: Mapping[str, tuple[PortMap, ...]] = field(default_factory=dict)
    """By the name of the element: `port_map`, `then_port_map`, `else_port_map`."""
    back_edges: tuple[tuple[int, int], ...] = ()
    """Results of a body, and the parameters that they are in the next turn."""
    input_ports: tuple[int, ...] = ()
    """The numbers of the inputs, in order."""


@dataclass(frozen=True, slots=True)
class Net:
    """Layers in an order in which they can be computed."""

    name: str
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class OpenvinoModel:
    """A whole model; `source` names it in messages."""

    source: str
    net: Net
    weights: memoryview
