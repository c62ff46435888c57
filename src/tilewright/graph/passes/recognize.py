"""Recognition: operators that exporters write as many small ones become one again.

Before:  d = x - mean(x); d / sqrt(mean(d * d) + epsilon) * scale + bias
After:   nn.layer_norm(x, scale, bias)

One operator is one kernel with a schedule of its own, which makes one or two passes over its input instead of six.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.expr import Call, Function, GraphExpr
from tilewright.graph.ops.reduce import ReduceAttributes
from tilewright.graph.rewrite import Bindings, P, Rule, apply_rules, make, static_shape
from tilewright.graph.traverse import map_functions
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType


def recognize(module: IRModule) -> IRModule:
    """Put larger operators in the place of the small ones that make them up."""
    result = map_functions(module, _recognize_function)
    assert isinstance(result, IRModule)
    return result


def _recognize_function(function: Function) -> Function:
    return apply_rules(function, RULES)


def _is_trailing_mean(item: Call) -> bool:
    """Whether a mean is over the last axes, which are kept."""
    attributes, shape = item.attributes, static_shape(item.args[0])
    assert isinstance(attributes, ReduceAttributes)
    if shape is None or not attributes.keepdims or not attributes.axes:
        return False
    return tuple(sorted(attributes.axes)) == tuple(range(min(attributes.axes), len(shape)))


def _layer_norm(b: Bindings) -> GraphExpr | None:
    first, second, data = b.call("mean"), b.call("variance"), b["x"]
    shape, epsilon = static_shape(data), b.constant("epsilon")
    assert isinstance(first.attributes, ReduceAttributes)
    assert isinstance(second.attributes, ReduceAttributes)
    if shape is None or set(first.attributes.axes) != set(second.attributes.axes) or epsilon.data.size != 1:
        return None
    if b.root.type is not data.type or epsilon.dtype.name not in ("float16", "float32", "float64"):
        return None
    axis = min(first.attributes.axes)
    for name in ("scale", "bias"):
        given = b[name].type
        if not isinstance(given, TensorType) or given.dtype is not data.tensor_type.dtype:
            return None
        dims = given.static_shape
        if dims is None or len(dims) > len(shape) - axis:
            return None
        if np.broadcast_shapes(dims, shape[axis:]) != shape[axis:]:
            return None
    return make("nn.layer_norm", data, b["scale"], b["bias"], axis=axis, epsilon=float(epsilon.data.reshape(-1)[0]))


_CENTRED = P.op("subtract", P.any("x"), P.op("mean", P.any("x"), name="mean", where=_is_trailing_mean), name="d")
_SQUARE = P.op("multiply", P.any("d"), P.any("d"))
_SPREAD = P.op("add", P.op("mean", _SQUARE, name="variance", where=_is_trailing_mean), P.const("epsilon"))
_NORMALISED = P.op("divide", _CENTRED, P.op("sqrt", _SPREAD)) | P.op("multiply", _CENTRED, P.op("rsqrt", _SPREAD))
RULES = (
    Rule(
        "layer normalisation",
        P.op("add", P.op("multiply", _NORMALISED, P.any("scale")), P.any("bias")),
        _layer_norm,
    ),
)
"""All rules, tried in order at each node."""
