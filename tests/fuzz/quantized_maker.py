"""Random quantised ONNX graphs: pairs of QuantizeLinear and DequantizeLinear, and operators on integers.

A graph is a list of stages. Each makes one tensor of 8-bit integers (or of int32, at the end) of earlier ones, so that
a stage can be looked at alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
MICROSOFT = "com.microsoft"
_TYPES = {
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "int32": TensorProto.INT32,
    "float32": TensorProto.FLOAT,
}


@dataclass(frozen=True)
class Value:
    """A tensor of integers: what it stands for is (q - zero) * scale."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: np.float32
    zero: int


@dataclass(frozen=True)
class Stage:
    """Nodes that make one tensor; `real` is the float tensor that their last node quantises, if it does."""

    kind: str
    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...]
    output: Value
    real: str | None = None

    @property
    def is_exact(self) -> bool:
        """Whether ONNX says every bit of the result: integers are added, moved, or made of given numbers."""
        return self.kind in ("input", "integer product", "move", "dequantised move")


@dataclass
class Graph:
    """A random graph while it grows, and then."""

    random: np.random.Generator
    stages: list[Stage] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    _names: int = 0

    # Choices

    def one(self, *options: Any) -> Any:
        """One of some things."""
        return options[int(self.random.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        """True so often."""
        return bool(self.random.random() < probability)

    def whole(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return int(self.random.integers(low, high + 1))

    def dtype(self) -> str:
        """A type of integers."""
        return str(self.one("uint8", "uint8", "int8"))

    def zero(self, dtype: str) -> int:
        """A zero point: an end, the middle, or anything."""
        low, high = (0, 255) if dtype == "uint8" else (-128, 127)
        return int(self.one(low, high, (low + high + 1) // 2, self.whole(low, high), self.whole(low, high)))

    # Parts of nodes

    def name(self, stem: str) -> str:
        """A fresh name."""
        self._names += 1
        return f"{stem}{self._names}"

    def constant(self, value: npt.ArrayLike, dtype: str) -> str:
        """A constant tensor."""
        name = self.name("c")
        self.constants[name] = np.asarray(value, dtype)
        return name

    def parameters(self, value: Value) -> tuple[str, str]:
        """Scale and zero point of a value as constants."""
        return self.constant(value.scale, "float32"), self.constant(value.zero, value.dtype)

    def dequantized(self, value: Value, nodes: list[onnx.NodeProto]) -> str:
        """The numbers that a value stands for."""
        name = self.name("f")
        nodes.append(helper.make_node("DequantizeLinear", [value.name, *self.parameters(value)], [name]))
        return name

    def fresh(self, shape: tuple[int, ...], reach: float, dtype: str | None = None) -> Value:
        """A new value whose numbers mostly lie within some reach of zero."""
        dtype = dtype or self.dtype()
        scale = np.float32(max(reach, 1e-6) / self.one(20, 60, 110, 127) * self.random.uniform(0.7, 1.4))
        return Value(self.name("q"), shape, dtype, scale, self.zero(dtype))

    def quantize(self, kind: str, nodes: list[onnx.NodeProto], real: str, result: Value, *inputs: Value) -> None:
        """A stage that ends with a QuantizeLinear."""
        nodes.append(helper.make_node("QuantizeLinear", [real, *self.parameters(result)], [result.name]))
        self.add(Stage(kind, tuple(nodes), tuple(item.name for item in inputs), result, real))

    def add(self, stage: Stage) -> None:
        """Take a stage in."""
        self.stages.append(stage)
        self.values.append(stage.output)

    def some(self, *ranks: int) -> Value | None:
        """A value of one of some ranks that can be used further, of late ones rather."""
        fitting = [item for item in self.values if len(item.shape) in ranks and item.dtype != "int32"]
        return None if not fitting else fitting[-1] if self.chance(0.7) else self.one(*fitting)

    # The model

    def model(self) -> onnx.ModelProto:
        """All stages; the results are all the integers."""
        shapes = {name: (array.dtype.name, array.shape) for name, array in self.inputs.items()}
        return self.model_of(self.stages, shapes, [stage.output for stage in self.stages])

    def model_of(
        self,
        stages: list[Stage],
        inputs: dict[str, tuple[str, tuple[int, ...]]],
        outputs: list[Value],
        real: str | None = None,
    ) -> onnx.ModelProto:
        """Some stages as a model; `real` is a float tensor to give as well."""
        nodes = [node for stage in stages for node in stage.nodes]
        used = {name for node in nodes for name in node.input}
        results = [helper.make_tensor_value_info(item.name, _TYPES[item.dtype], None) for item in outputs]
        if real is not None:
            results.append(helper.make_tensor_value_info(real, TensorProto.FLOAT, None))
        graph = helper.make_graph(
            nodes,
            "quantized",
            [helper.make_tensor_value_info(name, _TYPES[kind], shape) for name, (kind, shape) in inputs.items()],
            results,
            [numpy_helper.from_array(array, name) for name, array in self.constants.items() if name in used],
        )
        opsets = [helper.make_opsetid("", 19), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


Maker = Callable[[Graph], bool]
MAKERS: list[Maker] = []


def maker(make: Maker) -> Maker:
    """Register what adds a stage, or finds nothing to add it to."""
    MAKERS.append(make)
    return make


def begin(graph: Graph) -> None:
    """An input: floats that are quantised, or integers."""
    rank = graph.one(4, 4, 4, 3, 2)
    sizes = {4: (1, 3, 4, 5, 8, 16), 3: (1, 2, 5, 7, 16), 2: (1, 3, 8, 17, 33)}[rank]
    shape = tuple(int(graph.one(*sizes)) for _ in range(rank))
    if rank == 4:
        shape = (graph.one(1, 1, 2), shape[1], graph.whole(3, 12), graph.whole(3, 12))
    value = graph.fresh(shape, 3.0)
    if graph.chance(0.3):
        low, high = (0, 255) if value.dtype == "uint8" else (-128, 127)
        graph.inputs[value.name] = graph.random.integers(low, high + 1, shape).astype(value.dtype)
        graph.values.append(value)
        return
    name = graph.name("x")
    graph.inputs[name] = (graph.random.standard_normal(shape) * 2).astype(np.float32)
    graph.quantize("input", [], name, value)


@dataclass(frozen=True)
class _Weight:
    """Integers, scale and zero point of a weight as constants; `step` is a scale of it."""

    integers: str
    scale: str
    zero: str
    step: np.float32
    scales: Array
    axis: int


def _weight(graph: Graph, shape: tuple[int, ...], axis: int, dtype: str, narrow: bool) -> _Weight:
    """A weight by tensor or by channel along an axis. `narrow`: 7 bits, whose products no instruction saturates."""
    per_channel = graph.chance(0.5)
    low, high = (0, 127) if dtype == "uint8" and narrow else (0, 255) if dtype == "uint8" else (-127, 127)
    if narrow and dtype == "int8":
        low, high = -63, 63
    zero = 0 if dtype == "int8" and graph.chance(0.7) else graph.whole(low, high)
    count = shape[axis] if per_channel else 1
    scales = (graph.random.uniform(0.5, 1.5, count) * 0.01).astype(np.float32)
    integers = graph.constant(graph.random.integers(low, high + 1, shape), dtype)
    spread: Any = scales if per_channel else scales[0]
    zeros: Any = np.full(count, zero) if per_channel else zero
    return _Weight(
        integers,
        graph.constant(spread, "float32"),
        graph.constant(zeros, dtype),
        np.float32(scales.max()),
        scales,
        axis,
    )


def _reach(count: int, value: Value, weight: _Weight) -> float:
    """How far sums of products lie from zero, roughly."""
    return float(np.sqrt(count) * 74 * value.scale * 50 * weight.step * 2)


def _window(graph: Graph, size: tuple[int, int]) -> dict[str, Any] | None:
    """Attributes of a window that fits an image."""
    kernel = [graph.whole(1, 4), graph.whole(1, 4)]
    pads = [graph.whole(0, max(extent - 1, 0)) for extent in (*kernel, *kernel)]
    dilations = [graph.one(1, 1, 2), graph.one(1, 1, 2)]
    strides = [graph.one(1, 1, 2, 3), graph.one(1, 2)]
    for place in (0, 1):
        if size[place] + pads[place] + pads[place + 2] < (kernel[place] - 1) * dilations[place] + 1:
            return None
    return {"kernel_shape": kernel, "pads": pads, "dilations": dilations, "strides": strides}


def _extent(size: int, place: int, window: dict[str, Any]) -> int:
    reach = (window["kernel_shape"][place] - 1) * window["dilations"][place] + 1
    return int((size + window["pads"][place] + window["pads"][place + 2] - reach) // window["strides"][place] + 1)


@dataclass(frozen=True)
class _Convolution:
    data: Value
    weight: _Weight
    attributes: dict[str, Any]
    shape: tuple[int, ...]
    products: int
    bias: str | None


def _convolution(graph: Graph, narrow: bool) -> _Convolution | None:
    data = graph.some(4)
    window = None if data is None else _window(graph, (data.shape[2], data.shape[3]))
    if data is None or window is None:
        return None
    channels = data.shape[1]
    groups = graph.one(1, 1, 1, channels, *(item for item in (2, 4, 8) if channels % item == 0))
    outputs = groups * graph.whole(1, 3) if groups > 1 else graph.one(1, 3, 8, 16, 17)
    dtype = "int8" if data.dtype == "int8" else graph.one("int8", "int8", "uint8")
    shape = (outputs, channels // groups, *window["kernel_shape"])
    weight = _weight(graph, shape, 0, dtype, narrow)
    size = tuple(_extent(data.shape[place + 2], place, window) for place in (0, 1))
    bias = None
    if graph.chance(0.5):
        bias = graph.constant(graph.random.integers(-3000, 3000, outputs), "int32")
    products = int(np.prod(shape[1:]))
    return _Convolution(data, weight, {**window, "group": groups}, (data.shape[0], outputs, *size), products, bias)


def _activated(graph: Graph, nodes: list[onnx.NodeProto], value: str) -> str:
    """A value through an activation, or as it is."""
    kind = graph.one("", "", "Relu", "Relu", "Clip", "LeakyRelu")
    if not kind:
        return value
    name = graph.name("f")
    bounds = [graph.constant(0.0, "float32"), graph.constant(6.0, "float32")] if kind == "Clip" else []
    nodes.append(helper.make_node(kind, [value, *bounds], [name]))
    return name


@maker
def dequantized_convolution(graph: Graph) -> bool:
    """DequantizeLinear, Conv, an activation, QuantizeLinear."""
    made = _convolution(graph, narrow=False)
    if made is None:
        return False
    nodes: list[onnx.NodeProto] = []
    data, weight, result = graph.dequantized(made.data, nodes), graph.name("f"), graph.name("f")
    parts = [made.weight.integers, made.weight.scale, made.weight.zero]
    nodes.append(helper.make_node("DequantizeLinear", parts, [weight], axis=0))
    inputs = [data, weight]
    if made.bias is not None:
        step = graph.constant(made.data.scale * made.weight.scales, "float32")
        if len(made.weight.scales) == 1:
            step = graph.constant(np.float32(made.data.scale * made.weight.step), "float32")
        inputs.append(graph.name("f"))
        nodes.append(helper.make_node("DequantizeLinear", [made.bias, step], [inputs[2]], axis=0))
    nodes.append(helper.make_node("Conv", inputs, [result], **made.attributes))
    output = graph.fresh(made.shape, _reach(made.products, made.data, made.weight))
    graph.quantize("product of numbers", nodes, _activated(graph, nodes, result), output, made.data)
    return True


@maker
def transposed_convolution(graph: Graph) -> bool:
    """DequantizeLinear, ConvTranspose, an activation, QuantizeLinear."""
    data = graph.some(4)
    if data is None or data.shape[2] * data.shape[3] > 150:
        return False
    groups = graph.one(1, 1, *(item for item in (2, data.shape[1]) if data.shape[1] % item == 0))
    outputs = graph.one(1, 3, 4, 8)
    kernel, strides = ([graph.whole(1, 4), graph.whole(1, 4)], [graph.whole(1, 3), graph.whole(1, 2)])
    dilations = [graph.one(1, 1, 2), 1]
    reach = [(size - 1) * space + 1 for size, space in zip(kernel, dilations, strict=True)]
    pads = [graph.whole(0, (extent - 1) // 2) for extent in (*reach, *reach)]
    extra = [graph.whole(0, stride - 1) for stride in strides]
    size = [(data.shape[n + 2] - 1) * strides[n] + reach[n] + extra[n] - pads[n] - pads[n + 2] for n in range(2)]
    if min(size) < 1:
        return False
    weight = _weight(graph, (data.shape[1], outputs, *kernel), 1, "int8", narrow=False)
    nodes: list[onnx.NodeProto] = []
    value, factor, result = graph.dequantized(data, nodes), graph.name("f"), graph.name("f")
    parts = [weight.integers, weight.scale, weight.zero]
    nodes.append(helper.make_node("DequantizeLinear", parts, [factor], axis=1))
    attributes = {"strides": strides, "pads": pads, "dilations": dilations, "output_padding": extra, "group": groups}
    nodes.append(helper.make_node("ConvTranspose", [value, factor], [result], kernel_shape=kernel, **attributes))
    shape = (data.shape[0], outputs * groups, size[0], size[1])
    output = graph.fresh(shape, _reach(data.shape[1] // groups * kernel[0] * kernel[1], data, weight))
    graph.quantize("product of numbers", nodes, _activated(graph, nodes, result), output, data)
    return True


@maker
def integer_convolution(graph: Graph) -> bool:
    """QLinearConv, or ConvInteger, with scales put on afterwards or not."""
    made = _convolution(graph, narrow=True)
    if made is None:
        return False
    data, weight = made.data, made.weight
    if graph.chance(0.6):
        output = graph.fresh(made.shape, _reach(made.products, data, weight), data.dtype)
        inputs = [data.name, *graph.parameters(data), weight.integers, weight.scale, weight.zero]
        inputs += [*graph.parameters(output), *([made.bias] if made.bias is not None else [])]
        node = helper.make_node("QLinearConv", inputs, [output.name], **made.attributes)
        graph.add(Stage("requantised product", (node,), (data.name,), output))
        return True
    if data.dtype != "uint8" or len(weight.scales) > 1:
        return False
    sums = Value(graph.name("q"), made.shape, "int32", np.float32(1), 0)
    inputs = [data.name, weight.integers, graph.parameters(data)[1], weight.zero]
    graph.add(
        Stage(
            "integer product",
            (helper.make_node("ConvInteger", inputs, [sums.name], **made.attributes),),
            (data.name,),
            sums,
        )
    )
    if graph.chance(0.7):
        _scaled(graph, sums, data, weight, made.products)
    return True


def _scaled(graph: Graph, sums: Value, data: Value, weight: _Weight, products: int) -> None:
    """Sums of integers, cast and multiplied by their scale, through an activation, quantised."""
    wide, real = graph.name("f"), graph.name("f")
    step = graph.constant(np.float32(data.scale * weight.step), "float32")
    nodes = [
        helper.make_node("Cast", [sums.name], [wide], to=TensorProto.FLOAT),
        helper.make_node("Mul", [wide, step], [real]),
    ]
    output = graph.fresh(sums.shape, _reach(products, data, weight))
    graph.quantize("scaled sums", nodes, _activated(graph, nodes, real), output, sums)


@maker
def matrix_product(graph: Graph) -> bool:
    """A product with a matrix: dequantised, QLinearMatMul, or MatMulInteger."""
    data = graph.some(2, 3)
    if data is None:
        return False
    inputs, outputs = data.shape[-1], graph.one(1, 3, 8, 17, 32)
    form = graph.one("numbers", "numbers", "requantised", "integers")
    narrow = form != "numbers"
    dtype = "int8" if data.dtype == "int8" else graph.one("int8", "int8", "uint8")
    weight = _weight(graph, (inputs, outputs), 1, dtype, narrow)
    shape = (*data.shape[:-1], outputs)
    if form == "integers":
        sums = Value(graph.name("q"), shape, "int32", np.float32(1), 0)
        parts = [data.name, weight.integers, graph.parameters(data)[1], weight.zero]
        node = helper.make_node("MatMulInteger", parts, [sums.name])
        graph.add(Stage("integer product", (node,), (data.name,), sums))
        if graph.chance(0.7):
            _scaled(graph, sums, data, weight, inputs)
        return True
    if form == "requantised":
        output = graph.fresh(shape, _reach(inputs, data, weight), data.dtype)
        parts = [data.name, *graph.parameters(data), weight.integers, weight.scale, weight.zero]
        node = helper.make_node("QLinearMatMul", [*parts, *graph.parameters(output)], [output.name])
        graph.add(Stage("requantised product", (node,), (data.name,), output))
        return True
    nodes: list[onnx.NodeProto] = []
    left, right, real = graph.dequantized(data, nodes), graph.name("f"), graph.name("f")
    nodes.append(helper.make_node("DequantizeLinear", [weight.integers, weight.scale, weight.zero], [right], axis=1))
    nodes.append(helper.make_node("MatMul", [left, right], [real]))
    output = graph.fresh(shape, _reach(inputs, data, weight))
    graph.quantize("product of numbers", nodes, _activated(graph, nodes, real), output, data)
    return True


@maker
def product_of_activations(graph: Graph) -> bool:
    """A value times its own transpose, dequantised."""
    data = graph.some(3)
    if data is None:
        return False
    nodes: list[onnx.NodeProto] = []
    left, turned, real = graph.dequantized(data, nodes), graph.name("f"), graph.name("f")
    nodes.append(helper.make_node("Transpose", [left], [turned], perm=[0, 2, 1]))
    nodes.append(helper.make_node("MatMul", [left, turned], [real]))
    output = graph.fresh((*data.shape[:2], data.shape[1]), float(np.sqrt(data.shape[2]) * (74 * data.scale) ** 2))
    graph.quantize("product of numbers", nodes, real, output, data)
    return True


def _pooled(graph: Graph, data: Value) -> tuple[str, list[str], dict[str, Any], tuple[int, ...]] | None:
    window = _window(graph, (data.shape[2], data.shape[3]))
    if window is None or any(
        pad >= extent for pad, extent in zip(window["pads"], window["kernel_shape"] * 2, strict=True)
    ):
        return None
    size = tuple(_extent(data.shape[place + 2], place, window) for place in (0, 1))
    return "MaxPool", [], window, (*data.shape[:2], *size)


def _moved(graph: Graph, data: Value) -> tuple[str, list[str], dict[str, Any], tuple[int, ...]] | None:
    """An operator that moves elements: its name, further inputs, attributes, and the shape of its result."""
    rank = len(data.shape)
    kind = graph.one("MaxPool", "Transpose", "Reshape", "Slice", "Concat", "Concat", "Resize")
    if kind == "MaxPool":
        return _pooled(graph, data) if rank == 4 else None
    if kind == "Resize":
        sizes = (*data.shape[:2], *(graph.whole(1, 2 * size) for size in data.shape[2:]))
        more = ["", "", graph.constant(sizes, "int64")]
        return (kind, more, {"mode": "nearest"}, sizes) if rank == 4 else None
    if kind == "Transpose":
        axes = [int(axis) for axis in graph.random.permutation(rank)]
        return kind, [], {"perm": axes}, tuple(data.shape[axis] for axis in axes)
    if kind == "Reshape":
        shape = (data.shape[0], int(np.prod(data.shape[1:])))
        return kind, [graph.constant(shape, "int64")], {}, shape
    if kind == "Slice":
        axis = graph.whole(0, rank - 1)
        end = graph.whole(1, data.shape[axis])
        parts = [graph.constant([value], "int64") for value in (0, end, axis)]
        return kind, parts, {}, (*data.shape[:axis], end, *data.shape[axis + 1 :])
    axis = graph.whole(0, rank - 1)
    return kind, [], {"axis": axis}, (*data.shape[:axis], 2 * data.shape[axis], *data.shape[axis + 1 :])


@maker
def move(graph: Graph) -> bool:
    """What only moves elements: on integers, or on numbers that are quantised as they were."""
    data = graph.some(2, 3, 4)
    moved = None if data is None else _moved(graph, data)
    if data is None or moved is None or 0 in moved[3]:
        return False
    kind, more, attributes, shape = moved
    output = Value(graph.name("q"), shape, data.dtype, data.scale, data.zero)
    if graph.chance(0.4):
        inputs = [data.name] * (2 if kind == "Concat" else 1)
        node = helper.make_node(kind, [*inputs, *more], [output.name], **attributes)
        graph.add(Stage("move", (node,), (data.name,), output))
        return True
    nodes: list[onnx.NodeProto] = []
    value, real = graph.dequantized(data, nodes), graph.name("f")
    inputs = [value] * (2 if kind == "Concat" else 1)
    nodes.append(helper.make_node(kind, [*inputs, *more], [real], **attributes))
    graph.quantize("dequantised move", nodes, real, output, data)
    return True


@maker
def average(graph: Graph) -> bool:
    """Pooling by average."""
    data = graph.some(4)
    if data is None:
        return False
    nodes: list[onnx.NodeProto] = []
    value, real = graph.dequantized(data, nodes), graph.name("f")
    if graph.chance(0.5):
        nodes.append(helper.make_node("GlobalAveragePool", [value], [real]))
        shape = (*data.shape[:2], 1, 1)
    else:
        pooled = _pooled(graph, data)
        if pooled is None:
            return False
        _, _, window, shape = pooled
        nodes.append(helper.make_node("AveragePool", [value], [real], count_include_pad=graph.one(0, 1), **window))
    graph.quantize("numbers", nodes, real, graph.fresh(shape, float(74 * data.scale)), data)
    return True


@maker
def elementwise(graph: Graph) -> bool:
    """A function of one value, or a sum or product of two of one shape: on numbers, or QLinearAdd and QLinearMul."""
    data = graph.some(2, 3, 4)
    if data is None:
        return False
    other = graph.one(*(item for item in graph.values if item.shape == data.shape and item.dtype != "int32"))
    kind = graph.one("Add", "Add", "Mul", "Relu", "Sigmoid", "Tanh")
    reach = {"Add": 100 * (data.scale + other.scale), "Mul": 5000 * data.scale * other.scale}.get(
        kind, 127 * data.scale
    )
    output = graph.fresh(data.shape, 1.0 if kind in ("Sigmoid", "Tanh") else float(reach))
    if kind in ("Add", "Mul") and data.dtype == other.dtype == output.dtype and graph.chance(0.4):
        parts = [part for item in (data, other) for part in (item.name, *graph.parameters(item))]
        parts += graph.parameters(output)
        node = helper.make_node(f"QLinear{kind}", parts, [output.name], domain=MICROSOFT)
        graph.add(Stage("requantised sum", (node,), (data.name, other.name), output))
        return True
    nodes: list[onnx.NodeProto] = []
    values = [graph.dequantized(item, nodes) for item in ([data, other] if kind in ("Add", "Mul") else [data])]
    real = graph.name("f")
    nodes.append(helper.make_node(kind, values, [real]))
    if kind == "Add" and graph.chance(0.5):
        real = _activated(graph, nodes, real)
    graph.quantize("numbers", nodes, real, output, data, *([other] if len(values) == 2 else []))
    return True


@functools.cache
def make(seed: int) -> Graph:
    """The graph of a seed: an input and one to six stages more."""
    graph = Graph(np.random.default_rng(seed))
    begin(graph)
    count = graph.whole(1, 6)
    for _ in range(8 * count):
        if len(graph.stages) > count:
            break
        graph.one(*MAKERS)(graph)
    return graph
