"""Converters of resampling: sizes by numbers or by data, and places by the three conventions that there are."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.core.builder import evaluate, rank_of, sizes_of
from tilewright.frontend.core.sampling import sample_grid
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.convolution import channels_first, restored
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UnsupportedError, UserError

_KINDS = {
    f"{kind}_interp{version}": kind
    for kind in ("nearest", "bilinear", "bicubic", "trilinear", "linear")
    for version in ("", "_v2")
}
_SIZES = {1: ("out_w",), 2: ("out_h", "out_w"), 3: ("out_d", "out_h", "out_w")}


@converter(*_KINDS, inputs="X OutSize SizeTensor Scale")
def interpolate(node: NodeContext) -> GraphExpr:
    """Resampling of the spatial dimensions."""
    x = channels_first(node, node.input(0))
    rank, kind = rank_of(x) - 2, _KINDS[node.node.kind]
    corners, half = node.flag("align_corners", default=True), node.integer("align_mode", default=1) == 0
    options: dict[str, Any]
    if kind == "nearest":
        options = {
            "mode": "nearest",
            "coordinate_transformation_mode": "align_corners" if corners else "asymmetric",
            "nearest_mode": "round_prefer_ceil" if corners else "floor",
        }
    else:
        places = "align_corners" if corners else "half_pixel" if half or kind == "bicubic" else "asymmetric"
        options = {"mode": "cubic" if kind == "bicubic" else "linear", "coordinate_transformation_mode": places}
    sizes, scales = _target(node, rank)
    b = node.builder
    if scales is not None:
        given = b.constant(np.array([1.0, 1.0, *scales], np.float32), FLOAT32)
        return restored(node, node.onnx("Resize", x, None, given, None, **options))
    assert sizes is not None
    whole = b.concatenate([b.shape_tensor(sizes_of(x)[:2]), sizes], 0)
    return restored(node, node.onnx("Resize", x, None, None, whole, **options))


def _target(node: NodeContext, rank: int) -> tuple[GraphExpr | None, tuple[float, ...] | None]:
    """The sizes of the result, or the factors that it is larger by."""
    listed = node.whole_tensor((2,))
    if listed is not None:
        return listed, None
    if node.has_input(1):
        return node.whole_tensor((1,)), None
    scales: tuple[float, ...] = node.floats("scale", default=())
    if node.has_input(3):
        known = evaluate(node.input(3))
        if known is None:
            raise UnsupportedError(
                f"{node.node.kind} by a scale that is computed from the inputs of the model",
                hint="export the model with the size of the result",
            )
        scales = tuple(float(item) for item in known.ravel())
    if scales and all(item > 0 for item in scales):
        return None, scales * rank if len(scales) == 1 else scales[:rank]
    wanted = [node.integer(name, default=-1) for name in _SIZES[rank]]
    if any(size < 1 for size in wanted):
        raise UserError(f"{node.node.kind} does not say the size of its result")
    return node.builder.constant(np.array(wanted, np.int64), INT64), None


@converter("grid_sampler", "grid_sample", inputs="X Grid", outputs="Output")
def grid_sampler(node: NodeContext) -> GraphExpr:
    """Data at the places of a grid."""
    mode = {"bilinear": "linear", "nearest": "nearest"}.get(node.text("mode", default="bilinear"))
    padding = node.text("padding_mode", default="zeros")
    if mode is None or padding not in ("zeros", "border", "reflection"):
        raise UnsupportedError(f"sampling by the mode {node.text('mode')!r} with the padding {padding!r}")
    return sample_grid(
        node.builder, node.input(0), node.input(1), mode, padding, node.flag("align_corners", default=True)
    )


@converter("affine_grid", inputs="Theta OutputShape", outputs="Output")
def affine_grid(node: NodeContext) -> GraphExpr:
    """The places of a grid that matrices map."""
    size = node.needed_tensor("its size", (1,), "output_shape")
    return node.onnx("AffineGrid", node.input(0), size, align_corners=node.flag("align_corners", default=True))


@converter("temporal_shift")
def temporal_shift(node: NodeContext) -> GraphExpr:
    """A share of the channels from the frame before, one from the frame behind."""
    b, x = node.builder, channels_first(node, node.input(0))
    segments, ratio = node.integer("seg_num"), node.number("shift_ratio", default=0.25)
    total, channels, height, width = (node.count(x, at) for at in range(4))
    if segments < 1 or total % segments:
        raise UserError(f"{total} frames in segments of {segments}")
    first, second = int(channels * ratio), int(channels * 2 * ratio)
    frames = b.reshape(x, (total // segments, segments, channels, height, width))
    padded = b.call("pad", frames, before=(0, 1, 0, 0, 0), after=(0, 1, 0, 0, 0))
    bounds = ((0, 0, first), (2, first, second), (1, second, channels))
    parts = [
        b.slice_axis(b.slice_axis(padded, 1, start, start + segments), 2, low, high)
        for start, low, high in bounds
        if high > low
    ]
    return restored(node, b.reshape(b.concatenate(parts, 2), (total, channels, height, width)))
