"""Scalar expressions as C text, with the meaning of `docs/semantics.md` where C's own differs.

Values that a statement uses more than once are computed once, into a constant. C's `?:`, `&&` and `||` are lazy as
selections and logic must be; a side that needs constants of its own and reads memory becomes an `if`.
Indices are computed in 32 bits where bounds prove that nothing overflows, in 64 bits otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tilewright.codegen.braces import OPERATORS, BracedValues, not_text, variable_text
from tilewright.codegen.c.convert import cast, load_value
from tilewright.codegen.c.helpers import Helpers
from tilewright.codegen.c.intrinsics import call
from tilewright.codegen.operators import by_family
from tilewright.codegen.values import logical_value, select_value
from tilewright.ir import expr as e
from tilewright.ir.build import const, floordiv, floormod
from tilewright.ir.dtype import INDEX, INT32, DataType
from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.visit import pre_order
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.tir.buffer import Buffer, BufferLoad

if TYPE_CHECKING:
    from tilewright.codegen.c.dialect import Dialect

_LOW, _HIGH = INT32.min_value(), INT32.max_value()


class Expressions(BracedValues):
    """Expressions of one kernel, emitted into lines of C."""

    def __init__(self, dialect: Dialect, helpers: Helpers) -> None:
        super().__init__()
        self.dialect = dialect
        self.helpers = helpers
        self.own_places: dict[Buffer, PrimExpr] = {}
        """The index of the thread's own element in buffers of a warp, which are registers."""
        self.cluster: tuple[Var, int] | None = None
        """The number of this block in its cluster, and how many blocks that has."""
        self.guards: list[PrimExpr] = []
        """The conditions around the statement at hand."""

    def part_of_cluster(self, buffer: Buffer, index: PrimExpr, own: bool = False) -> tuple[PrimExpr, PrimExpr]:
        """The block of the cluster that holds an element, and its place there; `own`: it must be this block."""
        assert self.cluster is not None and isinstance(buffer.shape[0], e.IntImm)
        rank, count = self.cluster
        size = const(buffer.shape[0].value // count)
        with self.analyzer.assume(*self.guards):
            block = self.analyzer.simplify(floordiv(index, size))
            place = self.analyzer.simplify(floormod(index, size))
        if own and block is not rank:
            raise UnsupportedError("a block stores to the shared memory of another one")
        return block, place

    def emit(self, expr: PrimExpr) -> str:
        """The text of an expression that was not met before."""
        handler = _DISPATCH.get(type(expr))
        if handler is None:
            raise UnsupportedError(f"{self.dialect.name} kernels have no {type(expr).__name__}")
        return handler(self, expr)

    def load_first(self, value: PrimExpr) -> None:
        """Read what a value surely reads of global memory before any of it is computed.

        Functions have branches inside, across which compilers move no loads: these would wait one for another.
        """
        if not any(isinstance(item, e.Call) and item.dtype.is_float for item in pre_order(value)):
            return
        found: dict[PrimExpr, None] = {}
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, BufferLoad):
                if item.buffer.scope == "global":
                    found.setdefault(item)
            elif not isinstance(item, (e.Select, e.And, e.Or)):
                stack += [child for child in item.children() if isinstance(child, PrimExpr)]
        for load in found if len(found) > 1 else ():
            self.know(load, self.share(load, self.emit(load)))

    def constant(self, kind: str, name: str, text: str) -> str:
        """The declaration of a constant."""
        return f"const {kind} {name} = {text};"

    def variable(self, kind: str, name: str) -> str:
        """The declaration of a variable that is given its value later."""
        return f"{kind} {name};"

    def needs_branch(self, expr: PrimExpr) -> bool:
        """Whether an expression would put a constant that reads memory in front of the statement."""
        if not any(isinstance(item, BufferLoad) for item in pre_order(expr)):
            return False
        return any(
            isinstance(item, PrimExpr)
            and self._uses.get(item, 0) > 1
            and not isinstance(item, (Var, e.IntImm, e.FloatImm))
            and any(isinstance(inner, (BufferLoad, e.Select)) for inner in pre_order(item))
            for item in pre_order(expr)
        )

    def type_of(self, expr: PrimExpr) -> str:
        """The C type of an expression's text."""
        return self.dialect.types["int32"] if self.is_narrow(expr) else self.dialect.register_type(expr.dtype)

    def widen(self, text: str) -> str:
        """An index of 32 bits in 64."""
        return f"({self.dialect.types['int64']}){text}"

    def select(self, kind: str, condition: str, a: str, b: str) -> str:
        """One of two values; only one of them is computed."""
        return f"({condition} ? {a} : {b})"


def integer_text(value: int, dtype: DataType, dialect: Dialect) -> str:
    """An integer constant of a type."""
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.bits <= 32:
        if value == _LOW:
            return f"({_LOW + 1} - 1)"
        text = f"{value}u" if dtype.is_uint else str(value)
        if dtype.bits < 32:
            return f"(({dialect.register_type(dtype)}){text})"
        return f"({text})" if value < 0 else text
    wide = dialect.types["int64" if dtype.is_int else "uint64"]
    if value == dtype.min_value() and dtype.is_int:
        return f"(({wide})(-{dtype.max_value()}LL) - 1)" if dialect.name == "CUDA" else f"(-{dtype.max_value()}L - 1)"
    suffix = "LL" if dialect.name == "CUDA" else "L"
    return f"(({wide}){value}{'U' if dtype.is_uint else ''}{suffix})"


def _integer(c: Expressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.IntImm)
    return integer_text(expr.value, INT32 if c.is_narrow(expr) else expr.dtype, c.dialect)


def _float(c: Expressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.FloatImm)
    return float_text(expr.value, expr.dtype, c.dialect)


def float_text(value: float, dtype: DataType, dialect: Dialect) -> str:
    """A float constant, exact: in hexadecimal where decimal digits would be many."""
    double = dtype.bits == 64
    if math.isnan(value) or math.isinf(value):
        text = dialect.not_a_number if math.isnan(value) else dialect.infinity
        text = f"(({dialect.types['float64']}){text})" if double else text
        return f"(-{text})" if math.copysign(1.0, value) < 0 else text
    short = repr(value)
    text = short if len(short) <= 8 and ("." in short or "e" in short) else value.hex()
    return f"({text})" if double and value < 0 else text if double else f"({text}f)" if value < 0 else f"{text}f"


def _load(c: Expressions, expr: PrimExpr) -> str:
    assert isinstance(expr, BufferLoad)
    if expr.buffer.scope == "warp":
        name, index = c.name(expr.buffer), expr.indices[0]
        held = name if index is c.own_places[expr.buffer] else c.dialect.shuffle(name, c.value(index))
        return load_value(c, held, expr.buffer.dtype)
    if expr.buffer.scope == "shared.cluster":
        block, index = c.part_of_cluster(expr.buffer, expr.indices[0])
        helper = c.helpers.cluster_load(c.dialect.memory_type(expr.buffer.dtype), 1)
        text = f"{helper}({c.name(expr.buffer)} + {c.value(index)}, {c.value(block)})"
        return load_value(c, text, expr.buffer.dtype)
    return load_value(c, f"{c.name(expr.buffer)}[{c.value(expr.indices[0])}]", expr.buffer.dtype)


def _arithmetic(c: Expressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    operator = OPERATORS[type(expr)]
    dtype = expr.dtype
    if dtype.is_float:
        if dtype.bits == 16:
            raise CompilerBug(f"{dtype} arithmetic reached the code generator")
        return f"({c.value(expr.a)} {operator} {c.value(expr.b)})"
    if dtype is INDEX:
        if c.is_narrow(expr):
            return f"({c.value(expr.a)} {operator} {c.value(expr.b)})"
        a, b = c.full(expr.a), c.full(expr.b)
        if not any(isinstance(item, BufferLoad) for item in pre_order(expr)):
            return f"({a} {operator} {b})"
    else:
        a, b = c.value(expr.a), c.value(expr.b)
    # Signed overflow means nothing in C: data wraps in unsigned types.
    unsigned = c.dialect.types[f"uint{max(32, dtype.bits)}"]
    return f"(({c.dialect.register_type(dtype)})(({unsigned}){a} {operator} ({unsigned}){b}))"


def _division(c: Expressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    kind = type(expr)
    if expr.dtype.is_float:
        if kind is e.Mod:
            return f"{c.dialect.math('fmod', expr.dtype)}({c.value(expr.a)}, {c.value(expr.b)})"
        return f"({c.value(expr.a)} / {c.value(expr.b)})"
    quotient = kind in (e.FloorDiv, e.Div)
    operator = "/" if quotient else "%"
    a, b, dtype = c.pair(expr.a, expr.b)
    positive = isinstance(expr.b, e.IntImm) and expr.b.value > 0
    if expr.dtype.is_uint and positive:
        return f"(({c.dialect.register_type(dtype)})({a} {operator} {b}))"
    if expr.dtype is INDEX and c.divides_naturals(expr.a, expr.b):
        return c.widened(expr, f"({a} {operator} {b})", dtype)
    floors = kind in (e.FloorDiv, e.FloorMod) and not expr.dtype.is_uint
    return c.widened(expr, f"{c.helpers.divide(dtype, floors, quotient)}({a}, {b})", dtype)


def _extreme(c: Expressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    lesser = isinstance(expr, e.Min)
    a, b, dtype = c.pair(expr.a, expr.b)
    if dtype.is_bool:
        return c.connect(lesser, a, b)
    return c.widened(expr, f"{c.helpers.extreme(dtype, lesser)}({a}, {b})", dtype)


def _compare(c: Expressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.CompareExpr)
    a, b, _ = c.pair(expr.a, expr.b)
    return f"({a} {OPERATORS[type(expr)]} {b})"


def _cast(c: Expressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.Cast)
    return cast(c, expr)


def _call(c: Expressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.Call)
    return call(c, expr)


_DISPATCH: Final[dict[type, Callable[[Expressions, PrimExpr], str]]] = {
    Var: variable_text,
    e.IntImm: _integer,
    e.FloatImm: _float,
    **by_family(arithmetic=_arithmetic, division=_division, extreme=_extreme, compare=_compare, logical=logical_value),
    e.Not: not_text,
    e.Select: select_value,
    e.Cast: _cast,
    e.Call: _call,
    BufferLoad: _load,
}
