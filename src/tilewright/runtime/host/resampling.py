"""Tables of resampling along an axis: the places that elements of the result read, and their weights.

Importers compute them where all sizes are known; where a size, a scale or a region is data, a host function gives the
weights as a matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.values import Attributes, number, scalar, text
from tilewright.support.errors import UnsupportedError, UserError

Array = npt.NDArray[Any]
LARGEST_AXIS = 1 << 22
"""The longest axis that is resampled to."""
_LARGEST_MATRIX = 1 << 28
"""The most weights of a matrix."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How coordinates of the result map to the data, and what is read there."""

    mode: str
    transformation: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float


def _coordinates(rule: Rule, dim: int, size: int, ratio: float, region: tuple[float, float] | None) -> Array:
    """Where each element of the result lies in the data, in float32 as runtimes compute it: halves round by it."""
    x = np.arange(size, dtype=np.float32)
    scale = np.float32(ratio)
    match rule.transformation:
        case "asymmetric":
            return x / scale
        case "half_pixel":
            return (x + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (x + 0.5) / scale - 0.5 if size > 1 else np.full(size, -0.5 if dim == 0 else 0.0)
        case "align_corners":
            # By the standard the stretched size counts, which need not be whole; with sizes given it is the size.
            length = dim * ratio
            return x * (dim - 1) / (length - 1) if size > 1 else np.zeros(size)
        case "tf_half_pixel_for_nn":
            return (x + 0.5) / scale
        case "half_pixel_symmetric":
            adjustment = size / (dim * ratio)
            return dim / 2 * (1 - adjustment) + (x + 0.5) / scale - 0.5
        case "tf_crop_and_resize":
            start, end = region if region is not None else (0.0, 1.0)
            if size > 1:
                return start * (dim - 1) + x * (end - start) * (dim - 1) / (size - 1)
            return np.full(size, 0.5 * (start + end) * (dim - 1))
    raise UserError(f"unknown coordinate_transformation_mode {rule.transformation!r}")


def _nearest(rule: Rule, x: Array) -> Array:
    match rule.nearest:
        case "round_prefer_floor":
            return np.ceil(x - 0.5)
        case "round_prefer_ceil":
            return np.floor(x + 0.5)
        case "floor" | "simple":
            return np.floor(x)
        case "ceil":
            return np.ceil(x)
    raise UserError(f"unknown nearest_mode {rule.nearest!r}")


def _kernel(rule: Rule, distance: Array) -> Array:
    x = np.abs(distance)
    if rule.mode == "linear":
        return np.asarray(np.maximum(0.0, 1 - x))
    a = rule.cubic
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def taps(
    rule: Rule, dim: int, size: int, scale: float, region: tuple[float, float] | None
) -> tuple[Array, Array, Array]:
    """For each element of the result: the places it reads, their weights, and whether it lies outside the data."""
    if size == 0:
        return np.zeros((0, 1), np.int64), np.ones((0, 1)), np.zeros(0, np.bool_)
    x = _coordinates(rule, dim, size, scale, region).astype(np.float64)
    beyond = (x < 0) | (x > dim - 1)
    if rule.mode == "nearest":
        places = np.clip(_nearest(rule, x), 0, dim - 1).astype(np.int64)
        return places[:, None], np.ones((size, 1)), beyond
    stretch = min(scale, 1.0) if rule.antialias else 1.0
    radius = (1 if rule.mode == "linear" else 2) / stretch
    reach = math.ceil(radius)
    if 2 * reach > 4096:
        raise UnsupportedError(f"Resize with antialias by a scale of {scale}")
    first = np.floor(x).astype(np.int64) - (reach - 1)
    places = first[:, None] + np.arange(2 * reach)[None, :]
    weights = _kernel(rule, (places - x[:, None]) * stretch)
    if rule.exclude_outside or rule.antialias:
        # With antialias, places outside are read at the border unless they are excluded.
        if rule.exclude_outside:
            weights = np.where((places < 0) | (places >= dim), 0.0, weights)
        weights = weights / weights.sum(axis=1, keepdims=True)
    places = np.clip(places, 0, dim - 1)
    used = np.flatnonzero((weights != 0).any(axis=0))
    return places[:, used], weights[:, used], beyond


@register("host.resize_weights")
def resize_weights(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The matrix from an axis of so many elements to one of so many others, and which of these lie outside the data.

    Inputs: the two sizes, the scale, and the bounds of the region (for `tf_crop_and_resize`).
    """
    dim, size, scale, start, end = (scalar(value) for value in values)
    rule = Rule(
        text(attributes, "mode"),
        text(attributes, "transformation"),
        text(attributes, "nearest"),
        number(attributes, "cubic"),
        bool(attributes["exclude_outside"]),
        bool(attributes["antialias"]),
        0.0,
    )
    if not 0 <= size <= LARGEST_AXIS or (dim == 0 and size) or not scale > 0 or dim * size > _LARGEST_MATRIX:
        raise UserError(f"cannot resize a dimension of {dim} to {size} by a scale of {scale}")
    places, weights, beyond = taps(rule, dim, size, scale, (start, end))
    matrix = np.zeros((size, dim), np.float32)
    np.add.at(matrix, (np.arange(size)[:, None], places), weights)
    return [matrix, beyond]
