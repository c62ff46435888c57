"""Host functions whose results are as long as the data decides: which elements, and which are distinct."""

from __future__ import annotations

import math

import numpy as np

from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.values import Array, Attributes, integer, scalar, tensor, to_numbers
from tilewright.support.errors import UserError


@register("host.nonzero")
def nonzero(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The places of the elements other than zero, one column a place."""
    data = to_numbers(tensor(values[0]), attributes)
    if not data.ndim:
        return [np.zeros((0, int(data != 0)), np.int64)]
    # Of the flattened data, and axis by axis from the last: a pass of numpy over all axes takes six times as long.
    rest = np.flatnonzero(data)
    places = np.empty((data.ndim, len(rest)), np.int64)
    for axis in reversed(range(1, data.ndim)):
        whole = rest // data.shape[axis]
        np.subtract(rest, whole * data.shape[axis], out=places[axis])
        rest = whole
    places[0] = rest
    return [places]


@register("host.compress")
def compress(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The slices along an axis where a condition holds; without an axis (-1), of the flattened data."""
    data, condition = tensor(values[0]), tensor(values[1])
    axis = integer(attributes, "axis")
    if axis < 0:
        data, axis = data.reshape(-1), 0
    if condition.ndim != 1 or len(condition) > data.shape[axis]:
        raise UserError(f"a condition of shape {condition.shape} does not fit a dimension of {data.shape[axis]}")
    # By places, which numpy's own function finds too: half a thousand rows in 12 us instead of 14.5.
    return [data.take(condition.nonzero()[0], axis)]


@register("host.unique")
def unique(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The distinct elements (or slices along an axis), where each comes first, which one each place holds, how many."""
    stored = tensor(values[0])
    axis = integer(attributes, "axis")
    if axis < 0:
        stored, axis = stored.reshape(-1), 0
    data = to_numbers(stored, attributes)
    turned = np.moveaxis(data, axis, 0)
    rows = turned.reshape(len(turned), math.prod(turned.shape[1:]))
    if data.dtype == object:
        # numpy orders no rows of Python objects; numbers in the order of the texts stand for them.
        order = {item: place for place, item in enumerate(sorted(set(rows.reshape(-1).tolist())))}
        rows = np.array([[order[item] for item in row] for row in rows.tolist()], np.int64).reshape(rows.shape)
    if rows.shape[1] == 1:
        distinct = np.unique(rows[:, 0], return_index=True, return_inverse=True, return_counts=True)
    else:
        distinct = np.unique(rows, return_index=True, return_inverse=True, return_counts=True, axis=0)
    first, place, count = (np.asarray(item).reshape(-1).astype(np.int64) for item in distinct[1:])
    if not attributes["sorted"]:
        order_of_appearance = np.argsort(first, kind="stable")
        rank = np.empty_like(order_of_appearance)
        rank[order_of_appearance] = np.arange(len(rank))
        first, place, count = first[order_of_appearance], rank[place], count[order_of_appearance]
    return [np.take(stored, first, axis=axis), first, place, count]


@register("host.topk")
def topk(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """The k greatest or least elements along an axis, in order, and their places; equal ones by place."""
    stored, count = tensor(values[0]), int(scalar(values[1], "k of TopK"))
    axis = integer(attributes, "axis")
    if not 0 <= count <= stored.shape[axis]:
        raise UserError(f"k of TopK is {count}, the axis has {stored.shape[axis]} elements")
    data = to_numbers(stored, attributes)
    if attributes["largest"]:
        # A stable sort of the reversed axis, reversed again, puts equal elements in the order of their places.
        order = np.flip(stored.shape[axis] - 1 - np.argsort(np.flip(data, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(data, axis, kind="stable")
    chosen = np.take(order, np.arange(count), axis=axis).astype(np.int64)
    return [np.take_along_axis(stored, chosen, axis), chosen]


@register("host.mel_weights")
def mel_weights(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Triangles spread evenly on the mel scale: the weight of each frequency of a spectrum in each band."""
    bands, length, rate = (int(scalar(value)) for value in values[:3])
    low, high = (float(scalar(value)) for value in values[3:5])
    if bands < 1 or length < 1 or rate < 1:
        raise UserError(f"{bands} mel bands of a transform of {length} at a rate of {rate}")
    bottom, top = (2595 * np.log10(1 + edge / 700) for edge in (low, high))
    mel = bottom + np.arange(bands + 2) * ((top - bottom) / (bands + 2))
    edges = ((length + 1) * 700 * (10 ** (mel / 2595) - 1) // rate).astype(np.int64)
    frequencies = np.arange(length // 2 + 1)[:, None]
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = np.where(left == centre, frequencies == centre, (frequencies - left) / (centre - left))
        falling = (right - frequencies) / (right - centre)
    weights = np.where((frequencies >= left) & (frequencies <= centre), rising, 0.0)
    weights = np.where((frequencies >= centre) & (frequencies < right), falling, weights)
    return [weights.astype(np.dtype(str(attributes["dtype"])))]


@register("host.couple")
def couple(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Probabilities of classes from those of each pair (that the first of the two wins), sample by sample.

    They minimise the sum over pairs of (r[j, i] * p[i] - r[i, j] * p[j]) ** 2. The minimum is approached as libsvm does
    it (one class at a time, until every condition holds to 0.005 / classes), so that results are those of other tools.
    """
    chances, count = tensor(values[0]), integer(attributes, "classes")
    matrix = np.zeros((len(chances), count, count), np.float64)
    upper = np.triu_indices(count, 1)
    clipped = np.clip(chances.astype(np.float64), 1e-7, 1 - 1e-7)
    matrix[:, upper[0], upper[1]] = clipped
    matrix[:, upper[1], upper[0]] = 1 - clipped
    form = -matrix * matrix.transpose(0, 2, 1)
    diagonal = np.arange(count)
    form[:, diagonal, diagonal] = (matrix**2).sum(axis=1)
    return [np.array([_minimize(each) for each in form], chances.dtype).reshape(len(chances), count)]


def _minimize(form: Array) -> Array:
    """The point of the simplex where a quadratic form is least."""
    count = len(form)
    point = np.full(count, 1 / count)
    for _ in range(max(100, count)):
        slope = form @ point
        value = point @ slope
        if np.abs(slope - value).max() < 0.005 / count:
            break
        for at in range(count):
            step = (value - slope[at]) / form[at, at]
            point[at] += step
            value = (value + step * (step * form[at, at] + 2 * slope[at])) / (1 + step) ** 2
            slope = (slope + step * form[at]) / (1 + step)
            point /= 1 + step
    return point
