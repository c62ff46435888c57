"""Dead code elimination: let bindings whose variable is not needed, and functions that the entry never reaches.

Before:  let y = conv(x); let z = relu(x); z      and a global function nobody calls
After:   let z = relu(x); z

Nodes of a graph that nothing uses are not part of it in the first place; everything is pure, so a value that is not
needed can go.
"""

from __future__ import annotations

from tilewright.graph.expr import Function, GlobalVar, GraphExpr, Let, Var
from tilewright.graph.infer import fill_type
from tilewright.graph.traverse import children, graph_functions, map_functions, post_order, rewrite
from tilewright.ir.function import BaseFunction, IRModule

ENTRY = "main"


def eliminate_dead_code(module: IRModule) -> IRModule:
    """Remove bindings and functions that are never used (functions only if the module has an entry `main`)."""
    result = map_functions(module, _drop_lets)
    assert isinstance(result, IRModule)
    return _drop_functions(result)


def _live_variables(root: Function) -> set[int]:
    """Variables that the result needs: the value of a let counts only if its variable does."""
    values: dict[int, GraphExpr] = {}
    live: set[int] = set()
    seen: set[int] = set()
    stack: list[GraphExpr] = [root]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Let):
            values[id(item.var)] = item.value
            stack.append(item.body)
            if id(item.var) in live:
                stack.append(item.value)
        elif isinstance(item, Var):
            live.add(id(item))
            if id(item) in values:
                stack.append(values[id(item)])
        else:
            stack.extend(children(item))
    return live


def _drop_lets(function: Function) -> Function:
    live = _live_variables(function)

    def visit(old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
        if isinstance(item, Let) and id(item.var) not in live:
            return item.body
        if item is not old:
            fill_type(item)
            if item.type is None:
                item.type = old.type
        return None

    result = rewrite(function, visit)
    assert isinstance(result, Function)
    return result


def _drop_functions(module: IRModule) -> IRModule:
    functions = graph_functions(module)
    if ENTRY not in functions:
        return module
    reached = {ENTRY}
    stack = [ENTRY]
    while stack:
        for item in post_order(functions[stack.pop()]):
            if isinstance(item, GlobalVar) and item.name not in reached:
                reached.add(item.name)
                if item.name in functions:
                    stack.append(item.name)
    kept: dict[str, BaseFunction] = {
        name: function
        for name, function in module.functions.items()
        if name in reached or not isinstance(function, Function)
    }
    return module if len(kept) == len(module.functions) else module.with_functions(kept)
