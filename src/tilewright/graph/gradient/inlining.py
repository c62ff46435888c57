"""Functions put in place of their calls, where that is all there is to them.

Before:  def double(x): x + x          After:  main(x): (x + x) + (x + x)
         main(x): double(double(x))

Stays a call: of a function that calls itself, that brings its own gradient, or that has sizes of its own (symbols).
"""

from __future__ import annotations

from tilewright.graph.gradient.binders import with_fresh_binders
from tilewright.graph.gradient.custom import custom_names
from tilewright.graph.gradient.expressions import substituted
from tilewright.graph.ir.dimensions import symbols_of
from tilewright.graph.ir.expr import Call, Function, GlobalVar, GraphExpr, Let, Var
from tilewright.graph.ir.op import introduces_symbols
from tilewright.graph.ir.traverse import graph_functions, post_order, rewrite
from tilewright.ir.function import IRModule
from tilewright.support.order import children_first

_MOST_NODES = 200_000
"""A program is not made longer than this by putting functions in place."""
_MOST_ROUNDS = 1000


def callees(function: Function) -> list[str]:
    """The functions of the module that one names."""
    return [item.name for item in post_order(function) if isinstance(item, GlobalVar)]


def recursive_functions(functions: dict[str, Function]) -> set[str]:
    """The functions that come back to themselves."""
    below = {name: [callee for callee in callees(item) if callee in functions] for name, item in functions.items()}
    found: set[str] = set()
    for name in functions:
        seen: set[str] = set()
        stack = list(below[name])
        while stack:
            callee = stack.pop()
            if callee not in seen:
                seen.add(callee)
                stack.extend(below[callee])
        if name in seen:
            found.add(name)
    return found


def inline_functions(module: IRModule) -> IRModule:
    """The module with its functions in place of calls, as far as that goes; types are to be inferred anew."""
    functions = graph_functions(module)
    kept = recursive_functions(functions) | {n for n, item in functions.items() if _has_own_sizes(item)}
    kept |= {name for name, item in functions.items() if custom_names(item) is not None}
    order = children_first(list(functions), lambda name: [c for c in callees(functions[name]) if c in functions])
    done: dict[str, Function] = {}
    for name in order:
        done[name] = _inlined(functions[name], {n: item for n, item in done.items() if n not in kept})
    return module.with_functions({**module.functions, **done})


def _has_own_sizes(function: Function) -> bool:
    if any(symbols_of(var.type) for var in function.params if var.type is not None):
        return True
    return any(introduces_symbols(item) for item in post_order(function))


def _inlined(function: Function, known: dict[str, Function]) -> Function:
    size = 0

    def replace(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
        nonlocal size
        if not (isinstance(new, Call) and isinstance(new.callee, GlobalVar) and new.callee.name in known):
            return None
        callee = known[new.callee.name]
        size += len(post_order(callee))
        return applied(callee, new.args) if size < _MOST_NODES else None

    if not any(name in known for name in callees(function)):
        return function
    result = rewrite(function, replace)
    assert isinstance(result, Function)
    return result


def applied(function: Function, args: tuple[GraphExpr, ...]) -> GraphExpr:
    """The body of a function with arguments for its parameters."""
    fresh = with_fresh_binders(function)
    return substituted(fresh.body, {id(var): arg for var, arg in zip(fresh.params, args, strict=True)})


def reduce_closures(function: Function) -> Function:
    """Calls of functions that stand at the call, or are bound by a `let` and do not call themselves, in place."""
    for _ in range(_MOST_ROUNDS):
        bound = {
            id(item.var): item.value
            for item in post_order(function)
            if isinstance(item, Let) and isinstance(item.value, Function) and not _names(item.value, item.var)
        }
        changed = bool(bound)

        def replace(old: GraphExpr, new: GraphExpr, bound: dict[int, Function] = bound) -> GraphExpr | None:
            nonlocal changed
            if isinstance(old, Let) and id(old.var) in bound:
                assert isinstance(new, Let)
                return new.body
            if isinstance(new, Call) and isinstance(new.callee, Function):
                changed = True
                return applied(new.callee, new.args)
            return None

        result = rewrite(function, replace, bound)
        assert isinstance(result, Function)
        function = result
        if not changed:
            break
    return function


def _names(function: Function, var: Var) -> bool:
    return any(item is var for item in post_order(function))
