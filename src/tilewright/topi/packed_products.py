"""Products with packed codes, and the numbers these stand for.

A code becomes a float without a conversion, which some processors are slow at: set among the low bits of 2^23 it makes
that number larger by itself, and `2^23 + zero` less leaves `code - zero`, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tilewright.graph.ops.packed import (
    DIGITS,
    FEW_ROWS,
    LARGEST,
    LEAST_EXPONENT,
    PAIR_ZERO,
    SEVERAL_ROWS,
    STEP_BITS,
    WORD_BITS,
    digit_bias,
)
from tilewright.ir import intrinsics
from tilewright.ir.build import (
    as_expr,
    bitwise_and,
    bitwise_or,
    cast,
    const,
    eq,
    ge,
    maximum,
    minimum,
    select,
    shift_left,
    shift_right,
)
from tilewright.ir.dtype import FLOAT16, FLOAT32, INT8, INT32, UINT8, DataType
from tilewright.ir.expr import ExprLike, PrimExpr, const_value
from tilewright.ir.intrinsics import reinterpret
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, KEPT, Anchor
from tilewright.topi.registry import compute_of, compute_on_cpus, result_shape

PRODUCT_ROWS = 8
"""Rows of a product of tensor cores with packed codes."""
_UINT32 = DataType.of("uint32")
_BASE = 1 << 23
_BASE_BITS = 0x4B000000
_MIDDLE = 1.5 * 2**23
_MIDDLE_BITS = 0x4B400000
_SPAN = 1 << 22
"""Whole numbers up to this one, added to the bits of a float in the middle between 2^23 and 2^24, add themselves."""


def _place(number: ExprLike, bits: int, parts: int) -> PrimExpr:
    """From which bit of a word on its code of a number lies (`code_shift`)."""
    return as_expr(number) % parts * (WORD_BITS // parts) + as_expr(number) // parts * bits


def _shifted(word: PrimExpr, number: ExprLike, zero: PrimExpr, bits: int, parts: int) -> PrimExpr:
    """`code - zero` as float32, of the code of a number in a word."""
    place = _place(number, bits, parts)
    code = bitwise_and(shift_right(word, cast(place, _UINT32)), const((1 << bits) - 1, _UINT32))
    raised = reinterpret(bitwise_or(code, const(_BASE_BITS, _UINT32)), FLOAT32)
    return raised - (cast(zero, FLOAT32) + const(float(_BASE), FLOAT32))


def shifted_in_place(word: PrimExpr, number: ExprLike, zero: PrimExpr, bits: int, parts: int) -> PrimExpr:
    """The same without a shift for each code: bits of a code are among those of 2^(23 - n), n being their place.

    Places beyond 16 are those of the word's upper half.
    """
    place = cast(_place(number, bits, parts), _UINT32)
    half = bitwise_and(place, const(16, _UINT32))
    low = bitwise_and(place, const(15, _UINT32))
    mask = shift_left(const((1 << bits) - 1, _UINT32), low)
    base = shift_left(const(127 + 23, _UINT32) - low, const(23, _UINT32))
    raised = reinterpret(bitwise_or(bitwise_and(shift_right(word, half), mask), base), FLOAT32)
    return raised - (cast(zero, FLOAT32) + reinterpret(base, FLOAT32))


def _zero_of(zero: Tensor, *index: ExprLike) -> PrimExpr:
    """The zero point at a place; one for a whole axis where there is one."""
    return zero[tuple(0 if const_value(size) == 1 else i for size, i in zip(zero.shape, index, strict=True))]


@compute_of("packed.dequantize")
def _dequantize(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    words, scale, zero = inputs
    codes, axis = attributes.codes, attributes.axis

    def element(*i: ExprLike) -> PrimExpr:
        place = as_expr(i[axis])
        word = (*i[:axis], place // codes, *i[axis + 1 :])
        group = (*i[:axis], place // attributes.group, *i[axis + 1 :])
        return (
            _shifted(words[word], place % codes, _zero_of(zero, *group), attributes.bits, attributes.parts)
            * scale[group]
        )

    return compute(result_shape(result), element, "unpacked")


@compute_of("packed.matmul")
def _matmul(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    """Devices unpack codes where they copy them to near memory, and divide sums by words, or by longer runs."""
    is_single = all(const_value(size) == 1 for size in inputs[3].shape)
    if attributes.run and is_single and inputs[0].dtype is FLOAT16 and _has_rows(result, SEVERAL_ROWS):
        return _runs_of_rows(inputs, attributes, result)
    if not _has_rows(result, FEW_ROWS):
        return _many_rows(inputs, attributes, result)
    return _words_of_rows(inputs, attributes, result)


@compute_on_cpus("packed.matmul")
def _matmul_on_cpus(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    if _has_rows(result, FEW_ROWS):
        return _few_rows(inputs, attributes, result)
    return _many_rows(inputs, attributes, result, KEPT.entry(True))


def _has_rows(result: Type, most: int) -> bool:
    """Whether a product has so many rows at most."""
    rows = const_value(result_shape(result)[0])
    return rows is not None and rows <= most


def _few_rows(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    """The sums of groups, of products with codes that are unpacked where they are used; scales go to the sums."""
    a, words, scale, zero = inputs
    shape, codes, size = result_shape(result), attributes.codes, attributes.group
    groups, count = scale.shape[0], size // codes
    word, number, group = (
        reduce_axis((0, count), "word"),
        reduce_axis((0, codes), "number"),
        reduce_axis((0, groups), "g"),
    )

    def partial(g: ExprLike, i: ExprLike, j: ExprLike) -> PrimExpr:
        value = _shifted(words[g * count + word, j], number, _zero_of(zero, g, j), attributes.bits, attributes.parts)
        return reduction.sum(cast(a[i, g * size + word * codes + number], FLOAT32) * value, [word, number])

    sums = compute((groups, *shape), partial, "packed_sums", ANCHOR.entry(Anchor.PACKED))
    total = compute(
        shape,
        lambda i, j: reduction.sum(sums[group, i, j] * cast(scale[group, j], FLOAT32), [group]),
        "packed_matmul",
        ANCHOR.entry(Anchor.PACKED_TOTAL),
    )
    return _rounded(total, a.dtype)


def _words_of_rows(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    """The same with the sum of each word of codes scaled: any number of threads can share the words."""
    a, words, scale, zero = inputs
    shape, codes = result_shape(result), attributes.codes
    each = attributes.group // codes
    number, word = reduce_axis((0, codes), "number"), reduce_axis((0, words.shape[0]), "word")
    is_single = all(const_value(size) == 1 for size in zero.shape)
    unpacked = shifted_in_place if is_single else _shifted

    def partial(w: ExprLike, i: ExprLike, j: ExprLike) -> PrimExpr:
        value = unpacked(words[w, j], number, _zero_of(zero, as_expr(w) // each, j), attributes.bits, attributes.parts)
        return reduction.sum(cast(a[i, as_expr(w) * codes + number], FLOAT32) * value, [number])

    sums = compute((words.shape[0], *shape), partial, "packed_sums", ANCHOR.entry(Anchor.PACKED))
    total = compute(
        shape,
        lambda i, j: reduction.sum(sums[word, i, j] * cast(scale[as_expr(word) // each, j], FLOAT32), [word]),
        "packed_matmul",
        ANCHOR.entry(Anchor.PACKED_TOTAL),
    )
    return _rounded(total, a.dtype)


def _runs_of_rows(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    """The same with the sum of a run of words scaled, for whole tiles of rows that a product of tensor cores has."""
    a, words, scale, zero = inputs
    shape, codes, run = result_shape(result), attributes.codes, attributes.run
    length, each = run // codes, attributes.group // run
    last = const_value(shape[0])
    assert last is not None
    # Rows that are not there repeat the last one, and nobody reads their sums.
    count = -(-last // PRODUCT_ROWS) * PRODUCT_ROWS
    rows = compute(
        (count, a.shape[1]),
        lambda i, k: a[i if last == count else minimum(i, last - 1) if last > 1 else 0, k],
        "packed_rows",
        KEPT.entry(True),
    )
    word, number = reduce_axis((0, length), "word"), reduce_axis((0, codes), "number")
    part = reduce_axis((0, words.shape[0] // length), "part")

    def partial(r: ExprLike, i: ExprLike, j: ExprLike) -> PrimExpr:
        value = shifted_in_place(words[r * length + word, j], number, zero[0, 0], attributes.bits, attributes.parts)
        row = rows[i, r * run + word * codes + number]
        return reduction.sum(cast(row, FLOAT32) * value, [word, number])

    sums = compute((words.shape[0] // length, count, shape[1]), partial, "packed_sums", ANCHOR.entry(Anchor.PACKED))
    total = compute(
        (count, shape[1]),
        lambda i, j: reduction.sum(sums[part, i, j] * cast(scale[as_expr(part) // each, j], FLOAT32), [part]),
        "packed_matmul",
        ANCHOR.entry(Anchor.PACKED_TOTAL),
    )
    return compute(shape, lambda i, j: cast(total[i, j], a.dtype), "packed_result")


def _rounded(total: Tensor, dtype: DataType) -> Tensor:
    if dtype is FLOAT32:
        return total
    return compute(total.shape, lambda *i: cast(total[i], dtype), "packed_result")


def _many_rows(
    inputs: list[Tensor], attributes: Any, result: Type, notes: Mapping[str, object] = MappingProxyType({})
) -> Tensor:
    """The numbers that codes stand for, which all rows meet."""
    a, words, scale, zero = inputs
    codes, depth = attributes.codes, a.shape[1]
    columns = words.shape[1]

    def number(k: ExprLike, j: ExprLike) -> PrimExpr:
        place = as_expr(k)
        group = place // attributes.group
        value = _shifted(
            words[place // codes, j], place % codes, _zero_of(zero, group, j), attributes.bits, attributes.parts
        )
        return cast(value * cast(scale[group, j], FLOAT32), a.dtype)

    numbers = compute((depth, columns), number, "unpacked", {**notes, **ANCHOR.entry(Anchor.UNPACKED)})
    k = reduce_axis((0, depth), "k")
    total = compute(
        result_shape(result),
        lambda i, j: reduction.sum(cast(a[i, k], FLOAT32) * cast(numbers[k, j], FLOAT32), [k]),
        "packed_matmul",
        ANCHOR.entry(Anchor.MATMUL),
    )
    return _rounded(total, a.dtype)


@compute_of("packed.digits")
def _digits(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    """The largest magnitude of a group (three bytes: its exponent), the whole numbers by it, their bytes and sums."""
    (data,) = inputs
    size, is_exact = attributes.group, attributes.digits == DIGITS
    (count, _, depth), (_, groups) = result_shape(result, 0), result_shape(result, 1)
    k, byte_k = reduce_axis((0, size), "k"), reduce_axis((0, size), "k")
    infinite = const(255 << 23, _UINT32)
    mask = infinite if is_exact else const((1 << 31) - 1, _UINT32)

    def magnitude(i: ExprLike, g: ExprLike) -> PrimExpr:
        # The bits of floats without their sign are in order; those of infinities and NaN are the greatest.
        return reduction.max(bitwise_and(reinterpret(data[i, g * size + k], _UINT32), mask), [k])

    magnitudes = compute((count, groups), magnitude, "magnitude")
    least = const(LEAST_EXPONENT << 23, _UINT32)
    peaks = compute((count, groups), lambda i, g: maximum(magnitudes[i, g], least), "peak", KEPT.entry(True))
    lower = const((STEP_BITS - 1) << 23, _UINT32)

    def inverse(bits: PrimExpr) -> PrimExpr:
        if is_exact:
            return reinterpret(const(254 << 23, _UINT32) - (bits - lower), FLOAT32)
        return const(float(LARGEST[attributes.digits - 1]), FLOAT32) / reinterpret(bits, FLOAT32)

    inverses = compute((count, groups), lambda i, g: inverse(peaks[i, g]), "inverse", KEPT.entry(True))

    def whole(i: ExprLike, j: ExprLike) -> PrimExpr:
        group = as_expr(j) // size
        number = cast(intrinsics.round(data[i, j] * inverses[i, group]), INT32)
        return select(ge(peaks[i, group], infinite), const(0, INT32), number)

    numbers = compute((count, depth), whole, "whole", KEPT.entry(True))

    def digit(i: ExprLike, d: ExprLike, j: ExprLike) -> PrimExpr:
        bias: PrimExpr = const(digit_bias(attributes.digits - 1), INT32)
        for n in reversed(range(attributes.digits - 1)):
            bias = select(eq(d, n), const(digit_bias(n), INT32), bias)
        return cast(shift_right(numbers[i, j] + bias, cast(as_expr(d) * 8, INT32)), INT8)

    def step(i: ExprLike, g: ExprLike) -> PrimExpr:
        bits, factor = peaks[i, g], attributes.factor
        if is_exact:
            value = reinterpret(bits - lower, FLOAT32) * const(factor, FLOAT32)
        else:
            value = reinterpret(bits, FLOAT32) * const(factor / LARGEST[attributes.digits - 1], FLOAT32)
        return select(ge(bits, infinite), const(float("nan"), FLOAT32), value)

    digits = compute((count, attributes.digits, depth), digit, "digits")

    def part(i: ExprLike, d: ExprLike, g: ExprLike) -> PrimExpr:
        return reduction.sum(cast(digits[i, d, g * size + byte_k], FLOAT32), [byte_k])

    return [
        digits,
        compute((count, groups), step, "step"),
        compute((count, attributes.digits, groups), part, "digit_parts"),
    ]


@compute_of("packed.digit_matmul")
def _digit_matmul(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor:
    """Sums of products of bytes, for each byte of the rows' numbers; bytes and groups are put together in float32."""
    digits, step, data, scale = inputs[:4]
    shape, count = result_shape(result), const_value(digits.shape[1])
    assert count is not None
    columns = data if attributes.bits == 8 else _byte_codes(data, attributes)
    steps, groups = attributes.group // 4, scale.shape[0]
    four, byte, group = reduce_axis((0, steps), "four"), reduce_axis((0, 4), "byte"), reduce_axis((0, groups), "g")

    def partial(g: ExprLike, digit: ExprLike, i: ExprLike, j: ExprLike) -> PrimExpr:
        place = g * steps + four
        return reduction.sum(
            cast(digits[i, digit, place * 4 + byte], INT32) * cast(columns[place, j, byte], INT32), [four, byte]
        )

    sums = compute((groups, count, *shape), partial, "digit_sums", ANCHOR.entry(Anchor.PACKED))
    most = 1 << 14 if data.dtype is INT8 else ((1 << attributes.bits) - 1) << 7
    is_bounded = most * attributes.group <= _SPAN

    start = _MIDDLE if is_bounded else 0.0

    def as_float(*index: ExprLike) -> PrimExpr:
        if not is_bounded:
            return cast(sums[index], FLOAT32)
        return reinterpret(sums[index] + const(_MIDDLE_BITS, INT32), FLOAT32)

    floats = compute((groups, count, *shape), as_float, "digit_floats", KEPT.entry(True))

    def total(i: ExprLike, j: ExprLike) -> PrimExpr:
        parts = [_byte_sum(floats, inputs, attributes, start, (group, digit, i, j)) for digit in range(count)]
        whole = parts.pop()
        while parts:
            whole = whole * const(256.0, FLOAT32) + parts.pop()
        return reduction.sum(whole * (step[i, group] * scale[group, j]), [group])

    return compute(shape, total, "digit_matmul", ANCHOR.entry(Anchor.PACKED_TOTAL))


def _byte_sum(
    floats: Tensor, inputs: list[Tensor], attributes: Any, start: float, place: tuple[ExprLike, ...]
) -> PrimExpr:
    """The sum of a byte's products with codes less zero, which is exact: all of its numbers are whole, below 2^24."""
    group, digit, i, j = place
    value, pair, begin = floats[place], attributes.paired, const(start, FLOAT32)
    if attributes.signed and not pair:
        return value - begin
    zero = const(float(PAIR_ZERO), FLOAT32) if attributes.signed else cast(_zero_of(inputs[5], group, j), FLOAT32)
    offset = zero * inputs[4][i, digit, group]
    if not pair:
        return value - (begin + offset)
    column = as_expr(j)
    # The whole byte is the lower code and 16 times the upper one.
    upper = value - floats[group, digit, i, column // (2 * pair) * (2 * pair) + column % pair]
    if not attributes.signed:
        upper = upper - offset
    return select(eq(column // pair % 2, 0), value - (begin + offset), upper)


def _byte_codes(data: Tensor, attributes: Any) -> Tensor:
    """The codes of packed bytes, a byte each: [k / 4, n, 4]. Upper codes of pairs come with the lower ones below."""
    words, width, _ = data.shape
    bits, count, pair = attributes.bits, 8 // attributes.bits, attributes.paired

    def of_pair(four: ExprLike, j: ExprLike, b: ExprLike) -> PrimExpr:
        column = as_expr(j)
        byte = data[four, column // (2 * pair) * pair + column % pair, b]
        mask = select(eq(column // pair % 2, 0), const(15, data.dtype), const(-1, data.dtype))
        return bitwise_and(byte, mask)

    def element(four: ExprLike, j: ExprLike, b: ExprLike) -> PrimExpr:
        byte, place = cast(data[as_expr(four) // count, j, b], UINT8), cast(as_expr(four) % count, UINT8)
        if attributes.signed:
            code = bitwise_and(
                shift_left(byte, const(8 - bits, UINT8) - place * bits), const(256 - (1 << (8 - bits)), UINT8)
            )
        else:
            code = bitwise_and(shift_right(byte, place * bits), const((1 << bits) - 1, UINT8))
        return cast(code, data.dtype)

    notes = KEPT.entry(True) | ANCHOR.entry(Anchor.UNPACKED)
    if pair:
        return compute((words, width * 2, 4), of_pair, "byte_codes", notes)
    return compute((words * count, width, 4), element, "byte_codes", notes)
