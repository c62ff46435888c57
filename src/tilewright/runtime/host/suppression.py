"""Suppression of overlapping boxes, for all images and classes at a time.

The best boxes of every class are compared with one another a block at a time: the number of steps depends on how many
boxes a class keeps, not on how many classes there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.values import Array, Attributes, scalar, tensor
from tilewright.support.errors import UserError

_BLOCK = (16, 64)
"""The least and the most boxes of a class that are compared at a time: about twice as many as are wanted of it."""
_PAIRS = 1 << 18
"""Pairs of boxes that are compared at a time: they stay in the cache."""

Places = npt.NDArray[np.intp]
Flags = npt.NDArray[Any]


@register("host.non_max_suppression")
def non_max_suppression(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """For each image and class, boxes by falling score, without those that cover one taken before too much.

    Inputs: boxes (images, n, 4), scores (images, classes, n), the most boxes a class, the threshold of the overlap, and
    perhaps the least score (exclusive). The result has rows (image, class, box).
    """
    boxes, scores = tensor(values[0], "the boxes"), tensor(values[1], "the scores")
    if boxes.ndim != 3 or boxes.shape[2] != 4 or scores.ndim != 3 or scores.shape[::2] != boxes.shape[:2]:
        raise UserError(f"boxes of shape {boxes.shape} and scores of shape {scores.shape} do not fit")
    given = [None if len(values) <= at or values[at] is None else scalar(values[at]) for at in (2, 3, 4)]
    most, overlap, least = given
    corners = _corners(boxes, bool(attributes["center_point_box"])).reshape(-1, 4)
    images, classes, count = scores.shape
    groups, candidates = _candidates(scores, least)
    kept, lengths = _suppress(corners, groups, candidates, images * classes, int(most or 0), float(overlap or 0.0))
    group, place = np.nonzero(np.arange(kept.shape[1]) < lengths[:, np.newaxis])
    rows = [group // max(1, classes), group % max(1, classes), kept[group, place] % max(1, count)]
    return [np.stack(rows, axis=1).astype(np.int64)]


def _corners(boxes: Array, centered: bool) -> Array:
    """Boxes as (low x, low y, high x, high y)."""
    if centered:
        half = boxes[..., 2:] / 2
        return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], axis=-1)
    first, second = boxes[..., 1::-1], boxes[..., 3:1:-1]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


def _candidates(scores: Array, least: float | None) -> tuple[Places, Places]:
    """Boxes of a score above the least: group (image and class) and place among all boxes, in the order of turns."""
    classes, count = scores.shape[1:]
    flat = scores.reshape(-1)
    candidates = np.arange(flat.size) if least is None else np.flatnonzero(flat > flat.dtype.type(least))
    group = candidates // max(1, count)
    order = _falling(flat[candidates], group)
    group, candidates = group[order], candidates[order]
    return group, group // max(1, classes) * count + candidates % max(1, count)


def _falling(scores: Array, group: Places) -> Places:
    """The order by group, then by falling score; equal scores stay in the order of their boxes."""
    # Floats as whole numbers of the same order (what is no number comes last), with the group before them: one key.
    negated = -scores.astype(np.float32)
    negated[np.isnan(negated)] = np.inf
    bits = (negated + np.float32(0)).view(np.int32)
    rising = np.where(bits < 0, ~(bits & np.int32(0x7FFFFFFF)), bits)
    key = (group.astype(np.int64) << 32) + rising
    order = np.argsort(key)
    # Sorting that keeps the order of equal keys takes several times as long: only those are put in order.
    ordered = key[order]
    same = ordered[1:] == ordered[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    order[tied] = order[tied][np.lexsort((order[tied], ordered[tied]))]
    return order


def _suppress(
    corners: Array, groups: Places, candidates: Places, number: int, most: int, overlap: float
) -> tuple[Places, Places]:
    """The boxes that each group keeps, (groups, places), and how many those are."""
    starts = np.searchsorted(groups, np.arange(number + 1))
    longest = int(np.diff(starts).max(initial=0))
    # A last box without an extent stands for none: it covers nothing.
    none = len(corners)
    boxes = np.concatenate([corners, np.zeros((1, 4), corners.dtype)])
    kept = np.full((number, min(most, longest)), none, np.intp)
    lengths, place, end = np.zeros(number, np.intp), starts[:-1].copy(), starts[1:]
    block = min(max(2 * most, _BLOCK[0]), _BLOCK[1], max(1, longest))
    padded = np.concatenate([candidates, np.full(block, none, np.intp)])
    while True:
        active = np.flatnonzero((place < end) & (lengths < most))
        if not len(active):
            return kept, lengths
        known = int(lengths[active].max())
        step = max(1, _PAIRS // (block * (block + known)))
        for first in range(0, len(active), step):
            chosen = active[first : first + step]
            at = place[chosen, np.newaxis] + np.arange(block)
            alive = at < end[chosen, np.newaxis]
            block_of = np.where(alive, padded[at], none)
            _compare(boxes, kept[chosen, :known], block_of, alive, overlap)
            rank = np.cumsum(alive, axis=1)
            alive &= rank <= (most - lengths[chosen])[:, np.newaxis]
            row, column = np.nonzero(alive)
            kept[chosen[row], lengths[chosen[row]] + rank[row, column] - 1] = block_of[row, column]
            lengths[chosen] += alive.sum(axis=1)
        place[active] += block


def _compare(boxes: Array, kept: Places, block: Places, alive: Flags, overlap: float) -> None:
    """Strike out of `alive` what of each group's block covers a box kept before, or one before it in the block."""
    chosen = boxes[block]
    if kept.shape[1]:
        alive &= ~_covers(boxes[kept][:, :, np.newaxis], chosen[:, np.newaxis], overlap).any(axis=1)
    pairs = _covers(chosen[:, :, np.newaxis], chosen[:, np.newaxis], overlap)
    for place in range(block.shape[1] - 1):
        alive[:, place + 1 :] &= ~(pairs[:, place, place + 1 :] & alive[:, place : place + 1])


def _covers(first: Array, second: Array, overlap: float) -> Flags:
    """Whether boxes share more than a part of what they cover together."""
    width = np.minimum(first[..., 2], second[..., 2]) - np.maximum(first[..., 0], second[..., 0])
    height = np.minimum(first[..., 3], second[..., 3]) - np.maximum(first[..., 1], second[..., 1])
    common = np.maximum(width, 0) * np.maximum(height, 0)
    union = _area(first) + _area(second) - common
    with np.errstate(divide="ignore", invalid="ignore"):
        covered: Flags = (common > 0) & (union > 0) & (common / union > overlap)
    return covered


def _area(boxes: Array) -> Array:
    area: Array = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    return area
