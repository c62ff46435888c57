"""Derivatives of scalar expressions: how much a value changes with each element of a tensor that it reads.

Reverse mode: one pass from the value down to its loads gives all of them, each expression once. What is below a
condition is only computed where the condition holds, so that a derivative reads nothing that its expression does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import log as logarithm
from math import pi, sqrt

from tilewright.ir import build, intrinsics
from tilewright.ir import expr as e
from tilewright.ir.build import cast, const
from tilewright.ir.expr import TRUE, PrimExpr
from tilewright.ir.intrinsics import ROUNDINGS
from tilewright.ir.node import Node
from tilewright.ir.visit import post_order
from tilewright.support.errors import UserError
from tilewright.te.tensor import TensorLoad

Guard = tuple[PrimExpr, ...]
"""Conditions, outermost first: a later one may be asked only where those before it hold."""
Terms = dict[Guard, PrimExpr]
"""A sum: an expression for each guard under which it counts."""
Part = tuple[PrimExpr, PrimExpr]
"""An operand, and the derivative of an expression for it."""


def derivatives(value: PrimExpr, seed: PrimExpr, wanted: Callable[[TensorLoad], bool]) -> dict[TensorLoad, Terms]:
    """`seed` times the derivative of a value for each of the wanted elements that it reads."""
    order = [item for item in post_order(value) if isinstance(item, PrimExpr)]
    moving = _moving(order, wanted)
    found: dict[TensorLoad, Terms] = {}
    pending: dict[PrimExpr, Terms] = {value: {(): seed}}
    for item in reversed(order):
        terms = pending.pop(item, None)
        if terms is None or item not in moving:
            continue
        if isinstance(item, TensorLoad):
            found[item] = terms
            continue
        for operand, condition, partial in _parts(item):
            if operand in moving:
                _collect(pending.setdefault(operand, {}), terms, condition, partial, operand)
    return found


def _moving(order: Iterable[PrimExpr], wanted: Callable[[TensorLoad], bool]) -> set[PrimExpr]:
    """The floating-point expressions that depend on wanted elements."""
    moving: set[PrimExpr] = set()
    for item in order:
        if not item.dtype.is_float:
            continue
        if isinstance(item, TensorLoad):
            # What an index says of an element is no matter of derivatives.
            if wanted(item):
                moving.add(item)
        elif any(child in moving for child in item.children() if isinstance(child, PrimExpr)):
            moving.add(item)
    return moving


def _collect(total: Terms, terms: Terms, condition: PrimExpr, partial: PrimExpr | None, operand: PrimExpr) -> None:
    for guard, value in terms.items():
        both = guard if condition is TRUE else (*guard, condition)
        scaled = value if partial is None else _times(value, partial)
        scaled = cast(scaled, operand.dtype)
        total[both] = build.add(total[both], scaled) if both in total else scaled


def guarded(guard: Guard, value: PrimExpr) -> PrimExpr:
    """The value where all conditions hold, else zero."""
    for condition in reversed(guard):
        value = build.select(condition, value, const(0, value.dtype))
    return value


def _times(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """A product without factors of one."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, e.FloatImm) and x.value == 1:
            return y
        if isinstance(x, e.FloatImm) and x.value == -1:
            return build.neg(y)
    return build.mul(a, b)


def _parts(item: PrimExpr) -> list[tuple[PrimExpr, PrimExpr, PrimExpr | None]]:
    """Each operand of an expression, when it counts, and the derivative for it (None: one)."""
    if isinstance(item, e.Select):
        return [(item.a, item.condition, None), (item.b, build.logical_not(item.condition), None)]
    if isinstance(item, e.Cast):
        return [(item.value, TRUE, None)]
    rule = _RULES.get(type(item))
    if rule is None:
        raise UserError(
            f"te.gradient: an expression of kind {type(item).__name__} has no derivative",
            hint="compute it from arithmetic and mathematical functions",
        )
    return [(operand, TRUE, partial) for operand, partial in rule(item)]


def _one(item: PrimExpr) -> PrimExpr:
    return const(1.0, item.dtype)


def _zero(item: PrimExpr) -> PrimExpr:
    return const(0.0, item.dtype)


def _extremum(better: Callable[[PrimExpr, PrimExpr], PrimExpr]) -> Callable[[PrimExpr], list[Part]]:
    """The side that is taken; equal ones half each, but a constant takes nothing away from what it is equal to, nor
    does it give anything: the derivative of max(x, 0) at 0 is 0."""

    def rule(item: PrimExpr) -> list[Part]:
        assert isinstance(item, e.BinaryExpr)
        a, b = item.a, item.b

        def share(own: PrimExpr, other: PrimExpr) -> PrimExpr:
            equal = _zero(item) if _is_constant(other) else const(0.5, item.dtype)
            tie = build.select(build.eq(own, other), equal, _zero(item))
            return build.select(better(own, other), _one(item), tie)

        return [(a, share(a, b)), (b, share(b, a))]

    return rule


def _is_constant(item: Node) -> bool:
    return isinstance(item, (e.FloatImm, e.IntImm))


def _remainder(quotient: Callable[[PrimExpr], PrimExpr]) -> Callable[[PrimExpr], list[Part]]:
    def rule(item: PrimExpr) -> list[Part]:
        assert isinstance(item, e.BinaryExpr)
        return [(item.a, _one(item)), (item.b, build.neg(quotient(item.a / item.b)))]

    return rule


def _call(item: PrimExpr) -> list[Part]:
    assert isinstance(item, e.Call)
    if item.name in ROUNDINGS:
        return []
    rule = _FUNCTIONS.get(item.name)
    if rule is None:
        raise UserError(
            f"te.gradient: the function {item.name} has no derivative",
            hint="keep it out of what gradients are asked for, or compute it from arithmetic",
        )
    return list(zip(item.args, rule(item, *item.args), strict=False))


_RULES: dict[type[PrimExpr], Callable[..., list[Part]]] = {
    e.Add: lambda x: [(x.a, _one(x)), (x.b, _one(x))],
    e.Sub: lambda x: [(x.a, _one(x)), (x.b, const(-1.0, x.dtype))],
    e.Mul: lambda x: [(x.a, x.b), (x.b, x.a)],
    e.Div: lambda x: [(x.a, _one(x) / x.b), (x.b, build.neg(x / x.b))],
    e.Max: _extremum(build.gt),
    e.Min: _extremum(build.lt),
    e.Mod: _remainder(intrinsics.trunc),
    e.FloorMod: _remainder(intrinsics.floor),
    e.FloorDiv: lambda x: [],
    e.Call: _call,
}
"""For each kind of expression its operands with their derivatives."""


def _number(value: float) -> Callable[[PrimExpr], PrimExpr]:
    return lambda item: const(value, item.dtype)


def _inverse(item: PrimExpr) -> PrimExpr:
    return _one(item) / item


def _power(item: PrimExpr, x: PrimExpr, y: PrimExpr) -> list[PrimExpr]:
    """The base's is 0 where the exponent is 0; the exponent's 0 where the base is 0 (and it is not negative)."""
    zero, one = _zero(item), _one(item)
    base = build.select(build.eq(y, zero), zero, y * intrinsics.pow(x, y - one))
    vanishes = build.logical_and(build.eq(x, zero), build.ge(y, zero))
    return [base, build.select(vanishes, zero, item * intrinsics.log(x))]


def _sign(x: PrimExpr) -> PrimExpr:
    negative = build.select(build.lt(x, _zero(x)), const(-1.0, x.dtype), _zero(x))
    return build.select(build.gt(x, _zero(x)), _one(x), negative)


def _angle(item: PrimExpr, y: PrimExpr, x: PrimExpr) -> list[PrimExpr]:
    square = x * x + y * y
    return [x / square, build.neg(y / square)]


_FUNCTIONS: dict[str, Callable[..., list[PrimExpr]]] = {
    "exp": lambda f, x: [f],
    "exp2": lambda f, x: [f * _number(logarithm(2))(x)],
    "expm1": lambda f, x: [f + _one(x)],
    "log": lambda f, x: [_inverse(x)],
    "log2": lambda f, x: [_number(1 / logarithm(2))(x) / x],
    "log10": lambda f, x: [_number(1 / logarithm(10))(x) / x],
    "log1p": lambda f, x: [_inverse(x + _one(x))],
    "sqrt": lambda f, x: [_number(0.5)(x) / f],
    "rsqrt": lambda f, x: [_number(-0.5)(x) * f / x],
    "sigmoid": lambda f, x: [f * (_one(x) - f)],
    "tanh": lambda f, x: [_one(x) - f * f],
    "erf": lambda f, x: [_number(2 / sqrt(pi))(x) * intrinsics.exp(build.neg(x * x))],
    "sin": lambda f, x: [intrinsics.cos(x)],
    "cos": lambda f, x: [build.neg(intrinsics.sin(x))],
    "tan": lambda f, x: [_one(x) + f * f],
    "asin": lambda f, x: [intrinsics.rsqrt(_one(x) - x * x)],
    "acos": lambda f, x: [build.neg(intrinsics.rsqrt(_one(x) - x * x))],
    "atan": lambda f, x: [_inverse(_one(x) + x * x)],
    "sinh": lambda f, x: [intrinsics.cosh(x)],
    "cosh": lambda f, x: [intrinsics.sinh(x)],
    "asinh": lambda f, x: [intrinsics.rsqrt(x * x + _one(x))],
    "acosh": lambda f, x: [intrinsics.rsqrt(x * x - _one(x))],
    "atanh": lambda f, x: [_inverse(_one(x) - x * x)],
    "abs": lambda f, x: [_sign(x)],
    "fabs": lambda f, x: [_sign(x)],
    "pow": _power,
    "atan2": _angle,
    "copysign": lambda f, x, y: [_sign(x) * intrinsics.copysign(_one(x), y)],
    "fma": lambda f, a, b, c: [b, a, _one(f)],
    "scale_by_power": lambda f, x, n: [intrinsics.exp2(cast(n, f.dtype))],
}
"""The derivatives of functions for their arguments, from the value and the arguments; those left out are zero."""
