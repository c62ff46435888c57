"""Floats rounded to bytes, the end of kernels whose results are quantised, by instructions that round and convert.

`uint8(round(x) + zero)` saturates, and NaN gives 0, as of any cast (`emit_convert.py`). x86 converts what does not fit
32 bits to 2^31, which is beyond every byte as an unsigned number; Arm's conversion and its narrowing saturate. Arm
converts vectors at a quarter of the speed of its additions, so that where numbers are clamped anyway they are rounded
by adding 1.5 * 2^23: the low bits of the sum are the rounded number.
"""

from __future__ import annotations

from tilewright.backends.llvm.context import FunctionContext
from tilewright.backends.llvm.types import float_constant, register_type
from tilewright.backends.llvm.vector_parts import joined, side_by_side
from tilewright.ir.dtype import FLOAT32, INT8, INT16, INT32, UINT8, DataType
from tilewright.ir.expr import Add, Broadcast, Call, Cast, FloatImm, PrimExpr

_MOST_ZERO = 1 << 15
"""A zero point that may be added to a rounded number in 32 bits."""
_X86 = {
    16: ("avx512f", "llvm.x86.avx512.mask.cvtps2dq.512"),
    8: ("avx", "llvm.x86.avx.cvt.ps2dq.256"),
    4: ("sse2", "llvm.x86.sse2.cvtps2dq"),
}
"""By lanes: the feature it needs, and the conversion that rounds to nearest, ties to even."""
_ARM_LANES = 4
"""Lanes of 32 bits in a vector of Arm."""
_WHOLE_STEPS = 1.5 * 2**23
"""A float32 whose neighbours are whole numbers apart, below it too: what is added to it is rounded, ties to even."""


def is_rounded(c: FunctionContext, expr: Cast) -> bool:
    """Whether a cast is one of a rounded vector of float32 to bytes that the processor has instructions for."""
    dtype, lanes, rounded = expr.dtype, expr.dtype.lanes, rounded_number(expr.value)
    if dtype.bits != 8 or dtype.is_bool or expr.value.dtype.element is not FLOAT32 or rounded is None:
        return False
    if c.target.arch == "aarch64":
        return lanes % _ARM_LANES == 0
    # NaN becomes the least number that is not negative; signed bytes would need it told apart.
    return c.target.arch == "x86_64" and dtype.is_uint and lanes in _X86 and c.target.has_feature(_X86[lanes][0])


def rounded_number(value: PrimExpr) -> tuple[PrimExpr, int] | None:
    """What is rounded, and the whole number that is added to it."""
    zero = 0
    if isinstance(value, Add):
        number = value.b.value if isinstance(value.b, Broadcast) else value.b
        if not isinstance(number, FloatImm) or not float(number.value).is_integer():
            return None
        value, zero = value.a, int(number.value)
    if not isinstance(value, Call) or value.name != "round" or abs(zero) > _MOST_ZERO:
        return None
    return value.args[0], zero


def rounded_to_bytes(c: FunctionContext, expr: Cast) -> str:
    """The value of such a cast."""
    rounded = rounded_number(expr.value)
    assert rounded is not None
    value, zero = rounded
    return _on_arm(c, value, zero, expr) if c.target.arch == "aarch64" else _on_x86(c, value, zero, expr)


def _on_x86(c: FunctionContext, value: PrimExpr, zero: int, expr: Cast) -> str:
    """Not below -zero (NaN neither), rounded, then as unsigned numbers cut at 255."""
    lanes = expr.dtype.lanes
    text, wide = register_type(value.dtype), f"<{lanes} x i32>"
    operand = c.value(value)
    low = c.broadcast(float_constant(float(-zero), FLOAT32), FLOAT32, lanes)
    above = c.op(f"fcmp ogt {text} {operand}, {low}")
    kept = c.op(f"select <{lanes} x i1> {above}, {text} {operand}, {text} {low}")
    whole = whole_numbers(c, kept, lanes)
    if zero:
        whole = c.op(f"add {wide} {whole}, {c.broadcast(str(zero), INT32, lanes)}")
    least = c.module.declare(f"llvm.umin.v{lanes}i32", wide, f"{wide}, {wide}")
    cut = c.op(f"call {wide} {least}({wide} {whole}, {wide} {c.broadcast('255', INT32, lanes)})")
    return c.op(f"trunc {wide} {cut} to {register_type(expr.dtype)}")


def whole_numbers(c: FunctionContext, operand: str, lanes: int) -> str:
    """A vector of float32 rounded to 32 bits by x86; what does not fit, or is NaN, becomes the least number."""
    name, text, wide = _X86[lanes][1], f"<{lanes} x float>", f"<{lanes} x i32>"
    if ".mask." not in name:
        return c.op(f"call {wide} {c.module.declare(name, wide, text)}({text} {operand})")
    function = c.module.declare(name, wide, f"{text}, {wide}, i16, i32 immarg")
    return c.op(f"call {wide} {function}({text} {operand}, {wide} zeroinitializer, i16 -1, i32 4)")


def _on_arm(c: FunctionContext, value: PrimExpr, zero: int, expr: Cast) -> str:
    """Rounded to 32 bits, cut to 16 and to 8, each step saturating; vectors of four and of eight at a time."""
    lanes = expr.dtype.lanes
    if zero and expr.dtype.is_uint:
        return _by_addition(c, value, zero, expr)
    operand, text = c.value(value), register_type(value.dtype)
    halves = [_halves(c, operand, text, start, zero, expr.dtype) for start in range(0, lanes, _ARM_LANES)]
    return bytes_of_halves(c, halves, expr.dtype)


def _by_addition(c: FunctionContext, value: PrimExpr, zero: int, expr: Cast) -> str:
    """Clamped to what becomes a byte (NaN to what becomes 0), rounded by an addition; bytes are cut from the sums."""
    lanes, text = expr.dtype.lanes, register_type(value.dtype)
    kept = c.value(value)
    for name, bound in (("maxnum", -zero), ("minnum", 255 - zero)):
        function = c.module.declare(f"llvm.{name}.v{lanes}f32", text, f"{text}, {text}")
        limit = c.broadcast(float_constant(float(bound), FLOAT32), FLOAT32, lanes)
        kept = c.op(f"call {text} {function}({text} {kept}, {text} {limit})")
    rounded = c.op(f"fadd {text} {kept}, {c.broadcast(float_constant(_WHOLE_STEPS, FLOAT32), FLOAT32, lanes)}")
    bits = c.op(f"bitcast {text} {rounded} to <{lanes} x i32>")
    narrow = c.op(f"trunc <{lanes} x i32> {bits} to <{lanes} x i8>")
    return c.op(f"add <{lanes} x i8> {narrow}, {c.broadcast(str(zero % 256), expr.dtype.element, lanes)}")


def bytes_of_halves(c: FunctionContext, halves: list[str], dtype: DataType, added: int = 0) -> str:
    """Fours of lanes of 16 bits, with a number added, cut to a vector of bytes; both steps saturate.

    Signed bytes from the least on are unsigned ones with another first bit: that is one step for all of them.
    """
    if dtype.is_int and added == dtype.element.min_value():
        unsigned, text = bytes_of_halves(c, halves, UINT8.with_lanes(dtype.lanes)), register_type(dtype)
        return c.op(f"xor {text} {unsigned}, {c.broadcast(str(added), INT8, dtype.lanes)}")
    lanes = dtype.lanes
    pairs = halves if lanes % 8 == 0 else [*halves, "poison"]
    sign = "n" if dtype.is_int else "un"
    narrow = c.module.declare(f"llvm.aarch64.neon.sqxt{sign}.v8i8", "<8 x i8>", "<8 x i16>")
    parts: list[str] = []
    for first, second in zip(pairs[::2], pairs[1::2], strict=True):
        both = joined(c, first, second, "i16", 4)
        if added:
            add = c.module.declare("llvm.aarch64.neon.sqadd.v8i16", "<8 x i16>", "<8 x i16>, <8 x i16>")
            both = c.op(f"call <8 x i16> {add}(<8 x i16> {both}, <8 x i16> {c.broadcast(str(added), INT16, 8)})")
        parts.append(c.op(f"call <8 x i8> {narrow}(<8 x i16> {both})"))
    return side_by_side(c, parts, "i8", 8, lanes)


def _halves(c: FunctionContext, operand: str, text: str, start: int, zero: int, dtype: DataType) -> str:
    """Four lanes rounded to 16 bits, with the zero point added.

    NaN becomes 0 as it is converted. That is right for signed bytes, whose zero point is added before, as a float (the
    sum is exact wherever it can be a byte).
    """
    part = operand
    if dtype.lanes > _ARM_LANES:
        order = ", ".join(f"i32 {start + lane}" for lane in range(_ARM_LANES))
        part = c.op(f"shufflevector {text} {operand}, {text} poison, <4 x i32> <{order}>")
    if zero:
        to_even = c.module.declare("llvm.roundeven.v4f32", "<4 x float>", "<4 x float>")
        whole = c.op(f"call <4 x float> {to_even}(<4 x float> {part})")
        part = c.op(
            f"fadd <4 x float> {whole}, {c.broadcast(float_constant(float(zero), FLOAT32), FLOAT32, _ARM_LANES)}"
        )
    convert = c.module.declare("llvm.aarch64.neon.fcvtns.v4i32.v4f32", "<4 x i32>", "<4 x float>")
    whole = c.op(f"call <4 x i32> {convert}(<4 x float> {part})")
    return saturated_halves(c, whole)


def saturated_halves(c: FunctionContext, words: str) -> str:
    """Four lanes of 32 bits cut to 16, saturating."""
    narrow = c.module.declare("llvm.aarch64.neon.sqxtn.v4i16", "<4 x i16>", "<4 x i32>")
    return c.op(f"call <4 x i16> {narrow}(<4 x i32> {words})")
