"""Which operators torch takes apart before a program is imported: those that have no converter of their own."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.torch.registry import find_converter, refusal


def decomposition_table() -> Any:
    """The table for `ExportedProgram.run_decompositions`: all that torch can take apart but what is converted."""
    import torch
    from torch._decomp import decomposition_table as known

    table: Any = torch.export.default_decompositions()
    for operator, decompose in known.items():
        if isinstance(operator, torch._ops.OpOverload) and operator.namespace == "aten":
            table[operator] = decompose
    for operator in list(table.keys()):
        name = operator.name()
        if find_converter(name) is not None or refusal(name) is not None:
            table.pop(operator)
    return table
