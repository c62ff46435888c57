"""A TensorFlow model as plain Python data: bodies of nodes, functions, signatures, and its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.frontend.tensorflow.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Ref:
    """One output of a node, or a parameter of a body."""

    node: str
    port: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """One operation."""

    name: str
    op: str
    inputs: tuple[Ref, ...]
    controls: tuple[str, ...] = ()
    """The nodes that must be done before."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Messages of the kind `Attr` by name."""
    bodies: tuple[Body, ...] = ()
    """What control flow raised from frames and switches runs."""


@dataclass(frozen=True, slots=True)
class Body:
    """A graph, or the body of a function."""

    name: str
    params: tuple[str, ...]
    nodes: Mapping[str, Node]
    results: tuple[Ref, ...] = ()
    effects: tuple[str, ...] = ()
    """Nodes that are run for what they do."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a signature."""

    name: str
    ref: Ref
    dtype: int
    dims: tuple[int | None, ...] | None
    """None where open; None for all of them if not even their number is known."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What can be asked of a model, by name."""

    key: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class Restore:
    """How variables come from a checkpoint: the node that does it, and the one that its path is given to."""

    operation: str
    filename: Ref


@dataclass(frozen=True)
class TfModel:
    """A model."""

    source: str
    graph: Body
    functions: Mapping[str, Body]
    signatures: tuple[Signature, ...] = ()
    restore: Restore | None = None
    checkpoint: Checkpoint | None = None
    initial: tuple[str, ...] = ()
    """Nodes that are run before anything else: they fill tables."""
    assets: Mapping[Ref, Path] = field(default_factory=dict)
    """Files that the model brings, by the nodes that hold their names."""
