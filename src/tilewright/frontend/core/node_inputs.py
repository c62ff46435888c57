"""What converters of a file format ask of an operator's inputs: which are there, and which are known."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import Builder, dtype_of, evaluate, rank_of
from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.graph.ir.dimensions import Size, Sizes
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.expr import Var as Symbol
from tilewright.support.errors import UnsupportedError, UserError


class NodeInputs:
    """The inputs of one operator; those that it leaves out are None."""

    def __init__(self, operator: str, result: str, inputs: Sequence[GraphExpr | None], builder: Builder) -> None:
        self.operator = operator
        self._result = result
        self.inputs = list(inputs)
        self.builder = builder
        self.call = builder.call

    def has_input(self, index: int) -> bool:
        """Whether an optional input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> GraphExpr:
        """A required input."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise UserError(f"{self.operator} needs an input number {index + 1}, which is not there")
        return value

    def optional(self, index: int) -> GraphExpr | None:
        """An input that may be left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def all_inputs(self) -> list[GraphExpr]:
        """All inputs of an operator that takes any number."""
        if not self.inputs:
            raise UserError(f"{self.operator} needs at least one input")
        return [self.input(index) for index in range(len(self.inputs))]

    def constant(self, index: int, what: str) -> Array:
        """The value of an input that must be known while importing."""
        array = evaluate(self.input(index))
        if array is None:
            raise UnsupportedError(
                f"{what} of {self.operator} (input number {index + 1}) is computed from the inputs of the model",
                hint="it must be known while the model is imported: export it as a constant",
            )
        return array

    def constant_ints(self, index: int, what: str) -> tuple[int, ...]:
        """The value of an input that is a list of whole numbers known while importing."""
        array = self.constant(index, what)
        if array.dtype.kind not in "iu":
            raise UserError(f"{what} must be whole numbers, it is {array.dtype}")
        return tuple(int(item) for item in array.ravel())

    def constant_int(self, index: int, what: str) -> int:
        """The value of an input that is one whole number known while importing."""
        values = self.constant_ints(index, what)
        if len(values) != 1:
            raise UserError(f"{what} must be one whole number, it is {values}")
        return values[0]

    def axis(self, value: int, rank: int) -> int:
        """An axis that may count from the end, as 0 .. rank-1."""
        if not -rank <= value < rank:
            raise UserError(f"axis {value} is out of range for {rank} dimensions")
        return value % rank

    def sizes(self, index: int, what: str) -> Sizes | None:
        """The value of an input that is a list of whole numbers: numbers and expressions of symbols.

        None if it depends on the data that the model is given.
        """
        value = self.input(index)
        if not dtype_of(value).is_integer or rank_of(value) > 1:
            raise UserError(f"{what} must be a list of whole numbers, it is {dtype_of(value)} of rank {rank_of(value)}")
        found = symbolic_value(value)
        if found is not None:
            return tuple(found.reshape(-1))
        array = evaluate(value)
        return None if array is None else tuple(int(item) for item in array.ravel())

    def size(self, index: int, what: str) -> Size:
        """The value of an input that is one whole number; a symbol if only a run knows it."""
        sizes = self.sizes(index, what)
        if sizes is None:
            return self.computed_size(self.builder.reshape(self.input(index), ()), what.split()[-1])
        if len(sizes) != 1:
            raise UserError(f"{what} must be one whole number, it is {sizes_text(sizes)}")
        return sizes[0]

    def computed_size(self, value: GraphExpr, label: str) -> Size:
        """A symbol for a size that is data, a scalar: the length of a range so long."""
        builder, symbol = self.builder, self.symbol(label)
        zero, one = builder.constant(0, "int64"), builder.constant(1, "int64")
        self.call("shape.range", zero, builder.cast(value, "int64"), one, dims=(symbol,))
        return symbol

    def symbol(self, label: str = "size") -> Symbol:
        """A new symbol for a dimension that only a run knows, named after the operator's first result."""
        return Symbol(f"{self._result}_{label}")
