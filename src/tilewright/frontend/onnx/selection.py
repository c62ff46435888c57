"""Converters of operators whose results are as long as the data decides: Unique, NonMaxSuppression, mel weights."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, rank_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.reader import data_type
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UserError


@converter("Unique")
def unique(node: NodeContext) -> list[GraphExpr]:
    """The distinct elements or slices, where each is first, which one each place holds, and how often each occurs."""
    data = node.input(0)
    axis = node.axis(node.integer("axis"), rank_of(data)) if node.has_attribute("axis") else -1
    found = node.call(
        "host.unique",
        data,
        dims=(node.symbol("count"),),
        axis=axis,
        sorted=node.flag("sorted", True),
        dtype=dtype_of(data),
    )
    return [node.builder.item(found, at) for at in range(4)]


@converter("NonMaxSuppression")
def non_max_suppression(node: NodeContext) -> GraphExpr:
    """Boxes of each class by falling score, without those that overlap one taken before."""
    boxes, scores = node.input(0), node.input(1)
    if rank_of(boxes) != 3 or rank_of(scores) != 3:
        raise UserError(f"boxes of {rank_of(boxes)} and scores of {rank_of(scores)} dimensions: both need 3")
    most = node.optional(2) or node.builder.constant(0, INT64)
    overlap = node.optional(3) or node.builder.constant(0.0, FLOAT32)
    least = [node.input(4)] if node.has_input(4) else []
    centered = node.flag("center_point_box")
    return node.call(
        "host.non_max_suppression",
        boxes,
        scores,
        most,
        overlap,
        *least,
        dims=(node.symbol("count"),),
        center_point_box=centered,
    )


@converter("MelWeightMatrix")
def mel_weight_matrix(node: NodeContext) -> GraphExpr:
    """The weight of each frequency in each band of the mel scale."""
    to = data_type(node.integer("output_datatype", 1), "the result of MelWeightMatrix")
    if not to.is_float or to.bits < 16:
        raise UserError(f"mel weights of type {to}")
    values = [node.input(at) for at in range(5)]
    dims = (node.symbol("frequencies"), node.symbol("bands"))
    exact = to if to.name in ("float32", "float64", "float16") else FLOAT32
    return node.builder.cast(node.call("host.mel_weights", *values, dims=dims, dtype=exact), to)
