"""What a converter is given: one layer with its bottoms as graph values, its options and its blobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.converters import Converters
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UserError


class Layer(NodeInputs):
    """One layer being converted."""

    def __init__(
        self, message: Any, bottoms: Sequence[GraphExpr], blobs: Sequence[Array], builder: ArithmeticBuilder
    ) -> None:
        super().__init__(message.type, message.name, bottoms, builder)
        self.message = message
        self.b = builder
        self.blobs = blobs

    def options(self, name: str) -> Any:
        """The message `<name>_param` of the layer."""
        return getattr(self.message, f"{name}_param")

    @property
    def tops(self) -> int:
        """How many results the layer has."""
        return len(self.message.top)

    def blob(self, index: int, shape: Sequence[int] | None = None) -> GraphExpr:
        """A parameter; old files have more dimensions of 1 than its shape has."""
        if index >= len(self.blobs):
            raise UserError(
                f"the layer has no weights number {index + 1}, only {len(self.blobs)}",
                hint="is the .caffemodel of this net beside its .prototxt, under the same name?",
            )
        array = self.blobs[index]
        if shape is not None:
            if array.size != math.prod(shape):
                raise UserError(f"weights number {index + 1} have the shape {array.shape}, not {tuple(shape)}")
            array = array.reshape(tuple(shape))
        return self.builder.constant(np.ascontiguousarray(array), FLOAT32)

    def axis(self, value: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= value < rank:
            raise UserError(f"axis {value} is out of range for {rank} dimensions")
        return value % rank


converter: Converters[Layer] = Converters(
    "Caffe",
    {
        "Python": "it is a program in Python",
        "Proposal": "it is a program of its fork; cut the net before it",
    },
)
"""The converters of layers, by their types."""
