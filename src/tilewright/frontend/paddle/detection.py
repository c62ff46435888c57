"""Converters of what detectors are made of: anchors, boxes, suppression, regions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.suppression import ByClass, detections, suppressed_rows
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UnsupportedError, UserError


@converter("yolo_box", inputs="X ImgSize", outputs="Boxes Scores")
def yolo_box(node: NodeContext) -> Sequence[GraphExpr]:
    """Boxes and scores of each anchor at each place; those below a confidence are zero."""
    b, x = node.builder, node.input(0)
    anchors, classes = node.ints("anchors"), node.integer("class_num")
    count = len(anchors) // 2
    batch, (channels, rows, columns) = sizes_of(x)[0], (size_at(x, at) for at in (1, 2, 3))
    aware = node.flag("iou_aware")
    if channels != count * (5 + classes + aware):
        raise UserError(f"{channels} channels for {count} anchors of {classes} classes")
    overlaps: GraphExpr | None = None
    if aware:
        overlaps = b.reshape(b.slice_axis(x, 1, 0, count), (batch, count, 1, rows, columns))
        x = b.slice_axis(x, 1, count, channels)
    parted = b.reshape(x, (batch, count, 5 + classes, rows, columns))

    def channel(at: int, end: int | None = None) -> GraphExpr:
        return b.slice_axis(parted, 2, at, at + 1 if end is None else end)

    confidence = b.call("sigmoid", channel(4))
    if overlaps is not None:
        share = node.number("iou_aware_factor", default=0.5)
        own = b.call("power", confidence, b.scalar(1 - share, dtype_of(x)))
        confidence = b.multiply(own, b.call("power", b.call("sigmoid", overlaps), b.scalar(share, dtype_of(x))))
    kept = b.compare("greater_equal", confidence, node.number("conf_thresh", default=0.01))
    confidence = b.where(kept, confidence, 0.0)
    boxes = _yolo_boxes(node, [channel(at) for at in range(4)], (batch, count, rows, columns))
    boxes = b.where(kept, boxes, 0.0)
    scores = b.multiply(b.call("sigmoid", channel(5, 5 + classes)), confidence)
    total = count * rows * columns
    return [
        b.reshape(b.transpose(value, (0, 1, 3, 4, 2)), (batch, total, width))
        for value, width in ((boxes, 4), (scores, classes))
    ]


def _yolo_boxes(node: NodeContext, codes: Sequence[GraphExpr], sizes: Sequence[Size]) -> GraphExpr:
    b, (batch, count, rows, columns) = node.builder, sizes
    assert isinstance(count, int) and isinstance(rows, int) and isinstance(columns, int)
    anchors = np.array(node.ints("anchors"), np.float32).reshape(count, 2)
    step, stretch = node.integer("downsample_ratio", default=32), node.number("scale_x_y", default=1.0)
    image = b.reshape(b.cast(node.input(1), FLOAT32), (batch, 1, 2, 1, 1))
    height, width = b.slice_axis(image, 2, 0, 1), b.slice_axis(image, 2, 1, 2)
    places = (np.arange(columns).reshape(1, 1, 1, 1, columns), np.arange(rows).reshape(1, 1, 1, rows, 1))
    centers, halves = [], []
    for at, (extent, grid, cells) in enumerate(((width, columns, places[0]), (height, rows, places[1]))):
        moved = b.add(b.multiply(b.call("sigmoid", codes[at]), stretch), -0.5 * (stretch - 1))
        moved = b.add(moved, b.constant(cells.astype(np.float32), FLOAT32))
        centers.append(b.divide(b.multiply(moved, extent), float(grid)))
        side = b.constant((anchors[:, at] / (2 * step * grid)).reshape(1, count, 1, 1, 1), FLOAT32)
        halves.append(b.multiply(b.multiply(b.call("exp", codes[at + 2]), side), extent))
    corners = [b.subtract(centers[at], halves[at]) for at in range(2)]
    corners += [b.add(centers[at], halves[at]) for at in range(2)]
    if node.flag("clip_bbox", default=True):
        limits = [b.subtract(width, 1.0), b.subtract(height, 1.0)]
        zero = b.scalar(0.0, FLOAT32)
        low = [b.call("maximum", value, zero) for value in corners[:2]]
        corners = low + [b.call("minimum", value, limit) for value, limit in zip(corners[2:], limits, strict=True)]
    return b.concatenate(corners, 2)


@converter("prior_box", inputs="Input Image", outputs="Boxes Variances")
def prior_box(node: NodeContext) -> Sequence[GraphExpr]:
    """Boxes of several sizes and shapes around each place, relative to the image."""
    rows, columns = (size_at(node.input(0), at) for at in (2, 3))
    height, width = (size_at(node.input(1), at) for at in (2, 3))
    ratios = [1.0]
    for ratio in node.floats("aspect_ratios"):
        for item in (ratio, 1 / ratio) if node.flag("flip") else (ratio,):
            if all(abs(item - known) > 1e-6 for known in ratios):
                ratios.append(item)
    largest = node.floats("max_sizes")
    extents: list[tuple[float, float]] = []
    for at, least in enumerate(node.floats("min_sizes")):
        shaped = [(least * math.sqrt(ratio) / 2, least / math.sqrt(ratio) / 2) for ratio in ratios]
        square = [(math.sqrt(least * largest[at]) / 2,) * 2] if largest else []
        if node.flag("min_max_aspect_ratios_order"):
            extents += [shaped[0], *((item[0], item[1]) for item in square), *shaped[1:]]
        else:
            extents += [*shaped, *((item[0], item[1]) for item in square)]
    steps = [node.number("step_w", default=0.0) or width / columns, node.number("step_h", default=0.0) or height / rows]
    offset = node.number("offset", default=0.5)
    boxes = np.empty((rows, columns, len(extents), 4))
    across = ((np.arange(columns) + offset) * steps[0])[None, :, None]
    down = ((np.arange(rows) + offset) * steps[1])[:, None, None]
    halves = np.array(extents)
    boxes[..., 0], boxes[..., 2] = (across - halves[:, 0]) / width, (across + halves[:, 0]) / width
    boxes[..., 1], boxes[..., 3] = (down - halves[:, 1]) / height, (down + halves[:, 1]) / height
    if node.flag("clip"):
        boxes = boxes.clip(0, 1)
    variances = np.broadcast_to(np.array(node.floats("variances"), np.float32), boxes.shape)
    return [node.builder.constant(item.astype(np.float32), FLOAT32) for item in (boxes, variances)]


@converter("anchor_generator", inputs="Input", outputs="Anchors Variances")
def anchor_generator(node: NodeContext) -> Sequence[GraphExpr]:
    """Boxes of several sizes and shapes around each place, in pixels."""
    rows, columns = (size_at(node.input(0), at) for at in (2, 3))
    stride, offset = node.floats("stride"), node.number("offset", default=0.5)
    extents: list[tuple[float, float]] = []
    for ratio in node.floats("aspect_ratios"):
        for size in node.floats("anchor_sizes"):
            base = round(math.sqrt(stride[0] * stride[1] / ratio))
            extents.append((size / stride[0] * base, size / stride[1] * round(base * ratio)))
    halves = (np.array(extents) - 1) / 2
    across = (np.arange(columns) * stride[0] + offset * (stride[0] - 1))[None, :, None]
    down = (np.arange(rows) * stride[1] + offset * (stride[1] - 1))[:, None, None]
    boxes = np.empty((rows, columns, len(extents), 4))
    boxes[..., 0], boxes[..., 2] = across - halves[:, 0], across + halves[:, 0]
    boxes[..., 1], boxes[..., 3] = down - halves[:, 1], down + halves[:, 1]
    variances = np.broadcast_to(np.array(node.floats("variances"), np.float32), boxes.shape)
    return [node.builder.constant(item.astype(np.float32), FLOAT32) for item in (boxes, variances)]


@converter("box_coder", inputs="PriorBox PriorBoxVar TargetBox", outputs="OutputBox")
def box_coder(node: NodeContext) -> GraphExpr:
    """Boxes decoded from codes relative to others."""
    b = node.builder
    if not node.text("code_type", default="encode_center_size").lower().startswith("decode"):
        raise UnsupportedError("box_coder that encodes, which training does")
    extra = 0.0 if node.flag("box_normalized", default=True) else 1.0
    priors, codes = node.input(0), node.input(2)
    wide = rank_of(codes) == 3
    axis = node.integer("axis", default=0)

    def column(value: GraphExpr, at: int) -> GraphExpr:
        part = b.slice_axis(value, rank_of(value) - 1, at, at + 1)
        return b.expand_dims(part, (axis,)) if wide and rank_of(value) == 2 else part

    variances: list[GraphExpr | float] = list(node.floats("variance", default=()) or (1.0,) * 4)
    if node.has_input(1):
        variances = [column(node.input(1), at) for at in range(4)]
    results: list[tuple[GraphExpr, GraphExpr]] = []
    for at in range(2):
        low, high = column(priors, at), column(priors, at + 2)
        length = b.add(b.subtract(high, low), extra)
        center = b.add(low, b.multiply(length, 0.5))
        moved = b.add(b.multiply(b.multiply(b.multiply(column(codes, at), variances[at]), length), 1.0), center)
        half = b.multiply(b.multiply(b.call("exp", b.multiply(column(codes, at + 2), variances[at + 2])), length), 0.5)
        results.append((b.subtract(moved, half), b.subtract(b.add(moved, half), extra)))
    (left, right), (top, bottom) = results
    return b.concatenate([left, top, right, bottom], rank_of(codes) - 1)


@converter("box_clip", inputs="Input ImInfo", outputs="Output")
def box_clip(node: NodeContext) -> GraphExpr:
    """Boxes kept within the image, whose height, width and scale are data; of one image."""
    b, boxes, info = node.builder, node.input(0), node.input(1)
    if sizes_of(info)[0] != 1:
        raise UnsupportedError("box_clip of several images", hint="import the model for one image: shapes={...}")
    scale = b.slice_axis(info, 1, 2, 3)
    limits = [
        b.reshape(b.subtract(b.call("floor", b.add(b.divide(b.slice_axis(info, 1, at, at + 1), scale), 0.5)), 1.0), ())
        for at in (1, 0, 1, 0)
    ]
    last = rank_of(boxes) - 1
    parts = [
        b.call("minimum", b.call("maximum", b.slice_axis(boxes, last, at, at + 1), b.scalar(0.0, FLOAT32)), limit)
        for at, limit in enumerate(limits)
    ]
    return b.concatenate(parts, last)


@converter("roi_align", inputs="X ROIs RoisNum")
def roi_align(node: NodeContext) -> GraphExpr:
    """Means of regions of the data, each divided in as many parts."""
    ratio = node.integer("sampling_ratio", default=-1)
    return node.onnx(
        "RoiAlign",
        node.input(0),
        node.input(1),
        _image_of_each(node, 1, 2),
        mode="avg",
        output_height=node.integer("pooled_height", default=1),
        output_width=node.integer("pooled_width", default=1),
        sampling_ratio=max(ratio, 0),
        spatial_scale=node.number("spatial_scale", default=1.0),
        coordinate_transformation_mode="half_pixel" if node.flag("aligned") else "output_half_pixel",
    )


def _image_of_each(node: NodeContext, regions: int, counts: int) -> GraphExpr:
    """The image that each region belongs to, by how many each image has."""
    b, rows = node.builder, sizes_of(node.input(regions))[0]
    if not node.has_input(counts):
        if sizes_of(node.input(0))[0] != 1:
            raise UnsupportedError(f"{node.node.kind} of several images without the number of regions of each")
        return b.filled(0, (rows,), INT64)
    ends = b.call("cumsum", b.cast(node.input(counts), INT64), axis=0)
    before = b.call("less_equal", b.reshape(ends, (1, *sizes_of(ends))), b.reshape(b.arange(rows), (rows, 1)))
    return b.reduce("sum", b.cast(before, INT64), (1,))


@converter("multiclass_nms", "multiclass_nms2", "multiclass_nms3", inputs="BBoxes Scores RoisNum",
           outputs="Out Index NmsRoisNum")  # fmt: skip
def multiclass_nms(node: NodeContext) -> Sequence[GraphExpr]:
    """The best boxes of each class and image (class, score, corners), where they were, and how many an image has."""
    b, boxes, scores = node.builder, node.input(0), node.input(1)
    if rank_of(scores) != 3 or node.has_input(2):
        raise UnsupportedError(f"{node.node.kind} of boxes that are not the same for all classes")
    if node.number("nms_eta", default=1.0) != 1.0:
        raise UnsupportedError(f"{node.node.kind} with a threshold that falls", hint="export it with nms_eta=1")
    how = ByClass(
        overlap=node.number("nms_threshold", default=0.3),
        least=node.number("score_threshold", default=0.0),
        candidates=node.integer("nms_top_k", default=-1),
        kept=node.integer("keep_top_k", default=-1),
        background=node.integer("background_label", default=0),
        normalized=node.flag("normalized", default=True),
    )
    return detections(b, boxes, *suppressed_rows(node, b, boxes, scores, how))
