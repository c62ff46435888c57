"""What a converter is given: one node with its inputs as values, its attributes, and a builder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.frontend.tensorflow.model import Body, Node, TfModel
from tilewright.frontend.tensorflow.tensors import shape_dims, tensor_dtype, text_of, type_name
from tilewright.frontend.tensorflow.values import Handle, TensorList, Value
from tilewright.graph.ir.expr import Function, GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError


@dataclass(slots=True)
class State:
    """What a model keeps beside tensors, at the place that is being imported."""

    variables: dict[str, GraphExpr] = field(default_factory=dict)
    tables: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    """Variables whose value from before the run has been read."""
    assigned: set[str] = field(default_factory=set)
    """Variables that the run has given a value."""


@dataclass(frozen=True, slots=True)
class Scope:
    """How a node reaches its model."""

    model: TfModel
    run: Callable[[Body, Sequence[Value]], list[Value]]
    """The results of a body for values of its parameters."""
    functions: list[Function]
    """The functions of the module beside main."""
    state: State


class NodeContext(NodeInputs):
    """One node while it is converted."""

    builder: ArithmeticBuilder

    def __init__(self, node: Node, values: Sequence[Value], builder: ArithmeticBuilder, scope: Scope) -> None:
        tensors = [value if isinstance(value, GraphExpr) else None for value in values]
        super().__init__(node.op, node.name, tensors, builder)
        self.node = node
        self.name = node.name
        self.values = list(values)
        self.scope = scope

    # Inputs that are no tensors

    def value(self, index: int) -> Value:
        """An input of any kind."""
        if index >= len(self.values):
            raise UserError(f"{self.operator} needs an input number {index + 1}, which is not there")
        return self.values[index]

    def input(self, index: int) -> GraphExpr:
        """An input that is a tensor of numbers or texts."""
        value = self.value(index)
        if isinstance(value, Complex):
            raise UnsupportedError(f"{self.operator} of complex numbers")
        if not isinstance(value, GraphExpr):
            raise UserError(f"{self.operator} needs a tensor as its input number {index + 1}")
        return value

    def handle(self, index: int) -> Handle:
        """An input that is a variable or a table."""
        value = self.value(index)
        if not isinstance(value, Handle):
            raise UserError(f"{self.operator} needs a resource as its input number {index + 1}")
        return value

    def tensor_list(self, index: int) -> TensorList:
        """An input that is a list of tensors."""
        value = self.value(index)
        if not isinstance(value, TensorList):
            raise UserError(f"{self.operator} needs a list of tensors as its input number {index + 1}")
        return value

    # Attributes

    def has(self, name: str) -> bool:
        """Whether an attribute is given."""
        return name in self.node.attributes

    def _attribute(self, name: str, field_name: str) -> Any:
        """A field of an attribute; None if it is not given."""
        if name not in self.node.attributes:
            return None
        message = self.node.attributes[name]
        if message.placeholder:
            raise UnsupportedError(f"the attribute '{name}' of {self.operator} is left open by its function")
        return getattr(message, field_name)

    def integer(self, name: str, default: int = 0) -> int:
        """A whole number."""
        found = self._attribute(name, "i")
        return default if found is None else int(found)

    def flag(self, name: str, default: bool = False) -> bool:
        """A truth value."""
        found = self._attribute(name, "b")
        return default if found is None else bool(found)

    def number(self, name: str, default: float = 0.0) -> float:
        """A number."""
        found = self._attribute(name, "f")
        return default if found is None else float(found)

    def text(self, name: str, default: str = "") -> str:
        """A text."""
        found = self._attribute(name, "s")
        return default if found is None else text_of(found)

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers; empty if it is not given."""
        found = self._attribute(name, "list")
        return () if found is None else tuple(int(item) for item in found.i)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers; empty if it is not given."""
        found = self._attribute(name, "list")
        return () if found is None else tuple(float(item) for item in found.f)

    def type_number(self, name: str, default: int = 0) -> int:
        """The number of an element type."""
        found = self._attribute(name, "type")
        return default if found is None else int(found)

    def dtype(self, name: str, default: int = 0) -> DataType:
        """A data type."""
        return tensor_dtype(self.type_number(name, default))

    def is_complex(self, name: str) -> bool:
        """Whether an element type is one of complex numbers."""
        return type_name(self.type_number(name)).startswith("complex")

    def dims(self, name: str) -> tuple[int | None, ...] | None:
        """A shape, None where it is open; None if not even its rank is known."""
        found = self._attribute(name, "shape")
        return None if found is None else shape_dims(found)

    def tensor(self, name: str) -> Any:
        """The message of a tensor."""
        found = self._attribute(name, "tensor")
        if found is None:
            raise UserError(f"{self.operator} has no attribute '{name}'")
        return found

    def body(self, name: str) -> Body:
        """A function that an attribute names."""
        found = self._attribute(name, "func")
        if found is None:
            raise UserError(f"{self.operator} names no function '{name}'")
        return self.function(found.name)

    def bodies(self, name: str) -> list[Body]:
        """Functions that an attribute names."""
        found = self._attribute(name, "list")
        return [self.function(item.name) for item in (() if found is None else found.func)]

    def function(self, name: str) -> Body:
        """A function of the model."""
        found = self.scope.model.functions.get(name)
        if found is None:
            raise UserError(f"the model has no function '{name}'", hint="export the model again, with its library")
        return found
