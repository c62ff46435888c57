"""CNTK's operators with windows, batch normalisation and stacks of recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.frontend.cntk.context import Operator, Value, operator
from tilewright.frontend.core.builder import dtype_of, evaluate, rank_of, shape_of, size_at, sizes_of
from tilewright.frontend.onnx.borrowed import Attribute
from tilewright.graph.ir.dimensions import Size, Sizes, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.support.errors import UnsupportedError, UserError

_MAX, _AVERAGE = 0, 1


@dataclass(frozen=True)
class Window:
    """A window over the spatial dimensions, in the order of numpy."""

    kernel: list[int]
    strides: list[int]
    dilation: list[int]
    automatic: list[bool]
    lower: list[int]
    upper: list[int]

    def reach(self, axis: int) -> int:
        """How many elements the window covers along an axis."""
        return (self.kernel[axis] - 1) * self.dilation[axis] + 1

    def padding(self, sizes: Sizes) -> tuple[list[int], list[int]]:
        """What is added before and after, where the windows are centred as CNTK does it."""
        before, after = list(self.lower), list(self.upper)
        for axis, size in enumerate(sizes):
            if not self.automatic[axis]:
                continue
            before[axis], after[axis] = self.centred(axis, size)
        return before, after

    def centred(self, axis: int, size: Size) -> tuple[int, int]:
        """Padding before and after with which there are as many windows as steps."""
        rest = self.reach(axis) - 1
        extra = 0
        if self.strides[axis] > 1:
            if not isinstance(size, int):
                raise UnsupportedError("automatic padding of data of an open size", hint="give the size: shapes={...}")
            extra = (size - 1) % self.strides[axis]
        center = extra // 2
        return rest // 2 - center, rest - rest // 2 - (extra - center)


def _spatial(op: Operator, name: str, rank: int, default: int) -> list[int]:
    """An attribute with a number for each spatial dimension: one for all, or with one for the channels."""
    given = [int(item) for item in reversed(op.attribute(name, ()) or ())]
    if not given:
        return [default] * rank
    return given * rank if len(given) == 1 else given[len(given) - rank :]


def _window(op: Operator, kernel: Sequence[int]) -> Window:
    rank = len(kernel)
    fields = [_spatial(op, name, rank, default) for name, default in (("strides", 1), ("dilation", 1))]
    automatic = [bool(item) for item in _spatial(op, "autoPadding", rank, 0)]
    lower, upper = (_spatial(op, name, rank, 0) for name in ("lowerPad", "upperPad"))
    lengths = {len(fields[0]), len(fields[1]), len(automatic), len(lower), len(upper)}
    if lengths != {rank} or min(fields[0]) < 1:
        raise UserError(f"the attributes of {op.kind} do not fit a window {list(kernel)}")
    return Window(list(kernel), fields[0], fields[1], automatic, lower, upper)


def _cut(op: Operator, data: GraphExpr, before: list[int], after: list[int]) -> GraphExpr:
    """The data without what negative padding takes off; the padding becomes 0 there."""
    for axis in range(len(before)):
        place = rank_of(data) - len(before) + axis
        low, high = max(0, -before[axis]), max(0, -after[axis])
        if low or high:
            size = sizes_of(data)[place]
            if not isinstance(size, int):
                raise UnsupportedError("windows that leave out a part of data of an open size")
            data = op.builder.slice_axis(data, place, low, size - high)
            before[axis], after[axis] = max(0, before[axis]), max(0, after[axis])
    return data


@operator("Convolution")
def convolution(op: Operator) -> Value:
    """A convolution of the second input with the first, or its transpose."""
    weight, x = op.inputs[:2]
    kernel = shape_of(weight.data)[2:]
    if weight.dynamic or weight.rank != x.rank + 1:
        raise UnsupportedError(f"a convolution of {x.rank} dimensions with a kernel of {weight.rank}")
    if not all(op.attribute("sharing", [True]) or [True]):
        raise UnsupportedError("a convolution whose weights differ from place to place (sharing)")
    window, groups = _window(op, kernel), int(op.attribute("groups", 1)) or 1
    if op.attribute("transpose", False):
        return op.over_samples(x, lambda data: _transposed(op, data, weight.data, window, groups))

    def run(data: GraphExpr) -> GraphExpr:
        before, after = window.padding(sizes_of(data)[2:])
        cut = _cut(op, data, before, after)
        options: dict[str, Attribute] = {"strides": window.strides, "dilations": window.dilation, "group": groups}
        return op.onnx("Conv", cut, weight.data, pads=[*before, *after], **options)

    return op.over_samples(x, run)


def _transposed(op: Operator, data: GraphExpr, weight: GraphExpr, window: Window, groups: int) -> GraphExpr:
    """A transposed convolution: padding is that of the convolution that goes the other way."""
    rank = len(window.kernel)
    given = _spatial(op, "outputShape", rank, 0)
    before, after, extra = list(window.lower), list(window.upper), [0] * rank
    for axis, size in enumerate(sizes_of(data)[2:]):
        stride = window.strides[axis]
        if given[axis] and not isinstance(size, int):
            raise UnsupportedError("a transposed convolution of data of an open size to a given one")
        if window.automatic[axis]:
            if not isinstance(size, int) and stride > 1:
                raise UnsupportedError("automatic padding of data of an open size", hint="give the size: shapes={...}")
            wanted = given[axis] or (size * stride if isinstance(size, int) else size)
            before[axis], after[axis] = window.centred(axis, wanted)
        if isinstance(size, int):
            full = (size - 1) * stride + window.reach(axis)
            wanted_size = given[axis] or full - before[axis] - after[axis]
            rest = full - before[axis] - wanted_size
            after[axis], extra[axis] = max(0, rest), max(0, -rest)
    if min(before) < 0:
        raise UnsupportedError("a transposed convolution with steps wider than its kernel")
    return op.onnx(
        "ConvTranspose",
        data,
        weight,
        strides=window.strides,
        dilations=window.dilation,
        group=groups,
        pads=[*before, *after],
        output_padding=extra,
    )


def _pool_window(op: Operator, rank: int, name: str) -> Window:
    shape = [int(size) for size in reversed(op.attribute(name))]
    if len(shape) == rank + 1 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != rank:
        raise UnsupportedError(f"pooling by a window {shape} of data of {rank + 1} dimensions")
    return _window(op, shape)


@operator("Pooling")
def pooling(op: Operator) -> Value:
    """The greatest or the mean of windows."""
    x, kind = op.x, int(op.attribute("poolingType", _MAX))
    window = _pool_window(op, x.rank - 1, "poolingWindowShape")
    if kind not in (_MAX, _AVERAGE):
        raise UserError(f"pooling of the kind {kind} is not known")

    def run(data: GraphExpr) -> GraphExpr:
        before, after = window.padding(sizes_of(data)[2:])
        cut = _cut(op, data, before, after)
        options: dict[str, Attribute] = {
            "kernel_shape": window.kernel,
            "strides": window.strides,
            "pads": [*before, *after],
            "ceil_mode": bool(op.attribute("ceilOutDim", False)),
        }
        if kind == _MAX:
            return op.onnx("MaxPool", cut, **options)
        return op.onnx("AveragePool", cut, count_include_pad=bool(op.attribute("includePad", False)), **options)

    return op.over_samples(x, run)


@operator("Unpooling")
def unpooling(op: Operator) -> Value:
    """Values put where the maxima of the second input's windows were, zeros elsewhere."""
    x, source = op.inputs[:2]
    window = _pool_window(op, source.rank - 1, "unpoolingWindowShape")
    rows = op.builder.reshape(source.data, (product(source.leading), *source.shape))
    before, after = window.padding(source.shape[1:])
    if min(*before, *after) < 0:
        raise UnsupportedError("unpooling with steps wider than its windows")
    pads = [*before, *after]
    _, places = op.onnx.several("MaxPool", 2, rows, kernel_shape=window.kernel, strides=window.strides, pads=pads)

    def run(data: GraphExpr) -> GraphExpr:
        target = op.builder.shape_tensor(sizes_of(rows))
        return op.onnx("MaxUnpool", data, places, target, kernel_shape=window.kernel, strides=window.strides, pads=pads)

    return op.over_samples(x, run)


@operator("BatchNormalization")
def batch_normalization(op: Operator) -> Value:
    """By running means and variances: one a channel (the first dimension here), or one an element."""
    x, epsilon = op.x, float(op.attribute("epsilon", 1e-5))
    shape = (-1, *(1,) * (x.rank - 1)) if op.attribute("spatial", False) else shape_of(x.data)[x.dynamic :]

    def table(index: int) -> Array:
        values = evaluate(op.input(index).data)
        if values is None:
            raise UnsupportedError("batch normalisation by values that are computed")
        return values.astype(np.float64)

    scale, bias, mean, variance = (table(index) for index in range(1, 5))
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + epsilon)
        offset = bias - mean * factor
    dtype = dtype_of(x.data)
    parts = [op.builder.constant(item.reshape(shape).astype(dtype.numpy()), dtype) for item in (factor, offset)]
    return x.with_data(op.call("add", op.call("multiply", x.data, parts[0]), parts[1]))


# Stacks of recurrent layers, whose weights lie one after the other as cuDNN has them

_GATES = {"lstm": 4, "gru": 3, "rnnReLU": 1, "rnnTanh": 1}
_ORDERS = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnnReLU": (0,), "rnnTanh": (0,)}
"""The gates as ONNX orders them among input, forget, cell, output, or reset, update, new."""
_NAMES = {"lstm": "LSTM", "gru": "GRU", "rnnReLU": "RNN", "rnnTanh": "RNN"}


@operator("OptimizedRNNStack")
def recurrent_stack(op: Operator) -> Value:
    """Layers of LSTM, GRU or plain recurrence in one direction or both."""
    x, weights = op.inputs[:2]
    kind, size = str(op.attribute("recurrentOp", "lstm")), int(op.attribute("hiddenSize"))
    count, both = int(op.attribute("numLayers", 1)), bool(op.attribute("bidirectional", False))
    flat = evaluate(weights.data)
    if kind not in _GATES or flat is None or x.rank != 1 or not (x.has_batch and x.has_sequence):
        raise UnsupportedError(f"a recurrent stack of the kind {kind!r} on {x.rank} dimensions")
    if not 1 <= count <= 64 or not 1 <= size <= 1 << 16:
        raise UserError(f"{count} recurrent layers of size {size} make no sense")
    data = op.builder.transpose(x.data, (1, 0, 2))
    for tables in _layers(flat.ravel(), kind, size_at(x.data, 2), size, count, both):
        data = _layer(op, data, tables, kind, size, both)
    return x.with_data(op.builder.transpose(data, (1, 0, 2)))


def _layers(flat: Array, kind: str, inputs: int, size: int, count: int, both: bool) -> list[list[Array]]:
    """For each layer, the weights of data and state and the biases of its directions."""
    gates, directions = _GATES[kind], 2 if both else 1
    rows, place = gates * size, 0
    layers: list[list[Array]] = []

    def take(*shape: int) -> Array:
        nonlocal place
        total = int(np.prod(shape))
        if place + total > flat.size:
            raise UserError(f"{flat.size} weights are too few for the recurrent layers")
        place += total
        return flat[place - total : place].reshape(shape)

    def ordered(table: Array) -> Array:
        parts = np.split(table, gates)
        result: Array = np.concatenate([parts[at] for at in _ORDERS[kind]])
        return result

    for layer in range(count):
        width = inputs if layer == 0 else size * directions
        pairs = [(ordered(take(rows, width)), ordered(take(rows, size))) for _ in range(directions)]
        layers.append([np.stack([pair[at] for pair in pairs]) for at in (0, 1)])
    for tables in layers:
        biases = [np.concatenate([ordered(take(rows)), ordered(take(rows))]) for _ in range(directions)]
        tables.append(np.stack(biases))
    if place != flat.size:
        raise UserError(f"{flat.size} weights are too many for the recurrent layers, which take {place}")
    return layers


def _layer(op: Operator, data: GraphExpr, tables: list[Array], kind: str, size: int, both: bool) -> GraphExpr:
    options: dict[str, Attribute] = {"hidden_size": size, "direction": "bidirectional" if both else "forward"}
    if kind == "gru":
        options["linear_before_reset"] = 1
    if kind == "rnnReLU":
        options["activations"] = ["Relu"] * (2 if both else 1)
    constants = [op.builder.constant(table.astype(np.float32), "float32") for table in tables]
    found = op.onnx(_NAMES[kind], op.builder.cast(data, "float32"), *constants, **options)
    steps, directions, batch, width = sizes_of(found)
    assert isinstance(directions, int) and isinstance(width, int)
    turned = op.builder.transpose(found, (0, 2, 1, 3))
    return op.builder.cast(op.builder.reshape(turned, (steps, batch, directions * width)), dtype_of(data))
