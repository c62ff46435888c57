"""First-order form: functions that are called where they are known are put in place, so that no closure is left.

Before:  let twice = fn(f, x) { f(f(x)) }; twice(fn(y) { sin(y) }, x)
After:   sin(sin(x))

A local function that calls itself becomes a function of the module, with what it sees as parameters. A function of
the module that calls itself and takes a function is copied for the function it is given (`map(fn(x) { x * w }, xs)`).
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.gradient.binders import with_fresh_binders
from tilewright.graph.gradient.constants import entry_of
from tilewright.graph.gradient.custom import custom_names
from tilewright.graph.gradient.inlining import callees, inline_functions, reduce_closures
from tilewright.graph.gradient.lifting import lift_closures, specialize
from tilewright.graph.ir.expr import Call, Function, GlobalVar, GraphExpr
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.traverse import graph_functions, post_order, rewrite
from tilewright.graph.passes.canonicalize import inline_lets
from tilewright.ir.function import IRModule
from tilewright.ir.types import FunctionType


def first_order(module: IRModule, entry: str) -> IRModule:
    """The typed module without closures as far as possible, with an entry that nothing calls."""
    infer_types(module)
    module = reachable(_with_own_entry(module, entry), entry)
    module = _map(module, inline_lets)
    if any(_is_higher_order(item) for item in graph_functions(module).values()):
        module = infer_types(_map(infer_types(inline_functions(module)), reduce_closures))
        module = infer_types(lift_closures(module))
        module = infer_types(specialize(module))
        module = reachable(module, entry)
        module = _map(module, reduce_closures)
    module = infer_types(reachable(inline_functions(module), entry))
    return infer_types(_map(module, inline_lets))


def _map(module: IRModule, function: Callable[[Function], Function]) -> IRModule:
    changed = {name: function(item) for name, item in graph_functions(module).items()}
    return module.with_functions({**module.functions, **changed})


def _is_higher_order(function: Function) -> bool:
    """Whether functions are values somewhere in a function."""
    if any(isinstance(var.type, FunctionType) for var in function.params):
        return True
    return any(isinstance(item, Function) and item is not function for item in post_order(function))


def reachable(module: IRModule, entry: str) -> IRModule:
    """The module without the graph functions that the entry never reaches."""
    functions = graph_functions(module)
    seen: set[str] = set()
    stack = [entry]
    while stack:
        name = stack.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        stack.extend((*callees(functions[name]), *(custom_names(functions[name]) or ())))
    kept = {name: item for name, item in module.functions.items() if name in seen or name not in functions}
    return module.with_functions(kept)


def _with_own_entry(module: IRModule, entry: str) -> IRModule:
    """An entry that calls itself is a function of its own, which the entry calls."""
    function = entry_of(module, entry)
    if all(entry not in callees(item) for item in graph_functions(module).values()):
        return module
    name = f"{entry}_itself"
    while name in module.functions:
        name += "_"

    def renamed(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
        return GlobalVar(name) if isinstance(old, GlobalVar) and old.name == entry else None

    changed: dict[str, Function] = {}
    for found, item in graph_functions(module).items():
        result = rewrite(item, renamed)
        assert isinstance(result, Function)
        changed[found] = result
    inner = with_fresh_binders(function)
    assert isinstance(function.type, FunctionType)
    outside = Call(GlobalVar(name), inner.params)
    body = changed.pop(entry).replace(name=name)
    functions = {**module.functions, **changed, name: body, entry: Function(entry, inner.params, outside)}
    return infer_types(module.with_functions(functions))
