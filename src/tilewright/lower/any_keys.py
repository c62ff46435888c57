"""Attention over any number of keys: a model's attention over itself, with and without a past, is one kernel.

Before:  fn (q: [n, t, 8, 64], k: [n, t, 8, 64], v: [n, t, 8, 64], m: [n, 1, t, t]) { nn.attention(q, k, v, m) }
         fn (q: [n, t, 8, 64], k: [n, t + past, 8, 64], v: ..., m: [n, 1, t, t + past]) { nn.attention(q, k, v, m) }
After:   fn (q: [n, t, 8, 64], k: [n, keys, 8, 64], v: [n, keys, 8, 64], m: [n, 1, t, keys]) { ... }
         called with keys = t, keys = t + past

A decoder with both sides in one file has these two, each of them among the longest to compile. That keys are as many as
queries is nothing that a kernel makes use of.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.ir.expr import Call, Function, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ops.attention import AttentionAttributes
from tilewright.ir.expr import IntImm, PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import TensorType
from tilewright.lower.general_sizes import dims_of, types_agree


def any_keys(function: Function) -> tuple[Function, Mapping[Symbol, PrimExpr]]:
    """A primitive function that is attention over keys of a number of their own, and what that is.

    The function itself where it is something else, or where the number of keys is known.
    """
    call = function.body
    if not isinstance(call, Call) or not is_call_to(call, "nn.attention") or call.args != function.params:
        return function, {}
    assert isinstance(call.attributes, AttentionAttributes)
    axes = (-2 if call.attributes.keys_by_head else -3, -2 if call.attributes.values_by_head else -3, -1)
    shape = dims_of(call.args[1].type)
    count = shape[axes[0]] if shape else None
    if count is None or isinstance(count, IntImm):
        return function, {}
    keys, params = Symbol("keys"), [function.params[0]]
    for param, axis in zip(function.params[1:], axes, strict=False):
        kind, lengths = param.type, list(dims_of(param.type))
        if isinstance(kind, TensorType) and lengths and lengths[axis] is count:
            lengths[axis] = keys
            kind = kind.replace(shape=tuple(lengths))
        params.append(Var(param.name, kind))
    body = Call(call.callee, tuple(params), call.attributes)
    general = infer_types(Function(function.name, tuple(params), body, notes=function.notes))
    assert isinstance(general, Function)
    sizes = {keys: count}
    return (general, sizes) if types_agree(function, general, sizes) else (function, {})
