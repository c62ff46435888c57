"""Converters of pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.core.adaptive import adaptive_average, adaptive_maxima
from tilewright.frontend.core.builder import rank_of, sizes_of
from tilewright.frontend.openvino.context import NodeContext
from tilewright.frontend.openvino.convolution import window
from tilewright.frontend.openvino.registry import converter
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


def _window(node: NodeContext, rank: int) -> dict[str, Any]:
    """The options of a window; one that may reach beyond the data has so much more padding, or is cut as ONNX does."""
    options = window(node, rank) | {"kernel_shape": node.ints("kernel")}
    rounding = node.text("rounding_type", "floor")
    if rounding == "ceil" and "pads" in options:
        more = [step - 1 for step in options["strides"]]
        options["pads"] = (*options["pads"][:rank], *map(sum, zip(options["pads"][rank:], more, strict=True)))
    elif rounding == "ceil_torch":
        options["ceil_mode"] = 1
    elif rounding not in ("floor", "ceil"):
        raise UserError(f"windows by the rounding {rounding!r}")
    return options


@converter("MaxPool")
def max_pool(node: NodeContext) -> Sequence[GraphExpr]:
    """The greatest of each window, and where it is from an axis on."""
    b, x = node.builder, node.input(0)
    options = _window(node, rank_of(x) - 2)
    if len(node.layer.outputs) < 2:
        return [node.onnx("MaxPool", x, **options)]
    values, places = node.onnx.several("MaxPool", 2, x, **options)
    axis = node.axis(node.integer("axis", 0), rank_of(x))
    if axis:
        part = b.reshape(b.shape_tensor([product(sizes_of(x)[axis:])]), ())
        places = b.call("floor_mod", places, part)
    return [values, b.cast(places, node.dtype("index_element_type"))]


@converter("AvgPool")
def average_pool(node: NodeContext) -> GraphExpr:
    """The mean of each window, with or without padding."""
    x = node.input(0)
    exclude = node.flag("exclude-pad" if node.has_option("exclude-pad") else "exclude_pad", True)
    return node.onnx("AveragePool", x, count_include_pad=not exclude, **_window(node, rank_of(x) - 2))


@converter("AdaptiveAvgPool", "AdaptiveMaxPool")
def adaptive_pool(node: NodeContext) -> Sequence[GraphExpr]:
    """The mean or the greatest of as many windows as are wanted."""
    b, x = node.builder, node.input(0)
    counts = node.known(1, "its size")
    if node.layer.kind == "AdaptiveAvgPool":
        return [adaptive_average(b, x, 2, counts)]
    rank = len(counts)
    if rank == 1:
        values, places = adaptive_maxima(b, b.expand_dims(x, (2,)), (1, *counts))
        shape = (*sizes_of(x)[:2], *counts)
        values, places = b.reshape(values, shape), b.reshape(places, shape)
    else:
        values, places = adaptive_maxima(b, x, counts)
    return [values, b.cast(places, node.dtype("index_element_type"))]
