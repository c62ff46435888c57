"""Converters of resampling: every axis is resampled on its own by a constant table of taps and weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, of_known_length, rank_of, sizes_of
from tilewright.frontend.core.resampling import number, plain, scaled_size, weighted_taps
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.frontend.onnx.resize_symbolic import Region, Scale, resample_axis, resample_by_matrix
from tilewright.graph.ir.dimensions import Size, Sizes, same
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.resampling import LARGEST_AXIS, Rule, taps
from tilewright.ir.dtype import BOOL, FLOAT32, FLOAT64, DataType
from tilewright.support.errors import UserError


@converter("Upsample")
def upsample(node: NodeContext) -> GraphExpr:
    """The old form: integer-like scales, coordinates without an offset."""
    data = node.input(0)
    dims, mode = sizes_of(data), node.text("mode", "nearest")
    given = node.floats("scales") if node.has_attribute("scales") else node.items(1, "scales")
    scales, sizes = _by_scales(node, dims, tuple(range(len(dims))), given)
    rule = Rule("nearest" if mode == "nearest" else "linear", "asymmetric", "floor", -0.75, False, False, 0.0)
    return _resample(node, data, sizes, scales, rule, {})


@converter("Resize", since=10, until=10)
def resize_by_scales(node: NodeContext) -> GraphExpr:
    """Scales as the second input."""
    data = node.input(0)
    dims, mode = sizes_of(data), node.text("mode", "nearest")
    scales, sizes = _by_scales(node, dims, tuple(range(len(dims))), node.items(1, "scales"))
    rule = Rule("nearest" if mode == "nearest" else "linear", "asymmetric", "floor", -0.75, False, False, 0.0)
    return _resample(node, data, sizes, scales, rule, {})


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
    if _is_given(node, 3):
        scales, sizes = _by_sizes(node, dims, axes, policy)
    elif _is_given(node, 2):
        scales, sizes = _by_scales(node, dims, axes, node.items(2, "scales"))
    else:
        raise UserError("Resize needs scales or sizes")
    regions: dict[int, Region] = {}
    if rule.transformation == "tf_crop_and_resize":
        region = [item for item in node.items(1, "roi") if isinstance(item, (float, GraphExpr))]
        if len(region) != 2 * len(axes):
            raise UserError(f"roi must have {2 * len(axes)} entries, it has {len(region)}")
        for index, axis in enumerate(axes):
            regions[axis] = (region[index], region[index + len(axes)])
    return _resample(node, data, sizes, scales, rule, regions)


def _is_given(node: NodeContext, index: int) -> bool:
    """Whether an input is there, and not empty."""
    if not node.has_input(index):
        return False
    of_known_length(node.input(index), rank_of(node.input(0)))
    return sizes_of(node.input(index)) != (0,)


def _check_count(values: Sequence[object], axes: tuple[int, ...], what: str) -> None:
    if len(values) != len(axes):
        raise UserError(f"{what} must have one entry for each of {len(axes)} axes, it has {len(values)}")


def _by_scales(
    node: NodeContext, dims: Sizes, axes: tuple[int, ...], given: Sequence[object]
) -> tuple[list[Scale], list[Size]]:
    """The scale and the size of each axis, by scales that may be data."""
    scales: list[Scale] = [1.0] * len(dims)
    sizes = list(dims)
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
        wanted.append(node.computed_size(item, str(axis)) if isinstance(item, GraphExpr) else item)
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
        scales[axis], sizes[axis] = common, node.computed_size(rounded, str(axis))
    return scales, sizes


def _ratio(dim: Size, size: Size) -> float | None:
    """How much an axis is stretched; None if only a run knows."""
    if same(dim, size):
        return 1.0
    if not isinstance(dim, int) or not isinstance(size, int):
        return None
    return size / dim if dim else 1.0


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
    return node.computed_size(node.call("floor", stretched), str(axis))


def _resample(
    node: NodeContext,
    data: GraphExpr,
    sizes: Sequence[Size],
    scales: Sequence[Scale],
    rule: Rule,
    regions: dict[int, Region],
) -> GraphExpr:
    if rule.mode not in ("nearest", "linear", "cubic"):
        raise UserError(f"unknown mode {rule.mode!r} of Resize", hint="one of nearest, linear, cubic")
    dims = sizes_of(data)
    axes = [n for n, dim in enumerate(dims) if not (same(sizes[n], dim) and scales[n] == 1.0) or n in regions]
    if not axes:
        return data
    by_sums = rule.mode != "nearest" or bool(regions)
    result = node.builder.cast(data, _working_type(dtype_of(data))) if by_sums else data
    outside: list[tuple[int, GraphExpr]] = []
    for axis in axes:
        dim, size, scale, region = dims[axis], sizes[axis], scales[axis], regions.get(axis)
        bounds = None if region is None else [item for item in region if isinstance(item, float)]
        is_known = isinstance(size, int) and isinstance(dim, int) and isinstance(scale, float)
        if not is_known or (bounds is not None and len(bounds) != 2):
            if not rule.antialias and region is None:
                result = resample_axis(node, result, axis, size, scale, rule)
                continue
            result, beyond = resample_by_matrix(node, result, axis, size, scale, rule, region)
        else:
            assert isinstance(size, int) and isinstance(dim, int) and isinstance(scale, float)
            if not 0 <= size <= LARGEST_AXIS or (dim == 0 and size):
                raise UserError(f"cannot resize dimension {axis} from {dim} to {size}")
            places, weights, mask = taps(rule, dim, size, scale, (bounds[0], bounds[1]) if bounds else None)
            result, beyond = (
                weighted_taps(node.builder, result, axis, places, weights),
                node.builder.constant(mask, BOOL),
            )
        outside.append((axis, beyond))
    if rule.transformation == "tf_crop_and_resize":
        value = node.builder.constant_like(rule.extrapolation, result)
        for axis, beyond in outside:
            shape = [sizes[axis] if at == axis else 1 for at in range(rank_of(result))]
            result = node.call("where", node.builder.reshape(beyond, shape), value, result)
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
