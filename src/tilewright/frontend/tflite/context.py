"""What a converter is given: one operator with its inputs as graph values, its options, and a builder."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.core.builder import Builder, dtype_of, evaluate, rank_of
from tilewright.frontend.core.symbolic_values import symbolic_value
from tilewright.frontend.tflite.model import Quantization, TfliteGraph, TfliteOperator, TfliteTensor
from tilewright.frontend.tflite.schema import ACTIVATIONS, TYPES
from tilewright.graph.ir.dimensions import Size, Sizes
from tilewright.graph.ir.expr import Function, GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Var as Symbol
from tilewright.support.errors import UnsupportedError, UserError


@dataclass(frozen=True, slots=True)
class Bodies:
    """How an operator reaches other graphs of its model."""

    run: Callable[[int, Sequence[GraphExpr]], list[GraphExpr]]
    """The outputs of a graph for values of its inputs."""
    functions: list[Function]
    """The functions of the module beside main."""
    variables: MutableMapping[str, GraphExpr]
    """The values of the model's variables at this place."""
    tables: MutableMapping[str, tuple[Array, Array]]
    """Keys and values of the model's tables."""


class NodeContext:
    """One operator being converted."""

    def __init__(
        self,
        node: TfliteOperator,
        name: str,
        graph: TfliteGraph,
        inputs: Sequence[GraphExpr | None],
        builder: Builder,
        bodies: Bodies,
    ) -> None:
        self.node = node
        self.name = name
        self.graph = graph
        self.inputs = list(inputs)
        self.builder = builder
        self.call = builder.call
        self.bodies = bodies

    # Inputs and outputs

    def has_input(self, index: int) -> bool:
        """Whether an optional input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> GraphExpr:
        """A required input."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise UserError(f"{self.node.name} needs an input number {index + 1}, which is not there")
        return value

    def optional(self, index: int) -> GraphExpr | None:
        """An input that may be left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def all_inputs(self) -> list[GraphExpr]:
        """All inputs of an operator that takes any number."""
        if not self.inputs:
            raise UserError(f"{self.node.name} needs at least one input")
        return [self.input(index) for index in range(len(self.inputs))]

    def input_tensor(self, index: int) -> TfliteTensor:
        """What the model says of an input."""
        place = self.node.inputs[index] if index < len(self.node.inputs) else -1
        if place < 0:
            raise UserError(f"{self.node.name} needs an input number {index + 1}, which is not there")
        return self.graph.tensors[place]

    def output_tensor(self, index: int = 0) -> TfliteTensor:
        """What the model says of an output."""
        place = self.node.outputs[index] if index < len(self.node.outputs) else -1
        if place < 0:
            raise UserError(f"{self.node.name} has no output number {index + 1}")
        return self.graph.tensors[place]

    def output_dtype(self, index: int = 0) -> DataType:
        """The data type that the model gives an output."""
        dtype = self.output_tensor(index).dtype
        if dtype is None:
            raise UnsupportedError(f"a result of type {self.output_tensor(index).kind}")
        return dtype

    def levels(self, index: int) -> Quantization:
        """What the integers of a quantised input stand for."""
        return _levels(self.input_tensor(index))

    def output_levels(self, index: int = 0) -> Quantization:
        """What the integers of a quantised output stand for."""
        return _levels(self.output_tensor(index))

    def is_quantized(self, index: int = 0) -> bool:
        """Whether an input holds integers that stand for numbers."""
        return is_quantized(self.input_tensor(index))

    def pair(self, index: int) -> tuple[int, ...]:
        """The sizes that an input has behind those of the model: complex numbers are pairs of floats."""
        return (2,) if self.input_tensor(index).kind.startswith("complex") else ()

    def gives_quantized(self, index: int = 0) -> bool:
        """Whether an output holds integers that stand for numbers."""
        return is_quantized(self.output_tensor(index))

    # Values that must be known, or may be

    def constant(self, index: int, what: str) -> Array:
        """The value of an input that must be known while importing."""
        array = evaluate(self.input(index))
        if array is None:
            raise UnsupportedError(
                f"{what} of {self.node.name} (input number {index + 1}) is computed from the inputs of the model",
                hint="it must be known while the model is imported: convert the model with it as a constant",
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

    def sizes(self, index: int, what: str) -> Sizes | None:
        """The value of an input that is a list of whole numbers; None if it depends on data."""
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
        """A new symbol for a dimension that only a run knows, named after the operator's first output."""
        return Symbol(f"{self.name}_{label}")

    # Options

    def option(self, name: str, default: Any = 0) -> Any:
        """An option of the operator; the schema's default where the file has no options."""
        value = self.node.options.get(name, default)
        return default if value is None else value

    def integer(self, name: str, default: int = 0) -> int:
        """A whole-number option."""
        return int(self.option(name, default))

    def flag(self, name: str, default: bool = False) -> bool:
        """An option that is true or false."""
        return bool(self.option(name, default))

    def number(self, name: str, default: float = 0.0) -> float:
        """A number option."""
        return float(self.option(name, default))

    def dtype(self, number: int) -> DataType:
        """The data type of an element type's number."""
        if not 0 <= number < len(TYPES):
            raise UserError(f"the element type number {number} is not known")
        return DataType.of(TYPES[number])

    @property
    def activation(self) -> str:
        """The activation that the operator applies to its result."""
        number = self.integer("fused_activation_function")
        if not 0 <= number < len(ACTIVATIONS):
            raise UserError(f"the activation number {number} is not known")
        return ACTIVATIONS[number]

    # Axes

    def axis(self, value: int, rank: int) -> int:
        """An axis that may count from the end, as 0 .. rank-1."""
        if not -rank <= value < rank:
            raise UserError(f"axis {value} is out of range for {rank} dimensions")
        return value % rank


def is_quantized(tensor: TfliteTensor) -> bool:
    """Whether the integers of a tensor stand for numbers."""
    small = tensor.kind in ("int8", "uint8", "int16", "int4", "int2", "uint4")
    return tensor.quantization is not None and small and bool((tensor.quantization.scales != 0).all())


def _levels(tensor: TfliteTensor) -> Quantization:
    if tensor.quantization is None or not is_quantized(tensor):
        raise UserError(f"'{tensor.name}' of type {tensor.kind} has no scale, which is needed here")
    return tensor.quantization
