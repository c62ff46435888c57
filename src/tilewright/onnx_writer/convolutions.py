"""How convolutions are written as ONNX nodes: those of floats as they are, those of integers by what runtimes have.

ConvInteger takes bytes with a zero point. Whole numbers of other kinds, and the transposes of convolutions, are sums of
products of matrices, one for each tap of the kernel: exact, whatever the type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.graph.ir.expr import Call, Constant, GraphExpr, constant
from tilewright.ir.dtype import INT32
from tilewright.onnx_writer.writer import Writer, element_type, name_of, rule
from tilewright.support.errors import UnsupportedError

_TO_PLANES, _FROM_PLANES = [0, 3, 1, 2], [0, 2, 3, 1]
_BYTES = (np.dtype(np.uint8), np.dtype(np.int8))


@rule("nn.conv2d", "nn.conv2d_transpose")
def _convolution(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    common: dict[str, Any] = {
        "strides": own.strides,
        "pads": own.padding,
        "dilations": own.dilation,
        "group": own.groups,
    }
    if call.tensor_type.dtype.is_integer:
        return _of_bytes(writer, call, common) or _of_integers(writer, call, inputs)
    if name_of(call) == "nn.conv2d":
        return planar(writer, call, inputs, "Conv", **common)
    return planar(writer, call, inputs, "ConvTranspose", output_padding=own.output_padding, **common)


def planar(writer: Writer, call: Call, inputs: list[str], operation: str, *rest: str, **attributes: Any) -> str:
    """A node on NCHW data; data and kernels in other orders are transposed around it. `rest` has no order."""
    if not _is_last(call):
        return str(writer.node(operation, *inputs, *rest, **attributes))
    data = writer.node("Transpose", inputs[0], perm=_TO_PLANES)
    kernels = [_planar_kernel(writer, call, name) for name in inputs[1:]]
    found = writer.node(operation, data, *kernels, *rest, **attributes)
    return str(writer.node("Transpose", found, perm=_FROM_PLANES))


def _is_last(call: Call) -> bool:
    """Whether the channels are the last axis of the data."""
    own: Any = call.attributes
    return getattr(own, "data_layout", getattr(own, "layout", "NCHW")) == "NHWC"


def _planar_kernel(writer: Writer, call: Call, name: str) -> str:
    """A kernel in ONNX's order: outputs first, or inputs first for transposed convolutions."""
    own: Any = call.attributes
    layout: str = own.kernel_layout
    wanted = "IOHW" if name_of(call) == "nn.conv2d_transpose" else "OIHW"
    if layout == wanted:
        return name
    return str(writer.node("Transpose", name, perm=[layout.index(axis) for axis in wanted]))


# Bytes


def _of_bytes(writer: Writer, call: Call, common: dict[str, Any]) -> str | None:
    """ConvInteger, which takes bytes and a zero point: one for each output is a convolution with ones."""
    data, weight = (_shifted_bytes(arg) for arg in call.args)
    if data is None or weight is None or name_of(call) != "nn.conv2d" or not _is_single(data[1]):
        return None
    names = [str(writer.value(part)) for part in (data[0], weight[0])]
    zero = "" if data[1] is None else _scalar(writer, str(writer.value(data[1])))
    sums = planar(writer, call, names, "ConvInteger", zero, **common)
    if weight[1] is None:
        return sums
    one = writer.number(1, weight[0].tensor_type.dtype)
    ones = str(writer.node("Expand", one, writer.node("Shape", names[1])))
    counted = planar(writer, call, [names[0], ones], "ConvInteger", zero, **common)
    number = writer.node("Cast", str(writer.value(weight[1])), to=element_type(INT32))
    number = writer.node("Reshape", number, writer.constant([-1] if _is_last(call) else [-1, 1, 1], np.int64))
    return str(writer.node("Sub", sums, writer.node("Mul", number, counted)))


def _scalar(writer: Writer, name: str) -> str:
    return str(writer.node("Reshape", name, writer.constant(np.zeros(0, np.int64))))


def _is_single(item: GraphExpr | None) -> bool:
    shape = () if item is None else item.tensor_type.static_shape
    return shape is not None and all(size == 1 for size in shape)


def _shifted_bytes(item: GraphExpr) -> tuple[GraphExpr, GraphExpr | None] | None:
    """The bytes, and the zero point of their type (of all, or of each output), that whole numbers were made of."""
    plain = _bytes_of(item, _BYTES)
    if plain is not None:
        return plain, None
    if not isinstance(item, Call) or name_of(item) != "subtract":
        return None
    source, shift = item.args
    shape = shift.tensor_type.static_shape
    along_outputs = shape is not None and len(shape) == 4 and shape[1:] == (1, 1, 1)
    if not along_outputs and not _is_single(shift):
        return None
    if isinstance(shift, Call) and name_of(shift) == "reshape":
        shift = shift.args[0]
    numbers = _bytes_of(source, _BYTES)
    if numbers is None:
        return None
    zero = _bytes_of(shift, (numbers.tensor_type.dtype.numpy(),))
    return None if zero is None else (numbers, zero)


def _bytes_of(item: GraphExpr, kinds: tuple[np.dtype[Any], ...]) -> GraphExpr | None:
    """The bytes, of one of some types, that whole numbers were made of."""
    if isinstance(item, Constant) and item.data.size:
        least, most = int(item.data.min()), int(item.data.max())
        for kind in kinds:
            if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max:
                return constant(item.data.astype(kind))
    if isinstance(item, Call) and name_of(item) == "cast" and item.args[0].tensor_type.dtype.numpy() in kinds:
        return item.args[0]
    return None


# Other whole numbers


def _of_integers(writer: Writer, call: Call, inputs: list[str]) -> str:
    """Products of matrices are of 32 bits or more; what overflows in fewer is cut off in the end."""
    dtype = call.tensor_type.dtype
    if dtype.bits >= INT32.bits:
        return _by_taps(writer, call, inputs)
    wide = [str(writer.node("Cast", name, to=element_type(INT32))) for name in inputs]
    return str(writer.node("Cast", _by_taps(writer, call, wide), to=element_type(dtype)))


def _by_taps(writer: Writer, call: Call, inputs: list[str]) -> str:
    """A product of matrices for each tap of the kernel, of its weights and the data that it meets, added up."""
    own: Any = call.attributes
    kernel = call.args[1].tensor_type.static_shape
    if kernel is None:
        raise UnsupportedError("a convolution of whole numbers by a kernel of open size cannot be written to ONNX")
    sizes = [kernel[own.kernel_layout.index(axis)] for axis in "HW"]
    last = _is_last(call)
    data = writer.node("Transpose", inputs[0], perm=_TO_PLANES) if last else inputs[0]
    weight = _planar_kernel(writer, call, inputs[1])
    before, after, strides = list(own.padding[:2]), list(own.padding[2:]), list(own.strides)
    if name_of(call) == "nn.conv2d_transpose":
        data = _spread(writer, call, data)
        for axis, size in enumerate(sizes):
            across = (size - 1) * own.dilation[axis]
            before[axis], after[axis] = across - before[axis], across - after[axis] + own.output_padding[axis]
            # Zeros behind the last element are no part of what is spread.
            after[axis] -= strides[axis] - 1
        weight, strides = _mirrored(writer, weight, own.groups), [1, 1]
    data = str(writer.node("Pad", data, writer.constant([0, 0, *before, 0, 0, *after], np.int64)))
    total = shape = ""
    for tap in np.ndindex(*sizes):
        met = _met(writer, data, tap, sizes, strides, own.dilation)
        # The sizes of the images are those of every tap.
        shape = shape or writer.node("Concat", writer.constant([0, -1], np.int64), _image(writer, met), axis=0)
        grouped = writer.node("Reshape", met, _grouped_shape(writer, met, own.groups))
        product = writer.node("MatMul", _weights_at(writer, weight, tap, own.groups), grouped)
        total = str(writer.node("Add", total, product) if total else product)
    found = writer.node("Reshape", total, shape)
    return str(writer.node("Transpose", found, perm=_FROM_PLANES) if last else found)


def _image(writer: Writer, name: str) -> str:
    return str(writer.node("Shape", name, start=2, end=4))


def _grouped_shape(writer: Writer, name: str, groups: int) -> str:
    """(batch, groups, channels of a group, pixels)."""
    pixels = writer.node("ReduceProd", _image(writer, name), keepdims=1)
    return str(writer.node("Concat", writer.constant([0, groups, -1], np.int64), pixels, axis=0))


def _met(
    writer: Writer,
    data: str,
    tap: tuple[int, ...],
    sizes: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> str:
    """The elements of padded images that a tap of the kernel meets, one for each place of the kernel."""
    starts = [at * space for at, space in zip(tap, dilation, strict=True)]
    behind = [(size - 1 - at) * space for at, size, space in zip(tap, sizes, dilation, strict=True)]
    ends = [-rest if rest else np.iinfo(np.int64).max for rest in behind]
    parts = [writer.constant(part, np.int64) for part in (starts, ends, [2, 3], list(strides))]
    return str(writer.node("Slice", data, *parts))


def _weights_at(writer: Writer, weight: str, tap: tuple[int, ...], groups: int) -> str:
    """The weights of a tap: (groups, outputs of a group, inputs of a group)."""
    row, column = tap
    parts = [writer.constant(part, np.int64) for part in ([row, column], [row + 1, column + 1], [2, 3])]
    flat = writer.node("Squeeze", writer.node("Slice", weight, *parts), writer.constant([2, 3], np.int64))
    inputs = writer.node("Shape", flat, start=1, end=2)
    shape = writer.node("Concat", writer.constant([groups, -1], np.int64), inputs, axis=0)
    return str(writer.node("Reshape", flat, shape))


def _spread(writer: Writer, call: Call, data: str) -> str:
    """Images with as many zeros behind each element as a transposed convolution steps over."""
    own: Any = call.attributes
    down, aside = own.strides
    if (down, aside) == (1, 1):
        return data
    apart = writer.node("Unsqueeze", data, writer.constant([3, 5], np.int64))
    zeros = writer.constant([0] * 9 + [down - 1, 0, aside - 1], np.int64)
    steps = writer.constant([1, 1, down, aside], np.int64)
    shape = writer.node("Mul", writer.node("Shape", data), steps)
    return str(writer.node("Reshape", writer.node("Pad", apart, zeros), shape))


def _mirrored(writer: Writer, weight: str, groups: int) -> str:
    """The kernel of the convolution that a transposed one is: taps in the other order, outputs before inputs."""
    ends = writer.constant([np.iinfo(np.int64).min] * 2, np.int64)
    axes, back = writer.constant([2, 3], np.int64), writer.constant([-1, -1], np.int64)
    turned = writer.node("Slice", weight, back, ends, axes, back)
    rest = writer.node("Shape", turned, start=1, end=4)
    apart = writer.node("Concat", writer.constant([groups, -1], np.int64), rest, axis=0)
    swapped = writer.node("Transpose", writer.node("Reshape", turned, apart), perm=[0, 2, 1, 3, 4])
    joined = writer.node("Concat", writer.constant([-1], np.int64), writer.node("Shape", swapped, start=2), axis=0)
    return str(writer.node("Reshape", swapped, joined))
