"""A quantised model: what layers read, and their weights, pass through integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, constant
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ir.traverse import rewrite
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes, Conv2dTransposeAttributes
from tilewright.ir.dtype import FLOAT32, INT32, UINT8
from tilewright.quantization.layers import Layer, Sources, is_operator
from tilewright.quantization.parameters import Parameters
from tilewright.quantization.weights import QuantizedWeight

Array = npt.NDArray[Any]
_MOST_STEPS = 1 << 24
"""Steps of a bias, all of which float32 represents."""


@dataclass
class Plan:
    """What is to be quantised, and by which numbers."""

    layers: list[Layer]
    sources: Sources
    activations: dict[int, Parameters]
    """By group of sources; none for the schemes that leave activations alone."""
    weights: dict[str, QuantizedWeight]
    """By the layer's name."""
    corrections: dict[str, Array] = field(default_factory=dict)
    """What is added to each output of a layer, by its name."""
    dynamic: bool = False
    """Whether ranges of activations are taken when the model runs."""


def apply_plan(function: Function, plan: Plan, kept: frozenset[str] = frozenset()) -> Function:
    """The quantised function; layers whose names are in `kept` stay as they are."""
    layers = {id(layer.call): layer for layer in plan.layers if layer.name not in kept}
    active = _active_groups(plan, layers)
    # What was moved on its way to a layer is quantised there again, as it was: other tools look for that, and the
    # compiler's pass `requantize` moves the integers instead.
    read = {id(part) for layer in layers.values() for part in layer.activations}

    def replace(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
        # A node whose operands were rounded has the type that it had.
        new.type = old.type if new.type is None else new.type
        layer = layers.get(id(old))
        if layer is not None:
            assert isinstance(new, Call)
            rounded = dynamic_layer(layer, new, plan) if plan.dynamic else _static_layer(layer, new, plan)
            new = corrected(layer, rounded, plan)
        elif is_operator(new, "add") and not plan.dynamic:
            assert isinstance(old, Call) and isinstance(new, Call)
            new = _whole_bias(old, new, layers, plan)
        if (id(old) in plan.sources.values or id(old) in read) and plan.sources.group(old) in active:
            return plan.activations[plan.sources.group(old)].through_integers(new, old.span)
        return new

    body = rewrite(function.body, replace)
    return Function(function.name, function.params, body, None, function.type_parameters, function.notes)


def _active_groups(plan: Plan, layers: Mapping[int, Layer]) -> set[int]:
    """Groups of sources that a quantised layer reads, or that a quantised layer's result is."""
    groups = {plan.sources.group(part) for layer in layers.values() for part in layer.activations}
    wanted = {group for group in groups if group in plan.activations}
    for source in plan.sources.values.values():
        if plan.sources.group(source) in plan.activations and _computed_by(source, layers):
            wanted.add(plan.sources.group(source))
    return wanted


def _computed_by(source: GraphExpr, layers: Mapping[int, Layer]) -> bool:
    """Whether the elementwise operators behind a source, or one side of a sum there, lead to a quantised layer."""
    item = source
    while isinstance(item, Call):
        if id(item) in layers:
            return True
        parts = [part for part in item.args if isinstance(part, Call)]
        if len(parts) == 2 and is_operator(item, "add"):
            return any(_computed_by(part, layers) for part in parts)
        if len(parts) != 1:
            return False
        (item,) = parts
    return False


def _weight_value(weight: QuantizedWeight, layer: Layer) -> GraphExpr:
    """The dequantised weight as an expression of its integers."""
    scale, zero = weight.parameters.constants()
    integers = constant(weight.integers.reshape(weight.grouped or weight.integers.shape), weight.parameters.dtype)
    if weight.grouped is None:
        return make("qnn.dequantize", integers, scale, zero, span=layer.call.span)
    numbers = make("qnn.dequantize", integers, scale, zero)
    return make("reshape", numbers, shape=weight.integers.shape, span=layer.call.span)


def _static_layer(layer: Layer, new: Call, plan: Plan) -> GraphExpr:
    weight = plan.weights.get(layer.name)
    if weight is None:
        return new
    result = Call(new.callee, (new.args[0], _weight_value(weight, layer), *new.args[2:]), new.attributes)
    result.span = new.span
    result.type = layer.call.type
    return result


def corrected(layer: Layer, result: GraphExpr, plan: Plan) -> GraphExpr:
    """A layer's result without the mean error of its rounded weights."""
    correction = plan.corrections.get(layer.name)
    if correction is None:
        return result
    bias = _in_steps(correction.reshape(_spread(layer)), layer, plan)
    return make("add", result, constant(bias), span=layer.call.span)


def _whole_bias(old: Call, new: Call, layers: Mapping[int, Layer], plan: Plan) -> Call:
    """A layer's bias in whole steps of its product, so that it can be added to the integers."""
    layer, bias = layers.get(id(old.args[0])), new.args[1]
    if layer is None or not isinstance(bias, Constant):
        return new
    result = make("add", new.args[0], constant(_in_steps(bias.data, layer, plan)), span=new.span)
    result.type = new.type
    return result


def _in_steps(bias: Array, layer: Layer, plan: Plan) -> Array:
    """The whole numbers of steps (scale of the activation times scale of the weight) next to a bias.

    As it is where that is no number a layer adds for each output, or 32 bits do not hold the steps.
    """
    weight, (activation, *others) = plan.weights.get(layer.name), layer.activations
    data = plan.activations.get(plan.sources.group(activation))
    if weight is None or weight.grouped is not None or data is None or others:
        return bias
    scales = np.asarray(weight.parameters.scale, np.float32).reshape(-1)
    step = (data.scale.reshape(()) * scales).reshape(_spread(layer) if scales.size > 1 else ())
    if np.broadcast_shapes(bias.shape, step.shape) != bias.shape:
        return bias
    with np.errstate(all="ignore"):
        steps = np.rint(bias / step.astype(np.float64))
    if not np.isfinite(steps).all() or np.abs(steps).max(initial=0) > _MOST_STEPS:
        return bias
    return np.asarray(steps.astype(np.float32) * step, np.float32)


def _spread(layer: Layer) -> tuple[int, ...]:
    """The shape in which one number an output broadcasts to a layer's result."""
    attributes = layer.call.attributes
    if isinstance(attributes, (Conv2dAttributes, Conv2dTransposeAttributes)) and attributes.data_layout == "NCHW":
        return (-1, 1, 1)
    return (-1,)


def dynamic_layer(layer: Layer, new: Call, plan: Plan) -> GraphExpr:
    """A matrix product of bytes whose range is taken when the model runs; scales are put on the result.

    scale = (max - min) / 255 over the whole operand, zero point = round(-min / scale), as ONNX's DynamicQuantizeLinear.
    """
    weight, attributes = plan.weights[layer.name], layer.call.attributes
    assert isinstance(attributes, MatmulAttributes)
    data, span = new.args[0], new.span
    rank = data.tensor_type.rank or 0
    axes = tuple(range(rank))
    none, levels = constant(np.float32(0)), constant(np.float32(255))
    low = make("minimum", make("min", data, axes=axes, span=span), none, span=span)
    high = make("maximum", make("max", data, axes=axes, span=span), none, span=span)
    width = make("subtract", high, low, span=span)
    flat = make("equal", width, none, span=span)
    scale = make("where", flat, constant(np.float32(1)), make("divide", width, levels, span=span), span=span)
    steps = make("round", make("divide", make("negative", low, span=span), scale, span=span), span=span)
    zero = make("cast", make("clip", steps, minimum=0.0, maximum=255.0, span=span), dtype=UINT8, span=span)
    integers = make("qnn.quantize", data, scale, zero, dtype=UINT8, span=span)
    wide = make("subtract", _wide(integers), _wide(zero), span=span)
    weights = make("cast", constant(weight.integers), dtype=INT32, span=span)
    product = make("matmul", wide, weights, transpose_b=attributes.transpose_b, span=span)
    per_output = np.asarray(weight.parameters.scale, np.float32).reshape(-1)
    factor = make("multiply", scale, constant(per_output if per_output.size > 1 else per_output.reshape(())), span=span)
    return make("multiply", make("cast", product, dtype=FLOAT32, span=span), factor, span=span)


def _wide(value: GraphExpr) -> Call:
    return make("cast", value, dtype=INT32, span=value.span)
