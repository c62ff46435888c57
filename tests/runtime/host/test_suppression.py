"""Suppression of boxes against a plain loop: many blocks, many classes, ties, limits, boxes without an extent."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.runtime.host import host_function


def suppress(boxes: np.ndarray, scores: np.ndarray, *rest: np.ndarray, centered: bool = False) -> list[list[int]]:
    (found,) = host_function("host.non_max_suppression")([boxes, scores, *rest], {"center_point_box": centered})
    assert isinstance(found, np.ndarray) and found.dtype == np.int64
    return found.tolist()


def plain(boxes: np.ndarray, scores: np.ndarray, most: int, overlap: float, least: float) -> list[list[int]]:
    """One box after the other, each against all that were kept."""

    def share(a: np.ndarray, b: np.ndarray) -> np.float32:
        low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
        if (high <= low).any():
            return np.float32(0)
        common = np.prod(high - low)
        return common / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common)

    rows = []
    for image, kind in np.ndindex(*scores.shape[:2]):
        line, kept = scores[image, kind], []
        for box in sorted(np.flatnonzero(line > np.float32(least)).tolist(), key=lambda n: (-line[n], n)):
            if len(kept) < most and all(share(boxes[image, n], boxes[image, box]) <= overlap for n in kept):
                kept.append(box)
        rows += [[image, kind, box] for box in kept]
    return rows


@pytest.mark.parametrize("most", [1, 5, 1000])
@pytest.mark.parametrize("least", [-1.0, 0.6, 2.0])
def test_blocks_and_classes(most: int, least: float) -> None:
    random = np.random.default_rng(most)
    low = random.uniform(0, 1, (2, 150, 2))
    boxes = np.concatenate([low, low + random.uniform(0, 0.4, (2, 150, 2))], axis=2).astype(np.float32)
    scores = (random.integers(0, 40, (2, 7, 150)) / 40).astype(np.float32)
    limits = [np.array([most]), np.array([0.3], np.float32), np.array([least], np.float32)]
    assert suppress(boxes, scores, *limits) == plain(boxes, scores, most, float(limits[1][0]), least)


def test_boxes_of_no_extent_cover_nothing() -> None:
    boxes = np.array([[[0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]]], np.float32)
    scores = np.array([[[1, 2, 3, 4]]], np.float32)
    limits = [np.array([4]), np.array([0.0], np.float32)]
    # Corners may come in any order: the third box is the fourth.
    assert suppress(boxes, scores, *limits) == [[0, 0, 3], [0, 0, 1], [0, 0, 0]]
    negative = np.array([[[5, 5, -2, -2], [5, 5, 2, 2]]], np.float32)
    assert suppress(negative, scores[..., :2], *limits, centered=True) == [[0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_nothing_to_choose_from(shape: tuple[int, int, int]) -> None:
    images, classes, count = shape
    boxes, scores = np.zeros((images, count, 4), np.float32), np.zeros((images, classes, count), np.float32)
    assert suppress(boxes, scores, np.array([3]), np.array([0.5], np.float32)) == []
