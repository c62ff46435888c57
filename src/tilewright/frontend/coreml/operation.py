"""What a converter of a Core ML operation is given: its arguments by name, as graph values and as texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import evaluate
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.frontend.core.registry import Registry
from tilewright.frontend.onnx.borrowed import OnnxOperators
from tilewright.graph.ir.dimensions import Sizes
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

Argument = GraphExpr | str | list[GraphExpr] | list[str]
"""One value, several, or texts."""
Plain = Argument | Array | float | int | bool | Sequence[int] | Sequence[float] | None
"""What an operation in place is given: numbers become constants, None is left out."""
Captures = list[tuple[GraphExpr, Var]]


@dataclass(frozen=True, slots=True)
class Bodies:
    """How an operation reaches the blocks it holds."""

    blocks: Sequence[Any]
    inline: Callable[[Any, Sequence[GraphExpr]], list[GraphExpr]]
    """The results of a block in the scope of the operation, for values of its inputs."""
    closed: Callable[[Any, Sequence[GraphExpr]], tuple[list[GraphExpr], Captures]]
    """The same as the body of a function: values from outside become parameters, which are listed."""
    functions: list[Function]
    """The functions of the module beside main."""


class Operation:
    """One operation being converted."""

    def __init__(
        self,
        kind: str,
        name: str,
        arguments: Mapping[str, Argument],
        builder: ArithmeticBuilder,
        bodies: Bodies | None = None,
        output: DataType | None = None,
    ) -> None:
        self.kind = kind
        self.name = name
        self.arguments = arguments
        self.builder = builder
        self.call = builder.call
        self.onnx = OnnxOperators(builder)
        self.output = output
        """The type that the model gives the first result, where it says one."""
        self._bodies = bodies

    @property
    def bodies(self) -> Bodies:
        """The blocks that the operation holds."""
        if self._bodies is None:
            raise UserError(f"{self.kind} has no blocks")
        return self._bodies

    # Values

    def has(self, name: str) -> bool:
        """Whether an argument is given."""
        return name in self.arguments

    def value(self, name: str = "x") -> GraphExpr:
        """A required argument."""
        value = self.optional(name)
        if value is None:
            raise UserError(f"{self.kind} needs the argument '{name}', which is not there")
        return value

    def optional(self, name: str) -> GraphExpr | None:
        """An argument that may be left out."""
        value = self.arguments.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is None or isinstance(value, GraphExpr):
            return value
        raise UserError(f"the argument '{name}' of {self.kind} must be one tensor")

    def values(self, name: str) -> list[GraphExpr]:
        """An argument that is several values."""
        value = self.arguments.get(name)
        if isinstance(value, GraphExpr):
            return [value]
        if not isinstance(value, list) or not value or not all(isinstance(item, GraphExpr) for item in value):
            raise UserError(f"the argument '{name}' of {self.kind} must be tensors")
        return [item for item in value if isinstance(item, GraphExpr)]

    # Values that must be known

    def text(self, name: str, default: str | None = None) -> str:
        """An argument that is a text."""
        value = self.arguments.get(name, default)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, str):
            raise UserError(f"the argument '{name}' of {self.kind} must be a text")
        return value

    def array(self, name: str) -> Array:
        """The value of an argument that must be known while importing."""
        array = evaluate(self.value(name))
        if array is None:
            raise UnsupportedError(
                f"the argument '{name}' of {self.kind} is computed from the inputs of the model",
                hint="it must be known while the model is imported: convert the model with it as a constant",
            )
        return array

    def ints(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """An argument that is a list of whole numbers."""
        if name not in self.arguments and default is not None:
            return tuple(default)
        return tuple(int(item) for item in self.array(name).ravel())

    def integer(self, name: str, default: int | None = None) -> int:
        """An argument that is one whole number."""
        return int(self.number(name, default))

    def number(self, name: str, default: float | None = None) -> float:
        """An argument that is one number."""
        if name not in self.arguments and default is not None:
            return default
        array = self.array(name)
        if array.size != 1:
            raise UserError(f"the argument '{name}' of {self.kind} must be one number, it has shape {array.shape}")
        return float(array.ravel()[0]) if array.dtype.kind == "f" else int(array.ravel()[0])

    def flag(self, name: str, default: bool | None = None) -> bool:
        """An argument that is true or false."""
        return bool(self.number(name, default))

    def flags(self, name: str, count: int) -> tuple[bool, ...]:
        """An argument that is a list of truth values, all false where it is left out."""
        values = tuple(bool(item) for item in self.ints(name, (0,) * count))
        if len(values) != count:
            raise UserError(f"the argument '{name}' of {self.kind} must have {count} entries")
        return values

    def sizes(self, name: str) -> Sizes | None:
        """An argument that is a list of whole numbers, as far as they are known; None if data decides."""
        return self._inputs(name).sizes(0, name)

    def whole(self, name: str) -> GraphExpr:
        """An argument that is whole numbers, in 64 bits."""
        return self.builder.cast(self.value(name), "int64")

    def _inputs(self, name: str) -> NodeInputs:
        return NodeInputs(self.kind, self.name, [self.value(name)], self.builder)

    # Axes

    def axis(self, name: str, rank: int, default: int | None = None) -> int:
        """An argument that is an axis."""
        return self.builder.axis(self.integer(name, default), rank)

    # Operations in place

    def apply(self, kind: str, **arguments: Plain) -> GraphExpr:
        """The first result of another operation."""
        return self.apply_all(kind, **arguments)[0]

    def apply_all(self, kind: str, **arguments: Plain) -> list[GraphExpr]:
        """The results of another operation."""
        return run_operation(kind, self.name, arguments, self.builder)

    def ints_of(self, values: Sequence[int]) -> GraphExpr:
        """Whole numbers as a tensor."""
        return self.builder.constant(np.array(values, np.int64), "int64")


Converter = Callable[[Operation], GraphExpr | Sequence[GraphExpr]]
C = TypeVar("C", bound=Converter)
_TABLE: Registry[str, Converter] = Registry()


def operation(*kinds: str) -> Callable[[C], C]:
    """Register a converter of operations."""

    def register(convert: C) -> C:
        for kind in kinds:
            _TABLE.add(kind, convert, convert)
        return convert

    return register


def converted_operations() -> list[str]:
    """The operations that there are converters for."""
    return sorted(_TABLE.entries())


def convert(context: Operation) -> list[GraphExpr]:
    """The results of an operation."""
    converter = _TABLE.get(context.kind)
    if converter is None:
        raise UnsupportedError(
            f"the operation {context.kind} is not supported", hint=f"known are {', '.join(converted_operations())}"
        )
    try:
        result = converter(context)
    except (IndexError, ValueError, OverflowError, TypeError) as error:
        # Files may say anything: ranks and lengths that no operation of that kind has are met in the arithmetic.
        raise UserError(f"the arguments of {context.kind} do not fit together: {error}") from error
    return [result] if isinstance(result, GraphExpr) else list(result)


def run_operation(kind: str, name: str, arguments: Mapping[str, Plain], builder: ArithmeticBuilder) -> list[GraphExpr]:
    """The results of an operation whose arguments may be plain numbers."""
    given: dict[str, Argument] = {}
    for key, value in arguments.items():
        if value is None:
            continue
        if isinstance(value, (GraphExpr, str)) or (isinstance(value, list) and value and not _is_number(value[0])):
            given[key] = value
        else:
            given[key] = _constant(builder, value)
    return convert(Operation(kind, name, given, builder))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.number))


def _constant(builder: ArithmeticBuilder, value: Any) -> GraphExpr:
    array = np.asarray(value)
    if array.dtype.kind == "f" and array.dtype != np.float16:
        return builder.constant(array.astype(np.float32), "float32")
    if array.dtype.kind in "iu" or not array.size:
        return builder.constant(array.astype(np.int64), "int64")
    return builder.constant(array)


def filled_like(context: Operation, value: GraphExpr, name: str, default: float) -> GraphExpr:
    """An argument that is one number, in the type of a value."""
    return context.builder.constant_like(context.number(name, default), value)
