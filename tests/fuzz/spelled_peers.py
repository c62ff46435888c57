"""Graph operators spelled out in what torch and JAX both have, for comparing gradients with those that they take.

Gradients as operators are what the framework itself pulls back through the operator that they belong to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Peer = Callable[..., Any]
"""(arrays..., attributes as keywords) -> the result, or a tuple of results."""


@dataclass(frozen=True)
class Framework:
    """A module of array functions, and those that the frameworks call differently."""

    arrays: Any
    """`jax.numpy` or `torch`."""
    sigmoid: Peer
    pad: Peer
    """(x, widths (before, after) by axis, value) -> x with values around it."""
    pull_back: Peer
    """(function, where, cotangent) -> the cotangent of where."""
    top: Peer
    """(x, k, axis, largest) -> the extreme values, in order."""
    zeros: Peer
    """shape -> zeros in double precision."""
    conv2d: Peer
    batch_axes: Callable[..., Any]
    """(x, axes) -> x with its axes in another order."""


def spelled_peers(framework: Framework) -> dict[str, Peer]:
    """The operators, by name."""
    named: dict[str, Callable[..., Any]] = {
        "cumsum": functools.partial(_cumulative, sums=True),
        "cumprod": functools.partial(_cumulative, sums=False),
        "split": _split,
        "slice": _slice,
        "pad": _pad,
        "take": _take,
        "scatter": _scatter,
        "scatter_elements": _scatter_elements,
        "grouped_matmul": _grouped_matmul,
        "nn.avg_pool2d": _avg_pool2d,
        "nn.max_pool2d": _max_pool2d,
        "nn.avg_pool2d_gradient": _avg_pool2d_gradient,
        "nn.max_pool2d_gradient": _max_pool2d_gradient,
        "nn.conv2d_transpose": _conv2d_transpose,
        "nn.conv2d_weight_gradient": _conv2d_weight_gradient,
        "nn.layer_norm_gradient": _layer_norm_gradient,
        "nn.lstm": _lstm,
        "nn.gru": _gru,
        "nn.rnn": _rnn,
    }
    peers = {name: functools.partial(function, framework) for name, function in named.items()}
    peers["assume_shape"] = lambda x, shape: x
    peers["cast"] = lambda x, dtype: x
    peers["broadcast_to"] = lambda x, shape: framework.arrays.broadcast_to(x, shape)
    peers["topk"] = lambda x, axis=0, k=1, largest=True: framework.top(x, k, axis, largest)
    return peers


def _along(axis: int, at: object) -> tuple[object, ...]:
    return (*(slice(None),) * axis, at)


def _whole(indices: Any) -> np.ndarray:
    """Indices as numpy has them: they are known while a framework traces floats."""
    return np.asarray(indices).astype(np.int64)


def _cumulative(
    fw: Framework, x: Any, sums: bool, axis: int = 0, exclusive: bool = False, reverse: bool = False
) -> Any:
    x = fw.arrays.flip(x, (axis,)) if reverse else x
    found = fw.arrays.cumsum(x, axis) if sums else fw.arrays.cumprod(x, axis)
    if exclusive:
        first = found[_along(axis, slice(0, 1))]
        start = fw.arrays.zeros_like(first) if sums else fw.arrays.ones_like(first)
        found = fw.arrays.concatenate([start, found[_along(axis, slice(0, x.shape[axis] - 1))]], axis)
    return fw.arrays.flip(found, (axis,)) if reverse else found


def _split(fw: Framework, x: Any, sizes: Sequence[int], axis: int = 0) -> Any:
    ends = np.cumsum(sizes)
    return tuple(x[_along(axis, slice(int(e - n), int(e)))] for n, e in zip(sizes, ends, strict=True))


def _slice(fw: Framework, x: Any, begin: Sequence[int], end: Sequence[int], strides: Sequence[int]) -> Any:
    for axis, bounds in enumerate(zip(begin, end, strides, strict=True)):
        x = x[_along(axis, np.arange(*bounds))]
    return x


def _pad(
    fw: Framework, x: Any, before: Sequence[int], after: Sequence[int], value: float = 0.0, mode: Any = "constant"
) -> Any:
    widths = list(zip(before, after, strict=True))
    if mode == "constant":
        return fw.pad(x, widths, value)
    for axis, width in enumerate(widths):
        x = x[_along(axis, np.pad(np.arange(x.shape[axis]), width, mode=mode))]
    return x


def _take(fw: Framework, x: Any, indices: Any, axis: int = 0, mode: str = "wrap_negative") -> Any:
    places, size = _whole(indices), x.shape[axis]
    if mode == "wrap_negative":
        places = np.where(places < 0, places + size, places)
    return x[_along(axis, np.clip(places, 0, size - 1))]


def _combined(fw: Framework, reduction: str, old: Any, new: Any) -> Any:
    if reduction in ("max", "min"):
        return fw.arrays.maximum(old, new) if reduction == "max" else fw.arrays.minimum(old, new)
    return {"none": lambda: new, "add": lambda: old + new, "mul": lambda: old * new}[reduction]()


def _scatter(fw: Framework, x: Any, places: Any, updates: Any, reduction: str = "none", inside: bool = False) -> Any:
    rows = [x[row] for row in range(x.shape[0])]
    for number, place in enumerate(_whole(places).tolist()):
        if 0 <= place < len(rows):
            rows[place] = _combined(fw, reduction, rows[place], updates[number])
    return fw.arrays.stack(rows, 0)


def _scatter_elements(
    fw: Framework, x: Any, indices: Any, updates: Any, axis: int, reduction: str = "none", inside: bool = False
) -> Any:
    cells = {place: x[place] for place in np.ndindex(*x.shape)}
    wanted = _whole(indices)
    for source in np.ndindex(*wanted.shape):
        at = int(wanted[source]) + (x.shape[axis] if wanted[source] < 0 else 0)
        place = (*source[:axis], at, *source[axis + 1 :])
        if place in cells:
            cells[place] = _combined(fw, reduction, cells[place], updates[source])
    return fw.arrays.stack(list(cells.values()), 0).reshape(x.shape)


def _grouped_matmul(fw: Framework, a: Any, b: Any, groups: Any) -> Any:
    return fw.arrays.einsum("nk,nkm->nm", a, b[np.clip(_whole(groups), 0, b.shape[0] - 1)])


# Windows


def _planar(fw: Framework, x: Any, layout: str) -> Any:
    return fw.batch_axes(x, (0, 3, 1, 2)) if layout == "NHWC" else x


def _in_layout(fw: Framework, x: Any, layout: str) -> Any:
    return fw.batch_axes(x, (0, 2, 3, 1)) if layout == "NHWC" else x


def _taps(fw: Framework, x: Any, fill: float, kernel: Any, strides: Any, padding: Any, dilation: Any) -> Any:
    """The elements of windows of planar data, in an axis of their own in front."""
    top, left, bottom, right = padding
    x = fw.pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)], fill)
    sizes = [
        (size - (taps - 1) * space - 1) // step + 1
        for size, taps, space, step in zip(x.shape[2:], kernel, dilation, strides, strict=True)
    ]
    parts = []
    for tap in np.ndindex(*kernel):
        spans = (
            slice(at * space, at * space + (size - 1) * step + 1, step)
            for at, space, size, step in zip(tap, dilation, sizes, strides, strict=True)
        )
        parts.append(x[(slice(None), slice(None), *spans)])
    return fw.arrays.stack(parts, 0)


def _avg_pool2d(
    fw: Framework,
    x: Any,
    kernel: Any,
    strides: Any = (1, 1),
    padding: Any = (0, 0, 0, 0),
    dilation: Any = (1, 1),
    count_include_pad: bool = False,
    layout: str = "NCHW",
) -> Any:
    x = _planar(fw, x, layout)
    windows = (kernel, strides, padding, dilation)
    inside = fw.arrays.ones_like(x)
    count = int(np.prod(kernel)) if count_include_pad else _taps(fw, inside, 0.0, *windows).sum(0)
    return _in_layout(fw, _taps(fw, x, 0.0, *windows).sum(0) / count, layout)


def _max_pool2d(
    fw: Framework,
    x: Any,
    kernel: Any,
    strides: Any = (1, 1),
    padding: Any = (0, 0, 0, 0),
    dilation: Any = (1, 1),
    count_include_pad: bool = False,
    layout: str = "NCHW",
) -> Any:
    taps = _taps(fw, _planar(fw, x, layout), -1e30, kernel, strides, padding, dilation)
    found = functools.reduce(fw.arrays.maximum, [taps[n] for n in range(taps.shape[0])])
    return _in_layout(fw, found, layout)


def _avg_pool2d_gradient(fw: Framework, given: Any, size: Any, layout: str = "NCHW", **attributes: Any) -> Any:
    batch, channels = given.shape[0], given.shape[3 if layout == "NHWC" else 1]
    shape = (batch, *size, channels) if layout == "NHWC" else (batch, channels, *size)
    pool = functools.partial(_avg_pool2d, fw, layout=layout, **attributes)
    return fw.pull_back(pool, fw.zeros(shape), given)


def _max_pool2d_gradient(fw: Framework, x: Any, given: Any, **attributes: Any) -> Any:
    return fw.pull_back(functools.partial(_max_pool2d, fw, **attributes), x, given)


def _conv2d_transpose(
    fw: Framework, x: Any, w: Any, output_padding: Any = (0, 0), kernel_layout: str = "OIHW", **attributes: Any
) -> Any:
    """What the convolution from the result to the data pulls back."""
    last = attributes.get("data_layout") == "NHWC"
    strides, dilation = (attributes.get(name, (1, 1)) for name in ("strides", "dilation"))
    top, left, bottom, right = attributes.get("padding", (0, 0, 0, 0))
    groups = attributes.get("groups", 1)
    sizes = x.shape[1:3] if last else x.shape[2:]
    # The weights are (inputs, outputs of a group, rows, columns), or (rows, columns, inputs, outputs) of NHWC.
    taps = w.shape[:2] if last else w.shape[2:]
    outputs = groups * (w.shape[3] if last else w.shape[1])
    w = fw.batch_axes(w, (0, 1, 3, 2)) if last else w
    around = ((top + bottom), (left + right))
    shape = [
        (sizes[n] - 1) * strides[n] + (taps[n] - 1) * dilation[n] + 1 + output_padding[n] - around[n] for n in (0, 1)
    ]
    whole = (x.shape[0], *shape, outputs) if last else (x.shape[0], outputs, *shape)

    def convolved(y: Any) -> Any:
        # What the strides leave over at the end belongs to no window.
        found = fw.conv2d(y, w, **attributes, kernel_layout="HWIO" if last else "OIHW")
        return found[:, : sizes[0], : sizes[1]] if last else found[:, :, : sizes[0], : sizes[1]]

    return fw.pull_back(convolved, fw.zeros(whole), x)


def _conv2d_weight_gradient(fw: Framework, x: Any, given: Any, kernel: Any, **attributes: Any) -> Any:
    last, groups = attributes.get("data_layout") == "NHWC", attributes.get("groups", 1)
    inputs, outputs = (item.shape[3 if last else 1] for item in (x, given))
    shape = (*kernel, inputs // groups, outputs) if last else (outputs, inputs // groups, *kernel)
    sizes = given.shape[1:3] if last else given.shape[2:]

    def convolved(w: Any) -> Any:
        found = fw.conv2d(x, w, **attributes)
        return found[:, : sizes[0], : sizes[1]] if last else found[:, :, : sizes[0], : sizes[1]]

    return fw.pull_back(convolved, fw.zeros(shape), given)


def _layer_norm_gradient(fw: Framework, x: Any, scale: Any, given: Any, mean: Any, inverse: Any, axis: int = 0) -> Any:
    """With statistics that are inputs like others: the formula, differentiated by the framework."""
    axes = tuple(range(axis, x.ndim))

    def of_row(value: Any) -> Any:
        return fw.arrays.mean(value, axes).reshape(*x.shape[:axis], *(1,) * len(axes))

    normal, moved = (x - mean) * inverse, given * scale
    return inverse * (moved - of_row(moved) - normal * of_row(moved * normal))


# Recurrent layers


def _activation(fw: Framework, name: str, a: float, b: float) -> Peer:
    xp = fw.arrays
    table: dict[str, Peer] = {
        "sigmoid": fw.sigmoid,
        "tanh": xp.tanh,
        "relu": lambda x: xp.where(x > 0, x, 0.0),
        "softplus": lambda x: xp.logaddexp(x, xp.zeros_like(x)),
        "softsign": lambda x: x / (1 + xp.abs(x)),
        "affine": lambda x: a * x + b,
        "leaky_relu": lambda x: xp.where(x < 0, a * x, x),
        "thresholded_relu": lambda x: xp.where(x > a, x, 0.0),
        "scaled_tanh": lambda x: a * xp.tanh(b * x),
        "hard_sigmoid": lambda x: xp.clip(a * x + b, 0.0, 1.0),
        "elu": lambda x: xp.where(x > 0, x, a * xp.expm1(xp.where(x > 0, 0.0, x))),
    }
    return table[name]


def _gates(fw: Framework, activations: Any, clip: float | None) -> list[Peer]:
    def gate(item: Any) -> Peer:
        function = _activation(fw, *item)
        return function if clip is None else lambda x: function(fw.arrays.clip(x, -clip, clip))

    return [gate(item) for item in activations]


def _run(fw: Framework, data: Any, states: Sequence[Any], lengths: Any, backward: bool, step: Peer) -> list[Any]:
    rows = [list(states)]
    steps = range(data.shape[0])
    for at in reversed(steps) if backward else steps:
        new = step(data[at], rows[-1])
        if lengths is not None:
            running = lengths[:, None] > at
            new = [fw.arrays.where(running, fresh, old) for fresh, old in zip(new, rows[-1], strict=True)]
        rows.append(list(new))
    return [fw.arrays.stack([row[n] for row in rows], 0) for n in range(len(states))]


def _lstm(
    fw: Framework,
    data: Any,
    weights: Any,
    hidden: Any,
    cell: Any,
    lengths: Any = None,
    peepholes: Any = None,
    activations: Any = (),
    clip: float | None = None,
    backward: bool = False,
    coupled: bool = False,
) -> Any:
    f, g = _gates(fw, activations[:2], clip)
    h = _activation(fw, *activations[2])
    peep = fw.zeros((3, hidden.shape[1])) if peepholes is None else peepholes

    def step(entered: Any, states: Sequence[Any]) -> list[Any]:
        before, memory = states
        gates = entered + fw.arrays.einsum("bk,gnk->bgn", before, weights)
        enter = f(gates[:, 0] + peep[0] * memory)
        forget = 1 - enter if coupled else f(gates[:, 2] + peep[2] * memory)
        fresh = forget * memory + enter * g(gates[:, 3])
        return [f(gates[:, 1] + peep[1] * fresh) * h(fresh), fresh]

    return tuple(_run(fw, data, [hidden, cell], lengths, backward, step))


def _gru(
    fw: Framework,
    data: Any,
    weights: Any,
    hidden: Any,
    bias: Any,
    lengths: Any = None,
    activations: Any = (),
    clip: float | None = None,
    backward: bool = False,
    reset_after: bool = False,
) -> Any:
    f, g = _gates(fw, activations, clip)

    def product(state: Any, gate: int) -> Any:
        return fw.arrays.einsum("bk,nk->bn", state, weights[gate])

    def step(entered: Any, states: Sequence[Any]) -> list[Any]:
        (old,) = states
        update, reset = (f(entered[:, gate] + product(old, gate)) for gate in (0, 1))
        linear = reset * (product(old, 2) + bias) if reset_after else product(reset * old, 2) + bias
        return [(1 - update) * g(entered[:, 2] + linear) + update * old]

    return _run(fw, data, [hidden], lengths, backward, step)[0]


def _rnn(
    fw: Framework,
    data: Any,
    weights: Any,
    hidden: Any,
    lengths: Any = None,
    activations: Any = (),
    clip: float | None = None,
    backward: bool = False,
) -> Any:
    (f,) = _gates(fw, activations, clip)

    def step(entered: Any, states: Sequence[Any]) -> list[Any]:
        return [f(entered[:, 0] + fw.arrays.einsum("bk,nk->bn", states[0], weights[0]))]

    return _run(fw, data, [hidden], lengths, backward, step)[0]
