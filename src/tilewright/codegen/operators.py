"""What nodes mean, once for every language of kernels: a rule for each kind, on operations that a language spells.

A language derives from `KernelOperators` and says how its constants, sums, divisions, comparisons and conversions are
written. Which of them a node needs is decided here: indices in 32 or 64 bits, division that never traps, laziness.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from tilewright.codegen.values import KernelValues
from tilewright.ir import expr as e
from tilewright.ir.build import const, floormod
from tilewright.ir.dtype import INDEX, INT32, DataType
from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.visit import pre_order
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.expansion.words import joined_bytes

H = TypeVar("H")
IntrinsicRule = Callable[[Any, e.Call, list[str]], str]
"""The value of a call, from the values of its arguments; the first argument is the language's `KernelOperators`."""


@dataclass(frozen=True, slots=True)
class Division:
    """One kind of integer division: its quotient or its remainder, rounded toward minus infinity or toward zero."""

    quotient: bool
    floors: bool

    @property
    def sign(self) -> str:
        """The operator of languages with braces, which round toward zero."""
        return "/" if self.quotient else "%"


DIVISIONS: Final[dict[type, Division]] = {
    e.Div: Division(quotient=True, floors=False),
    e.Mod: Division(quotient=False, floors=False),
    e.FloorDiv: Division(quotient=True, floors=True),
    e.FloorMod: Division(quotient=False, floors=True),
}


def by_family(*, arithmetic: H, division: H, extreme: H, compare: H, logical: H) -> dict[type, H]:
    """A table of handlers by the type of a node, from one handler for each family of operators."""
    return {
        **dict.fromkeys((e.Add, e.Sub, e.Mul), arithmetic),
        **dict.fromkeys(DIVISIONS, division),
        **dict.fromkeys((e.Min, e.Max), extreme),
        **dict.fromkeys((e.EQ, e.NE, e.LT, e.LE), compare),
        **dict.fromkeys((e.And, e.Or), logical),
    }


def by_intrinsic(
    functions: Iterable[str], *, function: H, test: H, absolute: H, bitwise: H, invert: H, shift: H, count: H, same: H
) -> dict[str, H]:
    """A table of handlers by the name of an intrinsic; `functions` are those of mathematics, `same` keeps bits."""
    return {
        **dict.fromkeys(functions, function),
        **dict.fromkeys(("isnan", "isinf", "isfinite"), test),
        "abs": absolute,
        **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), bitwise),
        "bitwise_not": invert,
        **dict.fromkeys(("shift_left", "shift_right"), shift),
        **dict.fromkeys(("popcount", "clz"), count),
        "reinterpret": same,
    }


def holds_all(source: DataType, target: DataType) -> bool:
    """Whether an integer type has every value of another one."""
    same = source.is_int == target.is_int
    return (same and source.bits <= target.bits) or (source.is_uint and source.bits < target.bits)


class KernelOperators(KernelValues):
    """Expressions of one kernel in one language."""

    language: str
    """Whose kernels they are, for messages."""
    addresses_in_32_bits: ClassVar[bool]
    """Whether memory is addressed by 32 bits: of a wider index only the lowest bits count."""
    intrinsics: ClassVar[Mapping[str, IntrinsicRule]]

    def emit(self, expr: PrimExpr) -> str:
        """The value of an expression that was not met before."""
        rule = RULES.get(type(expr))
        if rule is None:
            raise UnsupportedError(f"{self.language} kernels have no {type(expr).__name__}")
        return rule(self, expr)

    # ---------------------------------------------------------------- constants, variables, memory

    @abstractmethod
    def truth(self, value: bool) -> str:
        """A constant condition."""

    @abstractmethod
    def integer_constant(self, value: int, dtype: DataType) -> str:
        """A constant of an integer type, or of bool."""

    @abstractmethod
    def float_constant(self, value: float, dtype: DataType) -> str:
        """A constant of a float type."""

    @abstractmethod
    def variable_value(self, var: Var) -> str:
        """What a variable holds."""

    @abstractmethod
    def load(self, expr: BufferLoad) -> str:
        """An element of a buffer."""

    def load_word(self, first: BufferLoad) -> str | None:
        """Four neighbouring bytes of a buffer as an int32, from the first of them on; None where each is read alone."""
        return None

    # ---------------------------------------------------------------- conditions

    @abstractmethod
    def connect(self, conjunction: bool, a: str, b: str) -> str:
        """Both of two conditions, or one of them."""

    @abstractmethod
    def invert(self, condition: str) -> str:
        """The opposite of a condition."""

    @abstractmethod
    def select(self, kind: str, condition: str, a: str, b: str) -> str:
        """One of two values of a type; both may be computed."""

    @abstractmethod
    def choice(self, condition: str, kind: str, then: Callable[[], str], otherwise: Callable[[], str]) -> str:
        """A value of one of two sides, only one of which is computed."""

    def needs_branch(self, expr: PrimExpr) -> bool:
        """Whether an expression that is not always computed must stand in a branch of its own: if it reads memory."""
        return reads_memory(expr)

    # ---------------------------------------------------------------- arithmetic

    @abstractmethod
    def calculate(self, kind: type, a: str, b: str, dtype: DataType) -> str:
        """A sum, difference or product (of floats also a quotient) that does not overflow if it is of integers."""

    @abstractmethod
    def wrapping(self, kind: type, a: str, b: str, dtype: DataType) -> str:
        """A sum, difference or product of integers modulo their range."""

    @abstractmethod
    def float_remainder(self, a: str, b: str, dtype: DataType) -> str:
        """The exact remainder of floats, with the sign of the dividend."""

    @abstractmethod
    def divide_naturals(self, division: Division, a: str, b: str, dtype: DataType) -> str:
        """A division of integers that are not negative, the divisor being positive."""

    @abstractmethod
    def divide(self, division: Division, a: str, b: str, dtype: DataType) -> str:
        """A division of any integers: 0 for a divisor of 0, wrap-around for the least integer by -1."""

    def has_division(self, dtype: DataType) -> bool:
        """Whether the language divides integers of a type itself."""
        return True

    @abstractmethod
    def extreme(self, lesser: bool, a: str, b: str, dtype: DataType) -> str:
        """The lesser or the greater of two numbers; NaN if either is NaN."""

    @abstractmethod
    def compare(self, kind: type, a: str, b: str, dtype: DataType) -> str:
        """A comparison of two values of a type."""

    # ---------------------------------------------------------------- conversions

    def convert(self, value: str, source: DataType, target: DataType) -> str:
        """A value of one type as another; half-precision floats are rounded."""
        if target.is_bool:
            return self.to_bool(value, source)
        if target.is_float:
            return self.to_float(value, source, target)
        if source.is_float:
            return self.float_to_integer(value, source, target)
        return self.to_integer(value, source, target)

    @abstractmethod
    def to_bool(self, value: str, source: DataType) -> str:
        """Whether a number is not zero."""

    @abstractmethod
    def to_float(self, value: str, source: DataType, target: DataType) -> str:
        """The nearest float of a number or a condition."""

    @abstractmethod
    def float_to_integer(self, value: str, source: DataType, target: DataType) -> str:
        """The integer part of a float, kept in the range; NaN gives 0."""

    @abstractmethod
    def to_integer(self, value: str, source: DataType, target: DataType) -> str:
        """The lowest bits of an integer or a condition."""

    def cast_at_once(self, expr: e.Cast) -> str | None:
        """A cast with what it casts, where a language has a better way for both at once; None elsewhere."""
        return None

    def unknown_call(self, expr: e.Call, values: list[str]) -> str:
        """A call of what is not in the table of intrinsics."""
        raise UnsupportedError(f"{self.language} kernels do not know the intrinsic {expr.name!r}")


def reads_memory(expr: PrimExpr) -> bool:
    """Whether an expression has loads."""
    return any(isinstance(item, BufferLoad) for item in pre_order(expr))


# -------------------------------------------------------------------- the rules


def _integer(c: KernelOperators, expr: PrimExpr) -> str:
    assert isinstance(expr, e.IntImm)
    return c.integer_constant(expr.value, INT32 if c.is_narrow(expr) else expr.dtype)


def _float(c: KernelOperators, expr: PrimExpr) -> str:
    assert isinstance(expr, e.FloatImm)
    return c.float_constant(expr.value, expr.dtype)


def _variable(c: KernelOperators, expr: PrimExpr) -> str:
    assert isinstance(expr, Var)
    return c.variable_value(expr)


def _load(c: KernelOperators, expr: PrimExpr) -> str:
    assert isinstance(expr, BufferLoad)
    return c.load(expr)


def _not(c: KernelOperators, expr: PrimExpr) -> str:
    assert isinstance(expr, e.Not)
    return c.invert(c.value(expr.a))


def _arithmetic(c: KernelOperators, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    kind, dtype = type(expr), expr.dtype
    if dtype.is_float:
        if dtype.bits == 16:
            raise CompilerBug(f"{dtype} arithmetic reached the code generator")
        return c.calculate(kind, c.value(expr.a), c.value(expr.b), dtype)
    if c.is_narrow(expr):
        return c.calculate(kind, c.value(expr.a), c.value(expr.b), INT32)
    a, b = c.full(expr.a), c.full(expr.b)
    # Indices do not overflow; data does, and so does what is computed from it.
    if dtype is INDEX and not reads_memory(expr):
        return c.calculate(kind, a, b, dtype)
    return c.wrapping(kind, a, b, dtype)


def _division(c: KernelOperators, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    if expr.dtype.is_float:
        if isinstance(expr, e.Mod):
            return c.float_remainder(c.value(expr.a), c.value(expr.b), expr.dtype)
        return _arithmetic(c, expr)
    division = DIVISIONS[type(expr)]
    a, b, dtype = c.pair(expr.a, expr.b)
    if expr.dtype is INDEX:
        naturals = c.divides_naturals(expr.a, expr.b)
    else:
        naturals = dtype.is_uint and isinstance(expr.b, e.IntImm) and expr.b.value > 0
    divide = c.divide_naturals if naturals and c.has_division(dtype) else c.divide
    return c.widened(expr, divide(division, a, b, dtype), dtype)


def _extreme(c: KernelOperators, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    lesser = isinstance(expr, e.Min)
    a, b, dtype = c.pair(expr.a, expr.b)
    value = c.connect(lesser, a, b) if dtype.is_bool else c.extreme(lesser, a, b, dtype)
    return c.widened(expr, value, dtype)


def _compare(c: KernelOperators, expr: PrimExpr) -> str:
    assert isinstance(expr, e.CompareExpr)
    return c.compare(type(expr), *c.pair(expr.a, expr.b))


def _logical(c: KernelOperators, expr: PrimExpr) -> str:
    """Both or one of two conditions; the second is computed where the first does not decide."""
    assert isinstance(expr, (e.And, e.Or))
    conjunction = isinstance(expr, e.And)
    a = c.value(expr.a)
    if not c.needs_branch(expr.b):
        return c.connect(conjunction, a, c.value(expr.b))
    # What the second declares must not stand before the decision of the first.
    if conjunction:
        return c.choice(a, c.type_of(expr), lambda: c.value(expr.b), lambda: c.truth(False))
    return c.choice(a, c.type_of(expr), lambda: c.truth(True), lambda: c.value(expr.b))


def _select(c: KernelOperators, expr: PrimExpr) -> str:
    """One of two values; a side that reads memory is computed where it is chosen."""
    assert isinstance(expr, e.Select)
    condition, kind = c.value(expr.condition), c.type_of(expr)
    side = c.value if c.is_narrow(expr) else c.full
    if c.needs_branch(expr.a) or c.needs_branch(expr.b):
        return c.choice(condition, kind, lambda: side(expr.a), lambda: side(expr.b))
    return c.select(kind, condition, side(expr.a), side(expr.b))


def _cast(c: KernelOperators, expr: PrimExpr) -> str:
    assert isinstance(expr, e.Cast)
    inner, target = expr.value, expr.dtype
    if inner.dtype is target:
        return c.full(inner)
    if c.addresses_in_32_bits and target is INT32 and inner.dtype is INDEX and not c.is_narrow(inner):
        # What overflows in a sum or product does not change its lowest bits.
        if isinstance(inner, (e.Add, e.Sub, e.Mul)):
            return c.calculate(type(inner), c.index(inner.a), c.index(inner.b), INT32)
        if isinstance(inner, e.IntImm):
            low = inner.value & 0xFFFFFFFF
            return c.integer_constant(low - (1 << 32) if low >> 31 else low, INT32)
    at_once = c.cast_at_once(expr)
    if at_once is not None:
        return at_once
    source = INT32 if c.is_narrow(inner) else inner.dtype
    return c.convert(c.value(inner), source, INT32 if c.is_narrow(expr) else target)


def _call(c: KernelOperators, expr: PrimExpr) -> str:
    assert isinstance(expr, e.Call)
    if expr.name in ("likely", "async_copy"):
        return c.value(expr.args[0])
    if expr.name == "word":
        return _word(c, expr)
    # Indices that are of 32 bits become what their type says: functions are chosen by types.
    values = [c.full(arg) for arg in expr.args]
    rule = c.intrinsics.get(expr.name)
    return c.unknown_call(expr, values) if rule is None else rule(c, expr, values)


def _word(c: KernelOperators, expr: e.Call) -> str:
    """Four bytes as a word: read at once where they are neighbours, from a multiple of four on."""
    first = expr.args[0]
    if isinstance(first, BufferLoad) and first.buffer.scope == "global":
        place = first.indices[0]
        neighbours = all(
            isinstance(item, BufferLoad)
            and item.buffer is first.buffer
            and c.analyzer.prove_equal(item.indices[0], place + number)
            for number, item in enumerate(expr.args)
        )
        if neighbours and c.analyzer.prove_equal(floormod(place, const(4)), const(0)):
            text = c.load_word(first)
            if text is not None:
                return text
    return c.value(joined_bytes(expr.args))


RULES: Final[dict[type, Callable[[KernelOperators, PrimExpr], str]]] = {
    Var: _variable,
    e.IntImm: _integer,
    e.FloatImm: _float,
    **by_family(arithmetic=_arithmetic, division=_division, extreme=_extreme, compare=_compare, logical=_logical),
    e.Not: _not,
    e.Select: _select,
    e.Cast: _cast,
    e.Call: _call,
    BufferLoad: _load,
}
"""The rule of each kind of node."""
