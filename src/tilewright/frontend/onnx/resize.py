"""Converters of resampling: every axis is resampled on its own by a constant table of taps and weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, shape_of, sizes_of
from tilewright.frontend.core.resampling import number, plain, scaled_size
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.frontend.onnx.resize_symbolic import Rule, resample_axis
from tilewright.graph.ir.dimensions import Size, Sizes, same
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.graph.ops.common import sizes_text
from tilewright.ir.dtype import FLOAT32, FLOAT64, DataType
from tilewright.support.errors import UnsupportedError, UserError

_LARGEST_AXIS = 1 << 22
"""The longest axis that is resampled to."""


@converter("Upsample")
def upsample(node: NodeContext) -> GraphExpr:
    """The old form: integer-like scales, coordinates without an offset."""
    data = node.input(0)
    scales = node.floats("scales") if node.has_attribute("scales") else tuple(node.constant(1, "scales").ravel())
    mode = node.text("mode", "nearest")
    rule = Rule("nearest" if mode == "nearest" else "linear", "asymmetric", "floor", -0.75, False, False, 0.0)
    return _resample(node, data, _sizes(node, data, scales), [float(item) for item in scales], rule, {})


@converter("Resize", since=10, until=10)
def resize_by_scales(node: NodeContext) -> GraphExpr:
    """Scales as the second input."""
    data = node.input(0)
    scales = tuple(float(item) for item in node.constant(1, "scales").ravel())
    mode = node.text("mode", "nearest")
    rule = Rule("nearest" if mode == "nearest" else "linear", "asymmetric", "floor", -0.75, False, False, 0.0)
    return _resample(node, data, _sizes(node, data, scales), list(scales), rule, {})


@converter("Resize", since=11)
def resize(node: NodeContext) -> GraphExpr:
    """Scales or sizes as inputs, for all axes or some."""
    data = node.input(0)
    dims = sizes_of(data)
    rank = len(dims)
    axes = node.axes(node.ints("axes", tuple(range(rank))), rank)
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    rule = Rule(
        mode=node.text("mode", "nearest"),
        transformation=node.text("coordinate_transformation_mode", "half_pixel"),
        nearest=node.text("nearest_mode", "round_prefer_floor"),
        cubic=node.number("cubic_coeff_a", -0.75),
        exclude_outside=node.flag("exclude_outside"),
        antialias=node.flag("antialias"),
        extrapolation=node.number("extrapolation_value", 0.0),
    )
    if node.has_input(3) and shape_of(node.input(3)) != (0,):
        scales, sizes = _by_sizes(node, dims, axes, policy)
    elif node.has_input(2) and shape_of(node.input(2)) != (0,):
        scales, sizes = _by_scales(node, dims, axes)
    else:
        raise UserError("Resize needs scales or sizes")
    regions: dict[int, tuple[float, float]] = {}
    if rule.transformation == "tf_crop_and_resize":
        region = [float(item) for item in node.constant(1, "roi").ravel()]
        if len(region) != 2 * len(axes):
            raise UserError(f"roi must have {2 * len(axes)} entries, it has {len(region)}")
        for index, axis in enumerate(axes):
            regions[axis] = (region[index], region[index + len(axes)])
    return _resample(node, data, sizes, scales, rule, regions)


Scale = float | GraphExpr | None
"""How much an axis is stretched: known, computed, or the ratio of sizes that vary."""


def _check_count(values: Sequence[object], axes: tuple[int, ...], what: str) -> None:
    if len(values) != len(axes):
        raise UserError(f"{what} must have one entry for each of {len(axes)} axes, it has {len(values)}")


def _by_scales(node: NodeContext, dims: Sizes, axes: tuple[int, ...]) -> tuple[list[Scale], list[Size]]:
    """The scale and the size of each axis, by scales that may be data."""
    scales: list[Scale] = [1.0] * len(dims)
    sizes = list(dims)
    given = node.items(2, "scales")
    _check_count(given, axes, "scales")
    for axis, scale in zip(axes, given, strict=True):
        assert isinstance(scale, (float, GraphExpr))
        scales[axis], sizes[axis] = scale, _scaled(node, dims[axis], scale, axis)
    return scales, sizes


def _by_sizes(node: NodeContext, dims: Sizes, axes: tuple[int, ...], policy: str) -> tuple[list[Scale], list[Size]]:
    """The scale and the size of each axis, by sizes that may be data."""
    scales: list[Scale] = [1.0] * len(dims)
    sizes = list(dims)
    items = node.items(3, "sizes")
    _check_count(items, axes, "sizes")
    wanted: list[Size] = []
    for axis, item in zip(axes, items, strict=True):
        assert not isinstance(item, float)
        wanted.append(_computed(node, item, axis) if isinstance(item, GraphExpr) else item)
    ratios = [_ratio(dims[axis], size) for axis, size in zip(axes, wanted, strict=True)]
    if policy == "stretch":
        for axis, size, ratio in zip(axes, wanted, ratios, strict=True):
            scales[axis], sizes[axis] = ratio, size
        return scales, sizes
    if policy not in ("not_larger", "not_smaller"):
        raise UserError(f"unknown keep_aspect_ratio_policy {policy!r}")
    known = [ratio for ratio in ratios if ratio is not None]
    choose, name = (min, "minimum") if policy == "not_larger" else (max, "maximum")
    if len(known) == len(ratios):
        ratio = choose(known)
        for axis in axes:
            dim = dims[axis]
            assert isinstance(dim, int)
            scales[axis], sizes[axis] = ratio, math.floor(dim * ratio + 0.5)
        return scales, sizes
    parts = [
        node.call("divide", number(node.builder, size), number(node.builder, dims[axis]))
        for axis, size in zip(axes, wanted, strict=True)
    ]
    common = functools.reduce(lambda a, b: node.call(name, a, b), parts)
    for axis in axes:
        length = node.call("multiply", number(node.builder, dims[axis]), common)
        rounded = node.call("floor", node.call("add", length, plain(node.builder, 0.5)))
        scales[axis], sizes[axis] = common, _computed(node, rounded, axis)
    return scales, sizes


def _computed(node: NodeContext, value: GraphExpr, axis: int) -> Size:
    """A symbol for a size that is data: the length of a range so long."""
    builder, symbol = node.builder, node.symbol(str(axis))
    zero, one = builder.constant(0, "int64"), builder.constant(1, "int64")
    node.call("shape.range", zero, builder.cast(value, "int64"), one, dims=(symbol,))
    return symbol


def _ratio(dim: Size, size: Size) -> float | None:
    """How much an axis is stretched; None if only a run knows."""
    if same(dim, size):
        return 1.0
    if not isinstance(dim, int) or not isinstance(size, int):
        return None
    return size / dim if dim else 1.0


def _sizes(node: NodeContext, data: GraphExpr, scales: Sequence[float]) -> list[Size]:
    if len(scales) != rank_of(data):
        raise UserError(f"{len(scales)} scales do not fit data of shape {sizes_text(sizes_of(data))}")
    pairs = zip(sizes_of(data), scales, strict=True)
    return [_scaled(node, dim, float(scale), axis) for axis, (dim, scale) in enumerate(pairs)]


def _scaled(node: NodeContext, dim: Size, scale: float | GraphExpr, axis: int) -> Size:
    """A size times a scale, rounded down, as floats do it (10 times 0.7 is 7): by a fraction where one agrees."""
    if isinstance(scale, float):
        if not np.isfinite(scale) or scale <= 0:
            raise UserError(f"a scale must be positive, it is {scale}")
        if isinstance(dim, int):
            return int(np.floor(np.float32(dim) * np.float32(scale)))
        found = scaled_size(dim, float(np.float32(scale)), "float32")
        if found is not None:
            return found
        scale = plain(node.builder, scale)
    stretched = node.call("multiply", number(node.builder, dim), scale)
    return _computed(node, node.call("floor", stretched), axis)


def _resample(
    node: NodeContext,
    data: GraphExpr,
    sizes: Sequence[Size],
    scales: Sequence[Scale],
    rule: Rule,
    regions: dict[int, tuple[float, float]],
) -> GraphExpr:
    if rule.mode not in ("nearest", "linear", "cubic"):
        raise UserError(f"unknown mode {rule.mode!r} of Resize", hint="one of nearest, linear, cubic")
    dims = sizes_of(data)
    axes = [n for n, dim in enumerate(dims) if not (same(sizes[n], dim) and scales[n] == 1.0) or n in regions]
    if not axes:
        return data
    result = data if rule.mode == "nearest" else node.builder.cast(data, _working_type(dtype_of(data)))
    outside: list[tuple[int, Array]] = []
    for axis in axes:
        dim, size, scale = dims[axis], sizes[axis], scales[axis]
        if not isinstance(size, int) or not isinstance(dim, int) or not isinstance(scale, float):
            if rule.antialias or regions:
                raise UnsupportedError(f"Resize with antialias or roi of data of shape {sizes_text(sizes_of(data))}")
            result = resample_axis(node, result, axis, size, scale, rule)
            continue
        if not 0 <= size <= _LARGEST_AXIS or (dim == 0 and size):
            raise UserError(f"cannot resize dimension {axis} from {dim} to {size}")
        places, weights, beyond = _taps(rule, dim, size, scale, regions.get(axis))
        result = _along(node, result, axis, places, weights)
        if beyond.any():
            outside.append((axis, beyond))
    if outside and rule.transformation == "tf_crop_and_resize":
        value = node.builder.constant_like(rule.extrapolation, result)
        for axis, beyond in outside:
            shape = [-1 if at == axis else 1 for at in range(rank_of(result))]
            result = node.call("where", node.builder.constant(beyond.reshape(shape), "bool"), value, result)
    return _restored(node, result, dtype_of(data))


def _working_type(dtype: DataType) -> DataType:
    """The type in which weighted sums are made, over all axes: a result is rounded once."""
    if dtype.is_float:
        return dtype if dtype.bits >= 32 else FLOAT32
    return FLOAT32 if dtype.bits <= 16 else FLOAT64


def _restored(node: NodeContext, value: GraphExpr, dtype: DataType) -> GraphExpr:
    """Weighted sums as the type of the data: integers are rounded to the nearest (halves to even), and saturate."""
    working = dtype_of(value)
    if working is dtype or dtype.is_float:
        return node.builder.cast(value, dtype)
    low, high = dtype.min_value(), dtype.max_value()
    # The largest integers of 64 bits are no floats: the nearest float below stands for them.
    limit = float(high) if int(float(high)) <= high else math.nextafter(float(high), 0.0)
    rounded = node.call("round", value)
    return node.builder.cast(node.call("clip", rounded, minimum=float(low), maximum=limit), dtype)


def _along(node: NodeContext, data: GraphExpr, axis: int, places: Array, weights: Array) -> GraphExpr:
    """The weighted sum of taps along an axis; one tap of weight 1 is a mere choice."""
    builder = node.builder
    if places.shape[1] == 1 and (weights == 1).all():
        return node.call("take", data, builder.constant(places[:, 0], "int64"), axis=axis)
    shape = [-1 if at == axis else 1 for at in range(rank_of(data))]
    total: GraphExpr | None = None
    for tap in range(places.shape[1]):
        chosen = node.call("take", data, builder.constant(places[:, tap], "int64"), axis=axis)
        factor = builder.constant(weights[:, tap].reshape(shape), dtype_of(data))
        part = node.call("multiply", chosen, factor)
        total = part if total is None else node.call("add", total, part)
    assert total is not None
    return total


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


def _taps(
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
