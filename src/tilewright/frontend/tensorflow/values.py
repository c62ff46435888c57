"""Values of a model that are no tensors: handles of variables and tables, and lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.frontend.core.complex_values import Complex
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import DataType


@dataclass(frozen=True, slots=True)
class Handle:
    """A variable, a table or an iterator by the name that all its handles share."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class TensorList:
    """Tensors of one type: what `TensorList` operators and a `TensorArray` are.

    `items` are known one by one (None: nothing was written, which is zeros), or `rows` has them along its first axis.
    """

    dtype: DataType
    items: tuple[GraphExpr | None, ...] | None
    rows: GraphExpr | None = None
    count: Size = 0
    """How many there are, where nothing has been written yet and `rows` is None."""
    shape: tuple[Size | None, ...] | None = None
    """What is known of the shape of an item."""


Value = GraphExpr | Complex | Handle | TensorList
"""A value of a model."""
Values = Sequence[Value | None]
