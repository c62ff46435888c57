"""Conversions between data types, without calls into a compiler's support library.

bfloat16 lives in registers as its bits (i16): converting from it is a shift, to it a rounding on integers. float16 is
LLVM's `half`; processors without conversion instructions get the same kind of integer code. Float to integer
saturates and takes NaN to 0.
"""

from __future__ import annotations

from tilewright.backends.llvm.context import FunctionContext
from tilewright.backends.llvm.emit_fixed_point import clamped_to_bytes, is_clamped, unclamped
from tilewright.backends.llvm.emit_rounding import is_rounded, rounded_to_bytes
from tilewright.backends.llvm.types import float_constant, lane_suffix, register_type, splat
from tilewright.ir.dtype import FLOAT32, FLOAT64, DataType
from tilewright.ir.expr import Cast, PrimExpr

_UINT32 = DataType.of("uint32")
_UINT16 = DataType.of("uint16")
_BOOL = DataType.of("bool")
_X86_LANES = 16
"""Lanes of 32 bits in the largest vector of x86."""


def emit_cast(c: FunctionContext, expr: PrimExpr) -> str:
    """The value of a conversion."""
    assert isinstance(expr, Cast)
    if is_rounded(c, expr):
        return rounded_to_bytes(c, expr)
    if is_clamped(c, expr):
        return clamped_to_bytes(c, expr)
    words = unclamped(expr)
    if words is not None:
        return c.value(words)
    return convert(c, c.value(expr.value), expr.value.dtype, expr.dtype)


def convert(c: FunctionContext, operand: str, source: DataType, target: DataType) -> str:
    """An operand of one type as another."""
    if source is target:
        return operand
    if source.is_float and source.bits < 32 and not (target.is_float and target.bits == source.bits):
        wide = FLOAT32.with_lanes(source.lanes)
        return convert(c, _widen16(c, operand, source), wide, target)
    if source.is_float and source.bits < 32:
        return convert(c, _widen16(c, operand, source), FLOAT32.with_lanes(source.lanes), target)
    if target.is_bool:
        return _to_bool(c, operand, source)
    if target.is_float:
        return _to_float(c, operand, source, target)
    if source.is_float:
        return _float_to_int(c, operand, source, target)
    return _int_to_int(c, operand, source, target)


def _to_bool(c: FunctionContext, operand: str, source: DataType) -> str:
    text = register_type(source)
    return c.op(
        f"fcmp une {text} {operand}, zeroinitializer"
        if source.is_float
        else f"icmp ne {text} {operand}, zeroinitializer"
    )


def _int_to_int(c: FunctionContext, operand: str, source: DataType, target: DataType) -> str:
    bits = 1 if source.is_bool else source.bits
    if bits == target.bits:
        return operand
    operation = "trunc" if bits > target.bits else "sext" if source.is_int else "zext"
    return c.op(f"{operation} {register_type(source)} {operand} to {register_type(target)}")


def _float_to_int(c: FunctionContext, operand: str, source: DataType, target: DataType) -> str:
    if source.lanes > 1 and source.bits == 32 and target.bits in (8, 16):
        return _float_to_narrow_int(c, operand, source, target)
    if source.lanes > 1 and c.target.arch == "x86_64":
        return _float_to_wide_int(c, operand, source, target)
    sign = "si" if target.is_int else "ui"
    text, result = register_type(source), register_type(target)
    name = f"llvm.fpto{sign}.sat.{lane_suffix(target)}.{lane_suffix(source)}"
    function = c.module.declare(name, result, text, "")
    return c.op(f"call {result} {function}({text} {operand})")


def _float_to_narrow_int(c: FunctionContext, operand: str, source: DataType, target: DataType) -> str:
    """Clamped as floats, converted to 32 bits and cut: LLVM's own saturating conversion goes lane by lane."""
    text, lanes = register_type(source), source.lanes

    def number(value: float) -> str:
        return c.broadcast(float_constant(value, source.element), source.element, lanes)

    low, high = number(float(target.element.min_value())), number(float(target.element.max_value()))
    if target.is_int:
        # Not a number becomes 0; for unsigned types the first clamp sees to it.
        ordered = c.op(f"fcmp ord {text} {operand}, {operand}")
        operand = c.op(f"select <{lanes} x i1> {ordered}, {text} {operand}, {text} {number(0.0)}")
    above = c.op(f"fcmp ogt {text} {operand}, {low}")
    operand = c.op(f"select <{lanes} x i1> {above}, {text} {operand}, {text} {low}")
    if target.is_uint and lanes == _X86_LANES and c.target.has_feature("avx512f"):
        return _not_negative_to_int(c, operand, source, target)
    below = c.op(f"fcmp olt {text} {operand}, {high}")
    operand = c.op(f"select <{lanes} x i1> {below}, {text} {operand}, {text} {high}")
    wide = c.op(f"fptosi {text} {operand} to <{lanes} x i32>")
    return c.op(f"trunc <{lanes} x i32> {wide} to {register_type(target)}")


def _float_to_wide_int(c: FunctionContext, operand: str, source: DataType, target: DataType) -> str:
    """Clamped below as floats, and above by choice, for the greatest integer is no float: x86 does not saturate."""
    text, lanes, result = register_type(source), source.lanes, register_type(target)
    limit = 2.0 ** (target.bits - 1 if target.is_int else target.bits)

    def number(value: float) -> str:
        return c.broadcast(float_constant(value, source.element), source.element, lanes)

    low = number(-limit if target.is_int else 0.0)
    if target.is_int:
        # Not a number becomes 0; for unsigned types the clamp sees to it.
        ordered = c.op(f"fcmp ord {text} {operand}, {operand}")
        operand = c.op(f"select <{lanes} x i1> {ordered}, {text} {operand}, {text} {number(0.0)}")
    above = c.op(f"fcmp ogt {text} {operand}, {low}")
    operand = c.op(f"select <{lanes} x i1> {above}, {text} {operand}, {text} {low}")
    beyond = c.op(f"fcmp oge {text} {operand}, {number(limit)}")
    safe = c.op(f"select <{lanes} x i1> {beyond}, {text} {low}, {text} {operand}")
    whole = c.op(f"fpto{'si' if target.is_int else 'ui'} {text} {safe} to {result}")
    greatest = c.broadcast(str(target.element.max_value()), target.element, lanes)
    return c.op(f"select <{lanes} x i1> {beyond}, {result} {greatest}, {result} {whole}")


def _not_negative_to_int(c: FunctionContext, operand: str, source: DataType, target: DataType) -> str:
    """A vector without negative values: what does not fit 32 bits becomes 2^31, which saturates as it is cut."""
    text, wide = register_type(source), f"<{source.lanes} x i32>"
    convert_name, arguments = "llvm.x86.avx512.mask.cvttps2dq.512", f"{text}, {wide}, i16, i32 immarg"
    conversion = c.module.declare(convert_name, wide, arguments)
    least = c.module.declare(f"llvm.umin.v{source.lanes}i32", wide, f"{wide}, {wide}")
    # All lanes, rounded as the instruction does: toward zero.
    whole = c.op(f"call {wide} {conversion}({text} {operand}, {wide} zeroinitializer, i16 -1, i32 4)")
    limit = _int(c, target.element.max_value(), source.lanes)
    cut = c.op(f"call {wide} {least}({wide} {whole}, {wide} {limit})")
    return c.op(f"trunc {wide} {cut} to {register_type(target)}")


def _to_float(c: FunctionContext, operand: str, source: DataType, target: DataType) -> str:
    if target.bits < 32:
        if source.is_float and source.bits == 64:
            return _narrow16(c, _round_to_odd(c, operand, source), target)
        wide = FLOAT32.with_lanes(source.lanes)
        return _narrow16(c, convert(c, operand, source, wide), target)
    text, result = register_type(source), register_type(target)
    if source.is_float:
        operation = "fpext" if source.bits < target.bits else "fptrunc"
        return c.op(f"{operation} {text} {operand} to {result}")
    if source.is_bool and source.lanes > 1:
        # A mask and the bits of 1: converting would take the mask apart first.
        ones = splat(register_type(target.element), float_constant(1.0, target), source.lanes)
        return c.op(f"select {text} {operand}, {result} {ones}, {result} zeroinitializer")
    operation = "sitofp" if source.is_int else "uitofp"
    return c.op(f"{operation} {text} {operand} to {result}")


def _widen16(c: FunctionContext, operand: str, source: DataType) -> str:
    """A float16 or bfloat16 as float32 (exact)."""
    lanes = source.lanes
    wide, bits = register_type(FLOAT32.with_lanes(lanes)), register_type(_UINT32.with_lanes(lanes))
    half = register_type(_UINT16.with_lanes(lanes))
    if source.code == "bfloat":
        extended = c.op(f"zext {half} {operand} to {bits}")
        shifted = c.op(f"shl {bits} {extended}, {_int(c, 16, lanes)}")
        return c.op(f"bitcast {bits} {shifted} to {wide}")
    if c.target.has_half_conversion:
        return c.op(f"fpext {register_type(source)} {operand} to {wide}")
    return _widen_half_by_bits(c, operand, source)


def _narrow16(c: FunctionContext, operand: str, target: DataType) -> str:
    """A float32 rounded to float16 or bfloat16, halves to even."""
    lanes = target.lanes
    wide = register_type(FLOAT32.with_lanes(lanes))
    if target.code == "bfloat":
        return _narrow_bfloat_by_bits(c, operand, lanes)
    if c.target.has_half_conversion:
        return c.op(f"fptrunc {wide} {operand} to {register_type(target)}")
    return _narrow_half_by_bits(c, operand, target)


def _int(c: FunctionContext, value: int, lanes: int) -> str:
    return c.broadcast(str(value), _UINT32, lanes) if lanes > 1 else str(value)


def _narrow_bfloat_by_bits(c: FunctionContext, operand: str, lanes: int) -> str:
    wide, bits = register_type(FLOAT32.with_lanes(lanes)), register_type(_UINT32.with_lanes(lanes))
    test = register_type(_BOOL.with_lanes(lanes))
    raw = c.op(f"bitcast {wide} {operand} to {bits}")
    odd = c.op(f"and {bits} {c.op(f'lshr {bits} {raw}, {_int(c, 16, lanes)}')}, {_int(c, 1, lanes)}")
    rounded = c.op(f"add {bits} {c.op(f'add {bits} {raw}, {_int(c, 0x7FFF, lanes)}')}, {odd}")
    # Rounding could carry a NaN over to infinity: a NaN keeps its top bits and becomes quiet.
    quiet = c.op(f"or {bits} {raw}, {_int(c, 0x400000, lanes)}")
    is_nan = c.op(f"fcmp uno {wide} {operand}, {operand}")
    chosen = c.op(f"select {test} {is_nan}, {bits} {quiet}, {bits} {rounded}")
    top = c.op(f"lshr {bits} {chosen}, {_int(c, 16, lanes)}")
    return c.op(f"trunc {bits} {top} to {register_type(_UINT16.with_lanes(lanes))}")


def _widen_half_by_bits(c: FunctionContext, operand: str, source: DataType) -> str:
    """Shift the exponent and mantissa into place, rescale by 2**112, repair infinities and NaN."""
    lanes = source.lanes
    wide, bits = register_type(FLOAT32.with_lanes(lanes)), register_type(_UINT32.with_lanes(lanes))
    half, test = register_type(_UINT16.with_lanes(lanes)), register_type(_BOOL.with_lanes(lanes))
    raw = c.op(f"zext {half} {c.op(f'bitcast {register_type(source)} {operand} to {half}')} to {bits}")
    magnitude = c.op(f"shl {bits} {c.op(f'and {bits} {raw}, {_int(c, 0x7FFF, lanes)}')}, {_int(c, 13, lanes)}")
    sign = c.op(f"shl {bits} {c.op(f'and {bits} {raw}, {_int(c, 0x8000, lanes)}')}, {_int(c, 16, lanes)}")
    scale = c.broadcast("0x46F0000000000000", FLOAT32, lanes) if lanes > 1 else "0x46F0000000000000"
    scaled = c.op(f"fmul {wide} {c.op(f'bitcast {bits} {magnitude} to {wide}')}, {scale}")
    scaled_bits = c.op(f"bitcast {wide} {scaled} to {bits}")
    special = c.op(f"icmp uge {bits} {magnitude}, {_int(c, 0x7C00 << 13, lanes)}")
    repaired = c.op(f"or {bits} {scaled_bits}, {_int(c, 0x7F800000, lanes)}")
    chosen = c.op(f"select {test} {special}, {bits} {repaired}, {bits} {scaled_bits}")
    return c.op(f"bitcast {bits} {c.op(f'or {bits} {chosen}, {sign}')} to {wide}")


def _narrow_half_by_bits(c: FunctionContext, operand: str, target: DataType) -> str:
    """Normal results round on the integer bits; subnormal ones by adding a constant of the right exponent."""
    lanes = target.lanes
    wide, bits = register_type(FLOAT32.with_lanes(lanes)), register_type(_UINT32.with_lanes(lanes))
    half, test = register_type(_UINT16.with_lanes(lanes)), register_type(_BOOL.with_lanes(lanes))
    raw = c.op(f"bitcast {wide} {operand} to {bits}")
    magnitude = c.op(f"and {bits} {raw}, {_int(c, 0x7FFFFFFF, lanes)}")
    sign = c.op(f"lshr {bits} {c.op(f'and {bits} {raw}, {_int(c, 0x80000000, lanes)}')}, {_int(c, 16, lanes)}")
    odd = c.op(f"and {bits} {c.op(f'lshr {bits} {magnitude}, {_int(c, 13, lanes)}')}, {_int(c, 1, lanes)}")
    rebased = c.op(f"add {bits} {magnitude}, {_int(c, 0xC8000FFF, lanes)}")
    normal = c.op(f"lshr {bits} {c.op(f'add {bits} {rebased}, {odd}')}, {_int(c, 13, lanes)}")
    # Adding 0.5 puts the float32's unit in the last place where float16's subnormal unit is.
    magic = "0x3FE0000000000000"
    added = c.op(
        f"fadd {wide} {c.op(f'bitcast {bits} {magnitude} to {wide}')}, "
        f"{c.broadcast(magic, FLOAT32, lanes) if lanes > 1 else magic}"
    )
    subnormal = c.op(f"sub {bits} {c.op(f'bitcast {wide} {added} to {bits}')}, {_int(c, 0x3F000000, lanes)}")
    is_small = c.op(f"icmp ult {bits} {magnitude}, {_int(c, 0x38800000, lanes)}")
    finite = c.op(f"select {test} {is_small}, {bits} {subnormal}, {bits} {normal}")
    is_large = c.op(f"icmp uge {bits} {magnitude}, {_int(c, 0x47800000, lanes)}")
    is_nan = c.op(f"icmp ugt {bits} {magnitude}, {_int(c, 0x7F800000, lanes)}")
    top = c.op(f"select {test} {is_nan}, {bits} {_int(c, 0x7E00, lanes)}, {bits} {_int(c, 0x7C00, lanes)}")
    chosen = c.op(f"select {test} {is_large}, {bits} {top}, {bits} {finite}")
    short = c.op(f"trunc {bits} {c.op(f'or {bits} {chosen}, {sign}')} to {half}")
    return c.op(f"bitcast {half} {short} to {register_type(target)}")


def _round_to_odd(c: FunctionContext, operand: str, source: DataType) -> str:
    """A float64 as float32 rounded to odd, so that the rounding to 16 bits that follows is as if done once."""
    lanes = source.lanes
    wide, bits = register_type(FLOAT32.with_lanes(lanes)), register_type(_UINT32.with_lanes(lanes))
    double, test = register_type(FLOAT64.with_lanes(lanes)), register_type(_BOOL.with_lanes(lanes))
    nearest = c.op(f"fptrunc {double} {operand} to {wide}")
    back = c.op(f"fpext {wide} {nearest} to {double}")
    raw = c.op(f"bitcast {wide} {nearest} to {bits}")
    absolute = c.module.declare(f"llvm.fabs.{lane_suffix(source)}", double, double, "")
    larger = c.op(
        f"fcmp ogt {double} {c.op(f'call {double} {absolute}({double} {back})')}, "
        f"{c.op(f'call {double} {absolute}({double} {operand})')}"
    )
    truncated = c.op(f"add {bits} {raw}, {c.op(f'sext {test} {larger} to {bits}')}")
    inexact = c.op(f"fcmp one {double} {back}, {operand}")
    odd = c.op(f"or {bits} {truncated}, {c.op(f'zext {test} {inexact} to {bits}')}")
    return c.op(f"bitcast {bits} {odd} to {wide}")
