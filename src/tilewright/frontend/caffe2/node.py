"""What a converter is given: one operator with its inputs as graph values, and its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.frontend.caffe2.files import arguments
from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import rank_of
from tilewright.frontend.core.converters import Converters
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError

Levels = tuple[float, int]
"""Scale and zero of integers that stand for numbers."""


class Node(NodeInputs):
    """One operator being converted."""

    def __init__(
        self,
        op: Any,
        kind: str,
        inputs: Sequence[GraphExpr],
        builder: ArithmeticBuilder,
        levels: Sequence[Levels | None] = (),
    ) -> None:
        super().__init__(op.type, op.name or (op.output[0] if op.output else op.type), inputs, builder)
        self.op = op
        self.kind = kind
        """The operator that is converted: the type, or what an operator on integers computes in numbers."""
        self.b = builder
        self.levels = list(levels)
        self.arguments = arguments(op)

    def has(self, name: str) -> bool:
        """Whether an argument is given."""
        return name in self.arguments

    def integer(self, name: str, default: int) -> int:
        """An argument that is a whole number."""
        return int(self.arguments[name].i) if name in self.arguments else default

    def flag(self, name: str, default: bool = False) -> bool:
        """An argument that is true or false."""
        return bool(self.integer(name, int(default)))

    def number(self, name: str, default: float) -> float:
        """An argument that is a number."""
        if name not in self.arguments:
            return default
        argument = self.arguments[name]
        return float(argument.f) if argument.HasField("f") else float(argument.i)

    def ints(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """An argument that is a list of whole numbers."""
        return tuple(int(item) for item in self.arguments[name].ints) if name in self.arguments else tuple(default)

    def text(self, name: str, default: str) -> str:
        """An argument that is a word."""
        return bytes(self.arguments[name].s).decode("utf-8", "replace") if name in self.arguments else default

    @property
    def outputs(self) -> int:
        """How many results the operator has."""
        return len(self.op.output)

    def axis(self, value: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= value < rank:
            raise UserError(f"axis {value} is out of range for {rank} dimensions")
        return value % rank

    # Layouts

    @property
    def channels_last(self) -> bool:
        """Whether the data have their channels last."""
        order = self.text("order", "NHWC" if self.op.type.startswith("Int8") else "NCHW")
        if order not in ("NCHW", "NHWC"):
            raise UserError(f"the order {order!r} is not known")
        return order == "NHWC"

    def first(self, value: GraphExpr) -> GraphExpr:
        """Data (or weights) with channels first."""
        rank = rank_of(value)
        return self.b.transpose(value, (0, rank - 1, *range(1, rank - 1))) if self.channels_last else value

    def in_order(self, value: GraphExpr) -> GraphExpr:
        """Data with channels first in the order of the operator."""
        rank = rank_of(value)
        return self.b.transpose(value, (0, *range(2, rank), 1)) if self.channels_last else value

    def through(self, compute: Callable[[GraphExpr], GraphExpr]) -> GraphExpr:
        """A computation on data with channels first."""
        return self.in_order(compute(self.first(self.input(0))))


converter: Converters[Node] = Converters(
    "Caffe2",
    {
        "GenerateProposals": "cut the net before it",
        "Python": "it is a program in Python",
    },
)
"""The converters of operators, by their types."""
