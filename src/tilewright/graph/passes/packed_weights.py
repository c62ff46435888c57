"""Dequantised constant weights of matrix products and embeddings stay packed: several codes to a word.

Before:  matmul(x, reshape(float(int(q) - zero) * scale))         q: constants of 8 bits or fewer, a scale a group
After:   packed.matmul(x, words, scale, zero)                     words: constants, 32 bits of codes each

Few rows on a processor with dot products of bytes become whole numbers of three bytes (`packed.digits`; fewer where the
product says that these will do), whose products with codes are exact. Rows that an embedding takes are dequantised
when they have been taken. What is packed is found by the values of the constants, however the model spells out their
dequantisation; the pass runs before constants are folded, which would make floats of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import gcd, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.dimensions import Size, multiply
from tilewright.graph.ir.expr import Call, GraphExpr, TupleGet, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make, static_shape
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.indexing import TakeAttributes
from tilewright.graph.ops.packed import (
    BYTES,
    DIGITS,
    FEW_ROWS,
    HALVES,
    MOST_GROUP,
    PAIR_ZERO,
    SEVERAL_ROWS,
    WIDTHS,
    WORD_BITS,
    is_upper,
    pack_codes,
    pair_codes,
)
from tilewright.graph.ops.shape import TransposeAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fold_constants import SMALL_BYTES
from tilewright.graph.passes.quantized_products import MOST_MOVES, known_value
from tilewright.ir.dtype import FLOAT32, INT8, UINT8, DataType
from tilewright.ir.function import IRModule
from tilewright.target import Target

Array = npt.NDArray[Any]
_LEAST_GROUP = 16
"""Integers that share a scale: fewer would take more space for scales than for themselves."""
_RUNS = {4: (128,), 8: (128, 64)}
"""Steps that products of tensor cores with codes of some bits are made of, the most first."""


def packed_weights(module: IRModule, options: GraphOptions) -> IRModule:
    """Keep constant weights of few bits packed."""
    target = options.target
    if target is None:
        return module
    digits = None if options.infinities else _digit_columns(target)
    rules = (
        Rule("product with packed weights", P.op("matmul", name="root"), partial(_product, target, digits)),
        Rule("rows of packed weights", P.op("take", name="root"), _rows),
    )
    return map_functions(module, lambda function: apply_rules(function, rules))


def _digit_columns(target: Target) -> DataType | None:
    """The type of codes that a processor multiplies signed bytes with; None if it has no such products."""
    return INT8 if target.has_dotprod else UINT8 if target.has_vnni else None


@dataclass(frozen=True, slots=True)
class _Dequantized:
    """`float(integers) * scale`, both of the same shape (a scale that broadcasts is a view)."""

    integers: Array
    scale: Array


def _dequantized(item: GraphExpr, moves: int = MOST_MOVES) -> _Dequantized | None:
    """Constants that are spelled out as integers times a scale, and perhaps moved afterwards."""
    if not moves or not isinstance(item, Call) or item.type is None or item.tensor_type.dtype is not FLOAT32:
        return None
    shape = static_shape(item)
    if shape is None or prod(shape) * FLOAT32.itemsize <= SMALL_BYTES:
        return None
    if is_call_to(item, "transpose") or is_call_to(item, "reshape"):
        below = _dequantized(item.args[0], moves - 1)
        if below is None:
            return None
        if isinstance(item.attributes, TransposeAttributes):
            axes = item.attributes.axes
            return _Dequantized(below.integers.transpose(axes), below.scale.transpose(axes))
        return _Dequantized(below.integers.reshape(shape), below.scale.reshape(shape))
    if not is_call_to(item, "multiply"):
        return None
    for value, factor in (item.args, item.args[::-1]):
        if not is_call_to(value, "cast") or not isinstance(value, Call):
            continue
        if not value.args[0].tensor_type.dtype.is_integer or static_shape(value) != shape:
            continue
        integers, scale = known_value(value.args[0]), known_value(factor)
        if integers is not None and scale is not None and np.isfinite(scale).all():
            return _Dequantized(integers, np.broadcast_to(scale, shape))
    return None


@dataclass(frozen=True, slots=True)
class _Codes:
    """Integers along the first axis as unsigned codes in groups, `code - zero` each; padded to whole groups."""

    codes: Array
    scale: Array
    zero: Array
    """One a group and column, or one for all (1, 1)."""
    bits: int
    group: int


def _as_codes(weight: _Dequantized) -> _Codes | None:
    """The fewest bits that hold integers [k, n]; None if these are no codes."""
    depth = len(weight.integers)
    # Of one row of scales that is read again and again, one is enough.
    scales = weight.scale if weight.scale.strides[0] else weight.scale[:1]
    changes = np.flatnonzero((scales[1:] != scales[:-1]).any(axis=1)) + 1
    common = gcd(*(int(place) for place in changes)) if len(changes) else 0
    bounds: dict[int, tuple[Array, Array]] = {}
    for bits in WIDTHS:
        codes = WORD_BITS // bits
        group = common or -(-depth // codes) * codes
        if group % codes or group < _LEAST_GROUP:
            continue
        if group not in bounds:
            bounds[group] = _bounds(_whole_groups(weight.integers, group), group)
        zero = _zeros(*bounds[group], bits)
        if zero is not None:
            zero = zero.astype(np.uint8)
            spread = np.repeat(zero, group, axis=0) if zero.size > 1 else zero
            scale = np.ascontiguousarray(weight.scale[::group], np.float32)
            # Modulo 256, which the sums are below.
            integers = _whole_groups(np.ascontiguousarray(weight.integers.astype(np.uint8)), group)
            return _Codes(integers + spread, scale, zero, bits, group)
    return None


def _whole_groups(integers: Array, group: int) -> Array:
    """Integers with zeros behind them, up to a whole group."""
    missing = -len(integers) % group
    return np.pad(integers, ((0, missing), (0, 0))) if missing else integers


def _bounds(integers: Array, group: int) -> tuple[Array, Array]:
    """The least and the greatest integer of each group and column [groups, n], of whole groups."""
    groups = integers.reshape(-1, group, integers.shape[1])
    return groups.min(axis=1).astype(np.int32), groups.max(axis=1).astype(np.int32)


def _zeros(low: Array, high: Array, bits: int) -> Array | None:
    """Zero points [groups, n] that make codes of some bits of integers in bounds; one for all if it can be."""
    most, middle = (1 << bits) - 1, 1 << (bits - 1)
    if low.min() >= -middle and high.max() <= most - middle:
        return np.full((1, 1), middle, np.int32)
    zero = np.clip(-low, 0, most)
    return zero if (low + zero >= 0).all() and (high + zero <= most).all() else None


def _product(target: Target, digits: DataType | None, b: Bindings) -> GraphExpr | None:
    call = b.call("root")
    assert isinstance(call.attributes, MatmulAttributes)
    rows, sizes = call.args[0], known_sizes(call.args[0])
    weight = _dequantized(call.args[1])
    if weight is None or weight.integers.ndim != 2 or sizes is None or call.attributes.transpose_a:
        return None
    if call.attributes.transpose_b:
        weight = _Dequantized(weight.integers.T, weight.scale.T)
    packed = _as_codes(weight)
    if packed is None or rows.tensor_type.dtype is not FLOAT32:
        return None
    depth, columns = weight.integers.shape
    count: Size = 1
    for size in sizes[:-1]:
        count = multiply(count, size)
    if len(sizes) != 2:
        rows = make("reshape", rows, shape=(count, depth), span=call.span)
    if len(packed.codes) > depth:
        rows = make("pad", rows, before=(0, 0), after=(0, len(packed.codes) - depth), span=call.span)
    packed = _whole_vectors(packed, target.lanes(WORD_BITS))
    few = isinstance(count, int) and count <= FEW_ROWS
    if digits is not None and few:
        digit_count = -(-call.attributes.row_bits // INT8.bits) or DIGITS
        result: GraphExpr = _digit_product(rows, packed, target, digits, min(DIGITS, digit_count), call)
    else:
        scale, zero = constant(packed.scale), constant(packed.zero)
        several = isinstance(count, int) and count <= SEVERAL_ROWS
        run = run_length(target, packed.bits, packed.group) if several and packed.zero.size == 1 else 0
        words = constant(pack_codes(packed.codes, packed.bits, 0, HALVES if run else BYTES))
        attributes = {"bits": packed.bits, "group": packed.group, "run": run}
        result = make("packed.matmul", rows, words, scale, zero, **attributes, span=call.span)
    if packed.scale.shape[1] > columns:
        result = make("slice", result, begin=(0, 0), end=(count, columns), strides=(1, 1), span=call.span)
        result = make("assume_shape", result, shape=(count, columns), span=call.span)
    return result if len(sizes) == 2 else make("reshape", result, shape=(*sizes[:-1], columns), span=call.span)


def run_length(target: Target, bits: int, group: int) -> int:
    """Steps whose products few rows add up before they are scaled: what tensor cores multiply, 0 without them."""
    if not target.has_tensor_cores:
        return 0
    return next((run for run in _RUNS.get(bits, ()) if group % run == 0), 0)


def _whole_vectors(packed: _Codes, lanes: int) -> _Codes:
    """The same with columns of codes added up to whole vectors."""
    extra = ((0, 0), (0, -packed.codes.shape[1] % lanes))
    if not extra[1][1]:
        return packed
    zero = np.pad(packed.zero, extra) if packed.zero.size > 1 else packed.zero
    return _Codes(np.pad(packed.codes, extra), np.pad(packed.scale, extra), zero, packed.bits, packed.group)


def _digit_product(
    rows: GraphExpr, packed: _Codes, target: Target, columns: DataType, digit_count: int, call: Call
) -> GraphExpr:
    """Few rows as whole numbers of some bytes, times codes of bytes."""
    packed = _small_groups(packed)
    bits, group = packed.bits, packed.group
    is_signed = columns is INT8 and packed.zero.size == 1
    lanes = target.lanes(WORD_BITS)
    paired = lanes if columns is INT8 and bits == 4 and packed.codes.shape[1] % (2 * lanes) == 0 else 0
    moved = 1 << (bits - 1) if is_signed or (columns is INT8 and bits == INT8.bits) else 0
    scale, zero = packed.scale, packed.zero.astype(np.int32) - moved
    if paired:
        data = pair_codes(packed.codes, paired)
        upper = is_upper(packed.codes.shape[1], paired)
        scale, zero = np.where(upper, scale, scale * np.float32(16)), np.where(upper, (zero - PAIR_ZERO) * 16, zero)
    else:
        # The upper bit of a two's complement is that of the code, turned over.
        words = pack_codes(packed.codes ^ np.uint8(moved), bits, 0)
        data = words.view(np.uint8).reshape(*words.shape, 4).view(columns.numpy())
    factor = 2.0 ** (bits - INT8.bits) if is_signed or paired else 1.0
    parts = make("packed.digits", rows, group=group, factor=factor, digits=digit_count, span=call.span)
    digits, step, sums = (_item(parts, number) for number in range(3))
    operands: list[GraphExpr] = [digits, step, constant(data), constant(scale)]
    if paired or not is_signed:
        operands.append(sums)
    if not is_signed:
        operands.append(constant(zero.astype(columns.numpy())))
    attributes = {"bits": bits, "group": group, "signed": is_signed, "paired": paired}
    return make("packed.digit_matmul", *operands, **attributes, span=call.span)


def _item(value: Call, number: int) -> GraphExpr:
    item = TupleGet(value, number)
    item.span = value.span
    fill_type(item)
    return item


def _small_groups(packed: _Codes) -> _Codes:
    """The same in groups whose sums of products of bytes stay within 32 bits: equal scales are repeated."""
    codes = WORD_BITS // packed.bits
    if packed.group <= MOST_GROUP:
        return packed
    group = max(n for n in range(codes, MOST_GROUP + 1, codes) if packed.group % n == 0)
    times = packed.group // group
    zero = np.repeat(packed.zero, times, axis=0) if packed.zero.size > 1 else packed.zero
    return _Codes(packed.codes, np.repeat(packed.scale, times, axis=0), zero, packed.bits, group)


def _rows(b: Bindings) -> GraphExpr | None:
    """Rows of a matrix of codes, dequantised when they have been taken."""
    call = b.call("root")
    attributes = call.attributes
    assert isinstance(attributes, TakeAttributes)
    weight = _dequantized(call.args[0])
    if weight is None or weight.integers.ndim != 2 or attributes.axis != 0:
        return None
    packed = _as_codes(_Dequantized(weight.integers.T, weight.scale.T))
    if packed is None or len(packed.codes) != weight.integers.shape[1]:
        return None
    table = (pack_codes(np.ascontiguousarray(packed.codes.T), packed.bits, 1), packed.scale.T, packed.zero.T)
    parts = []
    for array in table:
        taken: GraphExpr = constant(np.ascontiguousarray(array))
        if array.size > 1:
            taken = Call(call.callee, (taken, call.args[1]), attributes)
            taken.span = call.span
            fill_type(taken)
        parts.append(taken)
    axis = (parts[0].tensor_type.rank or 1) - 1
    if packed.zero.size == 1:
        parts[2] = make("reshape", parts[2], shape=(1,) * (axis + 1), span=call.span)
    return make("packed.dequantize", *parts, bits=packed.bits, group=packed.group, axis=axis, span=call.span)
