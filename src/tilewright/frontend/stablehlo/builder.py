"""What converters of StableHLO build with: the shared builder, values that are known to be repeated, and regions.

StableHLO spells every broadcast out, so most constants of a program are whole tensors of one number. The builder
remembers what a value was before it was repeated (`narrow`), and elementwise operators compute with that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import rank_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.frontend.stablehlo.program import Block, FunctionDefinition, Operation, TensorSpec, Value
from tilewright.frontend.stablehlo.scanner import numbers
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size, Sizes
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

if TYPE_CHECKING:
    from tilewright.graph.ir.expr import Function

Tensor = GraphExpr | Complex
"""What an operand is: a tensor, or the parts of one of complex numbers."""


class StableBuilder(ArithmeticBuilder):
    """The builder of one import. `operation` is what is being converted."""

    def __init__(self) -> None:
        super().__init__()
        self.operation = Operation("", [], {}, [])
        self.is_wide = False
        """Whether a region of scalars is being computed on whole tensors: what it says of shapes does not hold."""
        self.functions: list[Function] = []
        """Those of loops."""
        self.loops = 0
        """How many loops were built."""
        self.required: list[tuple[Size, Size]] = []
        """Sizes that must be equal for the program to be right."""
        self.definitions: Mapping[str, FunctionDefinition] = {}
        """The functions of the program."""
        self.run_block: Callable[[Block, Sequence[Any]], list[Any]] = _no_program
        self.call_function: Callable[[str, Sequence[Any]], list[Any]] = _no_program
        self.lookup: Callable[[Value], Any] = _no_program
        """What a value of the program is in the graph; None if it is not known (yet)."""
        self.redefine: Callable[[Value, Any], None] = _no_program_to_change
        self._narrow: dict[int, tuple[GraphExpr, GraphExpr]] = {}
        """Values that are repetitions, by identity, and what they repeat (of as many dimensions)."""

    # What the operation says

    @property
    def result(self) -> TensorSpec:
        """The type of the first result."""
        return self.operation.results[0].tensor

    @property
    def result_dtype(self) -> DataType:
        """The data type of the first result (of a part of it, where it is complex)."""
        return self.result.dtype

    def list_of(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """An attribute that is a list of whole numbers."""
        value = self.operation.attributes.get(name)
        if value is None:
            if default is None:
                raise UserError(f"{self.operation.name} has no attribute '{name}'")
            return list(default)
        return numbers(value)

    def number_of(self, name: str, default: int | None = None) -> int:
        """An attribute that is a whole number."""
        value = self.operation.attributes.get(name, default)
        if not isinstance(value, int):
            raise UserError(f"{self.operation.name} has no number '{name}'")
        return value

    def word_of(self, name: str, default: str = "") -> str:
        """An attribute that is a word."""
        value = self.operation.attributes.get(name, default)
        return str(value)

    # Repetitions

    def narrow(self, value: GraphExpr) -> GraphExpr:
        """What a value repeats, with as many dimensions; itself if it is no repetition."""
        found = self._narrow.get(id(value))
        return value if found is None else found[1]

    def repeated(self, value: GraphExpr, shape: Sequence[Size]) -> GraphExpr:
        """A value whose dimensions of 1 are repeated to fill a shape of as many dimensions."""
        made = self.broadcast_to(value, shape)
        if made is not value:
            self._narrow[id(made)] = (made, self.narrow(value))
        return made

    def elementwise(self, name: str, *values: GraphExpr, **attributes: object) -> GraphExpr:
        """An operator on tensors of one shape (or scalars), computed before what is repeated is."""
        made = self.call(name, *(self.narrow(value) for value in values), **attributes)
        shapes = [sizes_of(value) for value in values]
        wanted = max(shapes, key=len)
        for shape in shapes:
            if len(shape) == len(wanted):
                wanted = tuple(b if a == 1 else a for a, b in zip(wanted, shape, strict=True))
        found = sizes_of(made)
        if len(found) == len(wanted) and all(map(dimensions.same, found, wanted)):
            return made
        if len(found) < len(wanted):
            made = self.reshape(made, (*(1,) * (len(wanted) - len(found)), *found))
        return self.repeated(made, wanted)

    # Shapes that are data

    def sizes_in(self, value: GraphExpr) -> Sizes:
        """The sizes that a tensor of them holds, which import must know."""
        found = symbolic_value(value)
        if found is None:
            raise UnsupportedError(
                "a shape that depends on the values of a tensor",
                hint="compute shapes from the shapes of inputs, or from numbers",
            )
        return tuple(dimensions.normal(item) for item in found.reshape(-1))

    def target_shape(self, fallback: Sequence[Size]) -> Sizes:
        """The shape that the operation says its result has; open sizes are those of the fallback."""
        if self.is_wide:
            return tuple(fallback)
        return tuple(other if size is None else size for size, other in zip(self.result.shape, fallback, strict=True))

    # Regions

    def run_wide(self, block: Block, values: Sequence[Any]) -> list[Any]:
        """What a region of scalars gives, computed on whole tensors, element by element."""
        before, self.is_wide = self.is_wide, True
        operation, span = self.operation, self.span
        try:
            return self.run_block(block, values)
        finally:
            self.is_wide, self.operation, self.span = before, operation, span


def _no_program(*_: object) -> list[Any]:
    raise UserError("there is no program")


def _no_program_to_change(*_: object) -> None:
    raise UserError("there is no program")


def each_part(value: Tensor) -> tuple[GraphExpr, ...]:
    """The parts of complex numbers, or the one value."""
    return value.parts if isinstance(value, Complex) else (value,)


def shape_of_tensor(value: Tensor) -> Sizes:
    """The shape of a tensor of real or complex numbers."""
    return sizes_of(each_part(value)[0])


def rank_of_tensor(value: Tensor) -> int:
    """The number of dimensions of a tensor of real or complex numbers."""
    return rank_of(each_part(value)[0])
