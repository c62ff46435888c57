"""Detections after suppression: the best so many of each image, shared by importers."""

from __future__ import annotations

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import sizes_of
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64


def best_of_each(b: ArithmeticBuilder, image: GraphExpr, score: GraphExpr, limit: int) -> GraphExpr:
    """Which rows are among the best so many of their image, the first of equal ones before the others."""
    (count,) = sizes_of(image)
    across, down = (1, count), (count, 1)
    same = b.call("equal", b.reshape(image, down), b.reshape(image, across))
    above = b.call("greater", b.reshape(score, across), b.reshape(score, down))
    equal = b.call("equal", b.reshape(score, across), b.reshape(score, down))
    numbers = b.arange(count)
    earlier = b.call("less", b.reshape(numbers, across), b.reshape(numbers, down))
    better = b.call("logical_or", above, b.call("logical_and", equal, earlier))
    place = b.reduce("sum", b.cast(b.call("logical_and", same, better), INT64), (1,))
    return b.compare("less", place, limit)


def hide_behind_best(b: ArithmeticBuilder, scores: GraphExpr, most: int) -> GraphExpr:
    """Scores (images, classes, boxes), of which all but the best so many of a class are minus infinity."""
    best = b.item(b.call("topk", scores, axis=2, k=most, largest=True), 0)
    least = b.slice_axis(best, 2, most - 1, most)
    return b.where(b.call("less", scores, least), b.scalar(float("-inf"), scores.tensor_type.dtype), scores)
