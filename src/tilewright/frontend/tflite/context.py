"""What a converter is given: one operator with its inputs as graph values, its options, and a builder."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.core.builder import Builder
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.frontend.tflite.model import Quantization, TfliteGraph, TfliteOperator, TfliteTensor
from tilewright.frontend.tflite.schema import ACTIVATIONS, TYPES
from tilewright.graph.ir.expr import Function, GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError


@dataclass(frozen=True, slots=True)
class Bodies:
    """How an operator reaches other graphs of its model."""

    run: Callable[[int, Sequence[GraphExpr]], list[GraphExpr]]
    """The outputs of a graph for values of its inputs."""
    graphs: Sequence[TfliteGraph]
    """All of them."""
    functions: list[Function]
    """The functions of the module beside main."""
    variables: MutableMapping[str, GraphExpr]
    """The values of the model's variables at this place."""
    tables: MutableMapping[str, tuple[Array, Array]]
    """Keys and values of the model's tables."""


class NodeContext(NodeInputs):
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
        super().__init__(node.name, name, inputs, builder)
        self.node = node
        self.name = name
        self.graph = graph
        self.bodies = bodies

    # Inputs and outputs

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


def is_quantized(tensor: TfliteTensor) -> bool:
    """Whether the integers of a tensor stand for numbers."""
    small = tensor.kind in ("int8", "uint8", "int16", "int4", "int2", "uint4")
    return tensor.quantization is not None and small and bool((tensor.quantization.scales != 0).all())


def _levels(tensor: TfliteTensor) -> Quantization:
    if tensor.quantization is None or not is_quantized(tensor):
        raise UserError(f"'{tensor.name}' of type {tensor.kind} has no scale, which is needed here")
    return tensor.quantization
