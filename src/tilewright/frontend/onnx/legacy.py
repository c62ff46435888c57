"""Operators of opsets 1 to 6, turned into their form of opset 7.

Before opset 7, broadcasting was asked for by attributes (`broadcast`, `axis`), inference by `is_test`, and many
operators carried `consumed_inputs`, a hint for reusing memory. What kept its meaning goes to the usual converters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.frontend.core.builder import rank_of, shape_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.functions import schema_version
from tilewright.frontend.onnx.model import OnnxNode
from tilewright.frontend.onnx.registry import Converter, find_converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError

MODERN = 7
"""The opset whose forms the operators are turned into."""
_HINTS = ("consumed_inputs",)
_SAME_SINCE_1 = frozenset(
    "Abs AveragePool Ceil Clip Elu Exp Floor HardSigmoid InstanceNormalization LeakyRelu Log Max Mean Min Neg "
    "Reciprocal Relu Sigmoid Sqrt Sum Tanh".split()
)
"""Operators that only lost `consumed_inputs` in opset 6, or whose new attributes default to the old meaning."""
_BINARY = frozenset("Add And Div Equal Greater Less Mul Or Pow Sub Xor".split())


def find_legacy(node: OnnxNode, opset: int) -> Converter | None:
    """The converter of an operator in an opset before 7, if its meaning is known."""
    name = node.op_type
    adapt = _ADAPTERS.get(name)
    if adapt is not None:
        return adapt
    old, new = schema_version(name, opset), schema_version(name, MODERN)
    if old is None or new is None:
        return None
    if old != new and name not in _SAME_SINCE_1:
        raise UnsupportedError(
            f"{name} in the form of opset {opset} is not supported",
            hint="convert the model with onnx.version_converter.convert_version(model, 13)",
        )
    return _modern


def _modern(node: NodeContext) -> GraphExpr | list[GraphExpr | None]:
    """The form of opset 7 with the hints dropped."""
    return _as_modern(node, _HINTS)


def _as_modern(
    node: NodeContext, drop: tuple[str, ...], second: GraphExpr | None = None
) -> GraphExpr | list[GraphExpr | None]:
    """Convert as opset 7 does, without some attributes and perhaps with another second input."""
    node.ignore(*node.node.attributes)
    inputs = list(node.inputs)
    if second is not None:
        inputs[1] = second
    attributes = {key: value for key, value in node.node.attributes.items() if key not in drop}
    convert = find_converter("", node.node.op_type, MODERN)
    if convert is None:
        raise UnsupportedError(f"the operator {node.node.op_type} is not supported")
    inner = NodeContext(replace(node.node, attributes=attributes), MODERN, inputs, node.builder, node.bodies)
    result = convert(inner)
    inner.finish()
    return result if isinstance(result, GraphExpr) else list(result)


def _binary(node: NodeContext) -> GraphExpr | list[GraphExpr | None]:
    """Elementwise with two inputs: the second broadcasts only if asked to, from an axis on or at the end."""
    first, second = node.input(0), node.input(1)
    dims, other = shape_of(first), shape_of(second)
    broadcast = node.flag("broadcast")
    if not broadcast and dims != other:
        raise UserError(f"shapes {dims} and {other} differ, and the node does not ask for broadcasting")
    if broadcast and node.has_attribute("axis") and rank_of(second):
        axis = node.axis(node.integer("axis"), len(dims))
        rest = len(dims) - axis - len(other)
        if rest < 0:
            raise UserError(f"shape {other} does not fit {dims} from axis {axis} on")
        second = node.builder.reshape(second, (*other, *(1,) * rest))
    return _as_modern(node, ("broadcast", "axis", *_HINTS), second)


def _prelu(node: NodeContext) -> GraphExpr | list[GraphExpr | None]:
    """One slope, or one a channel."""
    data, slope = node.input(0), node.input(1)
    if rank_of(slope) == 1 and shape_of(slope) != (1,) and rank_of(data) > 2:
        slope = node.builder.reshape(slope, (shape_of(slope)[0], *(1,) * (rank_of(data) - 2)))
    return _as_modern(node, _HINTS, slope)


def _inference_only(node: NodeContext) -> GraphExpr | list[GraphExpr | None]:
    """BatchNormalization and Dropout, marked as inference."""
    if not node.flag("is_test"):
        raise UnsupportedError(f"{node.node.op_type} in training form")
    if node.node.op_type == "BatchNormalization" and node.opset < 6 and len(node.node.outputs) > 1:
        raise UnsupportedError("BatchNormalization in training form")
    return _as_modern(node, ("is_test", *_HINTS))


def _gemm(node: NodeContext) -> GraphExpr | list[GraphExpr | None]:
    """The added matrix broadcasts if asked to."""
    product = (shape_of(node.input(0)), shape_of(node.input(1)))
    if not node.flag("broadcast") and rank_of(node.input(2)) != 2:
        raise UserError(f"Gemm of {product} adds {shape_of(node.input(2))}, and does not ask for broadcasting")
    return _as_modern(node, ("broadcast", *_HINTS))


_ADAPTERS: dict[str, Callable[[NodeContext], GraphExpr | list[GraphExpr | None]]] = {
    **dict.fromkeys(_BINARY, _binary),
    "PRelu": _prelu,
    "BatchNormalization": _inference_only,
    "Dropout": _inference_only,
    "Gemm": _gemm,
}
