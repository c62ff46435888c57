"""Short reduction loops over neighbouring elements as one vector instruction sequence.

    for r in serial(16, reduction):               s[0] = s[0] + reduce_add(partial[ramp(0, 1, 16)])
        s[0] = s[0] + partial[r]            ->

The partial results that a vectorized reduction leaves are combined in this form. LLVM folds the lanes pairwise, in a
few steps instead of a chain as long as the vector; reduction loops allow that (docs/semantics.md).
"""

from __future__ import annotations

from typing import Final

from tilewright.backends.llvm.context import FunctionContext
from tilewright.backends.llvm.types import lane_suffix, register_type
from tilewright.ir.build import const
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Add, BinaryExpr, IntImm, Max, Min, Mul, Ramp, Var
from tilewright.ir.visit import substitute, uses_any
from tilewright.tir.analysis.linear import linear
from tilewright.tir.annotations import REDUCTION
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.stmt import BufferStore, For

_LANES: Final = (4, 8, 16, 32, 64)
"""The lengths worth one vector: whole registers, or a few of them."""


def as_vector_reduction(loop: For) -> BufferStore | None:
    """The only statement of a loop that combines neighbouring elements into one place, or None for other loops."""
    store, extent = loop.body, loop.extent
    if not REDUCTION.is_on(loop) or not isinstance(extent, IntImm) or extent.value not in _LANES:
        return None
    if not isinstance(store, BufferStore) or any(uses_any(index, [loop.var]) for index in store.indices):
        return None
    value = store.value
    if type(value) not in (Add, Mul, Min, Max) or not value.dtype.is_scalar or value.dtype.is_bool:
        return None
    if value.dtype.code == "bfloat":
        return None
    moving = _moving(store)
    return store if moving is not None and _is_walk(moving, loop.var) else None


def _moving(store: BufferStore) -> BufferLoad | None:
    """The element that is combined with what the place holds."""
    value = store.value
    assert isinstance(value, BinaryExpr)
    own = BufferLoad(store.buffer, store.indices)
    other = value.b if value.a is own else value.a if value.b is own else None
    return other if isinstance(other, BufferLoad) and other.buffer is not store.buffer else None


def _is_walk(load: BufferLoad, var: Var) -> bool:
    """Whether an element's place moves by one in each iteration."""
    if len(load.indices) != 1:
        return False
    form = linear(load.indices[0])
    return form.terms.get(var) == 1 and not any(uses_any(term, [var]) for term in form.terms if term is not var)


def emit_vector_reduction(c: FunctionContext, loop: For, store: BufferStore) -> BufferStore:
    """Emit the lanes combined to one value; gives the store that combines it with what the place holds."""
    load = _moving(store)
    assert load is not None
    assert isinstance(loop.extent, IntImm)
    assert isinstance(store.value, BinaryExpr)
    base = substitute(load.indices[0], {loop.var: loop.min})
    vector = BufferLoad(load.buffer, (Ramp(base, const(1), loop.extent.value),))
    c.forget_loads()
    total = Var("lanes", load.dtype)
    c.variables[total] = _combine(c, type(store.value), c.value(vector), load.dtype, vector.dtype)
    own = BufferLoad(store.buffer, store.indices)
    return store.replace(value=type(store.value)(own, total))  # type: ignore[call-arg]


def _combine(c: FunctionContext, kind: type[BinaryExpr], operand: str, element: DataType, dtype: DataType) -> str:
    text, vector, suffix = register_type(element), register_type(dtype), lane_suffix(dtype)
    if element.is_float and kind in (Add, Mul):
        # The start value is what changes nothing: minus zero, also for a sum of minus zeros.
        name, start = ("fadd", "-0.0") if kind is Add else ("fmul", "1.0")
        function = c.module.declare(f"llvm.vector.reduce.{name}.{suffix}", text, f"{text}, {vector}", "")
        return c.op(f"call reassoc {text} {function}({text} {start}, {vector} {operand})")
    if element.is_float:
        name, flags = f"f{'minimum' if kind is Min else 'maximum'}", "nsz "
    elif kind in (Add, Mul):
        name, flags = "add" if kind is Add else "mul", ""
    else:
        name, flags = f"{'u' if element.is_uint else 's'}{'min' if kind is Min else 'max'}", ""
    function = c.module.declare(f"llvm.vector.reduce.{name}.{suffix}", text, vector, "")
    return c.op(f"call {flags}{text} {function}({vector} {operand})")
