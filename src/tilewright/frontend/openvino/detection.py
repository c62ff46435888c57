"""Converters of what detectors are made of: suppression, anchors, regions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.suppression import (
    ByClass,
    best_of_each,
    detections,
    hide_behind_best,
    place_in_image,
    suppressed_rows,
)
from tilewright.frontend.openvino.context import NodeContext
from tilewright.frontend.openvino.registry import converter
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UnsupportedError, UserError


@converter("NonMaxSuppression")
def non_max_suppression(node: NodeContext) -> Sequence[GraphExpr]:
    """Boxes of each class without those that overlap a better one: their places, scores, and how many there are."""
    b, boxes, scores = node.builder, node.input(0), node.input(1)
    if node.has_input(5) and node.known_number(5, 0.0):
        raise UnsupportedError("NonMaxSuppression with a sigma above 0, which lowers scores softly")
    most = b.cast(b.reshape(node.input(2), ()), INT64) if node.has_input(2) else b.constant(0, INT64)
    overlap = b.reshape(b.cast(node.input(3), FLOAT32), ()) if node.has_input(3) else b.scalar(0.0, FLOAT32)
    least = [b.reshape(b.cast(node.input(4), FLOAT32), ())] if node.has_input(4) else []
    rows = node.call(
        "host.non_max_suppression",
        boxes,
        scores,
        most,
        overlap,
        *least,
        dims=(node.symbol("kept"),),
        center_point_box=node.text("box_encoding", "corner") == "center",
    )
    values = node.onnx("GatherND", scores, rows)
    if node.flag("sort_result_descending", True):
        count = b.shape_tensor(sizes_of(values))
        values, order = node.onnx.several("TopK", 2, values, count, axis=0)
        rows = b.call("take", rows, order, axis=0)
    to = node.dtype("output_type", "i64")
    kept = sizes_of(rows)[0]
    if node.opset < 5:
        return [_filled_up(node, b.cast(rows, to), scores)]
    parts = [b.cast(b.slice_axis(rows, 1, 0, 2), dtype_of(scores)), b.reshape(values, (kept, 1))]
    return [b.cast(rows, to), b.concatenate(parts, 1), b.cast(b.shape_tensor([kept]), to)]


def _filled_up(node: NodeContext, rows: GraphExpr, scores: GraphExpr) -> GraphExpr:
    """As many rows as there could be: those behind the last one are -1."""
    b, (images, classes, count) = node.builder, (size_at(scores, at) for at in range(3))
    limit = node.known(2, "the number of boxes")[0] if node.has_input(2) else 0
    total = images * classes * min(count, limit)
    padded = b.call("pad", rows, before=(0, 0), after=(total, 0), value=-1.0)
    return b.slice_axis(padded, 0, 0, total)


@converter("MulticlassNms")
def multiclass_nms(node: NodeContext) -> Sequence[GraphExpr]:
    """The best boxes of each class and image (class, score, corners), where they were, and how many an image has."""
    b, boxes, scores = node.builder, node.input(0), node.input(1)
    if node.has_input(2) or rank_of(scores) != 3:
        raise UnsupportedError("MulticlassNms of boxes that are not the same for all classes")
    if node.number("nms_eta", 1.0) != 1.0:
        raise UnsupportedError("MulticlassNms with a threshold that falls", hint="export it with nms_eta=1")
    if node.flag("sort_result_across_batch") and sizes_of(scores)[0] != 1:
        raise UnsupportedError("MulticlassNms that sorts across images", hint="import it for one image: shapes={...}")
    how = ByClass(
        overlap=node.number("iou_threshold", 0.0),
        least=node.number("score_threshold", 0.0),
        candidates=node.integer("nms_top_k", -1),
        kept=node.integer("keep_top_k", -1),
        background=node.integer("background_class", -1),
        normalized=node.flag("normalized", True),
    )
    rows, value = suppressed_rows(node, b, boxes, scores, how)
    if node.text("sort_result_type", "none") == "score":
        image, length = b.select(rows, 1, 0), b.shape_tensor(sizes_of(value))
        place = b.add(b.multiply(image, b.reshape(length, ())), place_in_image(b, image, value))
        _, order = node.onnx.several("TopK", 2, place, length, axis=0, largest=0)
        rows, value = (b.call("take", item, order, axis=0) for item in (rows, value))
    table, *numbers = detections(b, boxes, rows, value)
    return [table, *(b.cast(item, node.dtype("output_type", "i64")) for item in numbers)]


@converter("ROIAlign")
def roi_align(node: NodeContext) -> GraphExpr:
    """Means or maxima of regions of the data, each divided in as many parts."""
    aligned = node.text("aligned_mode", "asymmetric")
    if aligned not in ("asymmetric", "half_pixel", "half_pixel_for_nn"):
        raise UserError(f"ROIAlign by the mode {aligned!r}")
    regions = node.input(1)
    if aligned == "half_pixel":
        regions = node.builder.add(regions, 0.5)  # before they are scaled; half a pixel is taken off after it
    return node.onnx(
        "RoiAlign",
        node.input(0),
        regions,
        node.builder.cast(node.input(2), INT64),
        mode=node.text("mode"),
        output_height=node.integer("pooled_h"),
        output_width=node.integer("pooled_w"),
        sampling_ratio=node.integer("sampling_ratio"),
        spatial_scale=node.number("spatial_scale"),
        coordinate_transformation_mode="output_half_pixel" if aligned == "asymmetric" else "half_pixel",
    )


def _prior_extents(node: NodeContext) -> list[tuple[float, float]]:
    """Half widths and heights of the boxes around each place."""
    ratios = [1.0]
    for ratio in node.floats("aspect_ratio", ()):
        for item in (ratio, 1 / ratio) if node.flag("flip") else (ratio,):
            if all(abs(item - known) >= 1e-6 for known in ratios):
                ratios.append(item)
    largest = node.floats("max_size", ())
    if node.floats("fixed_size", ()) or node.floats("density", ()):
        raise UnsupportedError("PriorBox with densities or fixed sizes")
    extents: list[tuple[float, float]] = []
    for at, least in enumerate(node.floats("min_size", ())):
        square = [math.sqrt(least * largest[at]) / 2] if at < len(largest) else []
        shaped = [(least * math.sqrt(ratio) / 2, least / math.sqrt(ratio) / 2) for ratio in ratios]
        between = [(side, side) for side in square]
        if node.flag("min_max_aspect_ratios_order", True):
            extents += [shaped[0], *between, *shaped[1:]]
        else:
            extents += [*shaped, *between]
    if not node.flag("scale_all_sizes", True):
        raise UnsupportedError("PriorBox that scales the first size alone")
    return extents


@converter("PriorBox", "PriorBoxClustered")
def prior_box(node: NodeContext) -> GraphExpr:
    """Boxes of several sizes and shapes around each place, relative to the image, and their variances."""
    (rows, columns), (height, width) = node.known(0, "the size")[:2], node.known(1, "the size of the image")[:2]
    if node.layer.kind == "PriorBoxClustered":
        pairs = zip(node.floats("width", (1.0,)), node.floats("height", (1.0,)), strict=True)
        extents = [(wide / 2, high / 2) for wide, high in pairs]
    else:
        extents = _prior_extents(node)
    step = node.number("step", 0.0)
    steps = [node.number("step_w", 0.0) or step or width / columns, node.number("step_h", 0.0) or step or height / rows]
    offset = node.number("offset", 0.5)
    halves = np.array(extents)
    across = ((np.arange(columns) + offset) * steps[0])[None, :, None]
    down = ((np.arange(rows) + offset) * steps[1])[:, None, None]
    boxes = np.empty((rows, columns, len(extents), 4))
    boxes[..., 0], boxes[..., 2] = (across - halves[:, 0]) / width, (across + halves[:, 0]) / width
    boxes[..., 1], boxes[..., 3] = (down - halves[:, 1]) / height, (down + halves[:, 1]) / height
    boxes = boxes.clip(0, 1) if node.flag("clip") else boxes
    variances = node.floats("variance", (0.1,))
    listed = np.broadcast_to(np.array(variances if len(variances) == 4 else (*variances,) * 4)[:4], boxes.shape)
    both = np.stack([boxes.reshape(-1), listed.reshape(-1)]).astype(np.float32)
    return node.builder.constant(both, FLOAT32)


@converter("RegionYolo")
def region_yolo(node: NodeContext) -> GraphExpr:
    """Places, confidences and classes of boxes through their activations."""
    b, x = node.builder, node.input(0)
    coordinates, classes = node.integer("coords"), node.integer("classes")
    softmax = node.flag("do_softmax", True)
    regions = node.integer("num") if softmax else len(node.ints("mask", ()))
    batch, rows, columns = sizes_of(x)[0], *sizes_of(x)[2:]
    parted = b.reshape(x, (batch, regions, coordinates + classes + 1, rows, columns))
    places = b.call("sigmoid", b.slice_axis(parted, 2, 0, 2))
    extents = b.slice_axis(parted, 2, 2, coordinates)
    confidence = b.call("sigmoid", b.slice_axis(parted, 2, coordinates, coordinates + 1))
    logits = b.slice_axis(parted, 2, coordinates + 1, coordinates + 1 + classes)
    scores = b.call("nn.softmax", logits, axis=2) if softmax else b.call("sigmoid", logits)
    result = b.reshape(b.concatenate([places, extents, confidence, scores], 2), sizes_of(x))
    if not softmax:
        return result
    first, last = node.axis(node.integer("axis", 1), 4), node.axis(node.integer("end_axis", 3), 4)
    sizes = sizes_of(result)
    return b.reshape(result, (*sizes[:first], product(sizes[first : last + 1]), *sizes[last + 1 :]))


@converter("ReorgYolo")
def reorg_yolo(node: NodeContext) -> GraphExpr:
    """Pixels gathered to channels as Darknet does it."""
    b, x = node.builder, node.input(0)
    step = node.ints("stride")[0]
    batch, channels, rows, columns = (size_at(x, at) for at in range(4))
    if channels % (step * step) or rows % step or columns % step:
        raise UserError(f"data of {channels} x {rows} x {columns} in steps of {step}")
    inner = channels // (step * step)
    c, h, w = np.meshgrid(np.arange(channels), np.arange(rows), np.arange(columns), indexing="ij")
    source_row, source_column = h * step + c // inner // step, w * step + c // inner % step
    places = ((c % inner) * rows * step + source_row) * columns * step + source_column
    table = b.constant(places.reshape(-1), INT64)
    taken = b.call("take", b.reshape(x, (batch, channels * rows * columns)), table, axis=1)
    return b.reshape(taken, (batch, channels * step * step, rows // step, columns // step))


@converter("DetectionOutput")
def detection_output(node: NodeContext) -> GraphExpr:
    """Boxes decoded from anchors, suppressed and filled up: (image, class, score, corners) a row."""
    b = node.builder
    shared = node.flag("share_location", True)
    if not shared or rank_of(node.input(2)) != 3 or node.has_input(3):
        raise UnsupportedError("DetectionOutput with boxes for each class, or with objectness scores")
    images, anchors = size_at(node.input(0), 0), size_at(node.input(0), 1) // 4
    classes = size_at(node.input(1), 1) // anchors
    boxes = _decoded(node, images, anchors)
    scores = b.transpose(b.reshape(node.input(1), (images, anchors, classes)), (0, 2, 1))
    background = node.integer("background_label_id", 0)
    hidden = b.scalar(-math.inf, dtype_of(scores))
    if 0 <= background < classes:
        ids = b.reshape(b.arange(classes), (1, classes, 1))
        scores = b.where(b.compare("equal", ids, background), hidden, scores)
    most, limit = node.integer("top_k", -1), node.ints("keep_top_k")[0]
    if 0 < most < anchors:
        scores = hide_behind_best(b, scores, most)
    rows = node.call(
        "host.non_max_suppression",
        boxes,
        scores,
        b.constant(anchors, INT64),
        b.scalar(node.number("nms_threshold"), FLOAT32),
        b.scalar(node.number("confidence_threshold", -math.inf), FLOAT32),
        dims=(node.symbol("kept"),),
    )
    total = images * (limit if limit > 0 else anchors * classes)
    return _listed(node, boxes, scores, rows, limit, total)


def _decoded(node: NodeContext, images: int, anchors: int) -> GraphExpr:
    """The corners of all boxes (images, anchors, 4)."""
    b = node.builder
    codes, priors = b.reshape(node.input(0), (images, anchors, 4)), node.input(2)
    stored = b.reshape(priors, (sizes_of(priors)[0], sizes_of(priors)[1], anchors, 4))
    corners = b.select(stored, 1, 0)
    if not node.flag("normalized"):
        size = [float(node.integer(name, 1)) for name in ("input_width", "input_height")]
        corners = b.divide(corners, b.constant(np.array([*size, *size], np.float32), FLOAT32))
    if not node.flag("variance_encoded_in_target"):
        codes = b.multiply(codes, b.select(stored, 1, 1))
    kind = node.text("code_type", "caffe.priorboxparameter.corner")
    if kind.endswith("corner"):
        result = b.add(corners, codes)
    elif kind.endswith("center_size"):
        low, high = b.slice_axis(corners, 2, 0, 2), b.slice_axis(corners, 2, 2, 4)
        extent = b.subtract(high, low)
        center = b.add(b.multiply(b.add(low, high), 0.5), b.multiply(b.slice_axis(codes, 2, 0, 2), extent))
        half = b.multiply(b.multiply(b.call("exp", b.slice_axis(codes, 2, 2, 4)), extent), 0.5)
        result = b.concatenate([b.subtract(center, half), b.add(center, half)], 2)
    else:
        raise UnsupportedError(f"DetectionOutput of boxes by {kind!r}")
    return b.call("clip", result, minimum=0.0, maximum=1.0) if node.flag("clip_before_nms") else result


def _listed(
    node: NodeContext, boxes: GraphExpr, scores: GraphExpr, rows: GraphExpr, limit: int, total: int
) -> GraphExpr:
    """Rows (image, class, box) as detections; the image of the row behind the last one is -1."""
    b = node.builder
    if limit > 0:
        image = b.reshape(b.slice_axis(rows, 1, 0, 1), sizes_of(rows)[:1])
        shown = best_of_each(b, image, node.onnx("GatherND", scores, rows), limit)
        rows = node.onnx("Compress", rows, shown, axis=0)
    kept = sizes_of(rows)[0]
    value = b.reshape(node.onnx("GatherND", scores, rows), (kept, 1))
    pairs = b.concatenate([b.slice_axis(rows, 1, 0, 1), b.slice_axis(rows, 1, 2, 3)], 1)
    corners = node.onnx("GatherND", boxes, pairs)
    if node.flag("clip_after_nms"):
        corners = b.call("clip", corners, minimum=0.0, maximum=1.0)
    label = b.cast(b.slice_axis(rows, 1, 1, 2), FLOAT32)
    if node.flag("decrease_label_id"):
        label = b.subtract(label, 1.0)
    found = b.concatenate([b.cast(b.slice_axis(rows, 1, 0, 1), FLOAT32), label, value, corners], 1)
    marker = b.constant(np.array([[-1, 0, 0, 0, 0, 0, 0]], np.float32), FLOAT32)
    padded = b.call("pad", b.concatenate([found, marker], 0), before=(0, 0), after=(total, 0))
    return b.reshape(b.slice_axis(padded, 0, 0, total), (1, 1, total, 7))
