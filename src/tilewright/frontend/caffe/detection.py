"""Converters of what single-shot detectors add: prior boxes, and boxes that are kept."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.caffe.layer import Layer, converter
from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.core.detection import (
    Grid,
    Suppression,
    aspect_ratios,
    box_extents,
    decoded_boxes,
    filled_rows,
    kept_boxes,
    prior_boxes,
)
from tilewright.frontend.core.resampling import number
from tilewright.graph.ir.dimensions import multiply
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UnsupportedError, UserError

_CODES = {1: "CORNER", 2: "CENTER_SIZE", 3: "CORNER_SIZE"}


@converter("PriorBox")
def prior_box(layer: Layer) -> GraphExpr:
    """Boxes around the middle of each place, and how far codes of boxes reach: (1, 2, boxes * 4)."""
    options, data, image, b = layer.options("prior_box"), layer.input(0), layer.input(1), layer.b
    if rank_of(data) != 4 or rank_of(image) != 4:
        raise UserError(f"PriorBox of data of {rank_of(data)} dimensions and an image of {rank_of(image)}")
    ratios = [float(ratio) for ratio in options.aspect_ratio]
    least, most = [float(size) for size in options.min_size], [float(size) for size in options.max_size]
    if not least or (most and len(most) != len(least)) or min(least + most + ratios) <= 0:
        raise UserError(f"boxes of the sizes {least} to {most} and the ratios {ratios}")
    extents = box_extents(least, most, aspect_ratios(ratios, options.flip))
    sizes: list[GraphExpr | float] = []
    steps: list[GraphExpr | float] = []
    for axis, (side, step) in enumerate((("img_h", "step_h"), ("img_w", "step_w"))):
        given = getattr(options, side) or options.img_size
        sizes.append(float(given) if given else number(b, sizes_of(image)[2 + axis]))
        width = getattr(options, step) or options.step
        steps.append(float(width) if width else _share(layer, sizes[-1], number(b, sizes_of(data)[2 + axis])))
    counts = sizes_of(data)[2], sizes_of(data)[3]
    grid = Grid(counts, (steps[0], steps[1]), (options.offset, options.offset), (sizes[0], sizes[1]))
    boxes = prior_boxes(b, grid, extents)
    if options.clip:
        boxes = layer.call("clip", boxes, minimum=0.0, maximum=1.0)
    variance = [float(value) for value in options.variance] or [0.1]
    if len(variance) not in (1, 4):
        raise UserError(f"{len(variance)} variances: 1 or 4 are needed")
    count = sizes_of(boxes)[0]
    table = b.constant(np.array(variance * 4 if len(variance) == 1 else variance).reshape(1, 4), FLOAT32)
    flat = [b.reshape(value, (1, 1, multiply(count, 4))) for value in (boxes, b.broadcast_to(table, (count, 4)))]
    return b.concatenate(flat, 1)


def _share(layer: Layer, whole: GraphExpr | float, parts: GraphExpr) -> GraphExpr:
    return layer.b.divide(whole, parts)


@converter("DetectionOutput")
def detection_output(layer: Layer) -> GraphExpr:
    """Rows of image, class, score and box, by image, by class and by falling score: (1, 1, rows, 7).

    Where nothing is found there is one row of -1 for each image.
    """
    options, b = layer.options("detection_output"), layer.b
    codes, scores, priors = (layer.input(at) for at in range(3))
    classes, images, count = int(options.num_classes), size_at(codes, 0), size_at(priors, 2) // 4
    shared = 1 if options.share_location else classes
    suppression = options.nms_param
    if suppression.eta != 1:
        raise UnsupportedError("DetectionOutput with a threshold that adapts (eta)")
    if options.code_type not in _CODES or classes < 1:
        raise UserError(f"DetectionOutput of {classes} classes with the code number {options.code_type}")
    how = Suppression(
        float(suppression.nms_threshold),
        float(options.confidence_threshold) if options.HasField("confidence_threshold") else -math.inf,
        int(suppression.top_k) if suppression.HasField("top_k") else -1,
        int(options.keep_top_k),
    )
    table = b.reshape(priors, (2, count, 1, 4))
    prior = b.reshape(b.slice_axis(table, 0, 0, 1), (count, 1, 4))
    variance = None
    if not options.variance_encoded_in_target:
        variance = b.reshape(b.slice_axis(table, 0, 1, 2), (count, 1, 4))
    boxes = decoded_boxes(b, b.reshape(codes, (images, count, shared, 4)), prior, variance, _CODES[options.code_type])
    boxes = b.transpose(boxes, (0, 2, 1, 3))
    ranked = b.transpose(b.reshape(scores, (images, count, classes)), (0, 2, 1))
    labels = [at for at in range(classes) if at != options.background_label_id]
    names = b.constant(np.array(labels, np.int64), INT64)
    ranked = layer.call("take", ranked, names, axis=1)
    if shared > 1:
        boxes = layer.call("take", boxes, names, axis=1)
    rows: list[GraphExpr] = []
    for image in range(images):
        own = b.select(boxes, 0, image)
        found, score, box = kept_boxes(
            b,
            b.select(own, 0, 0) if shared == 1 else own,
            b.select(ranked, 0, image),
            how,
            f"{layer.message.name}_{image}",
        )
        kept = sizes_of(found)[0]
        label = b.cast(layer.call("take", names, found, axis=0), FLOAT32)
        columns = [b.filled(image, (kept, 1), FLOAT32), *(b.reshape(value, (kept, 1)) for value in (label, score)), box]
        rows.append(b.concatenate(columns, 1))
    nothing = np.full((images, 7), -1, np.float32)
    nothing[:, 0] = np.arange(images)
    result = filled_rows(b, rows, b.constant(nothing, FLOAT32))
    return b.reshape(result, (1, 1, sizes_of(result)[0], 7))
