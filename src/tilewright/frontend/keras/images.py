"""Images of another size: by the nearest element, by straight lines, cubics or windowed sines between elements.

Centres of elements are half a step from their borders, as TensorFlow and JAX have it. What lies outside an image counts
for nothing: weights are scaled to sum up to 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import LARGEST_MADE, dtype_of, sizes_of
from tilewright.frontend.core.resampling import linear_at, number, plain, take_at, weighted_taps
from tilewright.frontend.keras.values import KerasBuilder
from tilewright.graph.ir.dimensions import Size, same
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UnsupportedError, UserError

_RADIUS = {"bilinear": 1.0, "bicubic": 2.0, "lanczos3": 3.0, "lanczos5": 5.0}


def resized(
    b: KerasBuilder,
    data: GraphExpr,
    sizes: Sequence[Size],
    how: str,
    channels_first: bool,
    antialias: bool = False,
) -> GraphExpr:
    """Images with rows and columns of other sizes; whole numbers are rounded, and stay in their range."""
    if how not in ("nearest", *_RADIUS):
        raise UserError(f"the interpolation {how!r} is not known", hint=f"one of nearest, {', '.join(_RADIUS)}")
    rank = len(sizes_of(data))
    first = rank - 2 if channels_first else rank - 3
    result = data
    if how != "nearest" and dtype_of(data) is not FLOAT32:
        result = b.cast(data, FLOAT32)
    for place, new in enumerate(sizes):
        old = sizes_of(data)[first + place]
        if not same(old, new):
            result = _along(b, result, first + place, old, new, how, antialias)
    kind = dtype_of(data)
    if not kind.is_float and dtype_of(result) is not kind:
        result = b.call("round", result)
        result = b.call("clip", result, minimum=float(kind.min_value()), maximum=float(kind.max_value()))
    return b.cast(result, kind)


def _along(b: KerasBuilder, data: GraphExpr, axis: int, old: Size, new: Size, how: str, antialias: bool) -> GraphExpr:
    if isinstance(old, int) and isinstance(new, int):
        if not 0 < new <= LARGEST_MADE or not 0 < old:
            raise UserError(f"an image of {old} elements cannot become one of {new}")
        if how == "nearest":
            places = np.floor((np.arange(new) + 0.5) * (old / new)).astype(np.int64)
            return b.call("take", data, b.constant(np.minimum(places, old - 1), INT64), axis=axis)
        return weighted_taps(b, data, axis, *_taps(old, new, how, antialias))
    if how not in ("nearest", "bilinear") or antialias:
        raise UnsupportedError(
            f"{how} interpolation of images of open sizes", hint="give the shapes of inputs: shapes={...}"
        )
    order = b.add(b.cast(b.arange(new), FLOAT32), plain(b, 0.5))
    places = b.multiply(order, b.divide(number(b, old), number(b, new)))
    if how == "nearest":
        return take_at(b, data, axis, b.call("floor", places))
    return linear_at(b, data, axis, b.subtract(places, plain(b, 0.5)))


def _taps(old: int, new: int, how: str, antialias: bool) -> tuple[Array, Array]:
    """The elements that each new one is made of, and their weights."""
    scale = old / new
    stretch = max(scale, 1.0) if antialias else 1.0
    reach = _RADIUS[how] * stretch
    centres = (np.arange(new) + 0.5) * scale - 0.5
    count = int(np.ceil(reach)) * 2 + 1
    if count * new > LARGEST_MADE:
        raise UnsupportedError(f"resampling {old} elements to {new}")
    taps = np.floor(centres - reach).astype(np.int64)[:, None] + np.arange(count + 1)
    weights = _kernel(how, np.abs(taps - centres[:, None]) / stretch)
    weights = np.where((taps >= 0) & (taps < old), weights, 0.0)
    weights = weights / weights.sum(axis=1, keepdims=True)
    used = np.flatnonzero((weights != 0).any(axis=0))
    return np.clip(taps[:, used], 0, old - 1), weights[:, used].astype(np.float32)


def _kernel(how: str, x: Array) -> Array:
    """The weight of an element so far away."""
    if how == "bilinear":
        return np.asarray(np.maximum(1 - x, 0))
    if how == "bicubic":
        near = ((1.5 * x - 2.5) * x) * x + 1
        far = ((-0.5 * x + 2.5) * x - 4) * x + 2
        return np.asarray(np.where(x < 1, near, np.where(x < 2, far, 0)))
    radius = _RADIUS[how]
    return np.asarray(np.where(x < radius, np.sinc(x) * np.sinc(x / radius), 0))
