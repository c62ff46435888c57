"""Calls of intrinsics and extern functions as LLVM instructions.

Single-precision functions that have a polynomial (`exp`, `tanh`, ...) never come here: the pass `lower_intrinsics` has
expanded them. Their double-precision forms call the C library lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilewright.backends.llvm.context import FunctionContext
from tilewright.backends.llvm.emit_fixed_point import high_product, is_moved_up, moved_up, rounded_shift
from tilewright.backends.llvm.emit_machine import emit_machine
from tilewright.backends.llvm.emit_memory import element_address
from tilewright.backends.llvm.types import float_constant, lane_suffix, register_type
from tilewright.codegen.operators import by_intrinsic
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.expr import Add, Call, PrimExpr, StringImm
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.tir import machine
from tilewright.tir.buffer import BufferLoad

_Emit = Callable[[FunctionContext, Call], str]

_BITS: Final = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
_LLVM_NAMES: Final = {
    **{name: name for name in ("sqrt", "floor", "ceil", "trunc", "fma", "copysign")},
    "round": "roundeven",
    "popcount": "ctpop",
}
"""Intrinsics that are one of LLVM's, with the same arguments."""
_INFINITY: Final = {"isinf": "oeq", "isfinite": "olt"}
"""How a magnitude compares with infinity."""
C_LIBRARY: Final = frozenset(
    "exp exp2 log log2 log10 log1p expm1 pow sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh "
    "erf".split()
)
"""Functions of the C library's mathematics that intrinsics of the same name may call."""


def emit_call(c: FunctionContext, expr: PrimExpr) -> str:
    """The value of a call."""
    assert isinstance(expr, Call)
    emit = emit_machine if expr.name in machine.table else _TABLE.get(expr.name)
    if emit is None:
        raise UnsupportedError(f"the CPU code generator does not know the intrinsic {expr.name!r}")
    return emit(c, expr)


def _llvm(c: FunctionContext, name: str, expr: Call) -> str:
    text = register_type(expr.dtype)
    types = ", ".join(register_type(arg.dtype) for arg in expr.args)
    function = c.module.declare(f"llvm.{name}.{lane_suffix(expr.dtype)}", text, types, "")
    return c.op(f"call {text} {function}({', '.join(c.typed(arg) for arg in expr.args)})")


def _library(c: FunctionContext, expr: Call) -> str:
    """A call of the C library for each lane."""
    scalar = register_type(expr.dtype.element)
    suffix = {"float": "f", "double": ""}.get(scalar)
    if suffix is None:
        raise CompilerBug(f"{expr.name} of {expr.dtype} reached the code generator")
    types = ", ".join([scalar] * len(expr.args))
    function = c.module.declare(f"{expr.name}{suffix}", scalar, types, "nounwind willreturn memory(none)")
    values = [c.value(arg) for arg in expr.args]
    if expr.dtype.is_scalar:
        return c.op(f"call {scalar} {function}({', '.join(f'{scalar} {value}' for value in values)})")
    text, result = register_type(expr.dtype), "poison"
    for lane in range(expr.dtype.lanes):
        items = [c.op(f"extractelement {text} {value}, i64 {lane}") for value in values]
        called = c.op(f"call {scalar} {function}({', '.join(f'{scalar} {item}' for item in items)})")
        result = c.op(f"insertelement {text} {result}, {scalar} {called}, i64 {lane}")
    return result


def _abs(c: FunctionContext, expr: Call) -> str:
    if expr.dtype.is_float:
        return _llvm(c, "fabs", expr)
    if not expr.dtype.is_int:
        return c.value(expr.args[0])
    text = register_type(expr.dtype)
    function = c.module.declare(f"llvm.abs.{lane_suffix(expr.dtype)}", text, f"{text}, i1", "")
    return c.op(f"call {text} {function}({c.typed(expr.args[0])}, i1 false)")


def _same(c: FunctionContext, expr: Call) -> str:
    return _llvm(c, _LLVM_NAMES[expr.name], expr)


def _bitwise(c: FunctionContext, expr: Call) -> str:
    return c.op(f"{_BITS[expr.name]} {c.typed(expr.args[0])}, {c.value(expr.args[1])}")


def _scale_by_power(c: FunctionContext, expr: Call) -> str:
    """Vectors of AVX-512 in its instruction, some at a time."""
    piece, text, lanes = "<16 x float>", register_type(expr.dtype), expr.dtype.lanes
    function = c.module.declare(
        "llvm.x86.avx512.mask.scalef.ps.512", piece, f"{piece}, {piece}, {piece}, i16, i32 immarg"
    )
    value, power = (c.value(arg) for arg in expr.args)
    result = "poison"
    for start in range(0, lanes, 16):
        order = ", ".join(f"i32 {start + lane}" for lane in range(16))
        parts = [
            c.op(f"shufflevector {text} {item}, {text} poison, <16 x i32> <{order}>") if lanes > 16 else item
            for item in (value, power)
        ]
        # All lanes, in the current rounding mode.
        scaled = c.op(
            f"call {piece} {function}({piece} {parts[0]}, {piece} {parts[1]}, {piece} zeroinitializer, i16 -1, i32 4)"
        )
        if lanes == 16:
            return scaled
        spread = ", ".join(f"i32 {min(lane, 15)}" for lane in range(lanes))
        widened = c.op(f"shufflevector {piece} {scaled}, {piece} poison, <{lanes} x i32> <{spread}>")
        picks = (lanes + lane - start if start <= lane < start + 16 else lane for lane in range(lanes))
        merged = ", ".join(f"i32 {pick}" for pick in picks)
        result = c.op(f"shufflevector {text} {result}, {text} {widened}, <{lanes} x i32> <{merged}>")
    return result


def _test(c: FunctionContext, expr: Call) -> str:
    dtype = expr.args[0].dtype
    text = register_type(dtype)
    if expr.name == "isnan":
        value = c.value(expr.args[0])
        return c.op(f"fcmp uno {text} {value}, {value}")
    function = c.module.declare(f"llvm.fabs.{lane_suffix(dtype)}", text, text, "")
    magnitude = c.op(f"call {text} {function}({c.typed(expr.args[0])})")
    infinity = float_constant(float("inf"), dtype)
    if dtype.lanes > 1:
        infinity = c.broadcast(infinity, dtype.element, dtype.lanes)
    return c.op(f"fcmp {_INFINITY[expr.name]} {text} {magnitude}, {infinity}")


def _int_splat(c: FunctionContext, value: int, dtype: DataType) -> str:
    return c.broadcast(str(value), dtype.element, dtype.lanes) if dtype.lanes > 1 else str(value)


def _bitwise_not(c: FunctionContext, expr: Call) -> str:
    return c.op(f"xor {c.typed(expr.args[0])}, {_int_splat(c, -1, expr.dtype)}")


def _shift(c: FunctionContext, expr: Call) -> str:
    """The count is taken modulo the width: LLVM leaves larger shifts undefined."""
    if expr.name == "shift_left" and is_moved_up(c, expr):
        return moved_up(c, expr)
    dtype, text = expr.dtype, register_type(expr.dtype)
    count = c.op(f"and {c.typed(expr.args[1])}, {_int_splat(c, dtype.bits - 1, dtype)}")
    operation = "shl" if expr.name == "shift_left" else "ashr" if dtype.is_int else "lshr"
    return c.op(f"{operation} {text} {c.value(expr.args[0])}, {count}")


def _clz(c: FunctionContext, expr: Call) -> str:
    text = register_type(expr.dtype)
    function = c.module.declare(f"llvm.ctlz.{lane_suffix(expr.dtype)}", text, f"{text}, i1", "")
    return c.op(f"call {text} {function}({c.typed(expr.args[0])}, i1 false)")


def _likely(c: FunctionContext, expr: Call) -> str:
    value = c.value(expr.args[0])
    if not expr.dtype.is_scalar:
        return value
    function = c.module.declare("llvm.expect.i1", "i1", "i1, i1", "")
    return c.op(f"call i1 {function}(i1 {value}, i1 true)")


def _reinterpret(c: FunctionContext, expr: Call) -> str:
    operand = expr.args[0]
    source, target = register_type(operand.dtype), register_type(expr.dtype)
    if isinstance(operand, Add) and operand.dtype.element is FLOAT32:
        # The bits of a sum are read where it rounds to whole numbers: what is added is rounded first, and not as one.
        value = c.op(f"fadd {source} {c.value(operand.a)}, {c.value(operand.b)}")
    else:
        value = c.value(operand)
    return value if source == target else c.op(f"bitcast {source} {value} to {target}")


def _access_pointer(c: FunctionContext, expr: Call) -> str:
    load = expr.args[1]
    if not isinstance(load, BufferLoad):
        raise CompilerBug("access_ptr of something that is not an element")
    return element_address(c, load.buffer, load.indices)


def _call_extern(c: FunctionContext, expr: Call) -> str:
    name = expr.args[0]
    if not isinstance(name, StringImm):
        raise CompilerBug("call_extern needs the name of a function first")
    arguments = expr.args[1:]
    result = register_type(expr.dtype)
    types = ", ".join(register_type(arg.dtype) for arg in arguments)
    function = c.module.declare(name.value, result, types, "")
    return c.op(f"call {result} {function}({', '.join(c.typed(arg) for arg in arguments)})")


_TABLE: Final[dict[str, _Emit]] = {
    **by_intrinsic(
        C_LIBRARY,
        function=_library,
        test=_test,
        absolute=_abs,
        bitwise=_bitwise,
        invert=_bitwise_not,
        shift=_shift,
        count=_clz,
        same=_reinterpret,
    ),
    **dict.fromkeys(_LLVM_NAMES, _same),
    "scale_by_power": _scale_by_power,
    "high_product": high_product,
    "rounded_shift": rounded_shift,
    "likely": _likely,
    "access_ptr": _access_pointer,
    "call_extern": _call_extern,
}
