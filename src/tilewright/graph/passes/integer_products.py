"""Products of shifted bytes in 32 bits become products of bytes, or of 16 bits where no instruction multiplies bytes.

Before:  matmul(int32(a) - zero, w)                    a: bytes; w: int32 constants that fit a signed byte
After:   qnn.matmul(a, int8(w)) - zero * column_sums(w)

The column sums are constants; a zero point that is known makes the whole correction one. Where the processor multiplies
unsigned with signed bytes only, signed data is moved by 128 first (and its zero point with it), which fuses with what
computes the data; and the other way round where it wants signed data. Reductions are padded with zeros to groups of
four, columns to whole vectors. Weights of unsigned bytes are moved too; what that takes away is a multiple of the sums
of rows, or of the windows of a convolution.

Processors without products of bytes multiply integers of 16 bits, which hold bytes less their zero points:

After:   qnn.matmul(int16(int32(a) - zero), int16(w))

Scales are merged as well: round(x * c / d) of such a product becomes round(x * (c / d)).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.dimensions import multiply
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.known import is_known
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make, static_shape
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes, Conv2dTransposeAttributes
from tilewright.graph.ops.elementwise import ClipAttributes
from tilewright.graph.ops.window_dots import arranged
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.grouped_products import grouped_conv2d, join_groups_of_bytes, transposed_conv2d
from tilewright.graph.passes.integer_operands import (
    GROUP,
    Operands,
    ShiftedBytes,
    border_byte,
    byte_weights,
    column_sums,
    corrected,
    first_columns,
    flipped,
    pad_depth,
    shifted_bytes,
    window_sums,
)
from tilewright.graph.passes.quantized_products import MOST_MOVES, MOST_PRODUCTS, known_value, sums_are_floats
from tilewright.ir.dtype import FLOAT32, INT8, INT32
from tilewright.ir.function import IRModule
from tilewright.target import Target

Array = npt.NDArray[Any]
_FLIP = 128
_TILE_STEP = 32
"""Bytes of a reduction from which on matrix tiles are quicker than vectors."""
_VECTORS = 4
"""Vectors across a tile of sums: with fewer, rows are loaded more often than they are used."""
_VECTOR_BYTES = 8
"""Channels whose pixels are put side by side at once, at least."""
_LITTLE = 16
"""What part of a reduction its padding is at most where the processor could do without."""
_MANY_VECTORS = 16
"""Vectors of columns from which on a few more cost less than narrow tiles."""


def integer_products(module: IRModule, options: GraphOptions) -> IRModule:
    """Use products of bytes where the processor has them, of 16 bits elsewhere."""
    rules = _Rules(options.machine).rules()
    return map_functions(module, lambda function: _rewritten(function, rules))


def _rewritten(function: Function, rules: tuple[Rule, ...]) -> Function:
    return apply_rules(function, rules)


class _Rules:
    """The rules for one target."""

    def __init__(self, target: Target) -> None:
        self._has_tiles = target.has_feature("amx-int8")
        self._is_cpu = target.is_cpu
        self._has_dots = target.is_cpu and target.has_dotprod
        self._has_groups = target.is_cpu and target.has_vnni and not self._has_tiles
        self._operands = Operands.of(target)

    def rules(self) -> tuple[Rule, ...]:
        """All of them, tried in order at each node."""
        return (
            Rule("product of bytes", P.op("matmul", name="root", where=_is_int32), self._matmul),
            Rule("convolution of bytes", P.op("nn.conv2d", name="root", where=_is_int32), self._conv2d),
            Rule(
                "transposed convolution of bytes",
                P.op("nn.conv2d_transpose", name="root", where=_is_int32),
                self._conv2d_transpose,
            ),
            Rule("scale before rounding", P.op("round", P.any("x"), name="root"), _merge_scales),
        )

    def _matmul(self, b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        assert isinstance(call.attributes, MatmulAttributes)
        rows, kernel = shifted_bytes(call.args[0]), self._operands.weights(known_value(call.args[1]))
        if rows is not None and self._is_cpu and not is_known(call.args[1]) and shifted_bytes(call.args[1]) is not None:
            return _by_floats(call)
        if rows is None or kernel is None or kernel.values.ndim != 2 or call.attributes.transpose_a:
            return None
        weights = kernel.values.T if call.attributes.transpose_b else kernel.values
        if weights.shape[0] > MOST_PRODUCTS or 0 in weights.shape:
            return None
        rows = self._operands.suited(rows)
        columns = weights.shape[1]
        data, padded = pad_depth(rows.data, self._missing_depth(weights)), self._pad_columns(weights)
        product: GraphExpr = make("qnn.matmul", data, self._operands.stored(padded), span=call.span)
        product = corrected(first_columns(product, columns), rows.zero, column_sums(weights))
        if not kernel.offset:
            return product
        rank = call.args[0].tensor_type.rank
        assert rank is not None
        sums = make("sum", call.args[0], axes=(rank - 1,), keepdims=True)
        return make("add", product, make("multiply", sums, constant(np.int32(kernel.offset))))

    def _conv2d(self, b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        attributes = call.attributes
        assert isinstance(attributes, Conv2dAttributes)
        if attributes.data_layout != "NHWC" or attributes.kernel_layout != "HWIO":
            return None
        data, weights = shifted_bytes(call.args[0]), known_value(call.args[1])
        if data is None or weights is None or 0 in weights.shape:
            return None
        if attributes.groups != 1 and weights.shape[2] == 1:
            return self._depthwise(call, attributes, data, weights)
        if weights.size // weights.shape[3] > MOST_PRODUCTS:
            return None
        if attributes.groups == 1:
            return self._dense_conv2d(call, attributes, data, weights)
        if not self._is_cpu:
            return None
        joined = join_groups_of_bytes(weights, attributes.groups, self._operands)
        if joined.groups == 1:
            return self._dense_conv2d(call, attributes, data, joined.values)
        return grouped_conv2d(call, self._operands.suited(data), joined, self._operands)

    def _dense_conv2d(
        self, call: Call, attributes: Conv2dAttributes, data: ShiftedBytes, values: Array
    ) -> GraphExpr | None:
        """A convolution of all channels with int32 weights that are bytes, but perhaps for an offset."""
        kernel = self._operands.weights(values)
        if kernel is None or (kernel.offset and known_sizes(call) is None):
            return None
        weights, data = kernel.values, self._operands.suited(data)
        by_lines = self._has_tiles or self._has_dots or self._has_groups
        if by_lines and not kernel.offset and _is_few_channels(call, attributes, weights):
            return self._line_conv2d(call, attributes, data, weights)
        outputs = weights.shape[3]
        filled, padded = pad_depth(data.data, self._missing_depth(weights)), self._pad_columns(weights)
        border = border_byte(data)
        padding = attributes.padding
        if not self._is_cpu and any(padding) and (value := known_value(border)) is not None and value.any():
            # Copies of tiles are asynchronous where what is outside is zero: other borders are written around the data.
            filled, padding = _with_border(filled, padding, float(value.reshape(()))), (0, 0, 0, 0)
        product: GraphExpr = make(
            "qnn.conv2d",
            filled,
            self._operands.stored(padded),
            border,
            strides=attributes.strides,
            padding=padding,
            dilation=attributes.dilation,
            span=call.span,
        )
        product = corrected(first_columns(product, outputs), data.zero, column_sums(weights))
        if not kernel.offset:
            return product
        sums = window_sums(call, weights.shape[0], weights.shape[1])
        return make("add", product, make("multiply", sums, constant(np.int32(kernel.offset))))

    def _conv2d_transpose(self, b: Bindings) -> GraphExpr | None:
        call = b.call("root")
        assert isinstance(call.attributes, Conv2dTransposeAttributes)
        data, weights = shifted_bytes(call.args[0]), known_value(call.args[1])
        if data is None or weights is None or not self._is_cpu or call.attributes.data_layout != "NHWC":
            return None
        return transposed_conv2d(call, self._operands.suited(data), weights, self._operands)

    def _line_conv2d(self, call: Call, attributes: Conv2dAttributes, data: ShiftedBytes, weights: Array) -> GraphExpr:
        """A convolution of few channels by whole lines: what a window meets of a line is one step of matrix tiles.

        Dot products by lanes of a register take the groups of a window from few loads, which windows share. Those of
        four bytes in memory, at any place, fill their groups with what follows: 7 pixels of 3 channels are 6 groups.
        Both take pixels as they are; rows of a tile are whole groups apart.
        """
        height, width, channels, outputs = weights.shape
        depth = channels + -channels % GROUP if self._has_tiles else channels
        filled = pad_depth(data.data, depth - channels)
        sizes = known_sizes(filled)
        assert sizes is not None
        runs = np.pad(weights, ((0, 0), (0, 0), (0, depth - channels), (0, 0))).reshape(height, width * depth, outputs)
        missing = -width * depth % (_TILE_STEP if self._has_tiles else GROUP if self._has_groups else 1)
        padded = self._pad_columns(np.pad(runs, ((0, 0), (0, missing), (0, 0))))
        top, left, bottom, right = attributes.padding
        product: GraphExpr = make(
            "qnn.line_conv2d",
            make("reshape", filled, shape=(*sizes[:2], multiply(sizes[2], depth)), span=call.span),
            self._operands.stored(padded),
            border_byte(data),
            strides=(attributes.strides[0], attributes.strides[1] * depth),
            # Bytes that were added to a run reach past the image.
            padding=(top, left * depth, bottom, right * depth + padded.shape[1] - width * depth),
            span=call.span,
        )
        return corrected(first_columns(product, outputs), data.zero, column_sums(weights))

    def _depthwise(
        self, call: Call, attributes: Conv2dAttributes, data: ShiftedBytes, values: Array
    ) -> GraphExpr | None:
        """A convolution of each channel by itself; any sign will do, and the zero point is taken off every element."""
        weights = byte_weights(values)
        zero = 0 if data.zero is None else known_value(data.zero)
        if weights is None or weights.offset or zero is None:
            return None
        zero = int(np.reshape(zero, ()))
        if self._has_dots and _shares_pixels(call, attributes, weights.values):
            return self._window_dots(call, attributes, data, weights.values)
        if self._is_cpu and zero == -_FLIP and data.data.tensor_type.dtype is INT8:
            # Nothing is taken off bytes that begin at zero.
            data, zero = flipped(data), 0
        return make(
            "qnn.depthwise_conv2d",
            data.data,
            constant(np.ascontiguousarray(weights.values.astype(np.int8))),
            strides=attributes.strides,
            padding=attributes.padding,
            dilation=attributes.dilation,
            zero=zero,
            span=call.span,
        )

    def _window_dots(self, call: Call, attributes: Conv2dAttributes, data: ShiftedBytes, weights: Array) -> GraphExpr:
        """A convolution of each channel by itself, by dot products of neighbouring pixels."""
        data = self._operands.suited(data)
        product: GraphExpr = make(
            "qnn.window_dots",
            data.data,
            constant(arranged(weights.astype(np.int8), attributes.strides[1])),
            border_byte(data),
            strides=attributes.strides,
            padding=attributes.padding,
            width=weights.shape[1],
            span=call.span,
        )
        return corrected(product, data.zero, column_sums(weights))

    def _pad_columns(self, weights: Array) -> Array:
        """Weights with the reduction in whole groups and whole vectors of columns.

        Many vectors are padded to a number that tiles of several vectors divide, where it has no such divisor.
        """
        columns, lanes = weights.shape[-1], self._operands.lanes
        vectors = -(-columns // lanes)
        if lanes > 1 and vectors >= _MANY_VECTORS and all(vectors % count for count in range(2, _VECTORS + 1)):
            vectors += -vectors % _VECTORS
        missing = self._missing_depth(weights)
        if not missing and vectors * lanes == columns:
            return weights
        return np.pad(weights, [(0, 0)] * (weights.ndim - 2) + [(0, missing), (0, vectors * lanes - columns)])

    def _missing_depth(self, weights: Array) -> int:
        """What the reduction lacks to whole groups, or to whole loads of a row where that is little."""
        depth = int(weights.shape[-2])
        load = -depth % self._operands.load
        return load if load * _LITTLE <= depth else -depth % self._operands.group


def _by_floats(call: Call) -> GraphExpr | None:
    """A product of two activations in float32, which represents all its sums: they are as exact, and much quicker."""
    attributes, shape = call.attributes, static_shape(call.args[0])
    assert isinstance(attributes, MatmulAttributes)
    if shape is None or not sums_are_floats(shape[-2 if attributes.transpose_a else -1]):
        return None
    operands = [make("cast", item, dtype=FLOAT32, span=call.span) for item in call.args]
    product = Call(call.callee, tuple(operands), attributes)
    product.span = call.span
    fill_type(product)
    return make("cast", product, dtype=INT32, span=call.span)


def _is_few_channels(call: Call, attributes: Conv2dAttributes, weights: Array) -> bool:
    """Whether windows are several pixels of at most a group of channels each, all of them side by side."""
    _, width, channels, _ = weights.shape
    return 1 < width and channels <= GROUP and tuple(attributes.dilation) == (1, 1) and static_shape(call) is not None


def _shares_pixels(call: Call, attributes: Conv2dAttributes, weights: Array) -> bool:
    """Whether windows of whole vectors of channels are of several pixels side by side."""
    _, width, _, outputs = weights.shape
    sizes, data = known_sizes(call), known_sizes(call.args[0])
    if tuple(attributes.dilation) != (1, 1) or data is None or data[3] != outputs or outputs % _VECTOR_BYTES:
        return False
    return 1 < width and sizes is not None and all(isinstance(size, int) for size in sizes[1:])


def _is_int32(call: Call) -> bool:
    return call.type is not None and call.tensor_type.dtype is INT32


def _with_border(data: GraphExpr, padding: tuple[int, int, int, int], value: float) -> GraphExpr:
    """Channels-last images with a border around them."""
    top, left, bottom, right = padding
    return make("pad", data, before=(0, top, left, 0), after=(0, bottom, right, 0), value=value)


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
