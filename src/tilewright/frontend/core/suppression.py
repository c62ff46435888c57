"""Detections after suppression: the best so many of each image, shared by importers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import dtype_of, sizes_of
from tilewright.frontend.core.indexing import gather_nd
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT32, INT64


def best_of_each(b: ArithmeticBuilder, image: GraphExpr, score: GraphExpr, limit: int) -> GraphExpr:
    """Which rows are among the best so many of their image, the first of equal ones before the others."""
    return b.compare("less", place_in_image(b, image, score), limit)


def place_in_image(b: ArithmeticBuilder, image: GraphExpr, score: GraphExpr) -> GraphExpr:
    """How many rows of the same image are better, or equal and earlier."""
    (count,) = sizes_of(image)
    across, down = (1, count), (count, 1)
    same = b.call("equal", b.reshape(image, down), b.reshape(image, across))
    above = b.call("greater", b.reshape(score, across), b.reshape(score, down))
    equal = b.call("equal", b.reshape(score, across), b.reshape(score, down))
    numbers = b.arange(count)
    earlier = b.call("less", b.reshape(numbers, across), b.reshape(numbers, down))
    better = b.call("logical_or", above, b.call("logical_and", equal, earlier))
    return b.reduce("sum", b.cast(b.call("logical_and", same, better), INT64), (1,))


def hide_behind_best(b: ArithmeticBuilder, scores: GraphExpr, most: int) -> GraphExpr:
    """Scores (images, classes, boxes), of which all but the best so many of a class are minus infinity."""
    best = b.item(b.call("topk", scores, axis=2, k=most, largest=True), 0)
    least = b.slice_axis(best, 2, most - 1, most)
    return b.where(b.call("less", scores, least), b.scalar(float("-inf"), scores.tensor_type.dtype), scores)


@dataclass(frozen=True, slots=True)
class ByClass:
    """How the boxes of each class are suppressed that overlap a better one of the class."""

    overlap: float
    least: float
    """Scores must be above it."""
    candidates: int
    """The most boxes of a class that are looked at; below 0: all."""
    kept: int
    """The most boxes of an image that are kept; below 0: all."""
    background: int
    """A class that does not count; below 0: none."""
    normalized: bool
    """Whether corners are shares of an image: pixels reach one further."""


def suppressed_rows(
    node: NodeInputs, b: ArithmeticBuilder, boxes: GraphExpr, scores: GraphExpr, how: ByClass
) -> tuple[GraphExpr, GraphExpr]:
    """Rows (image, class, box) of what is kept, by image, by class and by falling score; and their scores.

    Boxes are (images, boxes, 4), scores (images, classes, boxes).
    """
    _, classes, count = sizes_of(scores)
    if how.background >= 0:
        ids = b.reshape(b.arange(classes), (1, classes, 1))
        hidden = b.scalar(-math.inf, dtype_of(scores))
        scores = b.where(b.compare("equal", ids, how.background), hidden, scores)
    if how.candidates > -1 and (not isinstance(count, int) or how.candidates < count):
        scores = hide_behind_best(b, scores, how.candidates)
    corners = boxes if how.normalized else b.add(boxes, b.constant(np.array([0, 0, 1, 1], np.float32), FLOAT32))
    rows = b.call(
        "host.non_max_suppression",
        corners,
        scores,
        b.reshape(b.shape_tensor([count]), ()),
        b.scalar(how.overlap, FLOAT32),
        b.scalar(how.least, FLOAT32),
        dims=(node.symbol("kept"),),
    )
    value = gather_nd(b, scores, rows, 0)
    if how.kept > -1:
        shown = best_of_each(b, b.select(rows, 1, 0), value, how.kept)
        rows = b.call("host.compress", rows, shown, dims=(node.symbol("count"),), axis=0)
        value = gather_nd(b, scores, rows, 0)
    return rows, value


def detections(b: ArithmeticBuilder, boxes: GraphExpr, rows: GraphExpr, value: GraphExpr) -> list[GraphExpr]:
    """Rows (image, class, box) as (class, score, corners), the number of each box, and how many an image has."""
    batch, count, _ = sizes_of(boxes)
    image, label, place = (b.select(rows, 1, at) for at in range(3))
    kept = sizes_of(rows)[0]
    number = b.add(b.multiply(image, b.reshape(b.shape_tensor([count]), ())), place)
    corners = b.call("take", b.reshape(boxes, (product((batch, count)), 4)), number, axis=0)
    parts = [b.reshape(b.cast(item, FLOAT32), (kept, 1)) for item in (label, value)]
    belongs = b.call("equal", b.reshape(image, (kept, 1)), b.reshape(b.arange(batch), (1, batch)))
    totals = b.reduce("sum", b.cast(belongs, INT32), (0,))
    return [b.concatenate([*parts, corners], 1), b.reshape(b.cast(number, INT32), (kept, 1)), totals]
