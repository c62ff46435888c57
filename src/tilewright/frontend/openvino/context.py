"""What a converter is given: one layer with its inputs as graph values, its options, and a builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import evaluate
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.frontend.onnx.borrowed import OnnxOperators
from tilewright.frontend.openvino.model import Layer, Net
from tilewright.frontend.openvino.types import element_type
from tilewright.graph.ir.expr import Function, GraphExpr
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UserError


@dataclass(frozen=True, slots=True)
class Bodies:
    """How a layer reaches the nets inside it, and the state of the model."""

    run: Callable[[Net, Mapping[int, GraphExpr]], dict[int, GraphExpr]]
    """The values of the results of a net by their numbers, for values of its parameters by theirs."""
    functions: list[Function]
    """The functions of the module beside main."""
    read_state: Callable[[str, Layer, GraphExpr | None], GraphExpr]
    """The value of a variable."""
    write_state: Callable[[str, GraphExpr], None]


class NodeContext(NodeInputs):
    """One layer being converted."""

    builder: ArithmeticBuilder

    def __init__(
        self, layer: Layer, inputs: Sequence[GraphExpr | None], builder: ArithmeticBuilder, bodies: Bodies
    ) -> None:
        super().__init__(layer.kind, layer.name, inputs, builder)
        self.builder = builder
        self.layer = layer
        self.bodies = bodies
        self.onnx = OnnxOperators(builder, bodies.functions)

    @property
    def opset(self) -> int:
        """The number of the operator set."""
        digits = self.layer.opset.removeprefix("opset")
        return int(digits) if digits.isdigit() else 1

    # Options

    def has_option(self, name: str) -> bool:
        """Whether an option is given."""
        return name in self.layer.options

    def text(self, name: str, default: str | None = None) -> str:
        """An option that is a word, in small letters."""
        value = self.layer.options.get(name, default)
        if value is None:
            raise UserError(f"{self.layer.kind} needs the option '{name}', which is not there")
        return value.lower()

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole-number option."""
        return int(self._numbers(name, default, int)[0])

    def number(self, name: str, default: float | None = None) -> float:
        """A number option."""
        return float(self._numbers(name, default, float)[0])

    def _numbers(self, name: str, default: float | None, kind: Callable[[str], float]) -> list[float]:
        text = self.text(name, None if default is None else str(default))
        try:
            return [kind(part) for part in text.split(",") if part.strip()] if text.strip() else []
        except ValueError as error:
            raise UserError(f"the option '{name}' of {self.layer.kind} is no number: {text!r}") from error

    def flag(self, name: str, default: bool = False) -> bool:
        """An option that is true or false."""
        text = self.text(name, str(default))
        if text not in ("true", "false", "1", "0"):
            raise UserError(f"the option '{name}' of {self.layer.kind} must be true or false, it is {text!r}")
        return text in ("true", "1")

    def ints(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """An option that is a list of whole numbers."""
        if name not in self.layer.options and default is not None:
            return default
        return tuple(int(item) for item in self._numbers(name, None, int))

    def floats(self, name: str, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        """An option that is a list of numbers."""
        if name not in self.layer.options and default is not None:
            return default
        return tuple(self._numbers(name, None, float))

    def dtype(self, name: str, default: str = "i64") -> DataType:
        """An option that is an element type."""
        return element_type(self.text(name, default))

    # Inputs that must be known

    def known(self, index: int, what: str) -> tuple[int, ...]:
        """The value of an input that is a list of whole numbers known while importing."""
        return tuple(int(item) for item in self.constant(index, what).ravel())

    def known_number(self, index: int, default: float) -> float:
        """The value of an input that is one number, known while importing."""
        return float(self.constant(index, "a number").ravel()[0]) if self.has_input(index) else default

    def is_known(self, index: int) -> bool:
        """Whether the value of an input is known while importing."""
        return evaluate(self.input(index)) is not None

    # Axes

    def axis(self, value: int, rank: int) -> int:
        """An axis that may count from the end, as 0 .. rank-1."""
        return self.builder.axis(value, rank)
