"""Converters of operators on images: resizing, crops, colours, and what detectors end with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.images import Places, bilinear, image_size, nearest
from tilewright.frontend.core.resampling import cubic_at, number, plain, weighted_taps
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.registry import converter
from tilewright.graph.ir.dimensions import Size, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32, INT32, INT64
from tilewright.support.errors import UnsupportedError

_CUBIC_STEPS = 1 << 10
"""Steps of the table of cubic weights."""


def _mapping(node: NodeContext) -> Places:
    return Places(node.flag("align_corners"), node.flag("half_pixel_centers"))


@converter("ResizeBilinear")
def resize_bilinear(node: NodeContext) -> GraphExpr:
    """Values between four neighbours, in float32."""
    return bilinear(node, image_size(node), _mapping(node))


@converter("ResizeNearestNeighbor")
def resize_nearest(node: NodeContext) -> GraphExpr:
    """The nearest element."""
    return nearest(node, _mapping(node))


@converter("ResizeBicubic")
def resize_bicubic(node: NodeContext) -> GraphExpr:
    """Values of the cubic convolution; with half pixels, what lies outside is left out."""
    b, data, mapping = node.builder, node.builder.cast(node.input(0), FLOAT32), _mapping(node)
    for axis, new in enumerate(image_size(node), 1):
        old = sizes_of(data)[axis]
        if isinstance(old, int) and isinstance(new, int):
            data = weighted_taps(b, data, axis, *_cubic_taps(mapping, old, new))
            continue
        places = _places(node, old, new, mapping)
        factor = -0.5 if mapping.half_pixel_centers else -0.75
        data = cubic_at(b, data, axis, places, factor, exclude_outside=mapping.half_pixel_centers)
    return data


def _cubic_taps(mapping: Places, old: int, new: int) -> tuple[Array, Array]:
    """The four neighbours of each element, and their weights, which TensorFlow keeps in a table of 1024 steps."""
    keys, half = mapping.half_pixel_centers, np.float32(0.5 if mapping.half_pixel_centers else 0)
    places = (np.arange(new, dtype=np.float32) + half) * mapping.scale(old, new) - half
    low = np.floor(places)
    offset = np.rint((places - low) * np.float32(_CUBIC_STEPS)).astype(np.int64)
    a, x = -0.5 if keys else -0.75, np.arange(_CUBIC_STEPS + 1) / _CUBIC_STEPS
    near = (((a + 2) * x - (a + 3)) * x * x + 1).astype(np.float32)
    far = (((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a).astype(np.float32)
    back = _CUBIC_STEPS - offset
    weights = np.stack([far[offset], near[offset], near[back], far[back]], axis=1)
    taps = low.astype(np.int64)[:, None] + np.arange(-1, 3)
    kept = np.clip(taps, 0, old - 1)
    if keys:
        weights = np.where(kept == taps, weights, np.float32(0))
        weights = weights / weights.sum(1, keepdims=True, dtype=np.float32)
    return kept, weights


def _places(node: NodeContext, old: Size, new: Size, mapping: Places) -> GraphExpr:
    """Where elements of the result lie in the data."""
    b = node.builder
    numbers = b.cast(b.arange(new), FLOAT32)
    if isinstance(old, int) and isinstance(new, int):
        scale: GraphExpr = plain(b, float(mapping.scale(old, new)))
    else:
        scale = b.divide(number(b, old), number(b, new))
        if mapping.align_corners:
            raise UnsupportedError(f"{node.operator} with aligned corners of open sizes")
    if mapping.half_pixel_centers:
        return b.subtract(b.multiply(b.add(numbers, 0.5), scale), 0.5)
    return b.multiply(numbers, scale)


@converter("ResizeArea")
def resize_area(node: NodeContext) -> GraphExpr:
    """Means over the area that each element of the result covers: a product with a matrix along each axis."""
    b, data = node.builder, node.builder.cast(node.input(0), FLOAT32)
    for axis, new in enumerate(image_size(node), 1):
        old = sizes_of(data)[axis]
        if not isinstance(old, int) or not isinstance(new, int):
            raise UnsupportedError("ResizeArea of open sizes", hint="give the shapes of inputs: shapes={...}")
        scale = np.float32(old - 1) / np.float32(new - 1) if node.flag("align_corners") and new > 1 else old / new
        first = np.arange(new)[:, None] * scale
        cover = np.minimum(first + scale, np.arange(old) + 1) - np.maximum(first, np.arange(old))
        weights = np.maximum(cover, 0)
        table = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
        order = [at for at in range(4) if at != axis] + [axis]
        moved = node.call("matmul", b.transpose(data, order), b.constant(table.T.copy(), FLOAT32))
        data = b.transpose(moved, [order.index(at) for at in range(4)])
    return data


@converter("CropAndResize")
def crop_and_resize(node: NodeContext) -> GraphExpr:
    """Parts of images, by boxes that are data, resized between four neighbours; outside is one value."""
    b, images, boxes, numbers = node.builder, node.input(0), node.input(1), node.input(2)
    height, width = node.constant_ints(3, "the size")
    count = sizes_of(boxes)[0]
    _, rows, columns, channels = sizes_of(images)
    method = node.text("method", "bilinear")
    chosen = node.call("take", b.cast(images, FLOAT32), b.cast(numbers, INT64), axis=0)

    def places(at: int, size: Size, new: int) -> GraphExpr:
        """Coordinates (boxes, new) along one axis."""
        low, high = (b.slice_axis(boxes, 1, at + step, at + step + 1) for step in (0, 2))
        last = b.subtract(number(b, size), 1.0)
        steps = b.cast(b.arange(new), FLOAT32)
        if new == 1:
            return b.multiply(b.multiply(b.add(low, high), 0.5), last)
        scale = b.divide(b.multiply(b.subtract(high, low), last), float(new - 1))
        return b.add(b.multiply(low, last), b.multiply(steps, scale))

    y, x = places(0, rows, height), places(1, columns, width)
    result = _sampled(node, chosen, (y, x), (rows, columns), method)
    here = b.expand_dims(_within(node, y, rows), (2,)), b.expand_dims(_within(node, x, columns), (1,))
    inside = node.call("logical_and", *here)
    shape = (count, height, width, 1)
    outside = b.constant(node.number("extrapolation_value"), FLOAT32)
    return node.call("where", b.reshape(inside, shape), b.reshape(result, (count, height, width, channels)), outside)


def _within(node: NodeContext, places: GraphExpr, size: Size) -> GraphExpr:
    b = node.builder
    last = b.subtract(number(b, size), 1.0)
    return node.call("logical_and", b.compare("greater_equal", places, 0), node.call("less_equal", places, last))


def _sampled(
    node: NodeContext, images: GraphExpr, places: tuple[GraphExpr, GraphExpr], sizes: tuple[Size, Size], method: str
) -> GraphExpr:
    """Values at a grid of coordinates for each image."""
    b = node.builder
    if method == "nearest":
        y, x = (node.call("floor", b.add(item, 0.5)) for item in places)
        return _picked(node, images, y, x, sizes)
    lows = [node.call("floor", item) for item in places]
    highs = [node.call("ceil", item) for item in places]
    beyond = [b.subtract(item, low) for item, low in zip(places, lows, strict=True)]
    down = b.expand_dims(b.expand_dims(beyond[0], (2,)), (3,))
    across = b.expand_dims(b.expand_dims(beyond[1], (1,)), (3,))
    rows: list[GraphExpr] = []
    for y in (lows[0], highs[0]):
        left, right = (_picked(node, images, y, x, sizes) for x in (lows[1], highs[1]))
        rows.append(b.add(left, b.multiply(b.subtract(right, left), across)))
    return b.add(rows[0], b.multiply(b.subtract(rows[1], rows[0]), down))


def _picked(node: NodeContext, images: GraphExpr, y: GraphExpr, x: GraphExpr, sizes: tuple[Size, Size]) -> GraphExpr:
    """Pixels at rows y (images, height) and columns x (images, width) of each image."""
    b = node.builder
    count, rows, columns, channels = sizes_of(images)
    kept = []
    for item, size in ((y, sizes[0]), (x, sizes[1])):
        last = b.subtract(number(b, size), 1.0)
        kept.append(b.cast(node.call("maximum", node.call("minimum", item, last), plain(b, 0.0)), INT64))
    width = b.size(columns)
    flat = b.reshape(images, (product((count, rows, columns)), channels))
    places = b.add(b.multiply(b.expand_dims(kept[0], (2,)), width), b.expand_dims(kept[1], (1,)))
    starts = b.reshape(b.multiply(b.arange(count), b.size(product((rows, columns)))), (count, 1, 1))
    return node.call("take", flat, b.add(places, starts), axis=0, mode="inside")


@converter("RGBToHSV", "HSVToRGB")
def colours(node: NodeContext) -> GraphExpr:
    """Between red, green, blue and hue, saturation, value."""
    b, data = node.builder, node.input(0)
    axis = rank_of(data) - 1
    parts = [b.slice_axis(data, axis, at, at + 1) for at in range(3)]
    if node.operator == "HSVToRGB":
        hue, saturation, value = parts
        turn = b.multiply(hue, 6.0)
        results = []
        for centre in (3.0, 2.0, 4.0):
            away = b.subtract(node.call("abs", b.subtract(turn, centre)), 1.0)
            level = away if centre == 3.0 else b.subtract(1.0, away)
            kept = node.call("clip", level, minimum=0.0, maximum=1.0)
            results.append(b.multiply(b.add(b.multiply(b.subtract(kept, 1.0), saturation), 1.0), value))
        return b.concatenate(results, axis)
    red, green, blue = parts
    value = node.call("max", data, axes=(axis,), keepdims=True)
    spread = b.subtract(value, node.call("min", data, axes=(axis,), keepdims=True))
    is_grey = b.compare("equal", spread, 0)
    scale = b.divide(1 / 6, b.where(is_grey, b.constant_like(1, spread), spread))
    by_red = b.multiply(b.subtract(green, blue), scale)
    by_green = b.add(b.multiply(b.subtract(blue, red), scale), 2 / 6)
    by_blue = b.add(b.multiply(b.subtract(red, green), scale), 4 / 6)
    is_red, is_green = node.call("equal", red, value), node.call("equal", green, value)
    hue = b.where(is_red, by_red, b.where(is_green, by_green, by_blue))
    hue = b.where(b.compare("less", hue, 0), b.add(hue, 1.0), hue)
    hue = b.where(is_grey, b.constant_like(0, hue), hue)
    safe = b.where(b.compare("equal", value, 0), b.constant_like(1, value), value)
    saturation = b.where(b.compare("greater", value, 0), b.divide(spread, safe), b.constant_like(0, value))
    return b.concatenate([hue, saturation, value], axis)


@converter("AdjustContrastv2")
def adjust_contrast(node: NodeContext) -> GraphExpr:
    """The distance of each pixel from the mean of its channel, times a factor."""
    b, data = node.builder, node.input(0)
    rank = rank_of(data)
    mean = node.call("mean", data, axes=(rank - 3, rank - 2), keepdims=True)
    return b.add(b.multiply(b.subtract(data, mean), b.cast(node.input(1), dtype_of(data))), mean)


_SUPPRESSIONS = ("NonMaxSuppression", "NonMaxSuppressionV2", "NonMaxSuppressionV3")


@converter(*_SUPPRESSIONS)
def non_max_suppression(node: NodeContext) -> GraphExpr:
    """The numbers of boxes by falling score without those that overlap one taken before."""
    return node.builder.cast(_kept(node), INT32)


def _kept(node: NodeContext) -> GraphExpr:
    """The numbers of the boxes that are kept, by falling score."""
    b, boxes, scores = node.builder, node.input(0), node.input(1)
    count = sizes_of(boxes)[0]
    overlap = (
        b.constant(node.number("iou_threshold", 0.5), FLOAT32)
        if node.operator == "NonMaxSuppression"
        else b.reshape(b.cast(node.input(3), FLOAT32), ())
    )
    least = b.constant(-np.inf, FLOAT32)
    if len(node.values) > 4:
        least = b.reshape(b.cast(node.input(4), FLOAT32), ())  # type: ignore[assignment]
    rows = node.call(
        "host.non_max_suppression",
        b.reshape(boxes, (1, count, 4)),
        b.reshape(scores, (1, 1, count)),
        b.reshape(b.cast(node.input(2), INT64), ()),
        overlap,
        least,
        dims=(node.symbol("kept"),),
    )
    return b.reshape(b.slice_axis(rows, 1, 2, 3), sizes_of(rows)[:1])


@converter("NonMaxSuppressionV4", outputs=("selected_indices", "valid_outputs"))
def padded_suppression(node: NodeContext) -> Sequence[GraphExpr]:
    """The same, filled up with zeros if it is asked for, and how many there are."""
    b, kept = node.builder, _kept(node)
    count = b.cast(b.reshape(b.shape_tensor(sizes_of(kept)), ()), INT32)
    if node.flag("pad_to_max_output_size"):
        most = node.constant_int(2, "the number of boxes")
        kept = b.slice_axis(node.call("pad", kept, before=(0,), after=(most,)), 0, 0, most)
    return [b.cast(kept, INT32), count]


@converter("NonMaxSuppressionV5", outputs=("selected_indices", "selected_scores", "valid_outputs"))
def soft_suppression(node: NodeContext) -> Sequence[GraphExpr]:
    """With scores; those that lower scores softly are refused."""
    if float(node.constant(5, "sigma").item()):
        raise UnsupportedError(f"{node.operator} with a sigma above 0, which lowers scores softly")
    b, kept = node.builder, _kept(node)
    count = b.cast(b.reshape(b.shape_tensor(sizes_of(kept)), ()), INT32)
    scores = node.call("take", node.input(1), kept, axis=0, mode="inside")
    if node.flag("pad_to_max_output_size"):
        most = node.constant_int(2, "the number of boxes")
        kept, scores = (
            b.slice_axis(node.call("pad", item, before=(0,), after=(most,)), 0, 0, most) for item in (kept, scores)
        )
    return [b.cast(kept, INT32), scores, count]


@converter("CombinedNonMaxSuppression", outputs=("nmsed_boxes", "nmsed_scores", "nmsed_classes", "valid_detections"))
def combined_suppression(node: NodeContext) -> Sequence[GraphExpr]:
    """Boxes of all classes of one image after suppression class by class, by falling score, filled up with zeros."""
    b, call = node.builder, node.call
    boxes, scores = node.input(0), node.input(1)
    batch, count, kinds, _ = sizes_of(boxes)
    classes = sizes_of(scores)[2]
    each, total = node.constant_int(2, "boxes a class"), node.constant_int(3, "boxes in all")
    if batch != 1 or kinds != 1 or not isinstance(classes, int):
        raise UnsupportedError(f"{node.operator} of several images, or of boxes for each class")
    if node.flag("pad_per_class"):
        total = min(total, each * classes)
    rows = call(
        "host.non_max_suppression",
        b.reshape(boxes, (1, count, 4)),
        b.transpose(scores, (0, 2, 1)),
        b.constant(each, INT64),
        b.reshape(node.input(4), ()),
        b.reshape(node.input(5), ()),
        dims=(node.symbol("kept"),),
    )
    found = sizes_of(rows)[0]
    kind, place = (b.reshape(b.slice_axis(rows, 1, at, at + 1), (found,)) for at in (1, 2))
    flat = b.reshape(scores, (product((count, classes)),))
    values = call("take", flat, b.add(b.multiply(place, classes), kind), axis=0, mode="inside")
    # Rows that stand for nothing come last, whatever the scores are.
    longer = call("pad", values, before=(0,), after=(total,), value=float("-inf"))
    order = call("topk", longer, axis=0, k=total)
    best, chosen = b.item(order, 0), b.item(order, 1)
    valid = call("isinf", best)
    kind, place = (call("pad", item, before=(0,), after=(total,)) for item in (kind, place))
    kind, place = (call("take", item, chosen, axis=0, mode="inside") for item in (kind, place))
    picked = call("take", b.reshape(boxes, (count, 4)), place, axis=0, mode="inside")
    if node.flag("clip_boxes", True):
        picked = call("clip", picked, minimum=0.0, maximum=1.0)
    zero = b.constant(0.0, FLOAT32)
    picked = call("where", b.reshape(valid, (total, 1)), zero, picked)
    best = call("where", valid, zero, best)
    labels = call("where", valid, zero, b.cast(kind, FLOAT32))
    amount = call("sum", b.cast(call("logical_not", valid), INT32), axes=(0,), keepdims=True)
    return [*(b.expand_dims(item, (0,)) for item in (picked, best, labels)), amount]
