"""Recognition: operators that exporters write as many small ones become one again.

Before:  d = x - mean(x); d / sqrt(mean(d * d) + epsilon) * scale + bias
After:   nn.layer_norm(x, scale, bias)

Before:  cast(cast(x) / sqrt(mean(cast(x) * cast(x)) + epsilon)) * scale
After:   nn.rms_norm(x, scale)

One operator is one kernel with a schedule of its own, which makes one or two passes over its input instead of six.

Before:  erf(x / c), softmax(x / c + mask)          c a constant
After:   erf(x * (1 / c)), softmax(x * (1 / c) + mask)

A division takes as long as a dozen products. What is divided may come out one unit in the last place apart, so this
is done only where a smooth function follows (GELU, the scores of attention): after `floor` it could be seen.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.dimensions import constants
from tilewright.graph.ir.expr import Call, Function, GraphExpr, constant
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.normalization import LayerNormAttributes, SoftmaxAttributes
from tilewright.graph.ops.reduce import ReduceAttributes
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType


def recognize(module: IRModule) -> IRModule:
    """Put larger operators in the place of the small ones that make them up."""
    return map_functions(module, _recognize_function)


def _recognize_function(function: Function) -> Function:
    return apply_rules(function, RULES)


def _is_trailing_mean(item: Call) -> bool:
    """Whether a mean is over the last axes, which are kept."""
    attributes, rank = item.attributes, item.args[0].tensor_type.rank
    assert isinstance(attributes, ReduceAttributes)
    if rank is None or not attributes.keepdims or not attributes.axes:
        return False
    return tuple(sorted(attributes.axes)) == tuple(range(min(attributes.axes), rank))


def _layer_norm(b: Bindings) -> GraphExpr | None:
    first, second, data = b.call("mean"), b.call("variance"), b["x"]
    shape, epsilon = known_sizes(data), b.constant("epsilon")
    assert isinstance(first.attributes, ReduceAttributes)
    assert isinstance(second.attributes, ReduceAttributes)
    if shape is None or set(first.attributes.axes) != set(second.attributes.axes) or epsilon.data.size != 1:
        return None
    if b.root.type is not data.type or epsilon.dtype.name not in ("float16", "float32", "float64"):
        return None
    axis = min(first.attributes.axes)
    inner = constants(shape[axis:])
    if inner is None:
        return None
    for name in ("scale", "bias"):
        given = b[name].type
        if not isinstance(given, TensorType) or given.dtype is not data.tensor_type.dtype:
            return None
        dims = given.static_shape
        if dims is None or len(dims) > len(inner):
            return None
        if np.broadcast_shapes(dims, inner) != inner:
            return None
    return make("nn.layer_norm", data, b["scale"], b["bias"], axis=axis, epsilon=float(epsilon.data.reshape(-1)[0]))


def _rms_norm(b: Bindings) -> GraphExpr | None:
    mean, data, epsilon = b.call("mean"), b["x"], b.constant("epsilon")
    assert isinstance(mean.attributes, ReduceAttributes)
    if known_sizes(data) is None or epsilon.data.size != 1 or b.root.type is not data.type or _is_centred(data):
        return None
    if epsilon.dtype.name not in ("float16", "float32", "float64"):
        return None
    number = float(epsilon.data.reshape(-1)[0])
    one = constant(np.ones((1,)), data.tensor_type.dtype)
    return make("nn.rms_norm", data, one, axis=min(mean.attributes.axes), epsilon=number)


def _is_centred(item: GraphExpr) -> bool:
    """Whether a value is less its mean: what divides it by its deviation is a part of a layer normalisation."""
    return is_call_to(item, "subtract") and isinstance(item, Call) and is_call_to(item.args[1], "mean")


def _scaled_rms_norm(b: Bindings) -> GraphExpr | None:
    norm, scale = b.call("norm"), b["scale"]
    assert isinstance(norm.attributes, LayerNormAttributes)
    if not b.used_once("norm") or b.root.type is not norm.type:
        return None
    return make("nn.rms_norm", norm.args[0], scale, axis=norm.attributes.axis, epsilon=norm.attributes.epsilon)


def _narrow_rms_norm(b: Bindings) -> GraphExpr | None:
    """Of a converted value, converted back: sums are as wide in the operator itself."""
    norm, data = b.call("norm"), b["narrow"]
    assert isinstance(norm.attributes, LayerNormAttributes)
    if not b.used_once("norm") or b.root.type is not data.type or data.tensor_type.dtype.bits != 16:
        return None
    if norm.tensor_type.dtype is not FLOAT32:
        return None
    attributes = norm.attributes
    return make("nn.rms_norm", data, norm.args[1], axis=attributes.axis, epsilon=attributes.epsilon)


def _scaled(b: Bindings) -> GraphExpr | None:
    """The quotient that was captured as a product, or None where the inverse is no ordinary number."""
    quotient, divisor = b.call("quotient"), b.constant("divisor")
    if divisor.dtype.name not in ("float32", "float64") or divisor.data.size == 0 or not b.used_once("quotient"):
        return None
    with np.errstate(all="ignore"):
        inverse = np.reciprocal(divisor.data)
    smallest = np.finfo(divisor.dtype.name).tiny
    if not all(bool((np.isfinite(part) & (np.abs(part) >= smallest)).all()) for part in (inverse, divisor.data)):
        return None
    return make("multiply", quotient.args[0], constant(inverse, divisor.dtype), span=quotient.span)


def _erf_of_quotient(b: Bindings) -> GraphExpr | None:
    scaled = _scaled(b)
    return None if scaled is None else make("erf", scaled)


def _softmax_of_quotient(b: Bindings) -> GraphExpr | None:
    scaled = _scaled(b)
    if scaled is None:
        return None
    if "mask" in b:
        scaled = make("add", scaled, b["mask"], span=b.call("sum").span)
    attributes = b.call("root").attributes
    assert isinstance(attributes, SoftmaxAttributes)
    return make("nn.softmax", scaled, axis=attributes.axis)


_QUOTIENT = P.op("divide", P.any("x"), P.const("divisor"), name="quotient")
_CENTRED = P.op("subtract", P.any("x"), P.op("mean", P.any("x"), name="mean", where=_is_trailing_mean), name="d")
_SQUARE = P.op("multiply", P.any("d"), P.any("d"))
_SPREAD = P.op("add", P.op("mean", _SQUARE, name="variance", where=_is_trailing_mean), P.const("epsilon"))
_NORMALISED = P.op("divide", _CENTRED, P.op("sqrt", _SPREAD)) | P.op("multiply", _CENTRED, P.op("rsqrt", _SPREAD))
_SQUARES = P.op("mean", P.op("multiply", P.any("x"), P.any("x")), name="mean", where=_is_trailing_mean)
_ROOT = P.op("add", _SQUARES, P.const("epsilon"))
_OVER_ROOT = P.op("multiply", P.any("x"), P.op("rsqrt", _ROOT)) | P.op("divide", P.any("x"), P.op("sqrt", _ROOT))
RULES = (
    Rule("RMS normalisation", _OVER_ROOT, _rms_norm),
    Rule(
        "RMS normalisation with a scale",
        P.op("multiply", P.op("nn.rms_norm", P.any(), P.value(1.0), name="norm"), P.any("scale")),
        _scaled_rms_norm,
    ),
    Rule(
        "RMS normalisation of a converted value",
        P.op("cast", P.op("nn.rms_norm", P.op("cast", P.any("narrow")), P.any(), name="norm")),
        _narrow_rms_norm,
    ),
    Rule(
        "layer normalisation",
        P.op("add", P.op("multiply", _NORMALISED, P.any("scale")), P.any("bias")),
        _layer_norm,
    ),
    Rule("erf of a quotient", P.op("erf", _QUOTIENT), _erf_of_quotient),
    Rule(
        "softmax of a quotient",
        P.op("nn.softmax", _QUOTIENT | P.op("add", _QUOTIENT, P.any("mask"), name="sum"), name="root"),
        _softmax_of_quotient,
    ),
)
"""All rules, tried in order at each node."""
