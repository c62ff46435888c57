"""The windows of convolutions and pools from their options, over data with channels last."""

from __future__ import annotations

from tilewright.frontend.core.builder import sizes_of
from tilewright.frontend.core.windows import Extents, Window, same_paddings, window_over
from tilewright.frontend.tflite.context import NodeContext
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError

_SAME, _VALID = 0, 1


def window_of(node: NodeContext, kernel: tuple[int, ...]) -> Extents:
    """The window that options describe, without its padding."""
    axes = "hw" if len(kernel) == 2 else "dhw"
    strides = tuple(node.integer(f"stride_{axis}") for axis in axes)
    dilation = tuple(node.integer(f"dilation_{axis}_factor", 1) for axis in axes)
    if any(item < 1 for item in (*kernel, *strides, *dilation)):
        raise UserError(f"kernel {kernel}, strides {strides} and dilations {dilation} must be positive")
    none = (0,) * len(kernel)
    return Extents(tuple(kernel), strides, none, none, dilation)


def is_same(node: NodeContext) -> bool:
    """Whether the padding is the one called SAME; the other one is none at all."""
    mode = node.integer("padding")
    if mode not in (_SAME, _VALID):
        raise UserError(f"the padding number {mode} is not known")
    return mode == _SAME


def paddings(node: NodeContext, extents: Extents, size: tuple[Size, ...]) -> tuple[list[Size], list[Size]]:
    """The padding before and after each dimension of data of a spatial size."""
    return same_paddings(extents, size) if is_same(node) else ([0] * len(size), [0] * len(size))


def padded(node: NodeContext, data: GraphExpr, extents: Extents, fill: float = 0.0) -> tuple[GraphExpr, Window]:
    """The data and the window over it; padding that only a run knows becomes part of the data."""
    return window_over(node.builder, data, extents, paddings(node, extents, sizes_of(data)[1:3]), fill)
