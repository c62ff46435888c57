"""The converter of Einsum."""

from __future__ import annotations

from tilewright.frontend.core.einsum import einsum
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.expr import GraphExpr


@converter("Einsum")
def einsum_of_inputs(node: NodeContext) -> GraphExpr:
    """Products and sums over named dimensions."""
    return einsum(node.builder, node.text("equation"), node.all_inputs())
