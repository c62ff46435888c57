"""Gradients of operators, one rule an operator, by name.

    @reverse_rule("sin")
    def sin(call: Call, cotangent: GraphExpr) -> Cotangents:
        return [multiply(cotangent, make("cos", call.args[0]))]

A rule gets a call (its inputs are typed; the call itself is the result) and the cotangent of its result, and gives a
cotangent an input: None where there is none, a function of no arguments where it is built only if somebody needs it.
Of an operator that gives a tuple the cotangent is a list, with None for items that nothing uses.

Forward mode needs no rules of its own: a reverse rule is linear in the cotangent, and the transpose of what it
computes is the forward rule. Where that is roundabout, `forward_rule` states it; `linear` operators state their
transpose once and get both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.op import get_operator
from tilewright.support.errors import UserError

Later = Callable[[], GraphExpr]
Cotangents = Sequence[GraphExpr | Later | None]
ReverseRule = Callable[[Call, Any], Cotangents]
"""(call, cotangent of its result) -> cotangents of its inputs."""
ForwardRule = Callable[[Call, Sequence[GraphExpr | None]], GraphExpr]
"""(call, tangents of its inputs, None for zero) -> tangent of its result."""


@dataclass(frozen=True)
class Gradient:
    """What is known of the gradient of an operator."""

    reverse: ReverseRule | None = None
    forward: ForwardRule | None = None
    blocks: str | None = None
    """Why its derivative is zero everywhere, or by decree: nothing flows back through it, and that is no error."""
    refuses: str | None = None
    """Why it has no derivative: asking for one is an error."""


_GRADIENTS: dict[str, Gradient] = {}


def _register(names: Sequence[str], gradient: Gradient) -> None:
    for name in names:
        get_operator(name)
        if name in _GRADIENTS:
            raise UserError(f"the gradient of operator {name} is registered twice")
        _GRADIENTS[name] = gradient


def reverse_rule(*names: str) -> Callable[[ReverseRule], ReverseRule]:
    """Register the reverse rule of operators; decorates it."""

    def register(rule: ReverseRule) -> ReverseRule:
        _register(names, Gradient(reverse=rule))
        return rule

    return register


def forward_rule(name: str) -> Callable[[ForwardRule], ForwardRule]:
    """Register the forward rule of an operator that has a reverse rule; decorates it."""

    def register(rule: ForwardRule) -> ForwardRule:
        known = _GRADIENTS.get(name)
        if known is None or known.reverse is None or known.forward is not None:
            raise UserError(f"operator {name} needs a reverse rule, and no forward rule, before it gets one")
        _GRADIENTS[name] = Gradient(known.reverse, rule)
        return rule

    return register


def linear(*names: str) -> Callable[[ReverseRule], ReverseRule]:
    """Register the transpose of operators that are linear in their first input and have no other differentiable one."""

    def tangent(call: Call, tangents: Sequence[GraphExpr | None]) -> GraphExpr:
        first = tangents[0]
        assert first is not None
        result = Call(call.callee, (first, *call.args[1:]), call.attributes)
        result.type = call.type
        return result

    def register(rule: ReverseRule) -> ReverseRule:
        _register(names, Gradient(rule, tangent))
        return rule

    return register


def blocks_gradient(reason: str, *names: str) -> None:
    """Say that nothing flows back through operators."""
    _register(names, Gradient(blocks=reason))


def refuses_gradient(reason: str, *names: str) -> None:
    """Say that operators have no derivative, and why."""
    _register(names, Gradient(refuses=reason))


def gradient_of(name: str) -> Gradient | None:
    """What is known of the gradient of an operator; None if nothing is."""
    return _GRADIENTS.get(name)


def gradients() -> dict[str, Gradient]:
    """All that is known, by operator (a copy)."""
    return dict(_GRADIENTS)


def require_rule(call: Call, name: str) -> Gradient:
    """The gradient of an operator that a derivative goes through."""
    known = _GRADIENTS.get(name)
    where = None if call.span is None else str(call.span)
    if known is None:
        raise UserError(
            f"operator {name} has no gradient rule",
            where=where,
            hint="register one (graph.gradient.registry.reverse_rule), or put stop_gradient before it",
        )
    if known.refuses is not None:
        raise UserError(
            f"operator {name} is not differentiable: {known.refuses}",
            where=where,
            hint="put stop_gradient before it if nothing shall flow back",
        )
    return known
