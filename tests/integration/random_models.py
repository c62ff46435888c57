"""Random small ONNX graphs that are valid by construction, for comparing the whole compiler with onnxruntime.

A graph grows node by node from a pool of typed values. Every operator states the shape of its result, so that the
next one can be chosen to fit; values stay in a range where float32 keeps its digits (no exponentials of sums).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.integration.small_models import FLOAT, Arrays, model

Shape = tuple[int, ...]

UNARY = [
    "Relu",
    "Sigmoid",
    "Tanh",
    "Neg",
    "Abs",
    "Erf",
    "LeakyRelu",
    "Elu",
    "HardSigmoid",
    "Softplus",
    "Floor",
    "Identity",
]
BINARY = ["Add", "Sub", "Mul", "Max", "Min"]
REDUCTIONS = ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2"]
MOST_ELEMENTS = 4096


@dataclass
class Growing:
    """A graph under construction: `shapes` has the shape of every float value so far."""

    draw: Callable[..., object]
    random: np.random.Generator
    shapes: dict[str, Shape] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: Arrays = field(default_factory=dict)

    def pick(self, choices: list[object]) -> object:
        return self.draw(st.sampled_from(choices))

    def integer(self, low: int, high: int) -> int:
        value = self.draw(st.integers(low, high))
        assert isinstance(value, int)
        return value

    def extent(self) -> int:
        """The size of a dimension: around the widths of vectors and register tiles as well as below them."""
        return int(str(self.pick([1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 33])))

    def flag(self) -> bool:
        return bool(self.draw(st.booleans()))

    def value(self, rank: int | None = None) -> str | None:
        """One of the latest values (of a rank), so that graphs grow deep and not only wide."""
        fitting = [name for name, shape in self.shapes.items() if rank is None or len(shape) == rank]
        if not fitting:
            return None
        name = self.pick(fitting[-4:])
        assert isinstance(name, str)
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        scale = 1 / math.sqrt(max(1, math.prod(shape[1:])))
        self.weights[name] = (self.random.standard_normal(shape) * scale).astype(np.float32)
        return name

    def integers(self, values: list[int]) -> str:
        name = f"i{len(self.weights)}"
        self.weights[name] = np.array(values, np.int64)
        return name

    def add(self, operator: str, inputs: list[str], shape: Shape, **attributes: object) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=f"n_{name}_{operator}", **attributes))
        self.shapes[name] = shape


def unary(graph: Growing) -> bool:
    source = graph.value()
    assert source is not None
    graph.add(str(graph.pick(list(UNARY))), [source], graph.shapes[source])
    return True


def binary(graph: Growing) -> bool:
    left = graph.value()
    assert left is not None
    shape = graph.shapes[left]
    if graph.flag():
        others = [name for name, other in graph.shapes.items() if len(other) <= len(shape)]
        right = str(graph.pick(list(others)))
        try:
            result = np.broadcast_shapes(shape, graph.shapes[right])
        except ValueError:
            return False
        if math.prod(result) > MOST_ELEMENTS:
            return False
    else:
        kept = shape[graph.integer(0, len(shape)) :]
        right = graph.weight(*[extent if graph.flag() else 1 for extent in kept])
        result = shape
    pair = [left, right] if graph.flag() else [right, left]
    graph.add(str(graph.pick(list(BINARY))), pair, tuple(result))
    return True


def matmul(graph: Growing) -> bool:
    source = graph.value()
    assert source is not None
    shape = graph.shapes[source]
    if len(shape) < 2:
        return False
    width = graph.extent()
    batch = shape[:-2] if graph.flag() else ()
    if math.prod(shape[:-1]) * width > MOST_ELEMENTS:
        return False
    graph.add("MatMul", [source, graph.weight(*batch, shape[-1], width)], (*shape[:-1], width))
    return True


def gemm(graph: Growing) -> bool:
    source = graph.value(2)
    if source is None:
        return False
    rows, columns = graph.shapes[source]
    flipped, transposed = graph.flag(), graph.flag()
    height, depth = (columns, rows) if flipped else (rows, columns)
    width = graph.extent()
    weight = graph.weight(*((width, depth) if transposed else (depth, width)))
    bias = [graph.weight(width)] if graph.flag() else []
    attributes = {"transA": int(flipped), "transB": int(transposed), "alpha": 0.5, "beta": 2.0}
    graph.add("Gemm", [source, weight, *bias], (height, width), **attributes)
    return True


def window_extent(size: int, kernel: int, stride: int, low: int, high: int, dilation: int = 1) -> int:
    return (size + low + high - dilation * (kernel - 1) - 1) // stride + 1


def convolution(graph: Growing) -> bool:
    source = graph.value(4)
    if source is None:
        return False
    batch, channels, *sizes = graph.shapes[source]
    kernel = [graph.integer(1, 3) for _ in sizes]
    strides = [graph.integer(1, 2) for _ in sizes]
    dilations = [graph.integer(1, 2) for _ in sizes]
    low, high = [graph.integer(0, 1) for _ in sizes], [graph.integer(0, 2) for _ in sizes]
    extents = [window_extent(*item) for item in zip(sizes, kernel, strides, low, high, dilations, strict=True)]
    if min(extents) < 1:
        return False
    groups = graph.pick([g for g in (1, 2, channels) if channels % g == 0])
    assert isinstance(groups, int)
    filters = groups * graph.integer(1, 3) if groups > 1 else graph.extent()
    if batch * filters * math.prod(extents) > MOST_ELEMENTS:
        return False
    inputs = [source, graph.weight(filters, channels // groups, *kernel)]
    if graph.flag():
        inputs.append(graph.weight(filters))
    attributes = {"strides": strides, "dilations": dilations, "pads": [*low, *high], "group": groups}
    graph.add("Conv", inputs, (batch, filters, *extents), **attributes)
    return True


def pooling(graph: Growing) -> bool:
    source = graph.value(4)
    if source is None:
        return False
    batch, channels, *sizes = graph.shapes[source]
    operator = str(graph.pick(["MaxPool", "AveragePool", "GlobalAveragePool"]))
    if operator == "GlobalAveragePool":
        graph.add(operator, [source], (batch, channels, 1, 1))
        return True
    kernel = [graph.integer(1, min(3, size)) for size in sizes]
    strides = [graph.integer(1, 2) for _ in sizes]
    low, high = [graph.integer(0, k - 1) for k in kernel], [graph.integer(0, k - 1) for k in kernel]
    extents = [window_extent(*item) for item in zip(sizes, kernel, strides, low, high, strict=True)]
    extra = {"count_include_pad": int(graph.flag())} if operator == "AveragePool" else {}
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": [*low, *high], **extra}
    graph.add(operator, [source], (batch, channels, *extents), **attributes)
    return True


def reduction(graph: Growing) -> bool:
    source = graph.value()
    assert source is not None
    shape = graph.shapes[source]
    axes = [axis for axis in range(len(shape)) if graph.flag()] or [len(shape) - 1]
    keep = graph.flag()
    result = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape) if keep or axis not in axes)
    if not result:
        return False
    signed = [axis - len(shape) if graph.flag() else axis for axis in axes]
    graph.add(str(graph.pick(list(REDUCTIONS))), [source], result, axes=signed, keepdims=int(keep))
    return True


def softmax(graph: Growing) -> bool:
    source = graph.value()
    assert source is not None
    axis = graph.integer(-len(graph.shapes[source]), len(graph.shapes[source]) - 1)
    graph.add(str(graph.pick(["Softmax", "LogSoftmax"])), [source], graph.shapes[source], axis=axis)
    return True


def reshape(graph: Growing) -> bool:
    source = graph.value()
    assert source is not None
    shape = list(graph.shapes[source])
    place = graph.integer(0, len(shape) - 1)
    if graph.flag() and len(shape) > 1 and place + 1 < len(shape):
        result = [*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :]]
    elif len(shape) < 5:
        factor = graph.pick([f for f in (1, 2, 3, shape[place]) if shape[place] % f == 0])
        assert isinstance(factor, int)
        result = [*shape[:place], factor, shape[place] // factor, *shape[place + 1 :]]
    else:
        return False
    written = list(result)
    if graph.flag():
        written[graph.integer(0, len(result) - 1)] = -1
    graph.add("Reshape", [source, graph.integers(written)], tuple(result))
    return True


def transpose(graph: Growing) -> bool:
    source = graph.value()
    assert source is not None
    shape = graph.shapes[source]
    order = graph.draw(st.permutations(range(len(shape))))
    assert isinstance(order, list)
    graph.add("Transpose", [source], tuple(shape[axis] for axis in order), perm=order)
    return True


def concat(graph: Growing) -> bool:
    first = graph.value()
    assert first is not None
    shape = graph.shapes[first]
    axis = graph.integer(0, len(shape) - 1)
    fitting = [
        name
        for name, other in graph.shapes.items()
        if len(other) == len(shape)
        and all(a == b for n, (a, b) in enumerate(zip(other, shape, strict=True)) if n != axis)
    ]
    names = [first, *(str(graph.pick(list(fitting))) for _ in range(graph.integer(1, 2)))]
    result = (*shape[:axis], sum(graph.shapes[name][axis] for name in names), *shape[axis + 1 :])
    if math.prod(result) > MOST_ELEMENTS:
        return False
    graph.add("Concat", names, result, axis=axis)
    return True


def slicing(graph: Growing) -> bool:
    source = graph.value()
    assert source is not None
    shape = graph.shapes[source]
    axis = graph.integer(0, len(shape) - 1)
    start = graph.integer(0, shape[axis] - 1)
    stop = graph.integer(start + 1, shape[axis])
    step = graph.integer(1, 2)
    ends, steps, starts = stop, step, start
    if graph.flag():
        # The same elements backwards: ends before the start, or beyond the beginning.
        starts, ends, steps = stop - 1, start - 1 if start else -(10**6), -step
    result = (*shape[:axis], len(range(shape[axis])[start:stop:step]), *shape[axis + 1 :])
    inputs = [source, *(graph.integers([number]) for number in (starts, ends, axis, steps))]
    graph.add("Slice", inputs, result)
    return True


def padding(graph: Growing) -> bool:
    source = graph.value()
    assert source is not None
    shape = graph.shapes[source]
    mode = str(graph.pick(["constant", "edge", "reflect"]))
    low = [graph.integer(0, 1 if extent > 1 else 0) for extent in shape]
    high = [graph.integer(0, 1 if extent > 1 else 0) for extent in shape]
    result = tuple(a + n + b for a, n, b in zip(low, shape, high, strict=True))
    if math.prod(result) > MOST_ELEMENTS:
        return False
    graph.add("Pad", [source, graph.integers([*low, *high])], result, mode=mode)
    return True


def split(graph: Growing) -> bool:
    source = graph.value()
    assert source is not None
    shape = graph.shapes[source]
    axis = graph.integer(0, len(shape) - 1)
    if shape[axis] < 2:
        return False
    first = graph.integer(1, shape[axis] - 1)
    names = [f"v{len(graph.nodes)}", f"v{len(graph.nodes)}b"]
    sizes = graph.integers([first, shape[axis] - first])
    graph.nodes.append(helper.make_node("Split", [source, sizes], names, name=f"n_{names[0]}_Split", axis=axis))
    for name, extent in zip(names, (first, shape[axis] - first), strict=True):
        graph.shapes[name] = (*shape[:axis], extent, *shape[axis + 1 :])
    return True


def choosing(graph: Growing) -> bool:
    """A comparison and the choice it makes."""
    left = graph.value()
    assert left is not None
    shape = graph.shapes[left]
    name = f"c{len(graph.nodes)}"
    threshold = graph.weight(shape[-1])
    graph.nodes.append(helper.make_node("Greater", [left, threshold], [name], name=f"n_{name}_Greater"))
    graph.add("Where", [name, left, threshold], shape)
    return True


def normalization(graph: Growing) -> bool:
    source = graph.value(4)
    if source is None:
        return False
    channels = graph.shapes[source][1]
    positive = graph.weight(channels)
    graph.weights[positive] = np.abs(graph.weights[positive]) + np.float32(0.5)
    inputs = [source, graph.weight(channels), graph.weight(channels), graph.weight(channels), positive]
    graph.add("BatchNormalization", inputs, graph.shapes[source])
    return True


OPERATORS = [
    *(unary, binary, binary, matmul, gemm, convolution, convolution, pooling, reduction, softmax, reshape, transpose),
    *(concat, slicing, padding, split, choosing, normalization),
]


@st.composite
def models(draw: Callable[..., object]) -> tuple[onnx.ModelProto, Arrays]:
    """A model of a few nodes, and inputs for it."""
    seed = draw(st.integers(0, 2**16))
    assert isinstance(seed, int)
    graph = Growing(draw, np.random.default_rng(seed))
    for place in range(graph.integer(1, 2)):
        rank = graph.pick([4, 4, 2, 3, 1])
        assert isinstance(rank, int)
        shape = [graph.extent() for _ in range(rank)]
        while math.prod(shape) > MOST_ELEMENTS:
            shape[shape.index(max(shape))] = graph.integer(1, 7)
        graph.shapes[f"x{place}"] = tuple(shape)
    inputs = dict(graph.shapes)
    wanted = graph.integer(1, 7)
    for _ in range(3 * wanted):
        if len(graph.nodes) >= wanted:
            break
        operator = draw(st.sampled_from(OPERATORS))
        assert callable(operator)
        operator(graph)
    if not graph.nodes:
        unary(graph)
    used = {name for node in graph.nodes for name in node.input}
    results = [name for name in graph.shapes if name not in used and name not in inputs]
    inner = [name for name in graph.shapes if name in used and name not in inputs]
    if inner and graph.flag():
        results.append(str(graph.pick(list(inner))))
    built = model(
        graph.nodes,
        {name: (FLOAT, shape) for name, shape in inputs.items()},
        {name: (TensorProto.FLOAT, graph.shapes[name]) for name in results},
        graph.weights,
        name="random",
    )
    arrays = {name: graph.random.standard_normal(shape).astype(np.float32) for name, shape in inputs.items()}
    return built, arrays
