"""Small models for the schedule templates, by family: each of odd sizes (primes, ones, just above a tile)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.integration import small_models

_KINDS = {
    np.dtype("float32"): TensorProto.FLOAT,
    np.dtype("int64"): TensorProto.INT64,
    np.dtype("uint8"): TensorProto.UINT8,
    np.dtype("int8"): TensorProto.INT8,
    np.dtype("int32"): TensorProto.INT32,
}
OPSET = 18
ODD = (1, 2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 23, 31, 32, 33, 47, 49, 50, 63, 64, 65, 77, 96, 97)
"""Sizes: primes, powers of two and their neighbours."""
FEW = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13)


@dataclass(slots=True)
class Draft:
    """A model in the making: operators on one input `x`, with weights drawn as they are named."""

    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)

    def pick(self, options: tuple[int, ...] = ODD) -> int:
        """One of some sizes."""
        return int(self.random.choice(options))

    def chance(self, share: float = 0.5) -> bool:
        """Whether something happens that does in a share of all cases."""
        return bool(self.random.random() < share)

    def input(self, *shape: int, name: str = "x") -> str:
        """An input of random floats."""
        self.inputs[name] = self.random.standard_normal(shape, dtype=np.float32)
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """A constant of random floats, small enough that sums of products stay near one."""
        deep = np.prod(shape[1:]) if len(shape) > 1 else 1
        value = self.random.standard_normal(shape, dtype=np.float32) * (scale or 1 / np.sqrt(max(1, deep)))
        return self.constant(value.astype(np.float32))

    def constant(self, value: np.ndarray) -> str:
        """A constant."""
        name = f"w{len(self.weights)}"
        self.weights[name] = value
        return name

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """An operator; gives the name of its first result."""
        name = f"v{len(self.nodes)}"
        names = [name if n == 0 else f"{name}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return name

    def epilogue(self, value: str, channels: tuple[int, ...], like: tuple[int, ...] | None = None) -> str:
        """What may follow a product: a bias, a residual, an activation."""
        if self.chance():
            value = self.node("Add", value, self.weight(*channels, scale=1.0))
        if like is not None and self.chance(0.3):
            value = self.node("Add", value, self.input(*like, name="residual"))
        choice = int(self.random.integers(5))
        return value if choice > 3 else self.node(("Relu", "Sigmoid", "Tanh", "HardSwish")[choice], value)

    def model(self, result: str) -> onnx.ModelProto:
        """The model, whose only result is the value of that name."""
        kinds = {name: (_KINDS[value.dtype], value.shape) for name, value in self.inputs.items()}
        made = small_models.model(self.nodes, kinds, {result: (0, None)}, self.weights, opset=OPSET)
        inferred = onnx.shape_inference.infer_shapes(made)
        made.graph.output[0].CopyFrom(next(item for item in inferred.graph.output if item.name == result))
        return made


def dense(draft: Draft) -> str:
    """A matrix product with constant weights."""
    rows, depth, columns = draft.pick(), draft.pick((*ODD, 256, 1031)), draft.pick((*ODD, 300, 1001))
    made = draft.node("MatMul", draft.input(rows, depth), draft.weight(depth, columns, scale=depth**-0.5))
    return draft.epilogue(made, (columns,), (rows, columns))


def gated(draft: Draft) -> str:
    """Two parts of a product, or two products, that meet element by element."""
    rows, depth, columns = draft.pick((1, 1, *ODD, 128, 300)), draft.pick((*ODD, 256)), draft.pick((*ODD, 128, 320))
    data = draft.input(*((1,) if draft.chance() else ()), rows, depth)
    if draft.chance():
        both = draft.node("MatMul", data, draft.weight(depth, 2 * columns, scale=depth**-0.5))
        if draft.chance():
            both = draft.node("Add", both, draft.weight(2 * columns, scale=1.0))
        gate = draft.node("Split", both, outputs=2, axis=-1, num_outputs=2)
        up = f"{gate}_1"
    else:
        gate, up = (draft.node("MatMul", data, draft.weight(depth, columns, scale=depth**-0.5)) for _ in range(2))
    kind = ("Sigmoid", "Tanh", "HardSwish", "Relu")[int(draft.random.integers(4))]
    opened = draft.node(kind, gate)
    if kind == "Sigmoid" and draft.chance():
        opened = draft.node("Mul", opened, gate)
    return draft.epilogue(draft.node("Mul", opened, up), (columns,))


def batched(draft: Draft) -> str:
    """Products of two computed operands."""
    batch, rows, depth, columns = draft.pick(FEW), draft.pick(), draft.pick(), draft.pick()
    left = draft.input(batch, rows, depth)
    if draft.chance():
        right = draft.node("Transpose", draft.input(batch, columns, depth, name="y"), perm=[0, 2, 1])
    else:
        right = draft.input(batch, depth, columns, name="y")
    return draft.epilogue(draft.node("MatMul", left, right), (columns,))


def _window(draft: Draft, rank: int) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """The sizes of an image, a kernel that fits it, strides, dilations and padding."""
    largest = (97, 33, 17)[rank - 1]
    sizes = [draft.pick(tuple(n for n in ODD if 4 < n <= largest)) for _ in range(rank)]
    square = draft.chance(0.7)
    kernel = [draft.pick((1, 3, 5)) for _ in range(rank)] if not square else [draft.pick((1, 2, 3, 3, 3, 5, 7))] * rank
    strides = [1 if draft.chance(0.6) else draft.pick((2, 3))] * rank
    dilations = [1 if draft.chance(0.8) else 2] * rank
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = [span // 2 if draft.chance(0.8) or span > size else 0 for span, size in zip(spans, sizes, strict=True)]
    return sizes, kernel, strides, dilations, pads


def _convolution(draft: Draft, rank: int, groups: int, inputs: int, outputs: int) -> str:
    sizes, kernel, strides, dilations, pads = _window(draft, rank)
    made = draft.node(
        "Conv",
        draft.input(draft.pick((1, 1, 1, 2, 3)), inputs, *sizes),
        draft.weight(outputs, inputs // groups, *kernel),
        *([draft.weight(outputs, scale=1.0)] if draft.chance() else []),
        group=groups,
        strides=strides,
        dilations=dilations,
        pads=[*pads, *pads],
        kernel_shape=kernel,
    )
    return draft.epilogue(made, (outputs, *[1] * rank))


def convolution_1d(draft: Draft) -> str:
    """Convolutions of lines."""
    return _convolution(draft, 1, 1, draft.pick(), draft.pick())


def convolution_2d(draft: Draft) -> str:
    """Convolutions of images."""
    return _convolution(draft, 2, 1, draft.pick(), draft.pick())


def convolution_3d(draft: Draft) -> str:
    """Convolutions of volumes."""
    return _convolution(draft, 3, 1, draft.pick(FEW), draft.pick(FEW))


def winograd(draft: Draft) -> str:
    """Convolutions that Winograd's algorithm suits: three by three over many channels."""
    inputs, outputs, size = draft.pick((16, 24, 32, 48, 104)), draft.pick((16, 20, 33, 64)), draft.pick((9, 14, 23, 28))
    groups = 1 if draft.chance(0.7) else draft.pick((2, 4, 8))
    inputs, outputs = inputs // groups * groups, outputs // groups * groups
    stride = 1 if draft.chance(0.8) else 2
    made = draft.node(
        "Conv",
        draft.input(draft.pick((1, 1, 2)), inputs, size, size),
        draft.weight(outputs, inputs // groups, 3, 3),
        group=groups,
        strides=[stride, stride],
        pads=[1, 1, 1, 1],
    )
    return draft.epilogue(made, (outputs, 1, 1))


def grouped(draft: Draft) -> str:
    """Convolutions of groups of channels (RegNet, ResNeXt)."""
    groups, inside, outside = draft.pick((2, 3, 6, 13, 26, 32)), draft.pick((2, 4, 8, 9)), draft.pick((2, 4, 8, 9))
    return _convolution(draft, 2, groups, groups * inside, groups * outside)


def depthwise(draft: Draft) -> str:
    """Convolutions of each channel by itself."""
    channels = draft.pick()
    return _convolution(draft, 2 if draft.chance(0.8) else 1, channels, channels, channels * draft.pick((1, 1, 1, 2)))


def separable(draft: Draft) -> str:
    """A depthwise convolution, an activation and a convolution of single pixels (MobileNet)."""
    channels, outputs, size = draft.pick(), draft.pick(), draft.pick((7, 14, 15, 28))
    pads, weight = [1, 1, 1, 1], draft.weight(channels, 1, 3, 3)
    made = draft.node("Conv", draft.input(1, channels, size, size), weight, group=channels, pads=pads)
    made = draft.node("Conv", draft.node("Relu", made), draft.weight(outputs, channels, 1, 1))
    return draft.epilogue(made, (outputs, 1, 1))


def expanded(draft: Draft) -> str:
    """A convolution of single pixels, an activation and a depthwise convolution (inverted residuals)."""
    inputs, channels, size = draft.pick(), draft.pick((8, 12, 16, 36, 48)), draft.pick((7, 14, 15, 28))
    kernel, stride = draft.pick((3, 5)), draft.pick((1, 2))
    made = draft.node("Conv", draft.input(1, inputs, size, size), draft.weight(channels, inputs, 1, 1))
    weight, pads = draft.weight(channels, 1, kernel, kernel), [kernel // 2] * 4
    made = draft.node("Conv", draft.node("Relu", made), weight, group=channels, pads=pads, strides=[stride, stride])
    return draft.epilogue(made, (channels, 1, 1))


def transposed(draft: Draft) -> str:
    """Transposed convolutions."""
    inputs, outputs, kernel, stride = draft.pick(), draft.pick(), draft.pick((2, 3, 4)), draft.pick((1, 2, 2, 3))
    size = draft.pick((4, 5, 7, 8, 13))
    made = draft.node(
        "ConvTranspose",
        draft.input(1, inputs, size, size),
        draft.weight(inputs, outputs, kernel, kernel, scale=0.1),
        strides=[stride, stride],
        pads=[kernel // 2] * 4 if draft.chance() else [0] * 4,
    )
    return draft.epilogue(made, (outputs, 1, 1))


def attention(draft: Draft) -> str:
    """Heads of queries, keys and values: windows with a mask (Swin), few tokens (ViT), grouped queries."""
    heads = draft.pick((1, 2, 3, 6, 8, 12, 24))
    tokens, size = draft.pick((7, 16, 17, 31, 49, 50, 65, 77)), draft.pick((8, 16, 32, 33))
    batch = draft.pick((1, 1, 4))
    shared = heads // 2 if heads % 2 == 0 and draft.chance(0.3) else heads
    query = draft.input(batch, heads, tokens, size)
    keys = draft.input(batch, shared, tokens, size, name="y")
    values = draft.input(batch, shared, tokens, size, name="z")
    if shared != heads:
        keys, values = (_repeated(draft, item, batch, heads, tokens, size) for item in (keys, values))
    scores = draft.node("MatMul", query, draft.node("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = draft.node("Mul", scores, draft.constant(np.float32(size**-0.5)))
    if draft.chance():
        scores = draft.node("Add", scores, draft.weight(1, heads, tokens, tokens, scale=1.0))
    if batch > 1 and draft.chance():
        mask = np.where(draft.random.random((batch, 1, tokens, tokens)) < 0.3, -100.0, 0.0)
        scores = draft.node("Add", scores, draft.constant(mask.astype(np.float32)))
    mixed = draft.node("MatMul", draft.node("Softmax", scores, axis=-1), values)
    joined = draft.node("Transpose", mixed, perm=[0, 2, 1, 3])
    return draft.node("Reshape", joined, draft.constant(np.array([batch, tokens, heads * size])))


def _repeated(draft: Draft, value: str, batch: int, heads: int, tokens: int, size: int) -> str:
    """Heads that two of the queries share, each twice."""
    wide = draft.node("Unsqueeze", value, draft.constant(np.array([2])))
    shape = draft.constant(np.array([batch, heads // 2, 2, tokens, size]))
    flat = draft.constant(np.array([batch, heads, tokens, size]))
    return draft.node("Reshape", draft.node("Expand", wide, shape), flat)


def projected_attention(draft: Draft) -> str:
    """Attention with its projections (ViT): heads lie side by side."""
    heads, tokens, size = draft.pick((3, 6, 12)), draft.pick((17, 49, 50)), draft.pick((16, 32, 64))
    width = heads * size
    data, shape = draft.input(1, tokens, width), draft.constant(np.array([1, tokens, heads, size]))
    parts = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        made = draft.node("MatMul", data, draft.weight(width, width))
        parts.append(draft.node("Transpose", draft.node("Reshape", made, shape), perm=order))
    scores = draft.node("Mul", draft.node("MatMul", parts[0], parts[1]), draft.constant(np.float32(size**-0.5)))
    mixed = draft.node("MatMul", draft.node("Softmax", scores, axis=-1), parts[2])
    flat = draft.constant(np.array([1, tokens, width]))
    side_by_side = draft.node("Reshape", draft.node("Transpose", mixed, perm=[0, 2, 1, 3]), flat)
    return draft.node("MatMul", side_by_side, draft.weight(width, width))


def layer_norm(draft: Draft) -> str:
    """Layer normalisation of rows, with what stands around it in ConvNeXt and transformers."""
    rows, width = draft.pick((1, 7, 49, 50, 197, 784)), draft.pick((*ODD, 384, 769))
    data = draft.input(2, rows, width)
    if draft.chance():
        data = draft.node("Add", data, draft.input(2, rows, width, name="residual"))
    scale, shift = draft.weight(width, scale=1.0), draft.weight(width, scale=1.0)
    return draft.node("LayerNormalization", data, scale, shift, axis=-1)


def softmax(draft: Draft) -> str:
    """Softmax along any axis."""
    shape = tuple(draft.pick() for _ in range(3))
    kind = "Softmax" if draft.chance(0.7) else "LogSoftmax"
    return draft.node(kind, draft.input(*shape), axis=int(draft.random.integers(-1, 3)))


def reduction(draft: Draft) -> str:
    """Sums, means, maxima and the like of some axes."""
    rank = draft.pick((2, 3, 4))
    shape = tuple(draft.pick() if rank < 4 else draft.pick(FEW) for _ in range(rank))
    count = int(draft.random.integers(1, rank + 1))
    axes = np.sort(draft.random.permutation(rank)[:count])
    kind = str(draft.random.choice(["Sum", "Mean", "Max", "Min", "L2", "LogSumExp"]))
    made = draft.node(f"Reduce{kind}", draft.input(*shape), draft.constant(axes), keepdims=int(draft.chance()))
    return draft.node("Exp", draft.node("Neg", made)) if draft.chance(0.3) else made


def argument(draft: Draft) -> str:
    """The place of the largest or smallest element."""
    shape = (draft.pick(FEW), draft.pick(), draft.pick())
    kind = "ArgMax" if draft.chance() else "ArgMin"
    return draft.node(kind, draft.input(*shape), axis=int(draft.random.integers(3)), keepdims=int(draft.chance()))


def pooling(draft: Draft) -> str:
    """Pools of windows, and of whole images."""
    channels = draft.pick()
    if draft.chance(0.3):
        kind = "GlobalAveragePool" if draft.chance() else "GlobalMaxPool"
        return draft.node(kind, draft.input(1, channels, draft.pick((1, 7, 13, 56)), draft.pick((1, 7, 14))))
    kernel, size = draft.pick((2, 3, 5)), draft.pick((7, 13, 28, 33))
    kind, stride = ("MaxPool" if draft.chance() else "AveragePool"), draft.pick((1, 2, 3))
    pads = [kernel // 2] * 4 if draft.chance() else [0] * 4
    data = draft.input(draft.pick((1, 2)), channels, size, size)
    return draft.node(kind, data, kernel_shape=[kernel, kernel], strides=[stride, stride], pads=pads)


def resize(draft: Draft) -> str:
    """Images made larger or smaller."""
    channels, size = draft.pick(), draft.pick((5, 7, 13, 16, 28))
    new = draft.constant(np.array([1, channels, draft.pick((3, 7, 13, 33, 56)), draft.pick((3, 7, 13, 33, 56))]))
    mode = "linear" if draft.chance() else "nearest"
    place = "half_pixel" if mode == "linear" else "asymmetric"
    rounding = {} if mode == "linear" else {"nearest_mode": "floor"}
    data = draft.input(1, channels, size, size)
    return draft.node("Resize", data, "", "", new, mode=mode, coordinate_transformation_mode=place, **rounding)


def recurrence(draft: Draft) -> str:
    """LSTM, GRU and plain recurrences over a few steps, one way or both."""
    kind, gates = (("LSTM", 4), ("GRU", 3), ("RNN", 1))[int(draft.random.integers(3))]
    steps, batch = draft.pick((1, 2, 3, 5)), draft.pick((1, 1, 2, 3, 7, 16, 33))
    inputs, hidden = draft.pick((5, 16, 33, 64)), draft.pick((3, 8, 16, 17, 65, 128, 650))
    ways = 1 if draft.chance(0.7) else 2
    weights = [draft.weight(ways, gates * hidden, width, scale=width**-0.5) for width in (inputs, hidden)]
    bias = draft.weight(ways, 2 * gates * hidden, scale=0.3)
    direction = "forward" if ways == 1 else "bidirectional"
    data = draft.input(steps, batch, inputs)
    return draft.node(kind, data, *weights, bias, hidden_size=hidden, direction=direction)


def _integers(draft: Draft, *shape: int, signed: bool) -> np.ndarray:
    low, high = (-127, 128) if signed else (0, 256)
    return draft.random.integers(low, high, shape).astype(np.int8 if signed else np.uint8)


def integer_product(draft: Draft) -> str:
    """A product of bytes, back to numbers by a scale of each column."""
    rows, depth, columns = draft.pick(), draft.pick((*ODD, 256, 769)), draft.pick()
    draft.inputs["x"] = _integers(draft, rows, depth, signed=draft.chance(0.3))
    made = draft.node("MatMulInteger", "x", draft.constant(_integers(draft, depth, columns, signed=True)))
    made = draft.node("Mul", draft.node("Cast", made, to=TensorProto.FLOAT), draft.weight(columns, scale=1e-4))
    return draft.epilogue(made, (columns,))


def quantized_convolution(draft: Draft) -> str:
    """One convolution of bytes or two between quantising and its inverse, each channel with a scale of its own."""
    size = draft.pick((7, 14, 15, 28))
    channels = draft.pick((*ODD, 64, 128, 256))
    zero = draft.constant(np.uint8(int(draft.random.integers(0, 256))))
    scale = draft.constant(np.float32(0.02))
    data = draft.node("QuantizeLinear", draft.input(1, channels, size, size), scale, zero)
    for _ in range(draft.pick((1, 2))):
        inputs, channels, kernel = channels, draft.pick((*ODD, 64, 128, 256)), draft.pick((1, 3))
        groups = 1
        if draft.chance(0.25):
            groups = channels = inputs
        weight = draft.constant(_integers(draft, channels, inputs // groups, kernel, kernel, signed=True))
        scales = draft.constant((draft.random.random(channels, np.float32) * 0.01 + 0.001).astype(np.float32))
        zeros = draft.constant(np.zeros(channels, np.int8))
        around = {"group": groups, "pads": [kernel // 2] * 4}
        data = draft.node("QLinearConv", data, scale, zero, weight, scales, zeros, scale, zero, **around)
    return draft.node("DequantizeLinear", data, scale, zero)


def sorting(draft: Draft) -> str:
    """The largest elements of rows, in order."""
    shape = [draft.pick(FEW), draft.pick(), draft.pick()]
    axis = int(draft.random.integers(3))
    count = draft.constant(np.array([int(draft.random.integers(1, shape[axis] + 1))]))
    return draft.node("TopK", draft.input(*shape), count, outputs=2, axis=axis, largest=int(draft.chance()))


def scan(draft: Draft) -> str:
    """Running sums."""
    shape = (draft.pick(FEW), draft.pick(), draft.pick())
    axis = draft.constant(np.array(int(draft.random.integers(3))))
    flags = {name: int(draft.chance()) for name in ("exclusive", "reverse")}
    return draft.node("CumSum", draft.input(*shape), axis, **flags)


def elementwise(draft: Draft) -> str:
    """Maps of elements with operands that spread, and changes of order."""
    shape = [draft.pick(FEW), draft.pick(), draft.pick()]
    other = [size if draft.chance() else 1 for size in shape]
    made = draft.node("Mul", draft.input(*shape), draft.input(*other, name="y"))
    made = draft.node("Erf", made) if draft.chance() else made
    if draft.chance(0.6):
        made = draft.node("Transpose", made, perm=[int(n) for n in draft.random.permutation(3)])
    return draft.node("Abs", made)


def joined(draft: Draft) -> str:
    """Images side by side along channels, then a convolution of pixels (DenseNet), and a gate (EfficientNet)."""
    first, second, outputs, size = draft.pick(), draft.pick(), draft.pick(), draft.pick((7, 14, 15))
    both = draft.node("Concat", draft.input(1, first, size, size), draft.input(1, second, size, size, name="y"), axis=1)
    made = draft.node("Conv", draft.node("Relu", both), draft.weight(outputs, first + second, 1, 1))
    if draft.chance():
        mean = draft.node("GlobalAveragePool", made)
        gate = draft.node("Sigmoid", draft.node("Conv", mean, draft.weight(outputs, outputs, 1, 1)))
        made = draft.node("Mul", made, gate)
    return made


FAMILIES: dict[str, Callable[[Draft], str]] = {
    family.__name__: family
    for family in (
        dense,
        gated,
        batched,
        convolution_1d,
        convolution_2d,
        convolution_3d,
        winograd,
        grouped,
        depthwise,
        separable,
        expanded,
        transposed,
        attention,
        projected_attention,
        layer_norm,
        softmax,
        reduction,
        argument,
        pooling,
        resize,
        recurrence,
        integer_product,
        quantized_convolution,
        sorting,
        scan,
        elementwise,
        joined,
    )
}


def draw(family: str, seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model of a family and a seed, and its inputs."""
    draft = Draft(np.random.default_rng([seed, *family.encode()]))
    result = FAMILIES[family](draft)
    return draft.model(result), draft.inputs
