"""What a converter is given: one node of a symbol with its inputs as graph values, and its attributes (texts)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.converters import Converters
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.frontend.mxnet.files import Symbol, SymbolNode
from tilewright.graph.ir.expr import Function, GraphExpr
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

_ITEM = re.compile(r"None|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_TYPE_NAMES = {
    0: "float32",
    1: "float64",
    2: "float16",
    3: "uint8",
    4: "int32",
    5: "int8",
    6: "int64",
    7: "bool",
}


@dataclass(frozen=True)
class Bodies:
    """How a node reaches the symbols inside it."""

    run: Callable[[Symbol, Sequence[GraphExpr]], list[GraphExpr]]
    """The results of a symbol for values of its arguments."""
    functions: list[Function]
    """The functions of the module beside main."""


class Node(NodeInputs):
    """One node being converted."""

    def __init__(
        self, node: SymbolNode, inputs: Sequence[GraphExpr | None], builder: ArithmeticBuilder, bodies: Bodies
    ) -> None:
        super().__init__(node.op, node.name, inputs, builder)
        self.node = node
        self.op = node.op
        self.name = node.name
        self.b = builder
        self.bodies = bodies

    def _text(self, name: str) -> str | None:
        value = self.node.attributes.get(name)
        return None if value is None or value == "None" else value

    def has(self, name: str) -> bool:
        """Whether an attribute is given."""
        return self._text(name) is not None

    def text(self, name: str, default: str = "") -> str:
        """An attribute that is a word."""
        value = self._text(name)
        return default if value is None else value

    def flag(self, name: str, default: bool = False) -> bool:
        """An attribute that is true or false."""
        value = self._text(name)
        return default if value is None else value.lower() in ("true", "1")

    def number(self, name: str, default: float | None = None) -> float:
        """An attribute that is a number."""
        value = self._text(name)
        if value is None:
            if default is None:
                raise UserError(f"{self.op} needs the attribute {name}")
            return default
        if value.lower() in ("true", "false"):
            return float(value.lower() == "true")
        try:
            return float(value)
        except ValueError as error:
            raise UserError(f"{name}={value} is no number") from error

    def integer(self, name: str, default: int | None = None) -> int:
        """An attribute that is a whole number."""
        value = self.number(name, None if default is None else float(default))
        if not float(value).is_integer():
            raise UserError(f"{name}={value} is no whole number")
        return int(value)

    def open_ints(self, name: str, default: Sequence[int | None] | None = None) -> tuple[int | None, ...]:
        """An attribute that is a list of whole numbers, or of nothing in the place of one."""
        value = self._text(name)
        if value is None:
            if default is None:
                raise UserError(f"{self.op} needs the attribute {name}")
            return tuple(default)
        try:
            return tuple(None if item == "None" else int(float(item)) for item in _ITEM.findall(value))
        except (ValueError, OverflowError) as error:
            raise UserError(f"{name}={value} is no list of whole numbers") from error

    def ints(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """An attribute that is a list of whole numbers (or one)."""
        values = self.open_ints(name, default)
        if any(item is None for item in values):
            raise UserError(f"{name}={self.node.attributes.get(name)} is no list of whole numbers")
        return tuple(item for item in values if item is not None)

    def floats(self, name: str, default: Sequence[float]) -> tuple[float, ...]:
        """An attribute that is a list of numbers."""
        value = self._text(name)
        return tuple(default) if value is None else tuple(float(item) for item in _ITEM.findall(value))

    def dtype(self, name: str = "dtype", default: str = "float32") -> DataType:
        """An attribute that names a data type."""
        value = self.text(name, default)
        if value.lstrip("-").isdigit():
            value = _TYPE_NAMES.get(int(value), default if int(value) < 0 else value)
        if value not in _TYPE_NAMES.values():
            raise UnsupportedError(f"the data type {value}")
        return DataType.of(value)

    def axis(self, value: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= value < rank:
            raise UserError(f"axis {value} is out of range for {rank} dimensions")
        return value % rank


converter: Converters[Node] = Converters(
    "MXNet",
    {
        "Custom": "it is a program in Python",
        "_contrib_Proposal": "cut the symbol before it",
    },
)
"""The converters of operators, by their names."""
