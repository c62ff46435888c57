"""Layers that move elements: flatten, reshape, permute, repeat, crop, pad and enlarge."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.core.builder import LARGEST_MADE, rank_of, sizes_of
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.images import resized
from tilewright.frontend.keras.registry import layer
from tilewright.frontend.keras.values import KerasBuilder
from tilewright.graph.ir.dimensions import Size, divide_exactly, floor_divide, multiply, product, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError


@layer("Flatten")
def flatten(call: LayerCall) -> GraphExpr:
    """All dimensions but the batch in one, channels last."""
    b, data = call.builder, call.input(0)
    rank = rank_of(data)
    if call.layer.channels_first and rank > 2:
        data = b.transpose(data, (0, *range(2, rank), 1))
    sizes = sizes_of(data)
    return b.reshape(data, (sizes[0], product(sizes[1:])))


def quotient(total: Size, part: Size) -> Size:
    """How often a part goes into a total; where it does not, whoever uses it complains."""
    if isinstance(part, int) and part == 0:
        raise UserError("a shape leaves open what has no elements")
    exact = divide_exactly(total, part)
    return floor_divide(total, part) if exact is None else exact


def reshaped(b: KerasBuilder, data: GraphExpr, shape: list[Size]) -> GraphExpr:
    """Another shape, in which one size may be -1: what is left."""
    places = [place for place, size in enumerate(shape) if isinstance(size, int) and size == -1]
    if len(places) > 1:
        raise UserError(f"the shape {shape} leaves more than one size open")
    if places:
        known = product([size for place, size in enumerate(shape) if place not in places])
        shape[places[0]] = quotient(product(sizes_of(data)), known)
    return b.reshape(data, shape)


@layer("Reshape")
def reshape(call: LayerCall) -> GraphExpr:
    """Another shape for each sample."""
    data = call.input(0)
    shape: list[Size] = list(call.layer.integers("target_shape"))
    sizes = sizes_of(data)
    b = call.builder
    if shape.count(-1) == 1:
        rest = product([size for size in shape if size != -1])
        per_sample = product(sizes[1:])
        shape[shape.index(-1)] = quotient(per_sample, rest)
    return b.reshape(data, (sizes[0], *shape))


@layer("Permute")
def permute(call: LayerCall) -> GraphExpr:
    """Dimensions of each sample in another order, counted from 1."""
    data, order = call.input(0), call.layer.integers("dims")
    if sorted(order) != list(range(1, rank_of(data))):
        raise UserError(f"dims {list(order)} are no order of {rank_of(data) - 1} dimensions")
    return call.builder.transpose(data, (0, *order))


@layer("RepeatVector")
def repeat_vector(call: LayerCall) -> GraphExpr:
    """Each vector so many times."""
    data, count = call.data(2), call.layer.integer("n")
    if count < 1:
        raise UserError(f"n must be positive, it is {count}")
    batch, size = sizes_of(data)
    return call.builder.broadcast_to(call.builder.reshape(data, (batch, 1, size)), (batch, count, size))


def _pairs(call: LayerCall, name: str, rank: int) -> list[tuple[int, int]]:
    """What is cut off or added before and after each dimension: one number, one for each, or two for each."""
    described = call.layer.option(name)
    listed: Any = described if isinstance(described, (list, tuple)) else [described] * rank
    if rank == 1 and len(listed) == 2 and not isinstance(listed[0], (list, tuple)):
        listed = [listed]
    pairs: list[tuple[int, int]] = []
    for item in listed:
        both = list(item) if isinstance(item, (list, tuple)) else [item, item]
        if len(both) != 2 or not all(type(part) is int and 0 <= part <= LARGEST_MADE for part in both):
            raise UserError(f"{name} {described!r} makes no sense")
        pairs.append((both[0], both[1]))
    if len(pairs) != rank:
        raise UserError(f"{name} {described!r} does not fit {rank} dimensions")
    return pairs


def _cropping(rank: int) -> None:
    def convert(call: LayerCall) -> GraphExpr:
        data = call.data(rank + 2)
        first = 2 if call.layer.channels_first else 1
        for place, (before, after) in enumerate(_pairs(call, "cropping", rank)):
            axis = first + place
            data = call.builder.slice_axis(data, axis, before, subtract(sizes_of(data)[axis], after))
        return data

    convert.__doc__ = f"Elements cut off at the borders, in {rank} dimensions."
    layer(f"Cropping{rank}D")(convert)


def _padding(rank: int) -> None:
    def convert(call: LayerCall) -> GraphExpr:
        data = call.data(rank + 2)
        pairs = _pairs(call, "padding", rank)
        first = call.layer.channels_first
        outer, inner = ([0, 0], []) if first else ([0], [0])
        before, after = ([*outer, *(pair[side] for pair in pairs), *inner] for side in range(2))
        return call.call("pad", data, before=tuple(before), after=tuple(after))

    convert.__doc__ = f"Zeros added at the borders, in {rank} dimensions."
    layer(f"ZeroPadding{rank}D")(convert)


def enlarged(b: KerasBuilder, data: GraphExpr, axis: int, count: int) -> GraphExpr:
    """Each element along an axis so many times."""
    sizes = list(sizes_of(data))
    wide = b.broadcast_to(
        b.reshape(data, (*sizes[: axis + 1], 1, *sizes[axis + 1 :])), (*sizes[: axis + 1], count, *sizes[axis + 1 :])
    )
    return b.reshape(wide, (*sizes[:axis], multiply(sizes[axis], count), *sizes[axis + 1 :]))


def _up_sampling(rank: int) -> None:
    def convert(call: LayerCall) -> GraphExpr:
        data, factors = call.data(rank + 2), call.layer.integers("size", rank, 2)
        if min(factors) < 1:
            raise UserError(f"size {list(factors)} must be positive")
        first = 2 if call.layer.channels_first else 1
        how = call.layer.text("interpolation", "nearest")
        if how != "nearest":
            sizes = [multiply(sizes_of(data)[first + place], factor) for place, factor in enumerate(factors)]
            return resized(call.builder, data, sizes, how, call.layer.channels_first)
        for place, factor in enumerate(factors):
            data = enlarged(call.builder, data, first + place, factor)
        return data

    convert.__doc__ = f"Each element several times, in {rank} dimensions."
    layer(f"UpSampling{rank}D")(convert)


for _rank in (1, 2, 3):
    _cropping(_rank)
    _padding(_rank)
    _up_sampling(_rank)
