"""Converters of pooling."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.adaptive import adaptive_average, adaptive_maxima
from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.convolution import channels_first, restored, window
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError


@converter("pool2d", "pool3d", inputs="X KernelSize")
def pool(node: NodeContext) -> GraphExpr:
    """The greatest or the mean of windows: of all, of as many as are wanted, or of a size."""
    b, x = node.builder, channels_first(node, node.input(0))
    rank, kind = rank_of(x) - 2, node.text("pooling_type", default="max")
    kernel = node.wholes("its size", (1,), "ksize", "kernel_size") or ()
    kernel = kernel * rank if len(kernel) == 1 else kernel
    if kind not in ("max", "avg"):
        raise UserError(f"unknown pooling type {kind!r}")
    if node.flag("global_pooling") or (node.flag("adaptive") and set(kernel) == {1}):
        axes = tuple(range(2, rank + 2))
        return restored(node, b.reduce("max" if kind == "max" else "mean", x, axes, True))
    if len(kernel) != rank:
        raise UserError(f"a window of {kernel} over {rank} dimensions")
    if node.flag("adaptive"):
        counts = [size_at(x, at + 2) if size == -1 else size for at, size in enumerate(kernel)]
        pooled = adaptive_average(b, x, 2, counts) if kind == "avg" else adaptive_maxima(b, x, counts)[0]
        return restored(node, pooled)
    options = window(node, rank)
    options["kernel_shape"] = kernel
    inside = kind == "avg" and not node.flag("exclusive", default=True)
    if inside:
        return restored(
            node, node.onnx("AveragePool", x, count_include_pad=1, ceil_mode=node.flag("ceil_mode"), **options)
        )
    if node.flag("ceil_mode") and "pads" in options:
        # The last window may reach beyond the data: as many windows as with so much more padding.
        more = [step - 1 for step in options["strides"]]
        options["pads"] = (*options["pads"][:rank], *map(sum, zip(options["pads"][rank:], more, strict=True)))
    return restored(node, node.onnx("MaxPool" if kind == "max" else "AveragePool", x, **options))


@converter("max_pool2d_with_index", "max_pool3d_with_index", inputs="X KernelSize", outputs="Out Mask")
def max_pool_with_index(node: NodeContext) -> Sequence[GraphExpr]:
    """The greatest of windows, and where it is in its plane."""
    b, x = node.builder, node.input(0)
    rank = rank_of(x) - 2
    kernel = node.wholes("its size", (1,), "ksize", "kernel_size") or ()
    if node.flag("global_pooling"):
        kernel = tuple(size_at(x, at + 2) for at in range(rank))
    if node.flag("adaptive"):
        values, places = adaptive_maxima(b, x, kernel)
        return [values, b.cast(places, "int32")]
    if node.flag("ceil_mode"):
        raise UnsupportedError("positions of maxima in windows that reach beyond the data")
    values, places = node.onnx.several("MaxPool", 2, x, kernel_shape=kernel, **window(node, rank))
    plane = b.reshape(b.shape_tensor([product(sizes_of(x)[2:])]), ())
    return [values, b.cast(b.call("floor_mod", places, plane), "int32")]


@converter("unpool", inputs="X Indices OutputSize")
def unpool(node: NodeContext) -> GraphExpr:
    """Elements put back at the places where maxima were, zeros elsewhere."""
    b, x = node.builder, node.input(0)
    batch, channels = sizes_of(x)[:2]
    wanted = node.wholes("its size", (2,), "output_size") or ()
    if len(wanted) < 2:
        raise UserError("unpool does not say its size")
    plane = wanted[-2] * wanted[-1]
    count = size_at(x, 2) * size_at(x, 3)
    rows = product((batch, channels))
    places = b.cast(b.reshape(node.input(1), (rows, count)), INT64)
    zeros = b.filled(0, (rows, plane), x.tensor_type.dtype)
    written = node.onnx("ScatterElements", zeros, places, b.reshape(x, (rows, count)), axis=1)
    return b.reshape(written, (batch, channels, wanted[-2], wanted[-1]))
