"""Dead code elimination: let bindings whose variable is not needed, and functions that the entry never reaches.

Before:  let y = conv(x); let z = relu(x); z      and a global function nobody calls
After:   let z = relu(x); z

Nodes of a graph that nothing uses are not part of it in the first place; everything is pure, so a value that is not
needed can go. A binding that gives symbols values stays while sizes depend on them.
"""

from __future__ import annotations

from tilewright.graph.ir.dimensions import symbols_of
from tilewright.graph.ir.expr import Call, Function, GlobalVar, GraphExpr, Let, Var
from tilewright.graph.ir.infer import keep_type
from tilewright.graph.ir.op import introduces_symbols
from tilewright.graph.ir.traverse import children, graph_functions, map_functions, post_order, rewrite
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import BaseFunction, IRModule

ENTRY = "main"


def eliminate_dead_code(module: IRModule) -> IRModule:
    """Remove bindings and functions that are never used (functions only if the module has an entry `main`)."""
    return _drop_functions(map_functions(module, _drop_lets))


class _Live:
    """What the result of a function needs: the value of a let counts only if its variable, or a symbol, does."""

    def __init__(self, root: Function) -> None:
        self.variables: set[int] = set()
        self.symbols: set[Symbol] = set()
        self._lets: list[Let] = []
        self._seen: set[int] = set()
        self._mark(root)
        waiting = self._lets
        while True:
            needed = [item for item in waiting if self.needs(item)]
            if not needed:
                return
            self._lets = [item for item in waiting if not self.needs(item)]
            for item in needed:
                self._mark(item.value)
            waiting = self._lets

    def needs(self, item: Let) -> bool:
        """Whether a binding must stay."""
        if id(item.var) in self.variables:
            return True
        return introduces_symbols(item.value) and any(symbol in self.symbols for symbol in _symbols(item.value))

    def _mark(self, root: GraphExpr) -> None:
        stack: list[GraphExpr] = [root]
        while stack:
            item = stack.pop()
            if id(item) in self._seen:
                continue
            self._seen.add(id(item))
            self.symbols.update(_symbols(item))
            if isinstance(item, Let):
                self._lets.append(item)
                stack.append(item.body)
            elif isinstance(item, Var):
                self.variables.add(id(item))
            else:
                stack.extend(children(item))


def _symbols(item: GraphExpr) -> list[Symbol]:
    """The symbols that an expression itself mentions: in its attributes, and in the types that a function declares."""
    if isinstance(item, Call):
        return [] if item.attributes is None else symbols_of(item.attributes)
    if isinstance(item, Function):
        return symbols_of((*(param.annotation for param in item.params), item.result_type))
    return []


def _drop_lets(function: Function) -> Function:
    live = _Live(function)

    def visit(old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
        if isinstance(item, Let) and isinstance(old, Let) and not live.needs(old):
            return item.body
        keep_type(old, item)
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
