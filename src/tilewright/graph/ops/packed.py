"""Weights of few bits, several to a word: what they stand for, and products with them.

A word of 32 bits holds `32 / bits` neighbours along an axis, as unsigned codes. Code n of a word lies in byte n % 4,
from bit `n // 4 * bits` of that byte on, so that the bytes of a word are neighbours as well. For products of tensor
cores in runs it lies in half n % 2, from bit `n // 2 * bits` of that half on: they read pairs of neighbours. A code
stands for `(code - zero) * scale`; neighbours in groups share a scale and a zero point.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, operator
from tilewright.graph.ops.common import agree, constant_dim, require_rank, tensors
from tilewright.ir.dtype import FLOAT16, FLOAT32, INDEX, INT8, DataType
from tilewright.ir.expr import IntImm
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import UserError

WORD_BITS = 32
BYTES, HALVES = 4, 2
"""Parts of a word."""
WIDTHS = (1, 2, 4, 8)
"""Bits that a code may have."""
FEW_ROWS = 4
"""Rows up to which a product unpacks codes in registers for all of them; more rows read numbers unpacked once."""
SEVERAL_ROWS = 128
"""Rows up to which tensor cores unpack codes in registers, where rows are halves."""
_NAMES = ("words", "scale", "zero")


@node()
class PackedAttributes(Attributes):
    """The bits of a code, how many neighbours share a scale, and the axis along which they lie."""

    bits: int = 4
    group: int = 32
    axis: int = 0
    run: int = 0
    """Steps whose products few rows add up before they are scaled, a part of a group; 0: those of a word."""

    @property
    def parts(self) -> int:
        """Parts of a word that neighbouring codes lie in: its bytes, or its halves."""
        return HALVES if self.run else BYTES

    @property
    def codes(self) -> int:
        """Codes in a word."""
        return WORD_BITS // self.bits


def code_shift(number: int, bits: int, parts: int = BYTES) -> int:
    """From which bit of a word on its code of a number lies."""
    return number % parts * (WORD_BITS // parts) + number // parts * bits


def pack_codes(codes: Array, bits: int, axis: int, parts: int = BYTES) -> Array:
    """Codes as words of neighbours along an axis, whose length is a multiple of the codes in a word."""
    count = WORD_BITS // bits
    outer, length, inner = codes.shape[:axis], codes.shape[axis], codes.shape[axis + 1 :]
    numbered = codes.astype(np.uint8, copy=False).reshape(*outer, length // count, count, *inner)
    words: Array = np.zeros((*outer, length // count, *inner), np.uint32)
    for number in range(count):
        code = np.take(numbered, number, axis=axis + 1).astype(np.uint32)
        words |= code << np.uint32(code_shift(number, bits, parts))
    return words


def unpack_codes(words: Array, bits: int, axis: int, parts: int = BYTES) -> Array:
    """The codes of words, as bytes."""
    count = WORD_BITS // bits
    last = np.moveaxis(words, axis, -1)
    codes = np.empty((*last.shape, count), np.uint8)
    for number in range(count):
        codes[..., number] = (last >> np.uint32(code_shift(number, bits, parts))) & np.uint32((1 << bits) - 1)
    return np.moveaxis(codes.reshape(*last.shape[:-1], last.shape[-1] * count), -1, axis)


def _numbers(words: Array, scale: Array, zero: Array, attributes: PackedAttributes) -> Array:
    codes = unpack_codes(words, attributes.bits, attributes.axis, attributes.parts).astype(np.int32)
    scale = scale.astype(np.float32, copy=False)
    zeros = np.repeat(np.broadcast_to(zero, scale.shape), attributes.group, axis=attributes.axis)
    with np.errstate(all="ignore"):
        shifted = (codes - zeros.astype(np.int32)).astype(np.float32)
        return np.asarray(shifted * np.repeat(scale, attributes.group, axis=attributes.axis), np.float32)


def _check(
    words: TensorType, scale: TensorType, zero: TensorType, attributes: PackedAttributes, dtype: DataType = FLOAT32
) -> None:
    if attributes.bits not in WIDTHS:
        raise UserError(f"codes have {', '.join(map(str, WIDTHS))} bits, not {attributes.bits}")
    if attributes.group < 1 or attributes.group % attributes.codes:
        raise UserError(f"a group is whole words of {attributes.codes} codes, not {attributes.group} codes")
    if attributes.run and (attributes.group % attributes.run or attributes.run % attributes.codes):
        raise UserError(f"a run is whole words and a part of a group of {attributes.group}, not {attributes.run} codes")
    for item, name, kind in ((words, "words", "uint32"), (scale, "scale", dtype.name), (zero, "zero", "uint8")):
        if item.dtype.name != kind:
            raise UserError(f"{name} must be {kind}, it is {item.dtype}")
    if words.shape is None or scale.shape is None or zero.shape is None:
        raise UserError("packed weights need shapes that are known")
    rank = len(words.shape)
    require_rank(scale.shape, rank, "scale")
    require_rank(zero.shape, rank, "zero")
    if not 0 <= attributes.axis < rank:
        raise UserError(f"there is no axis {attributes.axis} in {rank} dimensions")
    for axis in range(rank):
        if axis != attributes.axis:
            agree(words.shape[axis], scale.shape[axis], f"dimension {axis} of words and scale")
        if constant_dim(zero.shape[axis]) != 1:
            agree(zero.shape[axis], scale.shape[axis], f"dimension {axis} of zero and scale")
    count, groups = constant_dim(words.shape[attributes.axis]), constant_dim(scale.shape[attributes.axis])
    if count is None or groups is None or count * attributes.codes != groups * attributes.group:
        raise UserError(f"{count} words of {attributes.codes} codes are not {groups} groups of {attributes.group}")


def _dequantize(args: list[Array], attributes: PackedAttributes) -> Array:
    return _numbers(args[0], args[1], args[2], attributes)


@operator(
    "packed.dequantize", inputs=_NAMES, kind=FusionKind.INJECTIVE, reference=_dequantize, attributes=PackedAttributes
)
def dequantize(types: Types, attributes: PackedAttributes) -> Type:
    """The numbers that packed codes stand for: (code - zero) * scale, with as many elements along `axis` as codes."""
    words, scale, zero = tensors(types, _NAMES)
    _check(words, scale, zero, attributes)
    assert words.shape is not None
    axis = attributes.axis
    length = words.shape[axis]
    assert length is not None
    return TensorType((*words.shape[:axis], length * attributes.codes, *words.shape[axis + 1 :]), FLOAT32)


def _matmul(args: list[Array], attributes: PackedAttributes) -> Array:
    with np.errstate(all="ignore"):
        numbers = _numbers(args[1], args[2], args[3], attributes)
        return np.asarray(np.matmul(args[0].astype(np.float32, copy=False), numbers), args[0].dtype)


@operator(
    "packed.matmul",
    inputs=("a", *_NAMES),
    kind=FusionKind.OUT_FUSABLE,
    reference=_matmul,
    attributes=PackedAttributes,
)
def matmul(types: Types, attributes: PackedAttributes) -> Type:
    """The product of a matrix of float32 or float16 with a matrix of packed codes [k, n], packed along k (`axis` is 0).

    Scales and results are of the same type. Sums are in float32, in any order; scales may be applied to the sums of
    groups, or to the codes, which are then rounded to the type.
    """
    a, words, scale, zero = tensors(types, ("a", *_NAMES))
    if a.dtype not in (FLOAT32, FLOAT16):
        raise UserError(f"a must be float32 or float16, it is {a.dtype}")
    if attributes.axis != 0:
        raise UserError(f"the matrix is packed along its first axis, not along axis {attributes.axis}")
    _check(words, scale, zero, attributes, a.dtype)
    assert words.shape is not None and words.shape[0] is not None
    require_rank(words.shape, 2, "words")
    if a.shape is None:
        raise UserError("the rank of a must be known")
    require_rank(a.shape, 2, "a")
    agree(a.shape[-1], words.shape[0] * attributes.codes, "columns of a, and codes along the first axis of the matrix")
    return TensorType((a.shape[0], words.shape[1]), a.dtype)


DIGITS = 3
"""Bytes of a whole number that stands for an element of a row as well as a float does: lowest first, each signed."""
MOST_GROUP = 256
"""Elements of a group of such rows: sums of products of bytes with codes of a byte are floats without an error."""
STEP_BITS = 22
"""Bits of such a number, beside its sign."""
LARGEST = (127, 127 * 256 + 127)
"""The whole numbers of one and of two bytes that the largest element of a group becomes."""
LEAST_EXPONENT = 30
"""The exponent field that the largest magnitude of a group has at least: smaller ones are rounded as with 2^-97."""


@node()
class DigitsAttributes(Attributes):
    """How many neighbours of a row share a step, what steps are multiplied with (a power of two), bytes of a number."""

    group: int = 32
    factor: float = 1.0
    digits: int = DIGITS


def digit_bias(digit: int) -> int:
    """What is added to a whole number so that a shift by `8 * digit` rounds as signed lower bytes want it."""
    return sum(128 << (8 * lower) for lower in range(digit))


def _digits(args: list[Array], attributes: DigitsAttributes) -> tuple[Array, ...]:
    (data,) = args
    count, depth = data.shape
    groups = data.reshape(count, depth // attributes.group, attributes.group)
    least = np.uint32(LEAST_EXPONENT << 23)
    bits = np.maximum(np.abs(groups).max(axis=-1).view(np.uint32), least)
    is_infinite = bits >= np.uint32(255 << 23)
    factor = np.float32(attributes.factor)
    with np.errstate(all="ignore"):
        if attributes.digits == DIGITS:
            step = (((bits >> np.uint32(23)) - np.uint32(STEP_BITS - 1)) << np.uint32(23)).view(np.float32)
            numbers, step = np.rint(groups / step[..., None]), step * factor
        else:
            largest, peak = np.float32(LARGEST[attributes.digits - 1]), bits.view(np.float32)
            numbers, step = np.rint(groups * (largest / peak)[..., None]), peak * (factor / largest)
    whole = np.where(is_infinite[..., None], 0, np.nan_to_num(numbers, posinf=0.0, neginf=0.0)).astype(np.int32)
    parts = [((whole + digit_bias(n)) >> (8 * n)).astype(np.int8) for n in range(attributes.digits)]
    digits = np.stack(parts, axis=1)
    sums = digits.astype(np.float32).sum(axis=-1)
    step = np.where(is_infinite, np.float32(np.nan), step).astype(np.float32)
    return digits.reshape(count, attributes.digits, depth), step, sums


@operator("packed.digits", inputs=("data",), kind=FusionKind.OPAQUE, reference=_digits, attributes=DigitsAttributes)
def digits_of(types: Types, attributes: DigitsAttributes) -> Type:
    """Rows of float32 as whole numbers of up to three signed bytes (`digits`), with a step for each group.

    The step of three bytes is 2^(e - 22), where 2^e is the least power of two above all magnitudes of the group: what
    is rounded off an element is at most 2^-22 of the largest. That of one byte is a 127th of the largest magnitude,
    that of two a 32,639th. Gives the bytes [rows, digits, k], the steps times `factor` [rows, groups], and the sums of
    a group's bytes as floats [rows, digits, groups]. A group that has an infinity or NaN has zeros with the step NaN.
    """
    (data,) = tensors(types, ("data",))
    if data.dtype is not FLOAT32 or data.shape is None:
        raise UserError(f"the rows must be float32 of a known rank, they are {data}")
    require_rank(data.shape, 2, "the rows")
    count, depth = data.shape
    length = constant_dim(depth)
    if not 1 <= attributes.digits <= DIGITS:
        raise UserError(f"whole numbers have 1 to {DIGITS} bytes, not {attributes.digits}")
    if not 1 <= attributes.group <= MOST_GROUP or length is None or length % attributes.group:
        raise UserError(f"rows of {length} elements are not groups of {attributes.group}, at most {MOST_GROUP}")
    groups = IntImm(length // attributes.group, INDEX)
    digits = IntImm(attributes.digits, INDEX)
    shapes = (((count, digits, depth), INT8), ((count, groups), FLOAT32), ((count, digits, groups), FLOAT32))
    return TupleType(tuple(TensorType(shape, dtype) for shape, dtype in shapes))


@node()
class DigitMatmulAttributes(PackedAttributes):
    """As of packed codes. `signed` codes are two's complements, and stand for 2^(bits - 8) of what multiplies here.

    They have no zero point. Bytes keep them at their upper end: the fields of code 1 of 4 bits are bits 4 to 7.

    Codes of 4 bits may be `paired`: a byte has those of two columns, so many apart. The lower one is unsigned, with the
    zero point 8 where codes are `signed`. The upper one is a two's complement, and 16 times itself is what multiplies.
    """

    signed: bool = False
    paired: int = 0


PAIR_ZERO = 8
"""The zero point of lower codes of signed pairs."""


def _byte_codes(data: Array, attributes: DigitMatmulAttributes) -> Array:
    """The codes [k, n] of bytes [words, n, 4]; signed ones at the upper end of a byte."""
    words, columns, _ = data.shape
    parts: list[Array] = []
    if attributes.paired:
        low = data & np.int8(15)
        runs = [item.reshape(words, -1, attributes.paired, 4) for item in (low, data - low)]
        return np.stack(runs, axis=2).reshape(words, 2 * columns, 4).swapaxes(1, 2).reshape(words * 4, 2 * columns)
    for place in range(8 // attributes.bits):
        if attributes.signed:
            top = data.view(np.uint8).astype(np.uint32) << np.uint32(8 - attributes.bits * (place + 1))
            parts.append((top & np.uint32(256 - (1 << (8 - attributes.bits)))).astype(np.uint8).view(np.int8))
        elif attributes.bits == 8:
            parts.append(data)
        else:
            parts.append(
                (data.view(np.uint8) >> np.uint8(attributes.bits * place)) & np.uint8((1 << attributes.bits) - 1)
            )
    codes = np.stack(parts, axis=1).astype(np.int64)
    return codes.transpose(0, 1, 3, 2).reshape(words * len(parts) * 4, columns)


def pair_codes(codes: Array, columns: int) -> Array:
    """Codes of 4 bits [k, n] as bytes [k / 4, n / 2, 4] of pairs of columns so many apart; upper ones are signed."""
    depth, count = codes.shape
    runs = codes.reshape(depth // 4, 4, count // (2 * columns), 2, columns).astype(np.uint8, copy=False)
    pairs = runs[:, :, :, 0] | ((runs[:, :, :, 1] ^ np.uint8(PAIR_ZERO)) << np.uint8(4))
    return np.ascontiguousarray(pairs.reshape(depth // 4, 4, count // 2).swapaxes(1, 2)).view(np.int8)


def is_upper(columns: int, apart: int) -> Array:
    """Which of some columns are the upper ones of pairs so many apart."""
    return np.asarray(np.arange(columns) // apart % 2 == 1)


def _digit_matmul(args: list[Array], attributes: DigitMatmulAttributes) -> Array:
    digits, step, data, scale = args[:4]
    group = attributes.group
    codes = _byte_codes(data, attributes).astype(np.int64)
    if not attributes.signed:
        zero = np.broadcast_to(args[5], scale.shape).astype(np.int64)
        codes = codes - np.repeat(zero, group, axis=0)
    elif attributes.paired:
        codes = codes - np.where(is_upper(codes.shape[1], attributes.paired), 0, PAIR_ZERO)
    whole = np.sum([digits[:, n].astype(np.int64) << (8 * n) for n in range(digits.shape[1])], axis=0)
    sums = np.einsum("igk,gkj->igj", whole.reshape(len(whole), -1, group), codes.reshape(-1, group, codes.shape[1]))
    with np.errstate(all="ignore"):
        return np.asarray((sums.astype(np.float32) * (step[:, :, None] * scale)).sum(axis=1, dtype=np.float32))


@operator(
    "packed.digit_matmul",
    inputs=("digits", "step", "data", "scale", "sums", "zero"),
    kind=FusionKind.OUT_FUSABLE,
    reference=_digit_matmul,
    attributes=DigitMatmulAttributes,
    optional=2,
)
def digit_matmul(types: Types, attributes: DigitMatmulAttributes) -> Type:
    """The product of rows of whole numbers with packed codes.

    `digits` [rows, 1 to 3, k] are the bytes of the numbers, `step` [rows, groups] what one stands for; `data`
    [words, n, 4] the bytes of packed words ([k / 4, n / 2, 4] where codes are paired), `scale` [groups, n]. The `sums`
    [rows, 1 to 3, groups] of the numbers' bytes are there unless codes are signed and not paired, and a `zero` where
    they are not signed. The sums of each byte's products are exact, and are put together in float32.
    """
    digits, step, data, scale = tensors(types[:4], ("digits", "step", "data", "scale"))
    if digits.dtype.name != "int8" or data.dtype.name not in ("int8", "uint8"):
        raise UserError(f"digits and data are bytes, not {digits.dtype} and {data.dtype}")
    if attributes.paired and (attributes.bits != 4 or data.dtype is not INT8):
        raise UserError(f"pairs are codes of 4 bits in signed bytes, not of {attributes.bits} in {data.dtype}")
    if len(types) != (6 if not attributes.signed else 5 if attributes.paired else 4):
        raise UserError("codes that are not signed need the sums of the rows and a zero point, signed pairs the sums")
    for item, rank, name in ((digits, 3, "digits"), (step, 2, "step"), (data, 3, "data"), (scale, 2, "scale")):
        if item.shape is None:
            raise UserError(f"the shape of {name} must be known")
        require_rank(item.shape, rank, name)
    assert digits.shape is not None and step.shape is not None and data.shape is not None and scale.shape is not None
    agree(step.shape[1], scale.shape[0], "groups of step and scale")
    words, depth = constant_dim(data.shape[0]), constant_dim(digits.shape[2])
    codes = attributes.codes // (2 if attributes.paired else 1)
    if attributes.paired:
        bytes_across, columns = constant_dim(data.shape[1]), constant_dim(scale.shape[1])
        if bytes_across is None or columns != 2 * bytes_across or bytes_across % attributes.paired:
            raise UserError(f"{bytes_across} bytes are not pairs of {columns} columns, {attributes.paired} apart")
    else:
        agree(data.shape[1], scale.shape[1], "columns of data and scale")
    if words is None or words * codes != depth:
        raise UserError(f"{words} words of {codes} codes are not {depth} codes")
    return TensorType((digits.shape[0], scale.shape[1]), FLOAT32)
