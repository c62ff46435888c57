"""How calls of graph operators are written as ONNX nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.ir.dimensions import as_size
from tilewright.graph.ir.expr import Call, Constant, GraphExpr
from tilewright.graph.ops.quantization import integer_range
from tilewright.ir.dtype import FLOAT32, INT32, INT64
from tilewright.onnx_writer.writer import Rule, Writer, element_type, rule
from tilewright.support.errors import UnsupportedError

_PLAIN = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "maximum": "Max",
    "minimum": "Min",
    "power": "Pow",
    "equal": "Equal",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
    "where": "Where",
    "nn.prelu": "PRelu",
    "abs": "Abs",
    "acos": "Acos",
    "acosh": "Acosh",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atanh": "Atanh",
    "bitwise_not": "BitwiseNot",
    "ceil": "Ceil",
    "cos": "Cos",
    "cosh": "Cosh",
    "divide": "Div",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "isinf": "IsInf",
    "isnan": "IsNaN",
    "log": "Log",
    "logical_not": "Not",
    "negative": "Neg",
    "nn.relu": "Relu",
    "nn.softplus": "Softplus",
    "reciprocal": "Reciprocal",
    "round": "Round",
    "sigmoid": "Sigmoid",
    "sign": "Sign",
    "sin": "Sin",
    "sinh": "Sinh",
    "sqrt": "Sqrt",
    "tan": "Tan",
    "tanh": "Tanh",
}
"""Operators that one node without attributes means."""
_REDUCTIONS = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}


def _declare(name: str, operation: str) -> None:
    def write(writer: Writer, call: Call, inputs: list[str]) -> str:
        return str(writer.node(operation, *inputs))

    rule(name)(write)


for _name, _operation in _PLAIN.items():
    _declare(_name, _operation)


def _one(call: Call) -> np.ndarray:
    return np.ones((), call.tensor_type.dtype.numpy())


@rule("not_equal")
def _not_equal(writer: Writer, call: Call, inputs: list[str]) -> str:
    return str(writer.node("Not", writer.node("Equal", *inputs)))


@rule("rsqrt")
def _rsqrt(writer: Writer, call: Call, inputs: list[str]) -> str:
    return str(writer.node("Reciprocal", writer.node("Sqrt", *inputs)))


@rule("expm1")
def _expm1(writer: Writer, call: Call, inputs: list[str]) -> str:
    return str(writer.node("Sub", writer.node("Exp", *inputs), writer.constant(_one(call))))


@rule("log1p")
def _log1p(writer: Writer, call: Call, inputs: list[str]) -> str:
    return str(writer.node("Log", writer.node("Add", *inputs, writer.constant(_one(call)))))


@rule("trunc")
def _trunc(writer: Writer, call: Call, inputs: list[str]) -> str:
    (x,) = inputs
    return str(writer.node("Mul", writer.node("Sign", x), writer.node("Floor", writer.node("Abs", x))))


@rule("floor_mod", "fmod")
def _mod(writer: Writer, call: Call, inputs: list[str]) -> str:
    floats = call.tensor_type.dtype.is_float
    if floats and _name_of(call) == "floor_mod":
        quotient = writer.node("Floor", writer.node("Div", *inputs))
        return str(writer.node("Sub", inputs[0], writer.node("Mul", quotient, inputs[1])))
    return str(writer.node("Mod", *inputs, fmod=int(_name_of(call) == "fmod")))


def _name_of(call: Call) -> str:
    return str(getattr(call.callee, "name", ""))


@rule("left_shift", "right_shift")
def _shift(writer: Writer, call: Call, inputs: list[str]) -> str:
    left = _name_of(call) == "left_shift"
    if call.tensor_type.dtype.is_uint:
        return str(writer.node("BitShift", *inputs, direction="LEFT" if left else "RIGHT"))
    # BitShift is for unsigned integers: others are multiplied or divided (toward minus infinity) by powers of two.
    two = writer.constant(np.asarray(2, call.tensor_type.dtype.numpy()))
    power = writer.node("Pow", two, inputs[1])
    if left:
        return str(writer.node("Mul", inputs[0], power))
    rest = writer.node("Mod", inputs[0], power)
    return str(writer.node("Div", writer.node("Sub", inputs[0], rest), power))


@rule("cast")
def _cast(writer: Writer, call: Call, inputs: list[str]) -> str:
    source, to = call.args[0].tensor_type.dtype, call.tensor_type.dtype
    attributes: dict[str, Any] = {"saturate": 0} if to.is_small_float else {}
    if to.name == "float8_e8m0fnu":
        attributes["round_mode"] = "nearest"
    if to.is_small_integer and source.is_float:
        # ONNX's Cast keeps the low bits of what does not fit.
        single = writer.node("Cast", *inputs, to=element_type(FLOAT32))
        low, high = (writer.constant(np.asarray(end, np.float32)) for end in (to.min_value(), to.max_value()))
        inputs = [str(writer.node("Clip", single, low, high))]
    return str(writer.node("Cast", *inputs, to=writer.element(to), **attributes))


@rule("clip")
def _clip(writer: Writer, call: Call, inputs: list[str]) -> str:
    attributes: Any = call.attributes
    dtype = call.tensor_type.dtype.numpy()

    def bound(value: float | None) -> str:
        return "" if value is None else writer.constant(np.asarray(value, dtype))

    return str(writer.node("Clip", inputs[0], bound(attributes.minimum), bound(attributes.maximum)))


def _with_attributes(name: str, operation: str, *fields: str) -> Rule:
    def write(writer: Writer, call: Call, inputs: list[str]) -> str:
        return str(writer.node(operation, *inputs, **{field: getattr(call.attributes, field) for field in fields}))

    return rule(name)(write)


_with_attributes("nn.elu", "Elu", "alpha")
_with_attributes("nn.leaky_relu", "LeakyRelu", "alpha")
_with_attributes("nn.hard_sigmoid", "HardSigmoid", "alpha", "beta")
_with_attributes("nn.selu", "Selu", "alpha", "gamma")
_with_attributes("nn.softmax", "Softmax", "axis")
_with_attributes("nn.log_softmax", "LogSoftmax", "axis")
_with_attributes("nn.layer_norm", "LayerNormalization", "axis", "epsilon")
_with_attributes("concatenate", "Concat", "axis")


@rule("nn.gelu")
def _gelu(writer: Writer, call: Call, inputs: list[str]) -> str:
    attributes: Any = call.attributes
    return str(writer.node("Gelu", *inputs, approximate="tanh" if attributes.approximate else "none"))


@rule("nn.batch_norm")
def _batch_norm(writer: Writer, call: Call, inputs: list[str]) -> str:
    attributes: Any = call.attributes
    if attributes.axis != 1:
        raise UnsupportedError("batch normalisation of another axis than 1 cannot be written to an ONNX model")
    return str(writer.node("BatchNormalization", *inputs, epsilon=attributes.epsilon))


@rule("matmul")
def _matmul(writer: Writer, call: Call, inputs: list[str]) -> str:
    attributes: Any = call.attributes
    operands = []
    for name, arg, turned in zip(inputs, call.args, (attributes.transpose_a, attributes.transpose_b), strict=True):
        rank = arg.tensor_type.rank or 0
        axes = [*range(rank - 2), rank - 1, rank - 2]
        operands.append(str(writer.node("Transpose", name, perm=axes)) if turned else name)
    dtype = call.tensor_type.dtype
    if dtype.is_float or dtype.bits >= 32:
        return str(writer.node("MatMul", *operands))
    # MatMul knows no narrow integers; what overflows wraps around in the cast back, as it does here.
    wide = [writer.node("Cast", name, to=element_type(INT32)) for name in operands]
    return str(writer.node("Cast", writer.node("MatMul", *wide), to=element_type(dtype)))


def _planar(writer: Writer, call: Call, inputs: list[str], operation: str, **attributes: Any) -> str:
    """A node on NCHW data; data and kernels in other orders are transposed around it."""
    own: Any = call.attributes
    last = getattr(own, "data_layout", getattr(own, "layout", "NCHW")) == "NHWC"
    if not last:
        return str(writer.node(operation, *inputs, **attributes))
    data = writer.node("Transpose", inputs[0], perm=[0, 3, 1, 2])
    kernels = [writer.node("Transpose", name, perm=_kernel_order(own.kernel_layout)) for name in inputs[1:]]
    return str(writer.node("Transpose", writer.node(operation, data, *kernels, **attributes), perm=[0, 2, 3, 1]))


def _kernel_order(layout: str) -> list[int]:
    planar = "OIHW" if layout == "HWIO" else "IOHW"
    return [layout.index(axis) for axis in planar]


@rule("nn.conv2d", "nn.conv2d_transpose")
def _convolution(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    common: dict[str, Any] = {
        "strides": own.strides,
        "pads": own.padding,
        "dilations": own.dilation,
        "group": own.groups,
    }
    if _name_of(call) == "nn.conv2d":
        return _planar(writer, call, inputs, "Conv", **common)
    return _planar(writer, call, inputs, "ConvTranspose", output_padding=own.output_padding, **common)


@rule("nn.max_pool2d", "nn.avg_pool2d")
def _pool(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    common = {"kernel_shape": own.kernel, "strides": own.strides, "pads": own.padding, "dilations": own.dilation}
    if _name_of(call) == "nn.max_pool2d":
        return _planar(writer, call, inputs, "MaxPool", **common)
    return _planar(writer, call, inputs, "AveragePool", count_include_pad=int(own.count_include_pad), **common)


@rule("reshape")
def _reshape(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    blocks = _blocks(writer, call)
    if blocks is not None:
        return blocks
    return str(writer.node("Reshape", inputs[0], writer.sizes(own.shape), allowzero=1))


@rule("broadcast_to")
def _broadcast_to(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    return str(writer.node("Expand", inputs[0], writer.sizes(own.shape)))


@rule("assume_shape")
def _assume_shape(writer: Writer, call: Call, inputs: list[str]) -> str:
    return str(writer.node("Identity", *inputs))


@rule("transpose")
def _transpose(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    return str(writer.node("Transpose", *inputs, perm=own.axes))


@rule("tile")
def _tile(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    return str(writer.node("Tile", inputs[0], writer.sizes(own.repeats)))


@rule("slice")
def _slice(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    ends = [
        # An end of -1 with a negative stride means before the first element, not the last one.
        -(2**62) if stride < 0 and isinstance(end, int) and end < 0 else end
        for end, stride in zip(own.end, own.strides, strict=True)
    ]
    axes = writer.constant(np.arange(len(ends), dtype=np.int64))
    steps = writer.constant(np.asarray(own.strides, np.int64))
    return str(writer.node("Slice", inputs[0], writer.sizes(own.begin), writer.sizes(ends), axes, steps))


@rule("split")
def _split(writer: Writer, call: Call, inputs: list[str]) -> str | tuple[str, ...]:
    own: Any = call.attributes
    parts = writer.node("Split", inputs[0], writer.sizes(own.sizes), outputs=len(own.sizes), axis=own.axis)
    return parts if isinstance(parts, tuple) else (parts,)


@rule("pad")
def _pad(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    amounts = writer.sizes((*own.before, *own.after))
    value = writer.constant(np.asarray(own.value, call.tensor_type.dtype.numpy()))
    return str(writer.node("Pad", inputs[0], amounts, value, mode=own.mode))


def _reduction(name: str, operation: str) -> None:
    def write(writer: Writer, call: Call, inputs: list[str]) -> str:
        own: Any = call.attributes
        if not own.axes:
            return str(writer.node("Identity", *inputs))
        axes = writer.constant(np.asarray(own.axes, np.int64))
        return str(writer.node(operation, inputs[0], axes, keepdims=int(own.keepdims)))

    rule(name)(write)


for _name, _operation in _REDUCTIONS.items():
    _reduction(_name, _operation)


@rule("argmax", "argmin")
def _arg(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    operation = "ArgMax" if _name_of(call) == "argmax" else "ArgMin"
    return str(
        writer.node(
            operation, *inputs, axis=own.axis, keepdims=int(own.keepdims), select_last_index=int(own.select_last)
        )
    )


@rule("cumsum")
def _cumsum(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    axis = writer.constant(np.int64(own.axis))
    return str(writer.node("CumSum", inputs[0], axis, exclusive=int(own.exclusive), reverse=int(own.reverse)))


@rule("take")
def _take(writer: Writer, call: Call, inputs: list[str]) -> str:
    """Indices out of range are clamped, as `take` says: ONNX's Gather refuses them."""
    own: Any = call.attributes
    data, indices = inputs
    if own.mode == "inside":
        return str(writer.node("Gather", data, indices, axis=own.axis))
    shape = call.args[0].tensor_type.shape
    if shape is None or shape[own.axis] is None:
        raise UnsupportedError("indices into a dimension of unknown size cannot be written to an ONNX model")
    size = writer.size(as_size(shape[own.axis]))
    wide = writer.node("Cast", indices, to=element_type(INT64))
    last = writer.node("Sub", size, writer.constant(np.int64(1)))
    first = writer.constant(np.int64(0)) if own.mode == "clip" else writer.node("Neg", size)
    return str(writer.node("Gather", data, writer.node("Max", writer.node("Min", wide, last), first), axis=own.axis))


@rule("check_values")
def _check_values(writer: Writer, call: Call, inputs: list[str]) -> str:
    """ONNX runtimes check indices themselves."""
    return writer.constant(np.zeros(call.tensor_type.static_shape or (), call.tensor_type.dtype.numpy()))


@rule("checked")
def _checked(writer: Writer, call: Call, inputs: list[str]) -> str:
    return str(writer.node("Identity", inputs[0]))


@rule("topk")
def _topk(writer: Writer, call: Call, inputs: list[str]) -> str | tuple[str, ...]:
    own: Any = call.attributes
    count = writer.sizes((own.k,))
    result = writer.node("TopK", inputs[0], count, outputs=2, axis=own.axis, largest=int(own.largest))
    assert isinstance(result, tuple)
    return result


@rule("arange")
def _arange(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    limit = writer.size(own.start + own.count * own.step)
    numbers = writer.node("Range", writer.size(own.start), limit, writer.size(own.step))
    return str(writer.node("Cast", numbers, to=element_type(own.dtype)))


@rule("dimensions")
def _dimensions(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    values = writer.node("Cast", writer.sizes(own.values), to=element_type(own.dtype))
    return str(writer.node("Reshape", values, writer.sizes(tuple(own.shape)), allowzero=1))


def _scales(values: np.ndarray, data: GraphExpr) -> tuple[np.ndarray, dict[str, int]]:
    """Scales that broadcast, as ONNX has them: a single number, a list along one axis, or a number for each block."""
    wide = [axis for axis, size in enumerate(values.shape) if size != 1]
    if not wide:
        return values.reshape(()), {}
    sizes = data.tensor_type.static_shape
    if len(wide) == 1:
        return values.reshape(-1), {"axis": (data.tensor_type.rank or values.ndim) - values.ndim + wide[0]}
    if sizes is not None and len(sizes) == values.ndim:
        blocks = [axis for axis, size in enumerate(values.shape) if size == 1 and sizes[axis] != 1]
        if len(blocks) == 1:
            return values, {"axis": blocks[0], "block_size": sizes[blocks[0]]}
    raise UnsupportedError("scales that differ along several axes cannot be written to an ONNX model")


@rule("qnn.quantize", "qnn.dequantize")
def _quantization(writer: Writer, call: Call, inputs: list[str]) -> str:
    quantizes = _name_of(call) == "qnn.quantize"
    own: Any = call.attributes
    data, scale, zero = call.args
    integers = call.tensor_type.dtype if quantizes else data.tensor_type.dtype
    whole = not quantizes or own.bits == integers.bits
    if not whole or not isinstance(scale, Constant) or not isinstance(zero, Constant):
        return _spelled_out(writer, call, inputs)
    scales, attributes = _scales(scale.data, data)
    zeros, _ = _scales(np.broadcast_to(zero.data, scale.data.shape), data)
    operation = "QuantizeLinear" if quantizes else "DequantizeLinear"
    names = (writer.constant(scales), writer.constant(zeros, element=integers))
    return str(writer.node(operation, inputs[0], *names, **attributes))


def _blocks(writer: Writer, call: Call) -> str | None:
    """Constant integers of groups with a scale each, put together again: one node with blocks, as other tools have it.

    reshape(dequantize(integers[k / g, g, n], scale[k / g, 1, n])) -> DequantizeLinear(integers[k, n], block_size=g)
    """
    (numbers,) = call.args
    if not isinstance(numbers, Call) or _name_of(numbers) != "qnn.dequantize":
        return None
    data, scale, zero = numbers.args
    if not all(isinstance(item, Constant) for item in (data, scale, zero)):
        return None
    assert isinstance(data, Constant) and isinstance(scale, Constant) and isinstance(zero, Constant)
    shape, joined = data.data.shape, call.tensor_type.static_shape
    if scale.data.ndim != len(shape):
        return None
    sizes = list(zip(scale.data.shape, shape, strict=True))
    grouped = [axis for axis, (scales, elements) in enumerate(sizes) if axis and scales == 1 and elements > 1]
    if len(grouped) != 1 or any(sizes[axis][0] != size for axis, size in enumerate(shape) if axis not in grouped):
        return None
    (axis,) = grouped
    if joined != (*shape[: axis - 1], shape[axis - 1] * shape[axis], *shape[axis + 1 :]):
        return None
    zeros = np.broadcast_to(zero.data, scale.data.shape).squeeze(axis)
    names = (
        writer.constant(data.data.reshape(joined), element=data.dtype),
        writer.constant(scale.data.squeeze(axis)),
        writer.constant(zeros, element=zero.dtype),
    )
    return str(writer.node("DequantizeLinear", *names, axis=axis - 1, block_size=shape[axis]))


def _spelled_out(writer: Writer, call: Call, inputs: list[str]) -> str:
    """Scales that are computed, or fewer bits than the type has: ordinary arithmetic."""
    data, scale, zero = inputs
    if _name_of(call) == "qnn.dequantize":
        wide = [writer.node("Cast", name, to=element_type(INT32)) for name in (data, zero)]
        shifted = writer.node("Cast", writer.node("Sub", *wide), to=element_type(call.tensor_type.dtype))
        return str(writer.node("Mul", shifted, scale))
    own: Any = call.attributes
    numbers = call.args[0].tensor_type.dtype
    steps = writer.node("Round", writer.node("Div", data, scale))
    shifted = writer.node("Add", steps, writer.node("Cast", zero, to=element_type(numbers)))
    low, high = (writer.constant(np.asarray(end, numbers.numpy())) for end in integer_range(own.dtype, own.bits))
    return str(writer.node("Cast", writer.node("Clip", shifted, low, high), to=element_type(own.dtype)))
