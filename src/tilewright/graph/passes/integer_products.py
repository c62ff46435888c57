"""Products of shifted bytes in 32 bits become products of bytes, which processors have instructions for.

Before:  matmul(int32(a) - zero, w)                    a: bytes; w: int32 constants that fit a signed byte
After:   qnn.matmul(a, int8(w)) - zero * column_sums(w)

The column sums are constants; a zero point that is known makes the whole correction one. Where the processor multiplies
unsigned with signed bytes only, signed data is moved by 128 first (and its zero point with it), which fuses with what
computes the data; and the other way round where it wants signed data. Reductions are padded with zeros to groups of
four, columns to whole vectors. Weights of unsigned bytes are moved too; what that takes away is a multiple of the sums
of rows, or of the windows of a convolution.

Scales are merged as well: round(x * c / d) of such a product becomes round(x * (c / d)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.dimensions import Size, Sizes, add, as_size, multiply
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make, static_shape
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.ops.elementwise import ClipAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.quantized_products import MOST_MOVES, MOST_PRODUCTS, has_byte_products, known_value
from tilewright.ir.dtype import FLOAT32, INT8, INT32, UINT8
from tilewright.ir.expr import const_value
from tilewright.ir.function import IRModule
from tilewright.target import Target

Array = npt.NDArray[Any]
_GROUP = 4
_FLIP = 128
_TILE_STEP = 32
"""Bytes of a reduction from which on matrix tiles are quicker than vectors."""
_VECTORS = 4
"""Vectors across a tile of sums: with fewer, rows are loaded more often than they are used."""
_MANY_VECTORS = 16
"""Vectors of columns from which on a few more cost less than narrow tiles."""


def integer_products(module: IRModule, options: GraphOptions) -> IRModule:
    """Use products of bytes where the processor has them."""
    target = options.machine
    if not has_byte_products(target):
        return module
    rules = _Rules(target).rules()
    result = map_functions(module, lambda function: _rewritten(function, rules))
    assert isinstance(result, IRModule)
    return result


def _rewritten(function: Function, rules: tuple[Rule, ...]) -> Function:
    return apply_rules(function, rules)


@dataclass(frozen=True, slots=True)
class ShiftedBytes:
    """`int32(data) - zero`: bytes, and their zero point as a single int32 (None for 0)."""

    data: GraphExpr
    zero: GraphExpr | None


def shifted_bytes(item: GraphExpr, moves: int = MOST_MOVES) -> ShiftedBytes | None:
    """An int32 expression as bytes and a zero point; rearrangements move to the bytes."""
    if not moves or not isinstance(item, Call) or item.type is None or item.tensor_type.dtype is not INT32:
        return None
    if is_call_to(item, "transpose") or is_call_to(item, "reshape"):
        below = shifted_bytes(item.args[0], moves - 1)
        if below is None:
            return None
        moved = Call(item.callee, (below.data,), item.attributes)
        moved.span = item.span
        fill_type(moved)
        return ShiftedBytes(moved, below.zero)
    if is_call_to(item, "subtract"):
        below, zero = shifted_bytes(item.args[0], moves - 1), item.args[1]
        size = static_shape(zero)
        if below is None or below.zero is not None or size is None or any(dim != 1 for dim in size):
            return None
        return ShiftedBytes(below.data, zero if size == () else make("reshape", zero, shape=()))
    if is_call_to(item, "cast") and item.args[0].tensor_type.dtype in (INT8, UINT8):
        return ShiftedBytes(item.args[0], None)
    return None


class _Rules:
    """The rules for one target."""

    def __init__(self, target: Target) -> None:
        self._has_tiles = target.has_feature("amx-int8")
        self._is_cpu = target.is_cpu
        # Tiles of GPUs have edges of their own.
        self._lanes = target.lanes(32) if self._is_cpu else 1
        # x86 multiplies unsigned rows with signed columns. ARM takes signed ones, unsigned too with the i8mm extension,
        # and tensor cores take any; the words of other GPUs are of signed bytes.
        takes_both = target.has_i8mm or target.has_tensor_cores
        self._rows = (UINT8,) if target.has_vnni else (INT8, UINT8) if takes_both else (INT8,)

    def rules(self) -> tuple[Rule, ...]:
        """All of them, tried in order at each node."""
        return (
            Rule("product of bytes", P.op("matmul", name="root", where=_is_int32), self._matmul),
            Rule("convolution of bytes", P.op("nn.conv2d", name="root", where=_is_int32), self._conv2d),
            Rule("scale before rounding", P.op("round", P.any("x"), name="root"), _merge_scales),
        )

    def _matmul(self, b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        assert isinstance(call.attributes, MatmulAttributes)
        rows, byte_weights = shifted_bytes(call.args[0]), _byte_weights(call.args[1])
        if rows is None or byte_weights is None or byte_weights.values.ndim != 2 or call.attributes.transpose_a:
            return None
        weights = byte_weights.values.T if call.attributes.transpose_b else byte_weights.values
        if weights.shape[0] > MOST_PRODUCTS or 0 in weights.shape:
            return None
        rows = self._suited(rows)
        columns = weights.shape[1]
        data, padded = _pad_depth(rows.data, weights, 0), self._pad_columns(weights)
        product: GraphExpr = make("qnn.matmul", data, _as_bytes(padded), span=call.span)
        product = _corrected(first_columns(product, columns), rows.zero, weights)
        if not byte_weights.offset:
            return product
        rank = call.args[0].tensor_type.rank
        assert rank is not None
        sums = make("sum", call.args[0], axes=(rank - 1,), keepdims=True)
        return make("add", product, make("multiply", sums, constant(np.int32(byte_weights.offset))))

    def _conv2d(self, b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        attributes = call.attributes
        assert isinstance(attributes, Conv2dAttributes)
        if attributes.data_layout != "NHWC" or attributes.kernel_layout != "HWIO":
            return None
        if attributes.groups != 1:
            return _depthwise(call, attributes)
        data, byte_weights = shifted_bytes(call.args[0]), _byte_weights(call.args[1])
        if data is None or byte_weights is None or 0 in byte_weights.values.shape:
            return None
        weights = byte_weights.values
        if weights.size // weights.shape[3] > MOST_PRODUCTS or (byte_weights.offset and known_sizes(call) is None):
            return None
        data = self._suited(data)
        if self._has_tiles and not byte_weights.offset and _is_few_channels(call, attributes, weights):
            return self._line_conv2d(call, attributes, data, weights)
        outputs = weights.shape[3]
        filled, padded = _pad_depth(data.data, weights, 2), self._pad_columns(weights)
        border = _border(data)
        padding = attributes.padding
        if not self._is_cpu and any(padding) and (value := known_value(border)) is not None and value.any():
            # Copies of tiles are asynchronous where what is outside is zero: other borders are written around the data.
            filled, padding = _with_border(filled, padding, float(value.reshape(()))), (0, 0, 0, 0)
        product: GraphExpr = make(
            "qnn.conv2d",
            filled,
            _as_bytes(padded),
            border,
            strides=attributes.strides,
            padding=padding,
            dilation=attributes.dilation,
            span=call.span,
        )
        product = _corrected(first_columns(product, outputs), data.zero, weights)
        if not byte_weights.offset:
            return product
        sums = _window_sums(call, weights.shape[0], weights.shape[1])
        return make("add", product, make("multiply", sums, constant(np.int32(byte_weights.offset))))

    def _line_conv2d(self, call: Call, attributes: Conv2dAttributes, data: ShiftedBytes, weights: Array) -> GraphExpr:
        """A convolution of few channels by whole lines: what a window meets of a line is one step of matrix tiles."""
        height, width, channels, outputs = weights.shape
        depth = channels + -channels % _GROUP
        taps = -(-width * depth // _TILE_STEP) * _TILE_STEP // depth
        filled = _pad_depth(data.data, weights, 2)
        sizes = known_sizes(filled)
        assert sizes is not None
        padded = self._pad_columns(np.pad(weights, ((0, 0), (0, taps - width), (0, 0), (0, 0))))
        top, left, bottom, right = attributes.padding
        product: GraphExpr = make(
            "qnn.line_conv2d",
            make("reshape", filled, shape=(*sizes[:2], multiply(sizes[2], depth)), span=call.span),
            _as_bytes(padded.reshape(height, taps * depth, -1)),
            _border(data),
            strides=(attributes.strides[0], attributes.strides[1] * depth),
            # Taps that were added reach past the image.
            padding=(top, left * depth, bottom, (right + taps - width) * depth),
            span=call.span,
        )
        return _corrected(first_columns(product, outputs), data.zero, weights)

    def _suited(self, item: ShiftedBytes) -> ShiftedBytes:
        """Data of a sign that the processor multiplies: moved by 128 if it has the other one."""
        dtype = item.data.tensor_type.dtype
        if dtype in self._rows:
            return item
        suited, step = (UINT8, _FLIP) if dtype is INT8 else (INT8, -_FLIP)
        moved = make("add", make("cast", item.data, dtype=INT32), constant(np.int32(step)))
        zero: GraphExpr = constant(np.int32(step))
        if item.zero is not None:
            zero = _folded(make("add", item.zero, zero))
        return ShiftedBytes(make("cast", moved, dtype=suited), zero)

    def _pad_columns(self, weights: Array) -> Array:
        """Weights with the reduction in whole groups and whole vectors of columns.

        Many vectors are padded to a number that tiles of several vectors divide, where it has no such divisor.
        """
        depth, columns = weights.shape[-2:]
        vectors = -(-columns // self._lanes)
        if self._lanes > 1 and vectors >= _MANY_VECTORS and all(vectors % count for count in range(2, _VECTORS + 1)):
            vectors += -vectors % _VECTORS
        widths = [(0, 0)] * (weights.ndim - 2) + [(0, -depth % _GROUP), (0, vectors * self._lanes - columns)]
        return np.pad(weights, widths)


def _depthwise(call: Call, attributes: Conv2dAttributes) -> GraphExpr | None:
    """A convolution of each channel by itself; any sign will do, and the zero point is taken off every element."""
    data, weights = shifted_bytes(call.args[0]), _byte_weights(call.args[1])
    if data is None or weights is None or weights.offset or weights.values.shape[2] != 1:
        return None
    zero = None if data.zero is None else known_value(data.zero)
    if data.zero is not None and zero is None:
        return None
    return make(
        "qnn.depthwise_conv2d",
        data.data,
        _as_bytes(weights.values),
        strides=attributes.strides,
        padding=attributes.padding,
        dilation=attributes.dilation,
        zero=0 if zero is None else int(zero.reshape(())),
        span=call.span,
    )


def _is_few_channels(call: Call, attributes: Conv2dAttributes, weights: Array) -> bool:
    """Whether windows are several pixels of at most a group of channels each, all of them side by side."""
    _, width, channels, _ = weights.shape
    return 1 < width and channels <= _GROUP and tuple(attributes.dilation) == (1, 1) and static_shape(call) is not None


def _border(data: ShiftedBytes) -> GraphExpr:
    """The byte that stands for zero."""
    dtype = data.data.tensor_type.dtype
    if data.zero is None:
        return constant(np.zeros((), dtype.numpy()))
    return _folded(make("cast", data.zero, dtype=dtype))


def _is_int32(call: Call) -> bool:
    return call.type is not None and call.tensor_type.dtype is INT32


@dataclass(frozen=True, slots=True)
class _ByteWeights:
    """Constant int32 weights: signed bytes plus an offset, which meets the sums of rows."""

    values: Array
    offset: int


def _byte_weights(item: GraphExpr) -> _ByteWeights | None:
    """Constant int32 values that fit a signed byte, less an offset if need be."""
    values = known_value(item)
    if values is None or values.dtype != np.int32 or values.size == 0:
        return None
    low, high = int(values.min()), int(values.max())
    if high - low > 255:
        return None
    offset = 0 if low >= -128 and high <= 127 else low + 128
    return _ByteWeights(values - np.int32(offset), offset)


def _as_bytes(weights: Array) -> Constant:
    return constant(np.ascontiguousarray(weights.astype(np.int8)))


def _pad_depth(data: GraphExpr, weights: Array, depth_axis: int) -> GraphExpr:
    """Data with its last axis in whole groups: what is added meets weights of zero."""
    extra = -weights.shape[depth_axis] % _GROUP
    rank = data.tensor_type.rank
    if not extra or rank is None:
        return data
    return make("pad", data, before=(0,) * rank, after=(*(0,) * (rank - 1), extra))


def _with_border(data: GraphExpr, padding: tuple[int, int, int, int], value: float) -> GraphExpr:
    """Channels-last images with a border around them."""
    top, left, bottom, right = padding
    return make("pad", data, before=(0, top, left, 0), after=(0, bottom, right, 0), value=value)


def first_columns(product: GraphExpr, columns: int) -> GraphExpr:
    """The columns that are not padding."""
    shape = product.tensor_type.shape
    assert shape is not None
    *outer, last = shape
    if last is None or const_value(last) == columns:
        return product
    end = (*(as_size(dim) for dim in outer if dim is not None), columns)
    return _of_sizes(make("slice", product, begin=(0,) * len(shape), end=end, strides=(1,) * len(shape)), end)


def _of_sizes(value: GraphExpr, sizes: Sizes) -> GraphExpr:
    """A slice of the sizes it is known to have: its type allows for some below zero, which a run refuses."""
    return value if known_sizes(value) == sizes else make("assume_shape", value, shape=sizes)


def _window_sums(convolution: Call, height: int, width: int) -> GraphExpr:
    """The sums of all that a convolution multiplies with the weights of an output, with one channel.

    Channels are added up first, then the rows of windows, then their columns: that is little work beside the products.
    """
    attributes = convolution.attributes
    assert isinstance(attributes, Conv2dAttributes)
    top, left, bottom, right = attributes.padding
    # Without the axis of channels, so that vectors are of pixels.
    sums: GraphExpr = make("sum", convolution.args[0], axes=(3,), keepdims=False)
    # Strides are whole with what is added below and to the right.
    below, beside = (stride - 1 for stride in attributes.strides)
    if any((*attributes.padding, below, beside)):
        sums = make("pad", sums, before=(0, top, left), after=(0, bottom + below, right + beside))
    result = known_sizes(convolution)
    assert result is not None
    for axis, taps, stride, step in zip((1, 2), (height, width), attributes.strides, attributes.dilation, strict=True):
        sums = _added_taps(sums, axis, [tap * step for tap in range(taps)], stride, result[axis])
    return make("reshape", _of_sizes(sums, result[:3]), shape=(*result[:3], 1))


def _added_taps(data: GraphExpr, axis: int, taps: Sequence[int], stride: int, count: Size) -> GraphExpr:
    """The sums of `count` windows along an axis: of the elements at some places from every `stride`-th one on."""
    sizes = known_sizes(data)
    assert sizes is not None
    total: GraphExpr | None = None
    for tap in taps:
        begin = [0] * len(sizes)
        end = list(sizes)
        steps = [1] * len(sizes)
        begin[axis], steps[axis] = tap, stride
        end[axis] = add(tap, multiply(count, stride))
        part = make("slice", data, begin=tuple(begin), end=tuple(end), strides=tuple(steps))
        total = part if total is None else make("add", total, part)
    assert total is not None
    return total


def _folded(item: GraphExpr) -> GraphExpr:
    value = known_value(item)
    return item if value is None else constant(value)


def _corrected(product: GraphExpr, zero: GraphExpr | None, weights: Array) -> GraphExpr:
    """The product of shifted data, from that of the data as they are."""
    if zero is None:
        return product
    sums = weights.reshape(-1, weights.shape[-1]).sum(axis=0, dtype=np.int64).astype(np.int32)
    value = known_value(zero)
    if value is not None:
        if not value.any():
            return product
        with np.errstate(over="ignore"):
            return make("subtract", product, constant(sums * np.int32(value.reshape(()))))
    return make("subtract", product, make("multiply", constant(sums), zero))


def _merge_scales(b: Bindings) -> GraphExpr | None:
    """round(x / d), where x is a scaled integer product with shifts and clamps, with the division in the scale."""
    item = b["x"]
    if not isinstance(item, Call) or item.type is None or item.tensor_type.dtype is not FLOAT32:
        return None
    if not (is_call_to(item, "divide") or is_call_to(item, "multiply")):
        return None
    factor = item.args[1]
    if not isinstance(factor, Constant) or factor.data.size != 1 or not float(factor.data.reshape(())) > 0:
        return None
    inverse = is_call_to(item, "divide")
    merged = _scaled_by(item.args[0], factor.data.reshape(()), inverse)
    return None if merged is None or merged.type is not item.type else make("round", merged)


def _scaled_by(item: GraphExpr, factor: Array, inverse: bool, steps: int = MOST_MOVES) -> GraphExpr | None:
    """An expression times (or over) a positive constant, by changing the constants in it; None if it cannot be."""
    if not isinstance(item, Call) or not steps:
        return None

    def scaled(value: Array) -> Constant:
        return constant(np.asarray(value / factor if inverse else value * factor, np.float32))

    if is_call_to(item, "multiply") and isinstance(item.args[1], Constant):
        source = item.args[0]
        if not is_call_to(source, "cast") or not isinstance(source, Call):
            return None
        if not source.args[0].tensor_type.dtype.is_integer:
            return None
        return make("multiply", source, scaled(item.args[1].data), span=item.span)
    if is_call_to(item, "add") and isinstance(item.args[1], Constant):
        below = _scaled_by(item.args[0], factor, inverse, steps - 1)
        return None if below is None else make("add", below, scaled(item.args[1].data), span=item.span)
    if is_call_to(item, "add"):
        # A residual: another product, or bytes that stand for numbers.
        parts = [_scaled_by(part, factor, inverse, steps // 2) for part in item.args]
        return None if parts[0] is None or parts[1] is None else make("add", parts[0], parts[1], span=item.span)
    if is_call_to(item, "nn.relu"):
        below = _scaled_by(item.args[0], factor, inverse, steps - 1)
        return None if below is None else make("nn.relu", below, span=item.span)
    if is_call_to(item, "clip"):
        below = _scaled_by(item.args[0], factor, inverse, steps - 1)
        attributes = item.attributes
        assert isinstance(attributes, ClipAttributes)
        bounds = [
            None if bound is None else float(scaled(np.asarray(bound, np.float32)).data)
            for bound in (attributes.minimum, attributes.maximum)
        ]
        return None if below is None else make("clip", below, minimum=bounds[0], maximum=bounds[1], span=item.span)
    return None
