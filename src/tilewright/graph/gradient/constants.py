"""Weights as inputs: constants of a program that have names become parameters, so that there is something to train.

    parameters_of(module)                 {"0.weight": Constant, "0.bias": Constant, ...}
    lift_constants(module, ["0.weight"])  the module with an input "0.weight", and its value
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.ir.expr import Constant, Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Array
from tilewright.graph.ir.traverse import children, graph_functions, post_order, with_children
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError

ENTRY = "main"


def entry_of(module: IRModule, entry: str = ENTRY) -> Function:
    """The graph function that a module is about."""
    function = module[entry]
    if not isinstance(function, Function):
        raise UserError(f"{entry} is not a graph function")
    return function


def parameters_of(module: IRModule, entry: str = ENTRY) -> dict[str, Constant]:
    """The float constants of a program's entry that have names of their own, by name, in order of use.

    A constant has the name that the model gives it. Of several that share one (an importer that reshapes a weight
    names the result as the node that uses it), the second is called `name.2`, and so on; scalars without a name of a
    tensor of the model are numbers of the program, not weights.
    """
    names: dict[str, Constant] = {}
    seen: set[str] = {var.name for var in entry_of(module, entry).params}
    for item in post_order(entry_of(module, entry)):
        if not isinstance(item, Constant) or item.span is None or not item.dtype.is_float:
            continue
        plain = str(item.span)
        if item.data.ndim == 0 and "/" in plain:
            continue
        name, number = plain, 1
        while name in seen:
            number += 1
            name = f"{plain}.{number}"
        seen.add(name)
        names[name] = item
    return names


def lift_constants(
    module: IRModule, names: Sequence[str] | None = None, entry: str = ENTRY
) -> tuple[IRModule, dict[str, Array]]:
    """The module whose entry takes named constants as further inputs (all of `parameters_of` if none are said).

    Gives the values that they had, by name, in the order of the new inputs.
    """
    known = parameters_of(module, entry)
    wanted = list(known) if names is None else list(names)
    for name in wanted:
        if name not in known:
            listed = ", ".join(list(known)[:8]) or "none"
            raise UserError(f"the program has no float constant named {name!r}", hint=f"it has: {listed}")
    function = entry_of(module, entry)
    made: dict[int, GraphExpr] = {}
    params: list[Var] = []
    for name in wanted:
        var = Var(name, known[name].type)
        var.span = known[name].span
        made[id(known[name])] = var
        params.append(var)
    for item in post_order(function):
        if id(item) in made:
            continue
        rebuilt = with_children(item, [made[id(child)] for child in children(item)])
        if isinstance(rebuilt, Function) and item is function:
            rebuilt = rebuilt.replace(params=(*function.params, *params))
        made[id(item)] = rebuilt
    lifted = made[id(function)]
    assert isinstance(lifted, Function)
    result = module.with_functions({**graph_functions(module), **module.functions, entry: lifted})
    return infer_types(result), {name: known[name].data for name in wanted}
