"""Quantization-aware training: a model that `tw.quantize` has made is trained on with its roundings in place.

    quantized = tw.quantize(module, images)
    aware = tw.train.QuantizationAware(quantized.module)
    step = tw.train.Step(aware.module, "cross_entropy", tw.train.SGD(1e-3))
    ...                                                      # a few epochs
    exe = tw.compile(aware.quantized(step.parameters()))     # integers again, with what was learned

Rounding has no slope. Gradients go straight through it (Bengio and others, 2013), where the number is in the range of
the integers; numbers beyond it saturate, and nothing flows back:

    before:  qnn.dequantize(qnn.quantize(x))
    after:   c + stop_gradient(qnn.dequantize(qnn.quantize(x)) - c)        with c = clip(x)

Weights, which are integers in the model, become floats that are rounded in the same way. Scales stay as calibrated.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.graph.ir.expr import Call, Constant, GraphExpr, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Array, is_call_to
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ir.traverse import post_order, rewrite
from tilewright.graph.ops.quantization import QuantizeAttributes, integer_range
from tilewright.ir.function import IRModule
from tilewright.quantization.parameters import Parameters
from tilewright.support.errors import UserError
from tilewright.support.span import Span
from tilewright.train.model import main_of


class QuantizationAware:
    """A quantised model as one to train, and back."""

    def __init__(self, module: IRModule) -> None:
        self.original = infer_types(module)
        self._weights: dict[int, tuple[str, Parameters]] = {}
        """Names and parameters of weights, by the identity of the node that dequantises them."""
        self._biases: dict[int, tuple[str, Array | None]] = {}
        """Names of biases, by identity, and the size of their steps where they have some."""
        self._name_weights()
        if not self._weights:
            raise UserError("the model has no quantised weights", hint="tw.quantize(model, data).module has them")
        self.module = self._with_floats()
        """The model to train: float weights, and roundings that gradients go through."""

    def quantized(self, parameters: Mapping[str, Array]) -> IRModule:
        """The model in integers, with weights and biases that were trained."""
        replaced: dict[int, GraphExpr] = {}
        for item in post_order(main_of(self.original)):
            if id(item) in self._weights:
                name, numbers = self._weights[id(item)]
                assert isinstance(item, Call)
                integers = constant(numbers.integers(self._value(parameters, name)), numbers.dtype)
                replaced[id(item.args[0])] = integers
            elif id(item) in self._biases:
                name, step = self._biases[id(item)]
                value = self._value(parameters, name)
                bias = constant((np.rint(value / step) * step if step is not None else value).astype(np.float32))
                bias.span = item.span
                replaced[id(item)] = bias
        main = main_of(self.original)
        body = rewrite(main.body, lambda old, new: None, replaced)
        return infer_types(self.original.with_function(main.replace(body=body)))

    def _value(self, parameters: Mapping[str, Array], name: str) -> Array:
        if name not in parameters:
            raise UserError(f"the parameters have no '{name}'", hint="step.parameters() has them")
        return parameters[name]

    def _name_weights(self) -> None:
        taken: set[str] = set()

        def name_of(item: GraphExpr, end: str) -> str:
            plain = f"{item.span}.{end}" if item.span is not None else end
            name, number = plain, 1
            while name in taken:
                number += 1
                name = f"{plain}.{number}"
            taken.add(name)
            return name

        for item in post_order(main_of(self.original)):
            found = _dequantized_constant(item)
            if found is not None:
                self._weights[id(item)] = (name_of(item, "weight"), found)
            elif is_call_to(item, "add"):
                assert isinstance(item, Call)
                bias = item.args[1]
                if isinstance(bias, Constant) and bias.dtype.is_float and id(bias) not in self._biases:
                    self._biases[id(bias)] = (name_of(item, "bias"), _steps(item.args[0], bias))

    def _with_floats(self) -> IRModule:
        main = main_of(self.original)

        def replaced(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
            new.type = old.type if new.type is None else new.type
            if id(old) in self._weights:
                name, numbers = self._weights[id(old)]
                assert isinstance(old, Call) and isinstance(old.args[0], Constant)
                weight = constant(numbers.numbers(old.args[0].data))
                weight.span = Span(name)
                return _straight_through(weight, numbers)
            numbers_of = _quantized_activation(old)
            if numbers_of is None:
                return None
            assert isinstance(new, Call) and isinstance(new.args[0], Call)
            return _straight_through(new.args[0].args[0], numbers_of)

        biases: dict[int, GraphExpr] = {}
        for item in post_order(main):
            if id(item) in self._biases:
                assert isinstance(item, Constant)
                biases[id(item)] = bias = constant(item.data)
                bias.span = Span(self._biases[id(item)][0])
        body = rewrite(main.body, replaced, biases)
        return infer_types(self.original.with_function(main.replace(body=body)))


def _numbers(integers: GraphExpr, scale: GraphExpr, zero: GraphExpr, bits: int) -> Parameters | None:
    if not isinstance(scale, Constant) or not isinstance(zero, Constant):
        return None
    return Parameters(scale.data, zero.data, integers.tensor_type.dtype, bits)


def _dequantized_constant(item: GraphExpr) -> Parameters | None:
    """The parameters of a weight: integers that are a constant, as numbers."""
    if not is_call_to(item, "qnn.dequantize"):
        return None
    assert isinstance(item, Call)
    integers = item.args[0]
    if not isinstance(integers, Constant) or not integers.dtype.is_integer:
        return None
    largest = int(np.abs(integers.data.astype(np.int64)).max(initial=0))
    # Weights may use fewer bits than their type has, and stay within them: sums of their products may not hold more.
    bits = next((n for n in range(2, 9) if integer_range(integers.dtype, n)[1] >= largest), integers.dtype.bits)
    return _numbers(integers, item.args[1], item.args[2], min(bits, integers.dtype.bits))


def _quantized_activation(item: GraphExpr) -> Parameters | None:
    """The parameters of a value that passes through integers."""
    if not is_call_to(item, "qnn.dequantize"):
        return None
    assert isinstance(item, Call)
    integers = item.args[0]
    if not is_call_to(integers, "qnn.quantize"):
        return None
    assert isinstance(integers, Call) and isinstance(integers.attributes, QuantizeAttributes)
    return _numbers(integers, integers.args[1], integers.args[2], integers.attributes.bits)


def _steps(layer: GraphExpr, bias: Constant) -> Array | None:
    """The size of a step of a layer's sums, in whole numbers of which its bias is added to them; None elsewhere."""
    while is_call_to(layer, "add"):
        # A correction of the layer's mean error comes first.
        assert isinstance(layer, Call)
        layer = layer.args[0]
    if not isinstance(layer, Call) or len(layer.args) < 2:
        return None
    data, weight = _quantized_activation(layer.args[0]), _dequantized_constant(layer.args[1])
    if data is None or weight is None or data.scale.size != 1:
        return None
    size = data.scale.reshape(-1)[0] * weight.scale
    if size.size != 1:
        if size.size != bias.data.size:
            return None
        size = size.reshape(bias.data.shape)
    whole = bias.data / size
    # A bias that was left as it was is added to numbers, not to integers.
    return size if np.allclose(whole, np.rint(whole), atol=1e-2) else None


def _straight_through(value: GraphExpr, numbers: Parameters) -> GraphExpr:
    low, high = (
        (np.float32(end) - numbers.zero.astype(np.float32)) * numbers.scale
        for end in integer_range(numbers.dtype, numbers.bits)
    )
    # Not by a builder, which would compute what is made of constants, and the weight is one.
    clipped = make("minimum", make("maximum", value, constant(low)), constant(high))
    rounded = numbers.through_integers(value, None)
    return make("add", clipped, make("stop_gradient", make("subtract", rounded, clipped)))
