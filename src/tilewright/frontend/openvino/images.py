"""Converters of colours, patches and regions of images."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import dtype_of, shape_of, size_at, sizes_of
from tilewright.frontend.core.regions import max_pooled_regions
from tilewright.frontend.core.sampling import sample_grid
from tilewright.frontend.openvino.context import NodeContext
from tilewright.frontend.openvino.convolution import window
from tilewright.frontend.openvino.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UserError

_RED_GREEN_BLUE = np.array([[1.164, 0.0, 1.596], [1.164, -0.391, -0.813], [1.164, 2.018, 0.0]], np.float32)
"""Colours from brightness above 16 and the two differences of colour above 128."""


def _planes(node: NodeContext) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """Brightness (images, height, width), and both differences at a quarter of the places."""
    b, planar = node.builder, node.layer.kind.startswith("I420")
    if node.has_input(1):
        bright = b.select(node.input(0), 3, 0)
        if planar:
            return bright, b.select(node.input(1), 3, 0), b.select(node.input(2), 3, 0)
        return bright, b.select(node.input(1), 3, 0), b.select(node.input(1), 3, 1)
    images, rows, width, _ = shape_of(node.input(0))
    height = rows * 2 // 3
    whole = b.select(node.input(0), 3, 0)
    bright, rest = b.slice_axis(whole, 1, 0, height), b.slice_axis(whole, 1, height, rows)
    if planar:
        parted = b.reshape(rest, (images, 2, height // 2, width // 2))
        return bright, b.select(parted, 1, 0), b.select(parted, 1, 1)
    pairs = b.reshape(rest, (images, height // 2, width // 2, 2))
    return bright, b.select(pairs, 3, 0), b.select(pairs, 3, 1)


@converter("NV12toRGB", "NV12toBGR", "I420toRGB", "I420toBGR")
def colours(node: NodeContext) -> GraphExpr:
    """Colours of pixels, of which four share the differences of colour."""
    b, dtype = node.builder, dtype_of(node.input(0))
    bright, *differences = _planes(node)
    images, height, width = sizes_of(bright)
    parts = [b.add(b.cast(bright, FLOAT32), -16.0)]
    for plane in differences:
        _, rows, columns = sizes_of(plane)
        wide = b.broadcast_to(b.reshape(plane, (images, rows, 1, columns, 1)), (images, rows, 2, columns, 2))
        parts.append(b.add(b.cast(b.reshape(wide, (images, height, width)), FLOAT32), -128.0))
    order = _RED_GREEN_BLUE if node.layer.kind.endswith("RGB") else _RED_GREEN_BLUE[::-1]
    mixed = b.call("matmul", b.stack(parts, 3), b.constant(np.ascontiguousarray(order.T), FLOAT32))
    limited = b.call("minimum", b.call("maximum", mixed, b.scalar(0, FLOAT32)), b.scalar(255, FLOAT32))
    return b.cast(limited if dtype.is_float else b.call("floor", b.add(limited, 0.5)), dtype)


@converter("ExtractImagePatches")
def extract_patches(node: NodeContext) -> GraphExpr:
    """The elements of each window as channels: a convolution with weights of ones and zeros."""
    b, x = node.builder, node.input(0)
    (rows, columns), channels = node.ints("sizes"), size_at(x, 1)
    table = np.eye(rows * columns * channels, dtype=np.float32).reshape(-1, rows, columns, channels)
    weight = b.constant(np.ascontiguousarray(table.transpose(0, 3, 1, 2)), FLOAT32)
    options = window(node, 2) | {"dilations": node.ints("rates")}
    return b.cast(node.onnx("Conv", b.cast(x, FLOAT32), weight, **options), dtype_of(x))


@converter("ROIPooling")
def pool_regions(node: NodeContext) -> GraphExpr:
    """The greatest element of each bin of regions, or values between four neighbours at places spread over them."""
    b, x, regions = node.builder, node.input(0), node.input(1)
    rows, columns = node.ints("output_size", ()) or (node.integer("pooled_h"), node.integer("pooled_w"))
    method = node.text("method", "max")
    if method == "max":
        return max_pooled_regions(b, x, regions, (rows, columns), node.number("spatial_scale"))
    if method != "bilinear":
        raise UserError(f"ROIPooling by the method {method!r}")
    count = sizes_of(regions)[0]
    image = b.cast(b.reshape(b.slice_axis(regions, 1, 0, 1), (count,)), INT64)

    def places(low: int, number: int) -> GraphExpr:
        """Shares of the image (regions, number), from the first corner to the last; one alone is in the middle."""
        first, last = (b.slice_axis(regions, 1, at, at + 1) for at in (low, low + 2))
        shares = np.linspace(0, 1, number) if number > 1 else np.full(1, 0.5)
        return b.add(first, b.multiply(b.subtract(last, first), b.constant(shares[None], FLOAT32)))

    shape = (count, rows, columns, 1)
    across = b.broadcast_to(b.reshape(places(1, columns), (count, 1, columns, 1)), shape)
    down = b.broadcast_to(b.reshape(places(2, rows), (count, rows, 1, 1)), shape)
    grid = b.concatenate([across, down], 3)
    values = sample_grid(
        b, b.call("take", x, image, axis=0), b.add(b.multiply(grid, 2.0), -1.0), "linear", "border", True
    )
    inside = b.call("logical_and", b.compare("greater_equal", grid, 0), b.compare("less_equal", grid, 1))
    inside = b.reshape(b.call("all", inside, axes=(3,)), (count, 1, rows, columns))
    return b.where(inside, values, b.scalar(0, dtype_of(x)))
