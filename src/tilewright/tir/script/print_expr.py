"""Printing of scalar expressions in the script dialect, with as few parentheses and types as parse back exactly."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from tilewright.ir import expr as e
from tilewright.ir import intrinsics
from tilewright.ir.dtype import INDEX, INT32, DataType
from tilewright.ir.expr import FloatImm, IntImm, PrimExpr, Var
from tilewright.support.errors import CompilerBug
from tilewright.tir.buffer import BufferLoad, BufferRegion
from tilewright.tir.script.names import NameTable, quoted

_TERNARY, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _UNARY, _ATOM = range(1, 10)
_LEVELS: Final[dict[type, int]] = {
    e.Add: _SUM,
    e.Sub: _SUM,
    e.Mul: _PRODUCT,
    e.Div: _PRODUCT,
    e.FloorDiv: _PRODUCT,
    e.FloorMod: _PRODUCT,
    e.EQ: _COMPARE,
    e.NE: _COMPARE,
    e.LT: _COMPARE,
    e.LE: _COMPARE,
}
_PLAIN_SIZE = 160
"""An expression of more nodes than this, written out as a tree, is printed with aliases for its shared parts."""
_DEPTH = 40
"""Nesting at which a part gets an alias of its own (Python's parser has a limit)."""
_NAN_BITS: Final = struct.pack("<d", math.nan)


def is_literal(expr: PrimExpr) -> bool:
    """Whether an expression is a number constant."""
    return isinstance(expr, (IntImm, FloatImm))


def float_text(value: float, dtype: DataType) -> str:
    """A finite float as the shortest literal that rounds back to it in its type."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if dtype.name != "float64" and float(single) == value:
        return str(single)
    return repr(value)


class ExprPrinter:
    """Prints expressions; names come from a table shared with the statements."""

    def __init__(self, names: NameTable) -> None:
        self.names = names
        self._aliases: dict[PrimExpr, str] = {}

    # ---------------------------------------------------------------- aliases

    def aliases(self, roots: Iterable[PrimExpr]) -> list[str]:
        """Lines that define names for parts of these expressions that are shared or too deep; used from now on."""
        self._aliases = {}
        pending = list(roots)
        counts: dict[PrimExpr, int] = {}
        order: list[PrimExpr] = []
        stack: list[tuple[PrimExpr, bool]] = [(root, False) for root in pending]
        while stack:
            item, expanded = stack.pop()
            if expanded:
                order.append(item)
                continue
            counts[item] = counts.get(item, 0) + 1
            if counts[item] == 1:
                stack.append((item, True))
                stack.extend((child, False) for child in item.children() if isinstance(child, PrimExpr))
        sizes: dict[PrimExpr, int] = {}
        depths: dict[PrimExpr, int] = {}
        for item in order:
            below = [child for child in item.children() if isinstance(child, PrimExpr)]
            sizes[item] = min(1 + sum(sizes[child] for child in below), 1 << 40)
            depths[item] = 1 + max([depths[child] for child in below], default=0)
        if sum(sizes[root] for root in pending) <= _PLAIN_SIZE and max(depths.values(), default=0) <= _DEPTH:
            return []
        return self._define(order, counts)

    def forget_aliases(self) -> None:
        """Names given for an earlier statement are out of scope."""
        self._aliases = {}

    def _define(self, order: list[PrimExpr], counts: dict[PrimExpr, int]) -> list[str]:
        lines: list[str] = []
        sizes: dict[PrimExpr, int] = {}
        depths: dict[PrimExpr, int] = {}
        for item in order:
            below = [child for child in item.children() if isinstance(child, PrimExpr)]
            sizes[item] = 1 + sum(sizes[child] for child in below)
            depths[item] = 1 + max([depths[child] for child in below], default=0)
            leaf = is_literal(item) or isinstance(item, (Var, e.StringImm))
            if leaf or not ((counts[item] > 1 and sizes[item] >= 4) or depths[item] >= _DEPTH):
                continue
            text = self.text(item)
            name = self.names.fresh("e")
            self._aliases[item] = name
            lines.append(f"{name} = alias({text})")
            sizes[item] = depths[item] = 1
        return lines

    # ---------------------------------------------------------------- entry points

    def text(self, expr: PrimExpr, bare: DataType | None = None) -> str:
        """The text of an expression where a number alone would be taken as `bare` (None: types are spelled out)."""
        return self._visit(expr, 0, bare)

    def index(self, expr: PrimExpr) -> str:
        """The text of an index, extent or bound: a number alone is of the index type."""
        return self._visit(expr, 0, INDEX)

    def indices(self, items: tuple[PrimExpr, ...]) -> str:
        """The text between the brackets of an access."""
        return ", ".join(self.index(item) for item in items) if items else "()"

    def shape(self, dims: tuple[PrimExpr, ...]) -> str:
        """Dimensions as a tuple."""
        inner = ", ".join(self.index(dim) for dim in dims)
        return f"({inner},)" if len(dims) == 1 else f"({inner})"

    def region(self, region: BufferRegion) -> str:
        """A region: an index for a single element, a slice for more."""
        parts = [self._range(item) for item in region.region]
        return f"{self.names.of(region.buffer)}[{', '.join(parts) or '()'}]"

    def _range(self, item: e.Range) -> str:
        if item.extent is e.ONE:
            return self.index(item.min)
        low, count = item.min, item.extent
        if e.is_const_int(low, 0):
            return f"{self.index(low)}:{self.index(count)}"
        if isinstance(low, IntImm) and isinstance(count, IntImm) and low.dtype is count.dtype is INDEX:
            return f"{low.value}:{low.value + count.value}"
        end = e.Add(low, count) if low.dtype is count.dtype else None
        if end is None:
            raise CompilerBug(f"a range with bounds of types {low.dtype} and {count.dtype}")
        return f"{self.index(low)}:{self.text(end)}"

    # ---------------------------------------------------------------- the tree

    def _visit(self, expr: PrimExpr, level: int, bare: DataType | None) -> str:
        alias = self._aliases.get(expr)
        if alias is not None:
            return alias
        handler = _HANDLERS.get(type(expr))
        if handler is None:
            return self._foreign(expr)
        text, own = handler(self, expr, bare)
        return f"({text})" if own < level else text

    def _foreign(self, expr: PrimExpr) -> str:
        # Expressions of floors above (tensor loads and the like) print for people, not for the parser.
        fields = ", ".join(
            self._visit(value, 0, None) if isinstance(value, PrimExpr) else str(value) for value in expr.field_values()
        )
        return f"{type(expr).__name__}({fields})"

    def _pair(self, a: PrimExpr, b: PrimExpr, left: int, right: int) -> tuple[str, str]:
        """Two operands of one type: a number takes the type of the other side, unless both are numbers."""
        plain = not (is_literal(a) and is_literal(b))
        return (
            self._visit(a, left, b.dtype if plain else None),
            self._visit(b, right, a.dtype if plain else None),
        )

    def _var(self, expr: Var, bare: DataType | None) -> tuple[str, int]:
        return self.names.of(expr), _ATOM

    def _int(self, expr: IntImm, bare: DataType | None) -> tuple[str, int]:
        text = str(bool(expr.value)) if expr.dtype.is_bool else str(expr.value)
        if bare is expr.dtype:
            return text, (_UNARY if expr.value < 0 else _ATOM)
        return f"{expr.dtype}({text})", _ATOM

    def _float(self, expr: FloatImm, bare: DataType | None) -> tuple[str, int]:
        value = expr.value
        if math.isfinite(value):
            text = float_text(value, expr.dtype)
            if bare is expr.dtype:
                return text, (_UNARY if text[0] == "-" else _ATOM)
            return f"{expr.dtype}({text})", _ATOM
        bits = struct.pack("<d", value)
        name = str(value) if math.isinf(value) or bits == _NAN_BITS else f"nan:{bits.hex()}"
        return f'{expr.dtype}("{name}")', _ATOM

    def _string(self, expr: e.StringImm, bare: DataType | None) -> tuple[str, int]:
        return quoted(expr.value), _ATOM

    def _cast(self, expr: e.Cast, bare: DataType | None) -> tuple[str, int]:
        value = self._visit(expr.value, 0, None)
        return (f"{expr.dtype}({value})" if expr.dtype.is_scalar else f'cast({value}, "{expr.dtype}")'), _ATOM

    def _binary(self, expr: e.BinaryExpr, bare: DataType | None) -> tuple[str, int]:
        if isinstance(expr, e.Div) and not expr.dtype.is_float:
            return self._function("truncdiv", expr)
        level = _LEVELS[type(expr)]
        a, b = self._pair(expr.a, expr.b, level, level + 1)
        return f"{a} {expr.symbol} {b}", level

    def _compare(self, expr: e.BinaryExpr, bare: DataType | None) -> tuple[str, int]:
        a, b = self._pair(expr.a, expr.b, _COMPARE + 1, _COMPARE + 1)
        return f"{a} {expr.symbol} {b}", _COMPARE

    def _function(self, name: str, expr: e.BinaryExpr) -> tuple[str, int]:
        a, b = self._pair(expr.a, expr.b, 0, 0)
        return f"{name}({a}, {b})", _ATOM

    def _named(self, expr: e.BinaryExpr, bare: DataType | None) -> tuple[str, int]:
        return self._function({e.Min: "min", e.Max: "max", e.Mod: "truncmod"}[type(expr)], expr)

    def _logical(self, expr: e.BinaryExpr, bare: DataType | None) -> tuple[str, int]:
        word, level = ("and", _AND) if isinstance(expr, e.And) else ("or", _OR)
        a, b = self._pair(expr.a, expr.b, level, level + 1)
        return f"{a} {word} {b}", level

    def _not(self, expr: e.Not, bare: DataType | None) -> tuple[str, int]:
        return f"not {self._visit(expr.a, _NOT, None)}", _NOT

    def _select(self, expr: e.Select, bare: DataType | None) -> tuple[str, int]:
        test = self._visit(expr.condition, _OR, None)
        a, b = self._pair(expr.a, expr.b, _OR, _TERNARY)
        return f"{a} if {test} else {b}", _TERNARY

    def _ramp(self, expr: e.Ramp, bare: DataType | None) -> tuple[str, int]:
        base, stride = self._visit(expr.base, 0, INDEX), self._visit(expr.stride, 0, INDEX)
        return f"ramp({base}, {stride}, {expr.lanes})", _ATOM

    def _broadcast(self, expr: e.Broadcast, bare: DataType | None) -> tuple[str, int]:
        return f"broadcast({self._visit(expr.value, 0, None)}, {expr.lanes})", _ATOM

    def _load(self, expr: BufferLoad, bare: DataType | None) -> tuple[str, int]:
        return f"{self.names.of(expr.buffer)}[{self.indices(expr.indices)}]", _ATOM

    def _call(self, expr: e.Call, bare: DataType | None) -> tuple[str, int]:
        name, args = expr.name, expr.args
        first = args[0] if args else None
        if name == "barrier" and len(args) == 1 and isinstance(first, e.StringImm) and expr.dtype is INT32:
            return f"barrier({quoted(first.value)})", _ATOM
        if name == "reinterpret" and first is not None and len(args) == 1:
            return f'reinterpret({self.text(first)}, "{expr.dtype}")', _ATOM
        if name == "call_extern" and isinstance(first, e.StringImm):
            rest = "".join(f", {self.text(arg)}" for arg in args[1:])
            return f'call_extern("{expr.dtype}", {quoted(first.value)}{rest})', _ATOM
        if self._follows_rule(expr):
            typed = next((arg.dtype for arg in args if not is_literal(arg)), None)
            return f"{name}({', '.join(self._visit(arg, 0, typed) for arg in args)})", _ATOM
        parts = [quoted(name), *(self.text(arg) for arg in args), f'dtype="{expr.dtype}"']
        return f"call({', '.join(parts)})", _ATOM

    @staticmethod
    def _follows_rule(expr: e.Call) -> bool:
        intrinsic = intrinsics.table.get(expr.name)
        if intrinsic is None or intrinsic.arity != len(expr.args) or intrinsic.result == "given":
            return False
        types = tuple(arg.dtype for arg in expr.args)
        if any(not intrinsic.accepts_type(dtype) or dtype is not types[0] for dtype in types):
            return False
        return intrinsic.result_type(types) is expr.dtype


_HANDLERS: Final[dict[type, Callable[[ExprPrinter, Any, DataType | None], tuple[str, int]]]] = {
    Var: ExprPrinter._var,
    IntImm: ExprPrinter._int,
    FloatImm: ExprPrinter._float,
    e.StringImm: ExprPrinter._string,
    e.Cast: ExprPrinter._cast,
    **dict.fromkeys((e.Add, e.Sub, e.Mul, e.Div, e.FloorDiv, e.FloorMod), ExprPrinter._binary),
    **dict.fromkeys((e.EQ, e.NE, e.LT, e.LE), ExprPrinter._compare),
    **dict.fromkeys((e.Min, e.Max, e.Mod), ExprPrinter._named),
    **dict.fromkeys((e.And, e.Or), ExprPrinter._logical),
    e.Not: ExprPrinter._not,
    e.Select: ExprPrinter._select,
    e.Ramp: ExprPrinter._ramp,
    e.Broadcast: ExprPrinter._broadcast,
    e.Call: ExprPrinter._call,
    BufferLoad: ExprPrinter._load,
}
