"""How quantisation and arithmetic of bytes are written as ONNX nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.ir.expr import Call, Constant, GraphExpr
from tilewright.graph.ops.quantization import integer_range
from tilewright.ir.dtype import INT32, INT64
from tilewright.onnx_writer.writer import Writer, element_type, name_of, rule
from tilewright.support.errors import UnsupportedError


def _scales(values: np.ndarray, data: GraphExpr) -> tuple[np.ndarray, dict[str, Any]]:
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
    quantizes = name_of(call) == "qnn.quantize"
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


@rule("qnn.high_product")
def _high_product(writer: Writer, call: Call, inputs: list[str]) -> str:
    """In 64 bits, halves up; the square of the least number is cut off."""
    product = writer.node("Mul", *_wide(writer, inputs))
    upper = _floor_divided(
        writer, writer.node("Add", product, writer.number(1 << 30, INT64)), writer.number(1 << 31, INT64)
    )
    return str(
        writer.node("Cast", writer.node("Min", upper, writer.number((1 << 31) - 1, INT64)), to=element_type(INT32))
    )


@rule("qnn.rounded_shift")
def _rounded_shift(writer: Writer, call: Call, inputs: list[str]) -> str:
    """Divided by a power of two, half of which is added first."""
    data, shift = _wide(writer, inputs)
    two = writer.number(2, INT64)
    power = writer.node("Pow", two, writer.node("Neg", shift))
    rounded = _floor_divided(writer, writer.node("Add", data, writer.node("Div", power, two)), power)
    return str(writer.node("Cast", rounded, to=element_type(INT32)))


def _wide(writer: Writer, names: list[str]) -> list[str]:
    return [writer.node("Cast", name, to=element_type(INT64)) for name in names]


def _floor_divided(writer: Writer, a: str, b: str) -> str:
    """ONNX divides whole numbers toward zero: what is left over is taken off first."""
    return str(writer.node("Div", writer.node("Sub", a, writer.node("Mod", a, b)), b))


def blocks(writer: Writer, call: Call) -> str | None:
    """Constant integers of groups with a scale each, put together again: one node with blocks, as other tools have it.

    reshape(dequantize(integers[k / g, g, n], scale[k / g, 1, n])) -> DequantizeLinear(integers[k, n], block_size=g)
    """
    (numbers,) = call.args
    if not isinstance(numbers, Call) or name_of(numbers) != "qnn.dequantize":
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
    if name_of(call) == "qnn.dequantize":
        wide = [writer.node("Cast", name, to=element_type(INT32)) for name in (data, zero)]
        shifted = writer.node("Cast", writer.node("Sub", *wide), to=element_type(call.tensor_type.dtype))
        return str(writer.node("Mul", shifted, scale))
    own: Any = call.attributes
    numbers = call.args[0].tensor_type.dtype
    steps = writer.node("Round", writer.node("Div", data, scale))
    shifted = writer.node("Add", steps, writer.node("Cast", zero, to=element_type(numbers)))
    low, high = (writer.constant(np.asarray(end, numbers.numpy())) for end in integer_range(own.dtype, own.bits))
    return str(writer.node("Cast", writer.node("Clip", shifted, low, high), to=element_type(own.dtype)))
