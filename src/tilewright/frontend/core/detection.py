"""What single-shot detectors end with: prior boxes, boxes decoded from codes, and those that are kept of each class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import dtype_of, sizes_of
from tilewright.graph.ir.dimensions import Size, maximum, multiply, product, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.ir.expr import Var as Symbol
from tilewright.support.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of a feature map, down and across: how many, how large each is, where its middle lies, the image."""

    counts: tuple[Size, Size]
    steps: tuple[GraphExpr | float, GraphExpr | float]
    offsets: tuple[float, float]
    image: tuple[GraphExpr | float, GraphExpr | float]


def aspect_ratios(ratios: list[float], flip: bool) -> list[float]:
    """1, then each ratio that is not there yet, and its inverse."""
    found = [1.0]
    for ratio in ratios:
        if all(abs(ratio - other) >= 1e-6 for other in found):
            found += [ratio, 1 / ratio] if flip else [ratio]
    return found


def box_extents(least: list[float], most: list[float], ratios: list[float]) -> list[tuple[float, float]]:
    """Widths and heights of the boxes of a cell: for each size the square, the larger square, then other ratios."""
    extents: list[tuple[float, float]] = []
    for at, size in enumerate(least):
        extents.append((size, size))
        if most:
            larger = math.sqrt(size * most[at])
            extents.append((larger, larger))
        extents += [(size * math.sqrt(ratio), size / math.sqrt(ratio)) for ratio in ratios if abs(ratio - 1) >= 1e-6]
    return extents


def prior_boxes(b: ArithmeticBuilder, grid: Grid, extents: Sequence[tuple[float, float]]) -> GraphExpr:
    """Boxes of some extents (width, height) around the middle of each cell, as shares of the image: (boxes, 4).

    A box is left, top, right, bottom; boxes go by row, by column, by extent.
    """
    rows, columns = grid.counts
    count = len(extents)
    corners: dict[int, GraphExpr] = {}
    table = np.array(extents, np.float64).reshape(count, 2)
    for axis, at in ((0, 1), (1, 0)):  # down: top and bottom; across: left and right
        number = grid.counts[axis]
        shape: tuple[Size, ...] = (rows, 1, 1, 1) if axis == 0 else (1, columns, 1, 1)
        places = b.add(b.cast(b.arange(number), FLOAT32), grid.offsets[axis])
        middle = b.reshape(b.multiply(places, grid.steps[axis]), shape)
        half = b.constant((table[:, at] / 2).reshape(1, 1, count, 1), FLOAT32)
        for side, name in ((0, "subtract"), (2, "add")):
            corner = b.divide(b.call(name, middle, half), grid.image[axis])
            corners[side + at] = b.broadcast_to(corner, (rows, columns, count, 1))
    boxes = b.concatenate([corners[at] for at in range(4)], 3)
    return b.reshape(boxes, (product((rows, columns, count)), 4))


def decoded_boxes(
    b: ArithmeticBuilder, codes: GraphExpr, priors: GraphExpr, variances: GraphExpr | None, code: str
) -> GraphExpr:
    """Boxes (..., 4) from codes relative to prior boxes: by corners, by centre and size, or corners by size."""
    if variances is not None:
        codes = b.call("multiply", codes, variances)
    if code == "CORNER":
        return b.call("add", priors, codes)
    axis = len(sizes_of(priors)) - 1
    low, high = b.slice_axis(priors, axis, 0, 2), b.slice_axis(priors, axis, 2, 4)
    extent = b.call("subtract", high, low)
    if code == "CORNER_SIZE":
        return b.call("add", priors, b.call("multiply", codes, b.concatenate([extent, extent], axis)))
    last = len(sizes_of(codes)) - 1
    shift, growth = b.slice_axis(codes, last, 0, 2), b.slice_axis(codes, last, 2, 4)
    centre = b.add(b.multiply(shift, extent), b.multiply(b.add(low, high), 0.5))
    half = b.multiply(b.multiply(b.call("exp", growth), extent), 0.5)
    return b.concatenate([b.subtract(centre, half), b.add(centre, half)], last)


@dataclass(frozen=True, slots=True)
class Suppression:
    """How many boxes are looked at and kept, and by which scores and overlaps."""

    overlap: float
    least: float
    """Scores must be above it."""
    candidates: int
    """The most boxes of a class that are looked at; 0 or less: all."""
    kept: int
    """The most boxes of an image that are kept; 0 or less: all."""


def kept_boxes(
    b: ArithmeticBuilder, boxes: GraphExpr, scores: GraphExpr, how: Suppression, name: str
) -> tuple[GraphExpr, GraphExpr, GraphExpr]:
    """Class, score and box of what is kept of one image, by class and by falling score.

    Boxes are (boxes, 4), or (classes, boxes, 4); scores (classes, boxes). The first dimension of the results is a size
    that only a run knows.
    """
    classes, count = sizes_of(scores)
    if not isinstance(count, int) or not isinstance(classes, int):
        raise UnsupportedError(
            "detection on a feature map of open size", hint="give the sizes of the image: shapes={...}"
        )
    ranked = scores
    if 0 < how.candidates < count:
        best = b.call("topk", scores, axis=1, k=how.candidates, largest=True)
        nothing = b.filled(float("-inf"), (classes, count), dtype_of(scores))
        ranked = b.call("scatter_elements", nothing, b.item(best, 1), b.item(best, 0), axis=1)
    is_shared = len(sizes_of(boxes)) == 2
    groups = (1, classes, count) if is_shared else (classes, 1, count)
    rows = b.call(
        "host.non_max_suppression",
        b.reshape(boxes, (groups[0], count, 4)),
        b.reshape(ranked, groups),
        b.constant(count, INT64),
        b.constant(how.overlap, FLOAT32),
        b.constant(how.least, FLOAT32),
        dims=(Symbol(f"{name}_found"),),
    )
    label = b.reshape(b.slice_axis(rows, 1, 1 if is_shared else 0, 2 if is_shared else 1), sizes_of(rows)[:1])
    place = b.reshape(b.slice_axis(rows, 1, 2, 3), sizes_of(rows)[:1])
    flat = b.add(b.multiply(label, count), place)
    score = b.call("take", b.flatten(scores), flat, axis=0)
    box = b.call("take", b.reshape(boxes, (product(sizes_of(boxes)[:-1]), 4)), place if is_shared else flat, axis=0)
    if how.kept > 0:
        chosen = _best_in_order(b, score, how.kept, name)
        label, score, box = (b.call("take", value, chosen, axis=0) for value in (label, score, box))
    return label, score, box


def _best_in_order(b: ArithmeticBuilder, score: GraphExpr, most: int, name: str) -> GraphExpr:
    """The places of the best scores, so many at most, in the order in which they stand."""
    length = b.reshape(b.shape_tensor(sizes_of(score)), (1,))
    number = b.call("minimum", length, b.constant([most], INT64))
    dims = (Symbol(f"{name}_kept"),)
    best = b.call("host.topk", score, number, dims=dims, axis=0, largest=True, dtype=dtype_of(score))
    places = b.item(best, 1)
    rising = b.call("host.topk", places, number, dims=dims, axis=0, largest=False, dtype=INT64)
    return b.item(rising, 0)


def filled_rows(b: ArithmeticBuilder, rows: Sequence[GraphExpr], empty: GraphExpr) -> GraphExpr:
    """Rows one after the other, or where there are none at all the rows of `empty`."""
    found = b.concatenate([*rows], 0) if len(rows) > 1 else rows[0]
    count = sizes_of(found)[0]
    missing = multiply(sizes_of(empty)[0], maximum(subtract(1, count), 0))
    return b.slice_axis(b.concatenate([found, empty], 0), 0, 0, maximum(count, missing))
