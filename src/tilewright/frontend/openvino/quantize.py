"""Converters of quantisation."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of
from tilewright.frontend.openvino.context import NodeContext
from tilewright.frontend.openvino.registry import converter
from tilewright.frontend.openvino.types import element_type
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


@converter("FakeQuantize")
def fake_quantize(node: NodeContext) -> GraphExpr:
    """Numbers on as many levels within a range, as numbers of another range."""
    b, x = node.builder, node.input(0)
    low, high, least, most = (node.input(at) for at in range(1, 5))
    steps = node.integer("levels") - 1
    if steps < 1:
        raise UserError(f"FakeQuantize on {steps + 1} levels")
    kept = b.call("minimum", b.call("maximum", x, b.call("minimum", low, high)), b.call("maximum", low, high))
    scale = b.divide(b.scalar(float(steps), dtype_of(x)), b.subtract(high, low))
    level = b.call("round", b.multiply(b.subtract(kept, low), scale))
    width = b.divide(b.subtract(most, least), float(steps))
    return b.add(b.multiply(level, width), least)


@converter("FakeConvert")
def fake_convert(node: NodeContext) -> GraphExpr:
    """Numbers as they are after a conversion to floats of 8 bits, scaled and moved."""
    b, x, scale = node.builder, node.input(0), node.input(1)
    to = element_type(node.text("destination_type", "f8e4m3"))
    limit = 448.0 if to.name == "float8_e4m3fn" else 57344.0
    moved = b.multiply(x, scale)
    moved = b.subtract(moved, node.input(2)) if node.has_input(2) else moved
    small = b.cast(b.cast(b.call("clip", moved, minimum=-limit, maximum=limit), to), dtype_of(x))
    small = b.add(small, node.input(2)) if node.has_input(2) else small
    return b.divide(small, scale)
