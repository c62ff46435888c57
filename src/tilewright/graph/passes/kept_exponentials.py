"""Exponentials that a sum has computed are kept for the gradient of its logarithm, where computing them takes longer.

Before:  s = sum(exp(x - m));  ...  exp(x - (m + log(s)))          the weights of softmax, from its logarithm's sum
After:   e = exp(x - m);  s = sum(e);  ...  e * (1 / s)

A cross entropy and its gradient are such a pair. Keeping them costs writing and reading them, which processors with
short vectors do in less time than they compute an exponential.
"""

from __future__ import annotations

from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.options import GraphOptions
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters

_INSTRUCTIONS = 24
"""Vector instructions of an exponential."""
_BYTES = 8
"""What is written and read again of each."""


def kept_exponentials(module: IRModule, options: GraphOptions) -> IRModule:
    """Multiply exponentials that are there instead of computing others."""
    if options.target is None or not _pays(options.target):
        return module
    return map_functions(module, lambda function: apply_rules(function, _RULES))


def _pays(target: Target) -> bool:
    """Whether a core computes an exponential for longer than it takes to store and to load one."""
    if not target.is_cpu:
        return False
    core = cpu_parameters(target).core
    return _INSTRUCTIONS / (core.fma_per_cycle * target.lanes(FLOAT32.bits)) > _BYTES / core.memory_bytes_per_cycle


def _multiplied(b: Bindings) -> GraphExpr | None:
    first, second = b.call("total").args
    for shift, logarithm in ((first, second), (second, first)):
        sums = _argument(logarithm, "log")
        terms = None if sums is None else _argument(sums, "sum")
        difference = None if terms is None else _argument(terms, "exp")
        if sums is None or terms is None or not isinstance(difference, Call) or not is_call_to(difference, "subtract"):
            continue
        if difference.args[0] is b["x"] and difference.args[1] is shift:
            span = b.call("root").span
            return make("multiply", terms, make("reciprocal", sums, span=span), span=span)
    return None


def _argument(item: GraphExpr, name: str) -> GraphExpr | None:
    """What an operator of one argument is called with, if an expression is a call to it."""
    return item.args[0] if isinstance(item, Call) and is_call_to(item, name) else None


_RULES = (
    Rule(
        "exponentials of differences from a logarithm's sum",
        P.op("exp", P.op("subtract", P.any("x"), P.op("add", P.any("a"), P.any("b"), name="total")), name="root"),
        _multiplied,
    ),
)
