"""A PaddlePaddle program as plain Python data, the same for both of its file formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.frontend.core.scopes import Lazy
from tilewright.ir.dtype import DataType


@dataclass(frozen=True, slots=True)
class PaddleOperator:
    """One operation. Its inputs and outputs are groups of names: by parameter, or in order."""

    kind: str
    name: str
    """Its place in messages and profiles: the first variable that it gives, or the layer that it belongs to."""
    inputs: Mapping[str, tuple[str, ...]] | tuple[tuple[str, ...], ...]
    outputs: Mapping[str, tuple[str, ...]] | tuple[tuple[str, ...], ...]
    attributes: Mapping[str, Any]
    blocks: tuple[Block, ...] = ()
    """The bodies of control flow."""


@dataclass(slots=True)
class Block:
    """Operators in order; a body may have arguments, and results that it yields."""

    arguments: tuple[str, ...] = ()
    operators: list[PaddleOperator] = field(default_factory=list)
    results: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PaddleInput:
    """An input of the program; open dimensions are None."""

    name: str
    variable: str
    dtype: DataType
    dims: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class PaddleModel:
    """A whole model; `source` names it in messages."""

    source: str
    block: Block
    inputs: tuple[PaddleInput, ...]
    outputs: tuple[tuple[str, str], ...]
    """Names of outputs, and the variables that they are."""
    parameters: Mapping[str, Lazy]
    shapes: Mapping[str, tuple[int | None, ...]]
    """What the file says of the shapes of variables."""
