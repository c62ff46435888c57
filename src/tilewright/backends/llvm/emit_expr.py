"""Scalar and vector arithmetic, comparisons, selection: each kind of expression to LLVM instructions.

Index arithmetic (int64) does not overflow and carries `nsw`; other integers wrap. Float operations carry `contract`,
so a product and a sum may become one fused instruction. Integer division never traps: a divisor that is not known to
be harmless is replaced where it is 0 or -1.
"""

from __future__ import annotations

import math
from typing import Final

from tilewright.backends.llvm.context import Emit, FunctionContext
from tilewright.backends.llvm.emit_convert import emit_cast
from tilewright.backends.llvm.emit_intrinsics import C_LIBRARY, emit_call
from tilewright.backends.llvm.emit_memory import any_lane, emit_load, spread_load
from tilewright.backends.llvm.emit_multiply_add import multiply_add
from tilewright.backends.llvm.types import constant, lane_suffix, register_type
from tilewright.codegen.operators import DIVISIONS, by_family
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import PrimExpr
from tilewright.ir.visit import made_of, pre_order
from tilewright.support.errors import CompilerBug
from tilewright.tir.buffer import BufferLoad

_SELECT_NODES: Final = 200
"""Beyond this many nodes a side of a scalar selection is worth a branch."""

_FLOAT_OPS: Final[dict[type, str]] = {
    e.Add: "fadd contract",
    e.Sub: "fsub contract",
    e.Mul: "fmul contract",
    e.Div: "fdiv contract",
    e.Mod: "frem",
}
_INT_OPS: Final[dict[type, str]] = {e.Add: "add", e.Sub: "sub", e.Mul: "mul"}
_FLOAT_COMPARE: Final[dict[type, str]] = {e.EQ: "oeq", e.NE: "une", e.LT: "olt", e.LE: "ole"}
_INT_COMPARE: Final[dict[type, tuple[str, str]]] = {
    e.EQ: ("eq", "eq"),
    e.NE: ("ne", "ne"),
    e.LT: ("slt", "ult"),
    e.LE: ("sle", "ule"),
}


def _arithmetic(c: FunctionContext, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    dtype = expr.dtype
    if dtype.is_float:
        if dtype.code == "bfloat":
            raise CompilerBug("bfloat16 arithmetic reached the code generator")
        operation = _FLOAT_OPS[type(expr)] + (" reassoc" if expr is c.reduction else "")
    elif dtype.is_bool:
        raise CompilerBug(f"{type(expr).__name__} of bool values")
    else:
        together = multiply_add(c, expr) if isinstance(expr, e.Add) else None
        if together is not None:
            return together
        # Only what comes from loops and dimensions is an index; data read from memory wraps.
        operation = _INT_OPS[type(expr)] + (" nsw" if dtype is INDEX and c.is_pure(expr) else "")
    a, b = c.value(expr.a), c.value(expr.b)
    return c.op(f"{operation} {register_type(dtype)} {a}, {b}")


def _division(c: FunctionContext, expr: PrimExpr) -> str:
    """Div and Mod (toward zero), FloorDiv and FloorMod (toward minus infinity)."""
    assert isinstance(expr, e.BinaryExpr)
    if expr.dtype.is_float:
        return _arithmetic(c, expr)
    division = DIVISIONS[type(expr)]
    wants_quotient, floors = division.quotient, division.floors
    divisor = _constant_of(expr.b)
    text = register_type(expr.dtype)
    a, b = c.value(expr.a), c.value(expr.b)
    unsigned = expr.dtype.is_uint
    if divisor is not None and divisor > 0:
        if divisor & (divisor - 1) == 0 and (floors or unsigned):
            return _divide_by_power_of_two(c, a, divisor, expr.dtype, wants_quotient)
        unsigned = unsigned or (expr.dtype.element is INDEX and c.is_pure(expr.a) and is_nonnegative(c, expr.a))
        if unsigned or not floors:
            sign = "u" if unsigned else "s"
            return c.op(f"{sign}{'div' if wants_quotient else 'rem'} {text} {a}, {b}")
        return _floor_fix(c, a, b, expr.dtype, wants_quotient)
    is_index = expr.dtype is INDEX and c.is_pure(expr)
    if is_index and is_nonnegative(c, expr.a) and (c.analyzer.lower_bound(expr.b) or 0) > 0:
        return c.op(f"{'udiv' if wants_quotient else 'urem'} {text} {a}, {b}")
    return _guarded_division(c, a, b, expr.dtype, floors, wants_quotient)


def _constant_of(expr: PrimExpr) -> int | None:
    value = expr.value if isinstance(expr, e.Broadcast) else expr
    return value.value if isinstance(value, e.IntImm) else None


def _splat_int(c: FunctionContext, value: int, dtype: DataType) -> str:
    return c.broadcast(str(value), dtype.element, dtype.lanes) if dtype.lanes > 1 else str(value)


def _divide_by_power_of_two(c: FunctionContext, a: str, divisor: int, dtype: DataType, wants_quotient: bool) -> str:
    text = register_type(dtype)
    if not wants_quotient:
        return c.op(f"and {text} {a}, {_splat_int(c, divisor - 1, dtype)}")
    shift = "lshr" if dtype.is_uint else "ashr"
    return c.op(f"{shift} {text} {a}, {_splat_int(c, divisor.bit_length() - 1, dtype)}")


def _floor_fix(c: FunctionContext, a: str, b: str, dtype: DataType, wants_quotient: bool) -> str:
    """Division toward zero, then one less where the remainder is not zero and differs in sign from the divisor."""
    text = register_type(dtype)
    zero = _splat_int(c, 0, dtype)
    remainder = c.op(f"srem {text} {a}, {b}")
    signs = c.op(f"xor {text} {remainder}, {b}")
    differs = c.op(f"icmp slt {text} {signs}, {zero}")
    nonzero = c.op(f"icmp ne {text} {remainder}, {zero}")
    bits = register_type(DataType.of("bool").with_lanes(dtype.lanes))
    wrong = c.op(f"and {bits} {differs}, {nonzero}")
    if not wants_quotient:
        moved = c.op(f"add {text} {remainder}, {b}")
        return c.op(f"select {bits} {wrong}, {text} {moved}, {text} {remainder}")
    quotient = c.op(f"sdiv {text} {a}, {b}")
    less = c.op(f"sext {bits} {wrong} to {text}")
    return c.op(f"add {text} {quotient}, {less}")


def _guarded_division(c: FunctionContext, a: str, b: str, dtype: DataType, floors: bool, wants_quotient: bool) -> str:
    """Division by any divisor without a trap: 0 for a divisor of 0, wrap-around for the least integer by -1."""
    text, bits = register_type(dtype), register_type(DataType.of("bool").with_lanes(dtype.lanes))
    zero, one = _splat_int(c, 0, dtype), _splat_int(c, 1, dtype)
    is_zero = c.op(f"icmp eq {text} {b}, {zero}")
    if dtype.is_uint:
        safe = c.op(f"select {bits} {is_zero}, {text} {one}, {text} {b}")
        result = c.op(f"{'udiv' if wants_quotient else 'urem'} {text} {a}, {safe}")
        return c.op(f"select {bits} {is_zero}, {text} {zero}, {text} {result}")
    is_minus_one = c.op(f"icmp eq {text} {b}, {_splat_int(c, -1, dtype)}")
    either = c.op(f"or {bits} {is_zero}, {is_minus_one}")
    safe = c.op(f"select {bits} {either}, {text} {one}, {text} {b}")
    if floors:
        result = _floor_fix(c, a, safe, dtype, wants_quotient)
    else:
        result = c.op(f"{'sdiv' if wants_quotient else 'srem'} {text} {a}, {safe}")
    negated = c.op(f"sub {text} {zero}, {a}") if wants_quotient else zero
    result = c.op(f"select {bits} {is_minus_one}, {text} {negated}, {text} {result}")
    return c.op(f"select {bits} {is_zero}, {text} {zero}, {text} {result}")


def is_nonnegative(c: FunctionContext, expr: PrimExpr) -> bool:
    """Whether an index (every lane of it) is provably not negative."""
    if isinstance(expr, e.Broadcast):
        return is_nonnegative(c, expr.value)
    if isinstance(expr, e.Ramp):
        return is_nonnegative(c, expr.base) and is_nonnegative(c, expr.stride)
    if expr.dtype.lanes > 1:
        if isinstance(expr, (e.Add, e.Mul, e.Min, e.FloorDiv)):
            return is_nonnegative(c, expr.a) and is_nonnegative(c, expr.b)
        return isinstance(expr, e.FloorMod) and (_constant_of(expr.b) or 0) > 0
    low = c.analyzer.lower_bound(expr)
    return low is not None and low >= 0


def _minmax(c: FunctionContext, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    dtype, text = expr.dtype, register_type(expr.dtype)
    lesser = isinstance(expr, e.Min)
    if dtype.is_bool:
        return c.op(f"{'and' if lesser else 'or'} {text} {c.value(expr.a)}, {c.value(expr.b)}")
    if dtype.is_integer:
        name = f"{'u' if dtype.is_uint else 's'}{'min' if lesser else 'max'}"
        return _call2(c, f"llvm.{name}.{lane_suffix(dtype)}", expr)
    fixed = expr.b if _is_number(expr.b) else expr.a if _is_number(expr.a) else None
    if fixed is None or c.target.arch == "aarch64":
        # Of two zeros either will do: x86 needs half the instructions then.
        return _call2(c, f"llvm.{'minimum' if lesser else 'maximum'}.{lane_suffix(dtype)}", expr, "nsz ")
    # Against a constant that is a number one compare-and-select keeps NaN, and is a single x86 instruction.
    moving = expr.a if fixed is expr.b else expr.b
    x, k = c.value(moving), c.value(fixed)
    bits = register_type(DataType.of("bool").with_lanes(dtype.lanes))
    test = c.op(f"fcmp {'ogt' if lesser else 'olt'} {text} {x}, {k}")
    return c.op(f"select {bits} {test}, {text} {k}, {text} {x}")


def _is_number(expr: PrimExpr) -> bool:
    value = expr.value if isinstance(expr, e.Broadcast) else expr
    return isinstance(value, e.FloatImm) and not math.isnan(value.value)


def _call2(c: FunctionContext, name: str, expr: e.BinaryExpr, flags: str = "") -> str:
    text = register_type(expr.dtype)
    function = c.module.declare(name, text, f"{text}, {text}", "")
    return c.op(f"call {flags}{text} {function}({c.typed(expr.a)}, {c.typed(expr.b)})")


def _compare(c: FunctionContext, expr: PrimExpr) -> str:
    assert isinstance(expr, e.CompareExpr)
    operands = expr.a.dtype
    a, b = c.value(expr.a), c.value(expr.b)
    if operands.is_float:
        return c.op(f"fcmp {_FLOAT_COMPARE[type(expr)]} {register_type(operands)} {a}, {b}")
    signed, unsigned = _INT_COMPARE[type(expr)]
    return c.op(f"icmp {signed if operands.is_int else unsigned} {register_type(operands)} {a}, {b}")


def _logical(c: FunctionContext, expr: PrimExpr) -> str:
    """And / Or, short-circuit where the second operand may not be evaluated in vain."""
    assert isinstance(expr, (e.And, e.Or))
    conjunction = isinstance(expr, e.And)
    text = register_type(expr.dtype)
    a = c.value(expr.a)
    if c.is_safe(expr.b):
        return c.op(f"{'and' if conjunction else 'or'} {text} {a}, {c.value(expr.b)}")
    if expr.dtype.is_scalar:
        if conjunction:
            return c.choose(a, expr.dtype, lambda: c.value(expr.b), lambda: "false")
        return c.choose(a, expr.dtype, lambda: "true", lambda: c.value(expr.b))
    needed = a if conjunction else _invert(c, a, expr.dtype)
    with c.masked(needed, expr.dtype.lanes):
        b = c.value(expr.b)
    # Lanes that were not evaluated hold anything: a select keeps them out.
    neutral = "zeroinitializer" if conjunction else "splat (i1 true)"
    if conjunction:
        return c.op(f"select {text} {a}, {text} {b}, {text} {neutral}")
    return c.op(f"select {text} {a}, {text} {neutral}, {text} {b}")


def _invert(c: FunctionContext, operand: str, dtype: DataType) -> str:
    ones = "true" if dtype.lanes == 1 else "splat (i1 true)"
    return c.op(f"xor {register_type(dtype)} {operand}, {ones}")


def _not(c: FunctionContext, expr: PrimExpr) -> str:
    assert isinstance(expr, e.Not)
    return _invert(c, c.value(expr.a), expr.dtype)


def _select(c: FunctionContext, expr: PrimExpr) -> str:
    """A selection; lazy where a side reads memory: by control flow, or lane by lane under masks."""
    assert isinstance(expr, e.Select)
    condition = c.value(expr.condition)
    kind = register_type(expr.condition.dtype)
    text = register_type(expr.dtype)
    both_safe = c.is_safe(expr.a) and c.is_safe(expr.b)
    is_costly = _calls_library(expr.a) or _calls_library(expr.b)
    if both_safe and not is_costly and (expr.dtype.lanes > 1 or _is_small(expr)):
        return c.op(f"select {kind} {condition}, {c.typed(expr.a)}, {c.typed(expr.b)}")
    if expr.condition.dtype.is_scalar:
        return c.choose(condition, expr.dtype, lambda: c.value(expr.a), lambda: c.value(expr.b))
    inverse = _invert(c, condition, expr.condition.dtype)
    a = _lane_value(c, expr.a, condition)
    b = _lane_value(c, expr.b, inverse)
    return c.op(f"select {kind} {condition}, {text} {a}, {text} {b}")


def _lane_value(c: FunctionContext, expr: PrimExpr, mask: str) -> str:
    """One side of a vector selection: under a mask if it reads memory, skipped if no lane wants a costly one."""
    if not c.is_safe(expr):
        with c.masked(mask, expr.dtype.lanes):
            return c.value(expr)
    if not _calls_library(expr):
        return c.value(expr)
    with c.masked(mask, expr.dtype.lanes):
        is_any_set = any_lane(c)
    return c.choose(is_any_set, expr.dtype, lambda: c.value(expr), lambda: "zeroinitializer")


def _calls_library(expr: PrimExpr) -> bool:
    return any(part in C_LIBRARY for part in made_of(expr) if isinstance(part, str))


def _is_small(expr: PrimExpr) -> bool:
    return all(count <= _SELECT_NODES for count, _ in enumerate(pre_order(expr)))


def _ramp(c: FunctionContext, expr: PrimExpr) -> str:
    assert isinstance(expr, e.Ramp)
    text, scalar, lanes = register_type(expr.dtype), register_type(expr.base.dtype), expr.lanes
    base = c.value(expr.base)
    if isinstance(expr.stride, e.IntImm):
        steps = f"<{', '.join(f'{scalar} {lane * expr.stride.value}' for lane in range(lanes))}>"
    else:
        iota = f"<{', '.join(f'{scalar} {lane}' for lane in range(lanes))}>"
        stride = c.broadcast(c.value(expr.stride), expr.stride.dtype, lanes)
        steps = c.op(f"mul {text} {iota}, {stride}")
    if base == "0":
        return steps
    return c.op(f"add {text} {c.broadcast(base, expr.base.dtype, lanes)}, {steps}")


def _broadcast(c: FunctionContext, expr: PrimExpr) -> str:
    assert isinstance(expr, e.Broadcast)
    if isinstance(expr.value, (e.IntImm, e.FloatImm)):
        return c.broadcast(constant(expr.value), expr.value.dtype, expr.lanes)
    if isinstance(expr.value, BufferLoad) and c.row_vectors:
        return spread_load(c, expr.value.buffer, expr.value.indices[0], expr.lanes)
    return c.broadcast(c.value(expr.value), expr.value.dtype, expr.lanes)


DISPATCH: Final[dict[type, Emit]] = {
    **by_family(arithmetic=_arithmetic, division=_division, extreme=_minmax, compare=_compare, logical=_logical),
    e.Not: _not,
    e.Select: _select,
    e.Ramp: _ramp,
    e.Broadcast: _broadcast,
    e.Cast: emit_cast,
    e.Call: emit_call,
    BufferLoad: emit_load,
}
