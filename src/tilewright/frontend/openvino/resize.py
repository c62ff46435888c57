"""Converters of resampling: sizes or factors as inputs, and the conventions of places that ONNX has too."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.core.builder import evaluate, rank_of, size_at
from tilewright.frontend.openvino.context import NodeContext
from tilewright.frontend.openvino.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UnsupportedError, UserError

_MODES = {"nearest": "nearest", "linear": "linear", "linear_onnx": "linear", "cubic": "cubic"}
_PILLOW = {"bilinear_pillow": ("linear", -0.75), "bicubic_pillow": ("cubic", -0.5)}


@converter("Interpolate")
def interpolate(node: NodeContext) -> GraphExpr:
    """Resampling along axes."""
    x = _padded(node, node.input(0))
    if node.opset < 4:
        return _first_form(node, x)
    later = node.opset >= 11
    axes_slot = 2 if later else 3
    axes = node.known(axes_slot, "the axes") if node.has_input(axes_slot) else tuple(range(rank_of(x)))
    axes = tuple(node.axis(axis, rank_of(x)) for axis in axes)
    options = _options(node)
    by_sizes = node.text("shape_calculation_mode") == "sizes"
    b = node.builder
    if by_sizes:
        sizes = b.cast(node.input(1), INT64)
        return _resized(node, x, axes, options, None, sizes)
    scales = b.cast(node.input(1 if later else 2), FLOAT32)
    return _resized(node, x, axes, options, scales, None)


def _padded(node: NodeContext, x: GraphExpr) -> GraphExpr:
    """The data with the zeros around it that options name."""
    rank = rank_of(x)
    low, high = node.ints("pads_begin", ()), node.ints("pads_end", ())
    if not any((*low, *high)):
        return x
    before, after = ((*item, *(0,) * rank)[:rank] for item in (low, high))
    return node.call("pad", x, before=before, after=after)


def _options(node: NodeContext) -> dict[str, Any]:
    mode = node.text("mode")
    if mode in _PILLOW:
        kind, cubic = _PILLOW[mode]
        return {
            "mode": kind,
            "coordinate_transformation_mode": "half_pixel",
            "antialias": 1,
            "cubic_coeff_a": cubic,
            "exclude_outside": 1,
        }
    if mode not in _MODES:
        raise UserError(f"unknown mode {mode!r} of Interpolate")
    options: dict[str, Any] = {
        "mode": _MODES[mode],
        "coordinate_transformation_mode": node.text("coordinate_transformation_mode", "half_pixel"),
    }
    if mode == "nearest":
        options["nearest_mode"] = node.text("nearest_mode", "round_prefer_floor")
    if mode == "cubic":
        options["cubic_coeff_a"] = node.number("cube_coeff", -0.75)
    if node.flag("antialias") and mode in ("linear", "cubic"):
        options["antialias"] = 1
    return options


def _resized(
    node: NodeContext,
    x: GraphExpr,
    axes: tuple[int, ...],
    options: dict[str, Any],
    scales: GraphExpr | None,
    sizes: GraphExpr | None,
) -> GraphExpr:
    """ONNX's Resize; the nearest element that is called simple is the one below, or above where data shrinks."""
    if options.get("nearest_mode") == "simple":
        known = evaluate(scales if scales is not None else sizes)  # type: ignore[arg-type]
        if known is None:
            raise UnsupportedError("the nearest element that is called simple, by sizes that a run decides")
        factors = known.ravel() if scales is not None else known.ravel() / [size_at(x, axis) for axis in axes]
        if len({bool(factor < 1) for factor in factors if factor != 1}) > 1:
            raise UnsupportedError(
                "the nearest element that is called simple, where one axis shrinks and another grows"
            )
        options = {**options, "nearest_mode": "ceil" if (factors < 1).any() else "floor"}
    return node.onnx("Resize", x, None, scales, sizes, axes=axes, **options)


def _first_form(node: NodeContext, x: GraphExpr) -> GraphExpr:
    """The form of the first opset: sizes of axes, corners that are aligned or not."""
    mode = node.text("mode")
    axes = tuple(node.axis(axis, rank_of(x)) for axis in node.ints("axes"))
    if mode not in ("nearest", "linear", "cubic"):
        raise UnsupportedError(f"Interpolate of the first opset by the mode {mode!r}")
    options: dict[str, Any] = {"mode": mode}
    options["coordinate_transformation_mode"] = (
        "align_corners" if node.flag("align_corners", True) else "asymmetric" if mode == "nearest" else "half_pixel"
    )
    if mode == "nearest":
        options["nearest_mode"] = "round_prefer_floor" if node.flag("align_corners", True) else "floor"
    return node.onnx("Resize", x, None, None, node.builder.cast(node.input(1), INT64), axes=axes, **options)
