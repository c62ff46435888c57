"""Which operators torch takes apart before a program is imported: those that have no converter of their own."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.torch.registry import find_converter, refusal


def decomposition_table() -> Any:
    """The table for `ExportedProgram.run_decompositions`: all that torch can take apart but what is converted."""
    import torch
    from torch._decomp import decomposition_table as known

    table: Any = torch.export.default_decompositions()
    operator: Any
    usual = {operator.name() for operator in list(table.keys())}
    overloads: Any = known.items()
    for operator, decompose in overloads:
        if not isinstance(operator, torch._ops.OpOverload) or operator.namespace != "aten":
            continue
        # Views stay whole: their references are primitives that cannot be made functional.
        is_view = any(item.alias_info is not None for item in operator._schema.returns)
        if operator.name() not in usual and not is_view:
            table[operator] = decompose
    for operator in list(table.keys()):
        name = operator.name()
        if find_converter(name) is not None or refusal(name) is not None:
            table.pop(operator)
    return table
