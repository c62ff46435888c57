"""Types of 8 bits and fewer become bytes: floats their codes, integers what a byte holds.

    B[i] = float8_e5m2(A[i]) (float32)   ->   B[i] = uint8(... integer arithmetic on the bits of A[i] ...)
    C[i] = A[i] + B[i]       (int4)      ->   C[i] = (int8(A[i] + B[i]) << 4) >> 4

A float is computed with in float32 and rounded back after each operation; an integer wraps after each. Elements take a
byte each, except in parameters whose values are known at compile time: those hold as many to a byte as fit, the first
one in the lowest bits, and nothing ever writes them.

    C[i] = A[i]   (uint4, A constant)    ->   C[i] = (A[i // 2] >> (i % 2 * 4)) & 15
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilewright.ir import expr as e
from tilewright.ir.build import bitwise_and, cast, const, floordiv, floormod, maximum, minimum, shift_left, shift_right
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.node import Node
from tilewright.ir.small_floats import code_of
from tilewright.ir.visit import made_of
from tilewright.support.errors import UnsupportedError
from tilewright.tir import machine
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.expansion import small_floats
from tilewright.tir.function import PrimFunc, constant_buffers
from tilewright.tir.rewrite.statements import StmtRewriter
from tilewright.tir.stmt import Allocate, BufferStore, LetStmt, Stmt

_UNCHANGED: Final = ("access_ptr", "element_distance", "async_copy", "likely", "call_extern")
"""Calls that pass bits on, whatever they stand for."""
_SHIFTS: Final = ("shift_left", "shift_right")
_COUNTS: Final = ("popcount", "clz")
"""Calls that count bits: those of the type, not of the byte."""


@dataclass(frozen=True, slots=True)
class SmallTypesOptions:
    """What a processor does itself."""

    native: frozenset[str] = frozenset()
    """The small floats that it converts by an instruction: they stay what they are."""


_NONE_NATIVE: Final = SmallTypesOptions()


def legalize_small_types(func: PrimFunc, options: SmallTypesOptions = _NONE_NATIVE) -> PrimFunc:
    """The function without values of small types."""
    rewriter = _Bytes(options.native, func)
    body = rewriter.stmt(func.body)
    params = tuple(rewriter.param(param) for param in func.params)
    if body is func.body and all(old is new for old, new in zip(params, func.params, strict=True)):
        return func
    return func.replace(params=params, body=body)


class _Bytes(StmtRewriter):
    """Rewrites with the original expression at hand: a byte does not say what it stands for."""

    def __init__(self, native: frozenset[str], func: PrimFunc) -> None:
        self._native = native
        self._given = frozenset(func.buffers)
        self._constants = constant_buffers(func)
        self._buffers: dict[Buffer, Buffer] = {}
        self._variables: dict[Var, Var] = {}
        self._memo: dict[Node, PrimExpr] = {}
        self._concerning: dict[frozenset[DataType | str], bool] = {}

    # ---------------------------------------------------------------- types

    def _is_small(self, dtype: DataType) -> bool:
        return (dtype.is_small_float and dtype.element.name not in self._native) or dtype.is_small_integer

    def _held(self, dtype: DataType) -> DataType:
        """The type that holds values of a type."""
        if not self._is_small(dtype):
            return dtype
        return DataType.of("int8" if dtype.is_int else "uint8").with_lanes(dtype.lanes)

    def _is_packed(self, buffer: Buffer) -> bool:
        return buffer in self._constants and buffer.dtype.is_sub_byte

    def param(self, param: Buffer | Var) -> Buffer | Var:
        """A parameter in bytes."""
        return self._buffer(param) if isinstance(param, Buffer) else self._variable(param)

    def _variable(self, var: Var) -> Var:
        if not self._is_small(var.dtype):
            return var
        return self._variables.setdefault(var, Var(var.name, self._held(var.dtype)))

    def _buffer(self, buffer: Buffer) -> Buffer:
        if not self._is_small(buffer.dtype):
            return buffer
        known = self._buffers.get(buffer)
        if known is None:
            known = buffer.replace(dtype=self._held(buffer.dtype))
            if self._is_packed(buffer):
                (count,) = buffer.shape
                each = 8 // buffer.dtype.bits
                known = buffer.replace(dtype=DataType.of("uint8"), shape=(floordiv(count + (each - 1), each),))
            self._buffers[buffer] = known
        return known

    # ---------------------------------------------------------------- statements

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """A store to the bytes of a buffer."""
        indices, value, buffer = self.exprs(stmt.indices), self.expr(stmt.value), self._buffer(stmt.buffer)
        if indices is stmt.indices and value is stmt.value and buffer is stmt.buffer:
            return stmt
        return stmt.replace(buffer=buffer, indices=indices, value=value)

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """An allocation of bytes."""
        buffer, body = self._buffer(stmt.buffer), self.stmt(stmt.body)
        return stmt if buffer is stmt.buffer and body is stmt.body else stmt.replace(buffer=buffer, body=body)

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """A variable that holds a byte."""
        value, var, body = self.expr(stmt.value), self._variable(stmt.var), self.stmt(stmt.body)
        if value is stmt.value and var is stmt.var and body is stmt.body:
            return stmt
        return stmt.replace(var=var, value=value, body=body)

    # ---------------------------------------------------------------- expressions

    def expr(self, expr: PrimExpr) -> PrimExpr:
        """The expression with bytes in the place of small values."""
        done = self._memo.get(expr)
        if done is None:
            done = self._memo[expr] = self._rewritten(expr)
        return done

    def _has_small(self, parts: frozenset[DataType | str]) -> bool:
        known = self._concerning.get(parts)
        if known is None:
            known = any(isinstance(part, DataType) and self._is_small(part) for part in parts)
            self._concerning[parts] = known
        return known

    def _rewritten(self, expr: PrimExpr) -> PrimExpr:
        if not self._has_small(made_of(expr)):
            return expr
        if isinstance(expr, Var):
            return self._variable(expr)
        if isinstance(expr, BufferLoad):
            return self._load(expr)
        if isinstance(expr, e.Cast):
            return self._converted(expr)
        if isinstance(expr, (e.IntImm, e.FloatImm)):
            return self._constant(expr) if self._is_small(expr.dtype) else expr
        if isinstance(expr, e.BinaryExpr) and self._is_small(expr.a.dtype):
            wide = type(expr)(self._number(expr.a), self._number(expr.b))  # type: ignore[call-arg]
            return wide if isinstance(expr, e.CompareExpr) else self._narrowed(wide, expr.dtype)
        if isinstance(expr, e.Call) and any(self._is_small(item.dtype) for item in (*expr.args, expr)):
            return self._call(expr)
        return expr.rebuild(self._child)

    def _child(self, item: Node) -> Node:
        return self.expr(item) if isinstance(item, PrimExpr) else item

    def _load(self, expr: BufferLoad) -> PrimExpr:
        indices, buffer = self.exprs(expr.indices), self._buffer(expr.buffer)
        if not self._is_packed(expr.buffer):
            loaded = expr if indices is expr.indices and buffer is expr.buffer else BufferLoad(buffer, indices)
            # Callers' bytes may have anything in the upper bits (arrays of ml_dtypes have zeros under a sign).
            return wrapped(loaded, expr.dtype) if expr.buffer in self._given and expr.dtype.is_sub_byte else loaded
        (index,) = indices
        dtype, each = expr.dtype, 8 // expr.dtype.bits
        byte = BufferLoad(buffer, (floordiv(index, each),))
        place = cast(floormod(index, each), byte.dtype) * const(dtype.bits, byte.dtype)
        if not dtype.is_int:
            return bitwise_and(shift_right(byte, place), (1 << dtype.bits) - 1)
        # The sign is the highest bit: up with it, and down again.
        unused = 8 - dtype.bits
        upper = cast(shift_left(byte, const(unused, byte.dtype) - place), self._held(dtype))
        return shift_right(upper, unused)

    def _constant(self, expr: e.IntImm | e.FloatImm) -> PrimExpr:
        if isinstance(expr, e.IntImm):
            return const(expr.value, self._held(expr.dtype))
        return const(code_of(expr.value, expr.dtype.name), self._held(expr.dtype))

    def _number(self, original: PrimExpr) -> PrimExpr:
        """A value in a type that can be computed with: float32 for small floats."""
        value = self.expr(original)
        if original.dtype.is_small_float and self._is_small(original.dtype):
            return small_floats.values(value, original.dtype.element.name)
        return value

    def _narrowed(self, value: PrimExpr, dtype: DataType) -> PrimExpr:
        """A number of the wider type as the byte of a small type."""
        if dtype.is_small_float and self._is_small(dtype):
            return small_floats.codes(value, dtype.element.name)
        return wrapped(value, dtype) if dtype.is_small_integer else value

    def _converted(self, expr: e.Cast) -> PrimExpr:
        source, target = expr.value.dtype, expr.dtype
        value = self._number(expr.value)
        if not self._is_small(target):
            return value if value.dtype is target else e.Cast(value, target)
        if target.is_small_float:
            return self._narrowed(cast(value, FLOAT32.with_lanes(target.lanes)), target)
        held = self._held(target)
        if source.is_float:
            low, high = (const(end, value.dtype) for end in (target.min_value(), target.max_value()))
            return e.Cast(minimum(maximum(value, low), high), held)
        return wrapped(value if value.dtype is held else e.Cast(value, held), target)

    def _call(self, expr: e.Call) -> PrimExpr:
        if expr.name in _UNCHANGED or expr.name in machine.table:
            return e.Call(expr.name, self.exprs(expr.args), self._held(expr.dtype))
        if expr.name == "reinterpret":
            return self._reinterpreted(expr)
        args = [self._number(arg) for arg in expr.args]
        dtype = expr.args[0].dtype
        if expr.name in _SHIFTS:
            # An amount counts modulo the width of the type.
            args[1] = bitwise_and(args[1], dtype.bits - 1)
        if expr.name in _COUNTS:
            args = [bitwise_and(args[0], (1 << dtype.bits) - 1)]
        result = expr.dtype
        if self._is_small(result):
            result = FLOAT32.with_lanes(result.lanes) if result.is_float else self._held(result)
        called: PrimExpr = e.Call(expr.name, tuple(args), result)
        if expr.name == "clz":
            called = called - const(8 - dtype.bits, result)
        return self._narrowed(called, expr.dtype)

    def _reinterpreted(self, expr: e.Call) -> PrimExpr:
        (original,) = expr.args
        source, target, value = original.dtype, expr.dtype, self.expr(original)
        if source.lanes != target.lanes:
            raise UnsupportedError(f"the bits of {source} read as {target}", hint="convert them to bytes first")
        held = self._held(target)
        byte = value if value.dtype is held else e.Cast(value, held)
        return wrapped(byte, target) if target.is_sub_byte and source.is_int != target.is_int else byte


def wrapped(value: PrimExpr, dtype: DataType) -> PrimExpr:
    """A byte with what lies beyond the bits of a small integer type dropped."""
    if dtype.is_int:
        return shift_right(shift_left(value, 8 - dtype.bits), 8 - dtype.bits)
    return bitwise_and(value, (1 << dtype.bits) - 1)
