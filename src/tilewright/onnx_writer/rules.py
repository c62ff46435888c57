"""How calls of graph operators are written as ONNX nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.ir.dimensions import as_size
from tilewright.graph.ir.expr import Call
from tilewright.ir.dtype import FLOAT32, INT32, INT64, DataType
from tilewright.onnx_writer.convolutions import planar
from tilewright.onnx_writer.rules_quantized import blocks
from tilewright.onnx_writer.rules_shape import in_float32
from tilewright.onnx_writer.writer import Rule, Writer, element_type, name_of, rule
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
    "stop_gradient": "Identity",
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
    if floats and name_of(call) == "floor_mod":
        rest = writer.node("Mod", *inputs, fmod=1)
        zero = writer.number(0, call.tensor_type.dtype)
        signs = [writer.node("Less", name, zero) for name in (rest, inputs[1])]
        other = writer.node("And", writer.node("Xor", *signs), writer.node("Not", writer.node("Equal", rest, zero)))
        return str(writer.node("Where", other, writer.node("Add", rest, inputs[1]), rest))
    return str(writer.node("Mod", *inputs, fmod=int(name_of(call) == "fmod")))


@rule("floor_divide")
def _floor_divide(writer: Writer, call: Call, inputs: list[str]) -> str:
    if call.tensor_type.dtype.is_float:
        return str(writer.node("Floor", writer.node("Div", *inputs)))
    rest = writer.node("Mod", *inputs)
    return str(writer.node("Div", writer.node("Sub", inputs[0], rest), inputs[1]))


@rule("all", "any")
def _truth(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    if not own.axes:
        return str(writer.node("Identity", *inputs))
    numbers = writer.node("Cast", *inputs, to=element_type(INT32))
    axes = writer.constant(np.asarray(own.axes, np.int64))
    operation = "ReduceMin" if name_of(call) == "all" else "ReduceMax"
    found = writer.node(operation, numbers, axes, keepdims=int(own.keepdims))
    return str(writer.node("Greater", found, writer.constant(np.int32(0))))


@rule("grouped_matmul")
def _grouped_matmul(writer: Writer, call: Call, inputs: list[str]) -> str:
    """Each row with a copy of its matrix."""
    rows, matrices, groups = inputs
    one = writer.constant([1], np.int64)
    count = writer.node(
        "Reshape", writer.node("Shape", matrices, start=0, end=1), writer.constant(np.zeros(0, np.int64))
    )
    last = writer.node("Sub", count, writer.constant(np.int64(1)))
    wide = writer.node("Cast", groups, to=element_type(INT64))
    chosen = writer.node("Max", writer.node("Min", wide, last), writer.constant(np.int64(0)))
    factors = [writer.node("Unsqueeze", rows, one), writer.node("Gather", matrices, chosen)]
    # Sums of floats of 16 bits are of 32 here, which a runtime need not do.
    product = in_float32(writer, call.tensor_type.dtype, factors, "MatMul")
    return str(writer.node("Squeeze", product, one))


@rule("reinterpret")
def _reinterpret(writer: Writer, call: Call, inputs: list[str]) -> str:
    """BitCast, which came with opset 26."""
    writer.require(26, 13)
    return str(writer.node("BitCast", *inputs, to=writer.element(call.tensor_type.dtype)))


@rule("left_shift", "right_shift")
def _shift(writer: Writer, call: Call, inputs: list[str]) -> str:
    left = name_of(call) == "left_shift"
    if call.tensor_type.dtype.is_uint:
        return str(writer.node("BitShift", *inputs, direction="LEFT" if left else "RIGHT"))
    # BitShift is for unsigned integers. Bits of negative numbers are those of their complements, turned.
    dtype = call.tensor_type.dtype
    bits = DataType.of("uint64" if dtype.bits == 64 else "uint32")

    def shifted(name: str) -> str:
        parts = [writer.node("Cast", item, to=element_type(bits)) for item in (name, inputs[1])]
        moved = writer.node("BitShift", *parts, direction="LEFT" if left else "RIGHT")
        return str(writer.node("Cast", moved, to=element_type(dtype)))

    if left:
        return shifted(inputs[0])
    negative = writer.node("Less", inputs[0], writer.number(0, dtype))
    turned = writer.node("BitwiseNot", shifted(str(writer.node("BitwiseNot", inputs[0]))))
    return str(writer.node("Where", negative, turned, shifted(inputs[0])))


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
    dtype = call.tensor_type.dtype

    def bound(value: float | None) -> str:
        return "" if value is None else writer.number(value, dtype)

    return str(writer.node("Clip", inputs[0], bound(attributes.minimum), bound(attributes.maximum)))


def _with_attributes(name: str, operation: str, *fields: str, brief: bool = False) -> Rule:
    """An operator that one node with these attributes means; `brief` ones are not for bfloat16 in ONNX."""

    def write(writer: Writer, call: Call, inputs: list[str]) -> str:
        attributes = {field: getattr(call.attributes, field) for field in fields}
        dtype = call.tensor_type.dtype
        if not brief or dtype.name != "bfloat16":
            return str(writer.node(operation, *inputs, **attributes))
        single = [writer.node("Cast", name, to=element_type(FLOAT32)) for name in inputs]
        return str(writer.node("Cast", writer.node(operation, *single, **attributes), to=element_type(dtype)))

    return rule(name)(write)


_with_attributes("nn.elu", "Elu", "alpha", brief=True)
_with_attributes("nn.leaky_relu", "LeakyRelu", "alpha")
_with_attributes("nn.hard_sigmoid", "HardSigmoid", "alpha", "beta", brief=True)
_with_attributes("nn.selu", "Selu", "alpha", "gamma", brief=True)
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


@rule("nn.max_pool2d", "nn.avg_pool2d")
def _pool(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    common = {"kernel_shape": own.kernel, "strides": own.strides, "pads": own.padding, "dilations": own.dilation}
    if name_of(call) == "nn.max_pool2d":
        return planar(writer, call, inputs, "MaxPool", **common)
    return planar(writer, call, inputs, "AveragePool", count_include_pad=int(own.count_include_pad), **common)


@rule("reshape")
def _reshape(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    grouped = blocks(writer, call)
    if grouped is not None:
        return grouped
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
    value = writer.number(own.value, call.tensor_type.dtype)
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
    operation = "ArgMax" if name_of(call) == "argmax" else "ArgMin"
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
    """Indices out of range are clamped, as `take` says: ONNX's Gather refuses them, and those of few bits."""
    own: Any = call.attributes
    data, indices = inputs
    if own.mode == "inside":
        is_known = call.args[1].tensor_type.dtype in (INT32, INT64)
        places = indices if is_known else writer.node("Cast", indices, to=element_type(INT64))
        return str(writer.node("Gather", data, places, axis=own.axis))
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


@rule("checked", "after")
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
