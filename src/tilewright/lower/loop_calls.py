"""Calls of loop functions in graphs: the functions of both levels that lie in one module.

Before:  main(x) = @add_one(x)                      add_one is a loop function of the module
After:   main(x) = loops.add_one_3f2a...(x)         an operator like others
"""

from __future__ import annotations

from tilewright.graph.ir.expr import Call, Function, GlobalVar, GraphExpr
from tilewright.graph.ir.traverse import graph_functions, map_functions, rewrite
from tilewright.ir.function import IRModule
from tilewright.tir.function import PrimFunc
from tilewright.topi.loop_operators import call_loops


def resolve_loop_calls(module: IRModule) -> IRModule:
    """Turn calls of the module's loop functions into calls of operators; the module then has graph functions alone."""
    loops = {name: item for name, item in module.functions.items() if isinstance(item, PrimFunc)}
    if not loops or not graph_functions(module):
        return module

    def resolved(old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
        if isinstance(item, Call) and isinstance(item.callee, GlobalVar) and item.callee.name in loops:
            return call_loops(loops[item.callee.name], *item.args)
        return None

    def rewritten(function: Function) -> Function:
        result = rewrite(function, resolved)
        assert isinstance(result, Function)
        return result

    result = map_functions(module, rewritten)
    return result.with_functions({name: item for name, item in result.functions.items() if name not in loops})
