"""Converters of what detectors end with: non-maximum suppression, and the custom operator that decodes boxes first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, size_at, sizes_of
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.flexbuffer import read_map
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT32, INT64
from tilewright.support.errors import UnsupportedError, UserError


@converter("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(node: NodeContext) -> Sequence[GraphExpr]:
    """Boxes by falling score without those that overlap one taken before, filled up with zeros, and how many."""
    builder, soft = node.builder, node.node.name.endswith("V5")
    boxes, scores = node.input(0), node.input(1)
    most = node.constant_int(2, "the number of boxes")
    if soft:
        sigma = node.constant(5, "sigma")
        if float(sigma.ravel()[0]):
            raise UnsupportedError("NON_MAX_SUPPRESSION_V5 with a sigma above 0, which lowers scores softly")
    chosen = _kept(node, boxes, scores, most, node.input(3), node.input(4))
    numbers, valid = _filled(node, chosen, most)
    results = [builder.cast(numbers, INT32)]
    if soft:
        taken = node.call("take", scores, numbers, axis=0)
        results.append(node.call("where", valid, taken, builder.constant_like(0, scores)))
    count = node.call("sum", builder.cast(valid, INT32), axes=(0,))
    return [*results, count]


def _kept(
    node: NodeContext, boxes: GraphExpr, scores: GraphExpr, most: int, overlap: GraphExpr, least: GraphExpr
) -> GraphExpr:
    """The numbers of the boxes that are kept, by falling score."""
    builder, (count, _) = node.builder, sizes_of(boxes)
    rows = node.call(
        "host.non_max_suppression",
        builder.reshape(boxes, (1, count, 4)),
        builder.reshape(scores, (1, 1, count)),
        builder.constant(most, INT64),
        builder.reshape(overlap, ()),
        builder.reshape(least, ()),
        dims=(node.symbol("kept"),),
    )
    return builder.reshape(builder.slice_axis(rows, 1, 2, 3), sizes_of(rows)[:1])


def _filled(node: NodeContext, chosen: GraphExpr, most: int) -> tuple[GraphExpr, GraphExpr]:
    """So many numbers: those that are kept, then zeros; and which of them are kept."""
    builder, call = node.builder, node.call
    padded = call("pad", chosen, before=(0,), after=(most,))
    numbers = builder.slice_axis(padded, 0, 0, most)
    length = builder.reshape(builder.shape_tensor(sizes_of(chosen)), ())
    return numbers, call("less", builder.arange(most), length)


@converter("TFLite_Detection_PostProcess", custom=True)
def detection_postprocess(node: NodeContext) -> Sequence[GraphExpr]:
    """Boxes decoded from anchors, the best class of each, and what suppression leaves of them."""
    options = read_map(node.node.custom_options)
    builder, call = node.builder, node.call
    codes, scores, anchors = (_numbers(node, at) for at in range(3))
    most = int(options.get("max_detections", 0))
    classes = int(options.get("num_classes", 0))
    if options.get("use_regular_nms") or int(options.get("max_classes_per_detection", 1)) != 1:
        raise UnsupportedError(
            f"{node.node.name} by regular suppression, or with several classes a box",
            hint="export the detector with use_regular_nms=False and one class a detection",
        )
    if most < 1 or classes < 1 or sizes_of(codes)[0] != 1:
        raise UserError(f"{node.node.name} of {most} boxes of {classes} classes in {sizes_of(codes)[0]} images")
    count = sizes_of(codes)[1]
    boxes = _decoded(node, builder.reshape(codes, (count, size_at(codes, 2))), anchors, options)
    table = builder.reshape(scores, (count, size_at(scores, 2)))
    named = builder.slice_axis(table, 1, size_at(table, 1) - classes, size_at(table, 1))
    best, label = call("max", named, axes=(1,)), call("argmax", named, axis=1)
    overlap = builder.constant(float(options.get("nms_iou_threshold", 0.5)), FLOAT32)
    least = builder.constant(float(options.get("nms_score_threshold", 0.0)), FLOAT32)
    kept = _kept(node, boxes, best, most, overlap, least)
    numbers, valid = _filled(node, kept, most)
    results: list[GraphExpr] = []
    for values in (boxes, builder.cast(label, FLOAT32), best):
        taken = call("take", values, numbers, axis=0)
        shown = builder.reshape(valid, (most, *(1,) * (len(sizes_of(taken)) - 1)))
        zeroed = call("where", shown, taken, builder.constant(0.0, FLOAT32))
        results.append(builder.expand_dims(zeroed, (0,)))
    total = call("sum", builder.cast(valid, FLOAT32), axes=(0,), keepdims=True)
    return [*results, total]


def _numbers(node: NodeContext, index: int) -> GraphExpr:
    """An input as numbers."""
    value = node.input(index)
    if dtype_of(value).is_float:
        return value
    levels, builder = node.levels(index), node.builder
    steps = node.call("subtract", builder.cast(value, INT32), builder.constant(levels.zero, INT32))
    scale = builder.constant(np.float32(levels.scales[0]), FLOAT32)
    return node.call("multiply", builder.cast(steps, FLOAT32), scale)


def _decoded(node: NodeContext, codes: GraphExpr, anchors: GraphExpr, options: dict[str, object]) -> GraphExpr:
    """Boxes (top, left, bottom, right) from codes (y, x, h, w) relative to anchors."""
    builder, call = node.builder, node.call

    def column(values: GraphExpr, at: int) -> GraphExpr:
        return builder.slice_axis(values, 1, at, at + 1)

    def scaled(at: int, name: str) -> GraphExpr:
        factor = options.get(name, 1.0)
        assert isinstance(factor, (int, float))
        return call("divide", column(codes, at), builder.constant(float(factor), FLOAT32))

    half = builder.constant(0.5, FLOAT32)
    sides: list[tuple[GraphExpr, GraphExpr]] = []
    for at, (place, extent) in enumerate((("y_scale", "h_scale"), ("x_scale", "w_scale"))):
        length = column(anchors, 2 + at)
        center = call("add", call("multiply", scaled(at, place), length), column(anchors, at))
        reach = call("multiply", half, call("multiply", call("exp", scaled(2 + at, extent)), length))
        sides.append((call("subtract", center, reach), call("add", center, reach)))
    (top, bottom), (left, right) = sides
    return builder.concatenate([top, left, bottom, right], 1)
