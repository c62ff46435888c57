"""Quantised results by integer arithmetic alone, on Arm: products and shifts that round, and clamps that are no work.

    rounded_shift(high_product(x, multiplier), n)   ->   srshl(sqrdmulh(x, multiplier), n)
    int8(min(max(x, -128 - z), 127 - z) + z)        ->   sqxtn(sqxtn(x) + z)       (x of 16 bits: sqxtn(x + z))
    int8(min(max(x >> 20, -128), 127))              ->   sqshrn(uzp2(x), 4)        (the upper halves of words)
    int32(x) << 20                                  ->   zip(0, x << 4)            (the upper halves of words)

Saturating instructions cut at the bounds of a byte; narrower bounds are those of bytes, four times as many in a vector.
"""

from __future__ import annotations

from tilewright.backends.llvm.context import FunctionContext
from tilewright.backends.llvm.emit_rounding import bytes_of_halves, saturated_halves
from tilewright.backends.llvm.types import register_type
from tilewright.backends.llvm.vector_parts import parts_of, side_by_side
from tilewright.ir.dtype import INT8, INT16, INT32, UINT8, DataType
from tilewright.ir.expr import Add, Broadcast, Call, Cast, IntImm, Max, Min, PrimExpr

_LANES = 4
_BYTE, _HALF = 8, 16
_WORD = "<4 x i32>"
_MOST_BOUND = 1 << 14
"""Bounds and numbers to add that leave room in 16 bits."""


def high_product(c: FunctionContext, expr: Call) -> str:
    """`sqrdmulh`, four lanes at a time."""
    a, b = (c.value(arg) for arg in expr.args)
    return _by_fours(c, "llvm.aarch64.neon.sqrdmulh.v4i32", a, b, expr.dtype)


def rounded_shift(c: FunctionContext, expr: Call) -> str:
    """`srshl`, four lanes at a time; it shifts to the right by numbers below zero."""
    value, count = (c.value(arg) for arg in expr.args)
    return _by_fours(c, "llvm.aarch64.neon.srshl.v4i32", value, count, expr.dtype)


def _by_fours(c: FunctionContext, name: str, a: str, b: str, dtype: DataType) -> str:
    function = c.module.declare(name, _WORD, f"{_WORD}, {_WORD}", "")
    pairs = zip(_fours(c, a, dtype), _fours(c, b, dtype), strict=True)
    parts = [c.op(f"call {_WORD} {function}({_WORD} {first}, {_WORD} {second})") for first, second in pairs]
    return side_by_side(c, parts, "i32", _LANES, dtype.lanes)


def _fours(c: FunctionContext, operand: str, dtype: DataType) -> list[str]:
    """A vector in parts of four lanes."""
    return parts_of(c, operand, register_type(dtype.element), dtype.lanes, _LANES)


def is_clamped(c: FunctionContext, expr: Cast) -> bool:
    """Whether a cast is one of a vector of clamped words, or halves, to bytes, which loses nothing, on Arm."""
    dtype, wide = expr.dtype, expr.value.dtype.element
    if dtype.bits != _BYTE or dtype.is_bool or wide not in (INT32, INT16) or not c.target.has_rounded_products:
        return False
    return dtype.lanes % _LANES == 0 and _clamped(expr) is not None


def _clamped(expr: Cast) -> tuple[PrimExpr, int, int, int] | None:
    """What is clamped, the bounds, and the number that is added to it then."""
    value, added = expr.value, 0
    if isinstance(value, Add):
        number = _number(value.b)
        if number is None:
            return None
        value, added = value.a, number
    bounds: dict[type[PrimExpr], int] = {}
    while isinstance(value, (Min, Max)) and type(value) not in bounds and (bound := _number(value.b)) is not None:
        bounds[type(value)] = bound
        value = value.a
    if len(bounds) < 2 or not bounds[Max] <= bounds[Min]:
        return None
    low, high, element = bounds[Max], bounds[Min], expr.dtype.element
    if max(abs(low), abs(high), abs(added)) > _MOST_BOUND:
        return None
    return (
        (value, low, high, added) if element.min_value() <= low + added <= high + added <= element.max_value() else None
    )


def unclamped(expr: Cast) -> PrimExpr | None:
    """The words, or halves, of which a cast to words takes bytes that hold all of them: the bytes need not be made."""
    narrow = expr.value
    if expr.dtype.element is not INT32 or not isinstance(narrow, Cast) or narrow.dtype.bits != _BYTE:
        return None
    if narrow.value.dtype.element not in (INT32, INT16) or _clamped(narrow) is None:
        return None
    return narrow.value if narrow.value.dtype is expr.dtype else Cast(narrow.value, expr.dtype)


def _number(expr: PrimExpr) -> int | None:
    number = expr.value if isinstance(expr, Broadcast) else expr
    return number.value if isinstance(number, IntImm) else None


def clamped_to_bytes(c: FunctionContext, expr: Cast) -> str:
    """The value of such a cast."""
    clamped = _clamped(expr)
    assert clamped is not None
    value, low, high, added = clamped
    dtype, element = expr.dtype, expr.dtype.element
    shifted = _shifted(value) if not added else None
    if shifted is not None:
        result = _bytes_of_upper_halves(c, *shifted, dtype)
    else:
        halves = _fours(c, c.value(value), value.dtype)
        if value.dtype.element is INT32:
            halves = [saturated_halves(c, words) for words in halves]
        result = bytes_of_halves(c, halves, dtype, added)
    sign, text = "s" if dtype.is_int else "u", register_type(dtype)
    for name, bound, outer in (("max", low + added, element.min_value()), ("min", high + added, element.max_value())):
        if bound != outer:
            function = c.module.declare(f"llvm.{sign}{name}.v{dtype.lanes}i8", text, f"{text}, {text}", "")
            result = c.op(
                f"call {text} {function}({text} {result}, {text} {c.broadcast(str(bound), element, dtype.lanes)})"
            )
    return result


def _shifted(value: PrimExpr) -> tuple[PrimExpr, int] | None:
    """Pairs of vectors of words that are shifted by more than a half, and by how much more."""
    if not isinstance(value, Call) or value.name != "shift_right" or value.dtype.element is not INT32:
        return None
    count = _number(value.args[1])
    if count is None or not _HALF < count <= _HALF + _BYTE or value.dtype.lanes % (2 * _LANES):
        return None
    return value.args[0], count - _HALF


def _bytes_of_upper_halves(c: FunctionContext, words: PrimExpr, count: int, dtype: DataType) -> str:
    """The upper halves of words, shifted and cut to bytes in one step, which saturates."""
    lanes, width = dtype.lanes, 2 * _LANES
    upper = _every_second(c, c.value(words), lanes)
    sign = "n" if dtype.is_int else "un"
    narrow = c.module.declare(f"llvm.aarch64.neon.sqshr{sign}.v8i8", "<8 x i8>", "<8 x i16>, i32 immarg")
    parts = parts_of(c, upper, "i16", lanes, width)
    cut = [c.op(f"call <8 x i8> {narrow}(<8 x i16> {part}, i32 {count})") for part in parts]
    return side_by_side(c, cut, "i8", width, lanes)


def _every_second(c: FunctionContext, words: str, lanes: int) -> str:
    """The upper halves of a vector of words."""
    order, kind = ", ".join(f"i32 {2 * lane + 1}" for lane in range(lanes)), f"<{2 * lanes} x i16>"
    halves = c.op(f"bitcast <{lanes} x i32> {words} to {kind}")
    return c.op(f"shufflevector {kind} {halves}, {kind} poison, <{lanes} x i32> <{order}>")


def is_moved_up(c: FunctionContext, expr: Call) -> bool:
    """Whether bytes or halves become words that are shifted by a half at least, on Arm."""
    count, wide = _number(expr.args[1]), expr.args[0]
    if not c.target.has_rounded_products or expr.dtype.element is not INT32 or not isinstance(wide, Cast):
        return False
    narrow = _narrow(wide).dtype
    if narrow.element not in (INT8, UINT8, INT16) or narrow.lanes % (2 * _LANES):
        return False
    return count is not None and _HALF <= count <= _HALF + _BYTE


def _narrow(wide: Cast) -> PrimExpr:
    """What is widened: clamped halves as they are, though bytes would hold them."""
    words = unclamped(wide)
    return wide.value if words is None else words.value if isinstance(words, Cast) else words


def moved_up(c: FunctionContext, expr: Call) -> str:
    """Such words: zeros below what is shifted by the rest."""
    wide, count = expr.args[0], _number(expr.args[1])
    assert isinstance(wide, Cast) and count is not None
    narrow, lanes = _narrow(wide), expr.dtype.lanes
    halves, kind = c.value(narrow), f"<{lanes} x i16>"
    if narrow.dtype.bits == _BYTE and count == _HALF + _BYTE:
        halves = _above_zeros(c, halves, "i8", lanes)
    else:
        if narrow.dtype.bits == _BYTE:
            extension = "sext" if narrow.dtype.is_int else "zext"
            halves = c.op(f"{extension} <{lanes} x i8> {halves} to {kind}")
        if count > _HALF:
            halves = c.op(f"shl {kind} {halves}, {c.broadcast(str(count - _HALF), INT16, lanes)}")
    return _above_zeros(c, halves, "i16", lanes)


def _above_zeros(c: FunctionContext, upper: str, element: str, lanes: int) -> str:
    """Numbers of twice the width, whose upper halves are given, and whose lower ones are zero."""
    order = ", ".join(f"i32 {lanes + lane}, i32 {lane}" for lane in range(lanes))
    kind, bits = f"<{lanes} x {element}>", 2 * int(element[1:])
    both = c.op(f"shufflevector {kind} {upper}, {kind} zeroinitializer, <{2 * lanes} x i32> <{order}>")
    return c.op(f"bitcast <{2 * lanes} x {element}> {both} to <{lanes} x i{bits}>")
