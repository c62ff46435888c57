"""What a converter of a CNTK operator is given: values with their dynamic axes, attributes, a builder.

A value is a tensor (batch, sequence, dimensions...), of which the first two are there where it has those axes. CNTK
names the fastest dimension first; here it is the last, as in numpy and in CNTK's Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tilewright.frontend.cntk.dictionary import Axis
from tilewright.frontend.cntk.model import PrimitiveFunction
from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import rank_of, sizes_of
from tilewright.frontend.core.registry import Registry
from tilewright.frontend.onnx.borrowed import OnnxOperators
from tilewright.graph.ir.dimensions import Size, Sizes, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError


@dataclass(frozen=True)
class Value:
    """A tensor and the dynamic axes that stand before its dimensions."""

    data: GraphExpr
    has_batch: bool = False
    has_sequence: bool = False

    @property
    def dynamic(self) -> int:
        """How many dynamic axes it has."""
        return int(self.has_batch) + int(self.has_sequence)

    @property
    def rank(self) -> int:
        """The number of its dimensions without dynamic axes."""
        return rank_of(self.data) - self.dynamic

    @property
    def shape(self) -> Sizes:
        """Its dimensions without dynamic axes."""
        return sizes_of(self.data)[self.dynamic :]

    @property
    def leading(self) -> Sizes:
        """The sizes of its dynamic axes."""
        return sizes_of(self.data)[: self.dynamic]

    def with_data(self, data: GraphExpr) -> Value:
        """Another tensor with the same dynamic axes."""
        return Value(data, self.has_batch, self.has_sequence)


class Operator:
    """One operator being converted."""

    def __init__(self, function: PrimitiveFunction, inputs: Sequence[Value], builder: ArithmeticBuilder) -> None:
        self.function = function
        self.inputs = list(inputs)
        self.builder = builder
        self.call = builder.call
        self.onnx = OnnxOperators(builder)

    @property
    def kind(self) -> str:
        """The name of the operator."""
        return self.function.operator

    def input(self, index: int) -> Value:
        """A required input."""
        if index >= len(self.inputs):
            raise UserError(f"{self.kind} needs an input number {index + 1}, which is not there")
        return self.inputs[index]

    @property
    def x(self) -> Value:
        """The first input."""
        return self.input(0)

    # Attributes

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute; required if there is no default."""
        value = self.function.attributes.get(name, default)
        if value is None:
            raise UserError(f"{self.kind} needs the attribute '{name}', which is not there")
        return value

    def has(self, name: str) -> bool:
        """Whether an attribute is given."""
        return name in self.function.attributes

    def axis(self, axis: Any, rank: int) -> int:
        """The place of a static axis among `rank` dimensions in the order of numpy."""
        if not isinstance(axis, Axis) or not axis.is_static:
            raise UnsupportedError(f"{self.kind} along an axis of the batch or the sequence")
        number = axis.number if axis.number >= 0 else axis.number + rank
        if not 0 <= number < rank:
            raise UserError(f"axis {axis.number} is out of range for {rank} dimensions")
        return rank - 1 - number

    # Shapes

    def aligned(self, values: Sequence[Value]) -> tuple[list[GraphExpr], Value]:
        """Tensors that broadcast, all with the dynamic axes of any and dimensions of 1; and a value with these axes."""
        batch, sequence = any(item.has_batch for item in values), any(item.has_sequence for item in values)
        rank = max(item.rank for item in values)
        tensors: list[GraphExpr] = []
        for item in values:
            sizes = list(item.leading)
            shape: list[Size] = []
            if batch:
                shape.append(sizes.pop(0) if item.has_batch else 1)
            if sequence:
                shape.append(sizes.pop(0) if item.has_sequence else 1)
            tensors.append(self.builder.reshape(item.data, (*shape, *(1,) * (rank - item.rank), *item.shape)))
        return tensors, Value(tensors[0], batch, sequence)

    def over_samples(self, value: Value, function: Callable[[GraphExpr], GraphExpr]) -> Value:
        """A function of samples (count, dimensions...) applied to all samples and steps."""
        rows = self.builder.reshape(value.data, (product(value.leading), *value.shape))
        result = function(rows)
        return value.with_data(self.builder.reshape(result, (*value.leading, *sizes_of(result)[1:])))


Converter = Callable[[Operator], Value | Sequence[Value]]
C = TypeVar("C", bound=Converter)
_TABLE: Registry[str, Converter] = Registry()
_REASONS = {
    "Assign": "it changes a parameter while the model runs",
    "CustomProxyOp": "it is an operator of a program's own",
    "RandomSample": "it belongs to training",
    "RandomSampleInclusionFrequency": "it belongs to training",
    "LambdaRank": "it belongs to training",
    "NDCG": "it belongs to training",
    "ForwardBackward": "it belongs to training",
    "LatticeSequenceWithSoftmax": "it belongs to training",
    "EditDistanceError": "it belongs to training",
    "LabelsToGraph": "it belongs to training",
    "CosDistanceWithNegativeSamples": "it belongs to training",
    "ScatterPacked": "sequences get other lengths by data",
    "UnpackBatch": "the batch becomes a dimension",
    "ToBatch": "a dimension becomes the batch",
    "ConvolutionSequenceShape": "it convolves along sequences of different lengths",
}
"""Why operators are not supported."""


def operator(*kinds: str) -> Callable[[C], C]:
    """Register a converter of operators."""

    def register(convert: C) -> C:
        for kind in kinds:
            _TABLE.add(kind, convert, convert)
        return convert

    return register


def converted_operators() -> list[str]:
    """The operators that there are converters for."""
    return sorted(_TABLE.entries())


def convert(context: Operator) -> list[Value]:
    """The results of an operator."""
    converter = _TABLE.get(context.kind)
    if converter is None:
        reason = _REASONS.get(context.kind)
        raise UnsupportedError(
            f"the operator {context.kind} is not supported" + ("" if reason is None else f": {reason}"),
            hint="save the part of the model that evaluation needs: combine([output]).save(path)",
        )
    try:
        result = converter(context)
    except (IndexError, ValueError, OverflowError, TypeError, KeyError) as error:
        # Files may say anything: ranks and lengths that no operator of that kind has are met in the arithmetic.
        raise UserError(f"the inputs and attributes of {context.kind} do not fit together: {error!r}") from error
    return [result] if isinstance(result, Value) else list(result)
