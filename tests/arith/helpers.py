"""Helpers of the arithmetic tests: expressions as Python functions, random expressions, points to enumerate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from hypothesis import strategies as st

from tilewright.arith.analyzer import Analyzer
from tilewright.ir import build
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import IntImm, PrimExpr, Range, Var


def rng(low: int | PrimExpr, extent: int | PrimExpr) -> Range:
    return Range(build.as_expr(low, INDEX), build.as_expr(extent, INDEX))


def python_text(expr: PrimExpr, names: Mapping[Var, str]) -> str:
    """A Python expression of the same value; integers are unbounded, as the analyses take index values to be."""

    def text(x: PrimExpr) -> str:
        match x:
            case Var():
                return names[x]
            case IntImm():
                return f"({x.value})" if not x.dtype.is_bool else str(bool(x.value))
            case e.Min():
                return f"min({text(x.a)}, {text(x.b)})"
            case e.Max():
                return f"max({text(x.a)}, {text(x.b)})"
            case e.And():
                return f"({text(x.a)} and {text(x.b)})"
            case e.Or():
                return f"({text(x.a)} or {text(x.b)})"
            case e.Not():
                return f"(not {text(x.a)})"
            case e.Select():
                return f"({text(x.a)} if {text(x.condition)} else {text(x.b)})"
            case e.Div():
                return f"truncdiv({text(x.a)}, {text(x.b)})"
            case e.Mod():
                return f"truncmod({text(x.a)}, {text(x.b)})"
            case e.BinaryExpr():
                return f"({text(x.a)} {x.symbol} {text(x.b)})"
        raise AssertionError(f"no Python text for {x!r}")

    return text(expr)


def function_of(expr: PrimExpr, variables: Sequence[Var]) -> Callable[..., int]:
    """The expression as a function of the variables."""
    names = {var: f"v{position}" for position, var in enumerate(variables)}
    scope = {"truncdiv": build.truncdiv_int, "truncmod": build.truncmod_int}
    function: Callable[..., int] = eval(f"lambda {', '.join(names.values())}: {python_text(expr, names)}", scope)
    return function


def points(domains: Mapping[Var, range]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*domains.values())


def bound(domains: Mapping[Var, range]) -> Analyzer:
    analyzer = Analyzer()
    for var, values in domains.items():
        analyzer.bind(var, rng(values.start, len(values)))
    return analyzer


def value_at(function: Callable[..., int], point: tuple[int, ...]) -> int | None:
    """The value, or None where it is not defined (a division by zero)."""
    try:
        return function(*point)
    except ZeroDivisionError:
        return None


def same_everywhere(a: PrimExpr, b: PrimExpr, domains: Mapping[Var, range]) -> None:
    """Check that b has the value of a wherever a has one."""
    if a is b:
        return
    variables = list(domains)
    f, g = function_of(a, variables), function_of(b, variables)
    for point in points(domains):
        expected = value_at(f, point)
        if expected is not None:
            got = value_at(g, point)
            assert got == expected, f"{a!r}\n-> {b!r}\nat {point}: {got}, expected {expected}"


def index_expressions(variables: Sequence[Var], depth: int = 4) -> st.SearchStrategy[PrimExpr]:
    """Random index expressions; nothing is folded, so the analyses see every shape."""
    positive = st.integers(1, 12).map(lambda v: IntImm(v, INDEX))
    leaves: st.SearchStrategy[PrimExpr] = st.one_of(
        st.sampled_from(list(variables)), st.integers(-9, 12).map(lambda v: IntImm(v, INDEX))
    )

    def extend(inner: st.SearchStrategy[PrimExpr]) -> st.SearchStrategy[PrimExpr]:
        return st.one_of(
            st.builds(e.Add, inner, inner),
            st.builds(e.Sub, inner, inner),
            st.builds(e.Mul, inner, positive),
            st.builds(e.FloorDiv, inner, positive),
            st.builds(e.FloorMod, inner, positive),
            st.builds(e.Min, inner, inner),
            st.builds(e.Max, inner, inner),
            st.builds(e.Mul, inner, inner),
            st.builds(e.FloorDiv, inner, inner),
            st.builds(e.FloorMod, inner, inner),
            st.builds(e.Div, inner, positive),
            st.builds(e.Mod, inner, positive),
            st.builds(e.Select, comparisons(inner), inner, inner),
        )

    return st.recursive(leaves, extend, max_leaves=2**depth)


def comparisons(inner: st.SearchStrategy[PrimExpr]) -> st.SearchStrategy[PrimExpr]:
    kind = st.sampled_from([e.LT, e.LE, e.EQ, e.NE])
    return st.builds(lambda k, a, b: k(a, b), kind, inner, inner)


def conditions(variables: Sequence[Var], depth: int = 3) -> st.SearchStrategy[PrimExpr]:
    """Random conditions of index expressions."""
    leaves = comparisons(index_expressions(variables, 2))

    def extend(inner: st.SearchStrategy[PrimExpr]) -> st.SearchStrategy[PrimExpr]:
        return st.one_of(
            st.builds(e.And, inner, inner),
            st.builds(e.Or, inner, inner),
            st.builds(e.Not, inner),
        )

    return st.recursive(leaves, extend, max_leaves=2**depth)


Scalar = int | float
Value = Scalar | list[Scalar]


def evaluate(expr: PrimExpr, env: Mapping[Var, Value]) -> Value:
    """The exact value of an expression: integers wrap in their type (index values do not), vectors are lists."""
    match expr:
        case Var():
            return env[expr]
        case IntImm() | e.FloatImm():
            return expr.value
        case e.Broadcast():
            return [_scalar(evaluate(expr.value, env))] * expr.lanes
        case e.Ramp():
            base, stride = _scalar(evaluate(expr.base, env)), _scalar(evaluate(expr.stride, env))
            return [_wrap(base + lane * stride, expr.dtype.element) for lane in range(expr.lanes)]
        case e.Select():
            condition = evaluate(expr.condition, env)
            if isinstance(condition, list):
                both = zip(condition, _lanes(evaluate(expr.a, env)), _lanes(evaluate(expr.b, env)), strict=True)
                return [a if chosen else b for chosen, a, b in both]
            return evaluate(expr.a if condition else expr.b, env)
        case e.Not():
            value = evaluate(expr.a, env)
            return [int(not v) for v in value] if isinstance(value, list) else int(not value)
        case e.BinaryExpr():
            a, b = evaluate(expr.a, env), evaluate(expr.b, env)
            if isinstance(a, list):
                return [_binary(type(expr), x, y, expr.dtype.element) for x, y in zip(a, _lanes(b), strict=True)]
            return _binary(type(expr), a, _scalar(b), expr.dtype)
    raise AssertionError(f"no value of {expr!r}")


def _scalar(value: Value) -> Scalar:
    assert not isinstance(value, list)
    return value


def _lanes(value: Value) -> list[Scalar]:
    assert isinstance(value, list)
    return value


def _wrap(value: Scalar, dtype: DataType) -> Scalar:
    return build.wrap_int(int(value), dtype) if dtype.is_integer and dtype is not INDEX else value


def _binary(kind: type[e.BinaryExpr], a: Scalar, b: Scalar, dtype: DataType) -> Scalar:
    if kind is e.And:
        return int(bool(a) and bool(b))
    if kind is e.Or:
        return int(bool(a) or bool(b))
    if kind in (e.Min, e.Max) and isinstance(a, float):
        if math.isnan(a) or math.isnan(b):
            return math.nan
        # The sign of zero is not specified for equal operands.
        return min(a, b) if kind is e.Min else max(a, b)
    if kind is e.Div and isinstance(a, float):
        return a / b if b else math.copysign(math.inf, a) * math.copysign(1.0, b) if a else math.nan
    # They compute with floating-point numbers as well.
    function = cast(Callable[[Scalar, Scalar], Scalar], build._FOLD_INT[kind])
    return _wrap(function(a, b), dtype)
