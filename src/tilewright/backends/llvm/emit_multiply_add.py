"""Products of bytes added to lanes of 32 bits: one instruction of x86, where LLVM would multiply all 32 bits.

`vpdpwssd` adds the products of two pairs of 16 bits to each lane. A byte widened to 32 bits is such a pair: itself, and
its sign. Where one of two factors has no sign, or none is left of it, the other pair's product is zero.
"""

from __future__ import annotations

from tilewright.backends.llvm.context import FunctionContext
from tilewright.backends.llvm.types import register_type
from tilewright.ir.dtype import INT32
from tilewright.ir.expr import Add, Broadcast, Cast, IntImm, Mul, PrimExpr, Sub

_FEATURES = {16: (("avx512vnni",),), 8: (("avx512vnni", "avx512vl"), ("avxvnni",))}
"""By lanes: features that have the instruction."""
_MOST_SHIFT = 1 << 14
"""A number that may be added to a byte without leaving 16 bits."""


def multiply_add(c: FunctionContext, expr: Add) -> str | None:
    """The value of `total + byte * byte` in lanes of 32 bits; None if it is something else, or there is no such
    instruction."""
    lanes = expr.dtype.lanes
    if expr.dtype.element is not INT32 or not _has_instruction(c, lanes):
        return None
    for total, product in ((expr.a, expr.b), (expr.b, expr.a)):
        if isinstance(product, Mul) and _is_small(product.a) and _is_small(product.b):
            return _emitted(c, total, product)
    return None


def _has_instruction(c: FunctionContext, lanes: int) -> bool:
    return c.target.arch == "x86_64" and any(
        all(c.target.has_feature(name) for name in names) for names in _FEATURES.get(lanes, ())
    )


def _is_small(expr: PrimExpr) -> bool:
    """Whether an expression is a byte as 32 bits, perhaps with a number added to it or taken off."""
    if isinstance(expr, (Add, Sub)):
        number = expr.b.value if isinstance(expr.b, Broadcast) else expr.b
        return isinstance(number, IntImm) and abs(number.value) <= _MOST_SHIFT and _is_byte(expr.a)
    return _is_byte(expr)


def _is_byte(expr: PrimExpr) -> bool:
    return isinstance(expr, Cast) and expr.value.dtype.bits == 8 and not expr.value.dtype.is_bool


def _emitted(c: FunctionContext, total: PrimExpr, product: Mul) -> str:
    lanes, text = total.dtype.lanes, register_type(total.dtype)
    start, a, b = c.value(total), c.value(product.a), c.value(product.b)
    if not any(isinstance(item, Cast) and item.value.dtype.is_uint for item in (product.a, product.b)):
        b = c.op(f"and {text} {b}, {c.broadcast('65535', INT32, lanes)}")
    pairs = f"<{2 * lanes} x i16>"
    values = [c.op(f"bitcast {text} {item} to {pairs}") for item in (a, b)]
    name = f"llvm.x86.avx512.vpdpwssd.{32 * lanes}"
    function = c.module.declare(name, text, f"{text}, {pairs}, {pairs}", "")
    return c.op(f"call {text} {function}({text} {start}, {pairs} {values[0]}, {pairs} {values[1]})")
