"""Which operators torch takes apart before a program is imported: those that have no converter of their own."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.torch.assertions import UNSAID
from tilewright.frontend.torch.registry import find_converter, refusal

UPDATES_STATISTICS = "aten::batch_norm"
"""Writes to its statistics in training, which its schema does not say: taken apart, it gives them as results."""


def decomposition_table() -> Any:
    """The table for `ExportedProgram.run_decompositions`: all that torch can take apart but what is converted."""
    import torch

    table: Any = torch.export.default_decompositions()
    usual = {operator.name() for operator in list(table.keys())}
    for operator, decompose in _known():
        if operator.name() not in usual:
            table[operator] = decompose
    for operator in list(table.keys()):
        if _is_kept(operator):
            table.pop(operator)
    table[_assert_without_message()] = _assert_with_message
    return table


def graph_decompositions() -> dict[Any, Any]:
    """The table for graphs that `torch.compile` captures, where composite operators are taken apart already."""
    from torch._decomp import core_aten_decompositions

    usual: Any = core_aten_decompositions()
    table = dict(_known()) | {operator: usual[operator] for operator in list(usual.keys())}
    kept = {operator: decompose for operator, decompose in table.items() if not _is_kept(operator)}
    return kept | {_assert_without_message(): _assert_with_message}


def _known() -> list[tuple[Any, Any]]:
    """Everything that torch has a decomposition for, less views: those are primitives that cannot be functional."""
    import torch
    from torch._decomp import decomposition_table as known

    found: list[tuple[Any, Any]] = []
    operator: Any
    overloads: Any = known.items()
    for operator, decompose in overloads:
        kind: Any = type(operator)
        if kind is not torch._ops.OpOverload or operator.namespace != "aten":
            continue
        if all(item.alias_info is None for item in operator._schema.returns):
            found.append((operator, decompose))
    return found


def _is_kept(operator: Any) -> bool:
    """Whether an operator stays whole: it has a converter, or is refused by its own name."""
    name = operator.name()
    if name == UPDATES_STATISTICS:
        return False
    return find_converter(name) is not None or refusal(name) is not None


def _assert_without_message() -> Any:
    import torch

    return torch.ops.aten._assert_async.default


def _assert_with_message(condition: Any) -> None:
    """An assertion without a message, which torch would drop as it takes a program apart, with torch's own."""
    import torch

    torch.ops.aten._assert_async.msg(condition, UNSAID)
