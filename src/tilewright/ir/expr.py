"""Scalar expressions, shared by the tensor, loop and graph levels (dimensions are scalar expressions too).

Expressions are interned: structurally equal expressions are the same object, so `a is b` is equality and memo
tables key on identity. `==` is never overloaded to build IR; `bool(expr)` raises. The meaning of every node is in
`docs/semantics.md`. Python operators build folded expressions through `tilewright.ir.build`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import ClassVar, Final, NoReturn

from tilewright.ir.dtype import BOOL, INDEX, DataType
from tilewright.ir.node import Node, node
from tilewright.support.errors import CompilerBug, UserError

operators: dict[str, Callable[..., PrimExpr]] = {}
"""Filled by `tilewright.ir.build`: what the Python operators on expressions do."""


class ExprOperators:
    """The Python operators that build expressions, for expressions and for what stands for one (an axis)."""

    __slots__ = ()

    def __add__(self, other: ExprLike) -> PrimExpr:
        return operators["add"](self, other)

    def __radd__(self, other: ExprLike) -> PrimExpr:
        return operators["add"](other, self)

    def __sub__(self, other: ExprLike) -> PrimExpr:
        return operators["sub"](self, other)

    def __rsub__(self, other: ExprLike) -> PrimExpr:
        return operators["sub"](other, self)

    def __mul__(self, other: ExprLike) -> PrimExpr:
        return operators["mul"](self, other)

    def __rmul__(self, other: ExprLike) -> PrimExpr:
        return operators["mul"](other, self)

    def __truediv__(self, other: ExprLike) -> PrimExpr:
        return operators["div"](self, other)

    def __rtruediv__(self, other: ExprLike) -> PrimExpr:
        return operators["div"](other, self)

    def __floordiv__(self, other: ExprLike) -> PrimExpr:
        return operators["floordiv"](self, other)

    def __rfloordiv__(self, other: ExprLike) -> PrimExpr:
        return operators["floordiv"](other, self)

    def __mod__(self, other: ExprLike) -> PrimExpr:
        return operators["floormod"](self, other)

    def __rmod__(self, other: ExprLike) -> PrimExpr:
        return operators["floormod"](other, self)

    def __neg__(self) -> PrimExpr:
        return operators["neg"](self)

    def __lt__(self, other: ExprLike) -> PrimExpr:
        return operators["lt"](self, other)

    def __le__(self, other: ExprLike) -> PrimExpr:
        return operators["le"](self, other)

    def __gt__(self, other: ExprLike) -> PrimExpr:
        return operators["gt"](self, other)

    def __ge__(self, other: ExprLike) -> PrimExpr:
        return operators["ge"](self, other)

    def __and__(self, other: ExprLike) -> PrimExpr:
        return operators["and"](self, other)

    def __or__(self, other: ExprLike) -> PrimExpr:
        return operators["or"](self, other)

    def __xor__(self, other: ExprLike) -> PrimExpr:
        return operators["xor"](self, other)

    def __lshift__(self, other: ExprLike) -> PrimExpr:
        return operators["shift_left"](self, other)

    def __rshift__(self, other: ExprLike) -> PrimExpr:
        return operators["shift_right"](self, other)

    def __invert__(self) -> PrimExpr:
        return operators["not"](self)

    def eq(self, other: ExprLike) -> PrimExpr:
        """The comparison `self == other` as an expression."""
        return operators["eq"](self, other)

    def ne(self, other: ExprLike) -> PrimExpr:
        """The comparison `self != other` as an expression."""
        return operators["ne"](self, other)

    def astype(self, dtype: DataType | str) -> PrimExpr:
        """This value converted to another data type."""
        return operators["cast"](self, dtype)


class PrimExpr(Node, ExprOperators):
    """A scalar (or vector) value. Every expression has a `dtype`.

    Expressions are asked the same again and again, by every pass: the other slots hold answers that only depend on the
    expression, once they were found (`arith`). Of leaves the class knows most of them.
    """

    __slots__ = ("choices", "dtype", "loads", "made_of", "operations", "reads_memory", "variables")
    side_data: ClassVar[tuple[str, ...]] = __slots__
    holds_nodes: ClassVar[bool] = True
    choices: tuple[PrimExpr, ...]
    dtype: DataType
    loads: tuple[PrimExpr, ...]
    made_of: frozenset[DataType | str]
    operations: int
    reads_memory: bool
    variables: frozenset[Var]

    def __bool__(self) -> NoReturn:
        raise UserError(
            "an expression has no truth value while the program is being built",
            hint="write te.select(condition, a, b) for `a if condition else b`, te.all and te.any for `and` and `or`; "
            "`is` compares expressions themselves",
        )

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is not iterable")


ExprLike = ExprOperators | int | float | bool
"""What stands for a value: an expression, something that turns into one (`as_prim_expr`), a number."""


@node()
class Var(PrimExpr):
    """A variable: unique by identity, its name is a printing hint."""

    structural_unique: ClassVar[bool] = True
    structural_ignored: ClassVar[tuple[str, ...]] = ("name",)
    name: str
    dtype: DataType = INDEX
    choices = ()
    loads = ()
    operations = 0
    reads_memory = False


@node(interned=True)
class IntImm(PrimExpr):
    """An integer or bool constant; the value is always in the range of its type."""

    value: int
    dtype: DataType = INDEX
    choices = ()
    loads = ()
    operations = 0
    reads_memory = False
    variables = frozenset()

    def _post_init(self) -> None:
        if self.dtype.is_bool:
            if self.value not in (0, 1):
                raise CompilerBug(f"{self.value} is not a bool")
        elif not self.dtype.is_integer or not self.dtype.is_scalar:
            raise CompilerBug(f"an integer constant cannot be of type {self.dtype}")
        elif not self.dtype.min_value() <= self.value <= self.dtype.max_value():
            raise UserError(f"the constant {self.value} does not fit {self.dtype}")


@node(interned=True)
class FloatImm(PrimExpr):
    """A floating-point constant, held as a Python float (bits decide identity, so -0.0 and NaN are kept)."""

    value: float
    dtype: DataType
    choices = ()
    loads = ()
    operations = 1
    reads_memory = False
    variables = frozenset()

    @classmethod
    def _intern_key(cls, value: float, dtype: DataType) -> tuple[object, ...]:
        return (cls, struct.pack("<d", value), dtype)


@node(interned=True)
class StringImm(PrimExpr):
    """A string constant: an argument of intrinsics only."""

    value: str
    _slots: ClassVar[tuple[str, ...]] = ()

    def _post_init(self) -> None:
        self.dtype = DataType.of("handle")


@node(interned=True)
class Cast(PrimExpr):
    """Conversion to another data type (semantics: docs/semantics.md, "Conversions")."""

    value: PrimExpr
    dtype: DataType


class BinaryExpr(PrimExpr):
    """Two operands of one type."""

    __slots__ = ("a", "b")
    a: PrimExpr
    b: PrimExpr
    symbol: ClassVar[str] = ""

    def _post_init(self) -> None:
        if self.a.dtype is not self.b.dtype:
            raise CompilerBug(f"{type(self).__name__} of {self.a.dtype} and {self.b.dtype}")
        self.dtype = self.a.dtype


class CompareExpr(BinaryExpr):
    """A comparison: bool lanes."""

    __slots__ = ()

    def _post_init(self) -> None:
        if self.a.dtype is not self.b.dtype:
            raise CompilerBug(f"{type(self).__name__} of {self.a.dtype} and {self.b.dtype}")
        self.dtype = BOOL.with_lanes(self.a.dtype.lanes)


@node(interned=True)
class Add(BinaryExpr):
    """a + b (integers wrap)."""

    a: PrimExpr
    b: PrimExpr
    symbol: ClassVar[str] = "+"


@node(interned=True)
class Sub(BinaryExpr):
    """a - b (integers wrap)."""

    a: PrimExpr
    b: PrimExpr
    symbol: ClassVar[str] = "-"


@node(interned=True)
class Mul(BinaryExpr):
    """a * b (integers wrap)."""

    a: PrimExpr
    b: PrimExpr
    symbol: ClassVar[str] = "*"


@node(interned=True)
class Div(BinaryExpr):
    """a / b of floats; of integers it truncates toward zero (C division)."""

    a: PrimExpr
    b: PrimExpr
    symbol: ClassVar[str] = "/"


@node(interned=True)
class Mod(BinaryExpr):
    """The remainder that belongs to `Div`: the sign of a (C `%`; `fmod` for floats)."""

    a: PrimExpr
    b: PrimExpr


@node(interned=True)
class FloorDiv(BinaryExpr):
    """Integer division rounding toward minus infinity."""

    a: PrimExpr
    b: PrimExpr
    symbol: ClassVar[str] = "//"


@node(interned=True)
class FloorMod(BinaryExpr):
    """The remainder that belongs to `FloorDiv`: the sign of b."""

    a: PrimExpr
    b: PrimExpr
    symbol: ClassVar[str] = "%"


@node(interned=True)
class Min(BinaryExpr):
    """The lesser; NaN if either is NaN."""

    a: PrimExpr
    b: PrimExpr


@node(interned=True)
class Max(BinaryExpr):
    """The greater; NaN if either is NaN."""

    a: PrimExpr
    b: PrimExpr


@node(interned=True)
class EQ(CompareExpr):
    """a == b."""

    a: PrimExpr
    b: PrimExpr
    symbol: ClassVar[str] = "=="


@node(interned=True)
class NE(CompareExpr):
    """a != b (true if either is NaN)."""

    a: PrimExpr
    b: PrimExpr
    symbol: ClassVar[str] = "!="


@node(interned=True)
class LT(CompareExpr):
    """a < b."""

    a: PrimExpr
    b: PrimExpr
    symbol: ClassVar[str] = "<"


@node(interned=True)
class LE(CompareExpr):
    """a <= b."""

    a: PrimExpr
    b: PrimExpr
    symbol: ClassVar[str] = "<="


@node(interned=True)
class And(BinaryExpr):
    """Logical and of bools, short-circuit: b is not evaluated where a is false."""

    a: PrimExpr
    b: PrimExpr


@node(interned=True)
class Or(BinaryExpr):
    """Logical or of bools, short-circuit: b is not evaluated where a is true."""

    a: PrimExpr
    b: PrimExpr


@node(interned=True)
class Not(PrimExpr):
    """Logical not of a bool."""

    a: PrimExpr

    def _post_init(self) -> None:
        self.dtype = self.a.dtype


@node(interned=True)
class Select(PrimExpr):
    """`a` where the condition holds, else `b`. Lazy: the side not chosen is not evaluated (it may be out of bounds)."""

    condition: PrimExpr
    a: PrimExpr
    b: PrimExpr

    def _post_init(self) -> None:
        if self.a.dtype is not self.b.dtype or not self.condition.dtype.is_bool:
            raise CompilerBug(f"Select of {self.condition.dtype}, {self.a.dtype}, {self.b.dtype}")
        self.dtype = self.a.dtype


@node(interned=True)
class Ramp(PrimExpr):
    """The vector base, base + stride, ..., of a number of lanes."""

    base: PrimExpr
    stride: PrimExpr
    lanes: int

    def _post_init(self) -> None:
        self.dtype = self.base.dtype.with_lanes(self.lanes)


@node(interned=True)
class Broadcast(PrimExpr):
    """A vector whose lanes are all one scalar value."""

    value: PrimExpr
    lanes: int

    def _post_init(self) -> None:
        self.dtype = self.value.dtype.with_lanes(self.lanes)


@node(interned=True)
class Call(PrimExpr):
    """An intrinsic by name (`exp`, `bitwise_and`, ...; see `tilewright.ir.intrinsics`) or an extern function."""

    name: str
    args: tuple[PrimExpr, ...]
    dtype: DataType
    reads_memory = True


@node()
class Range(Node):
    """The half-open integer interval [min, min + extent)."""

    min: PrimExpr
    extent: PrimExpr


def is_const_int(expr: PrimExpr, value: int | None = None) -> bool:
    """Whether an expression is an integer constant (of the given value)."""
    return isinstance(expr, IntImm) and (value is None or expr.value == value)


def const_value(expr: PrimExpr) -> int | None:
    """The value of an integer constant, or None."""
    return expr.value if isinstance(expr, IntImm) else None


TRUE: Final = IntImm(1, BOOL)
FALSE: Final = IntImm(0, BOOL)
ZERO: Final = IntImm(0, INDEX)
ONE: Final = IntImm(1, INDEX)
