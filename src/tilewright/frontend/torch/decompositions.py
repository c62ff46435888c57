"""Which operators torch takes apart before a program is imported: those that have no converter of their own."""

from __future__ import annotations

import copy
import dataclasses
from functools import lru_cache
from typing import Any

from tilewright.frontend.torch.assertions import UNSAID
from tilewright.frontend.torch.gradients.decompositions import gradient_decompositions
from tilewright.frontend.torch.registry import find_converter, refusal, registered_operators

UPDATES_STATISTICS = "aten::batch_norm"
"""Writes to its statistics in training, which its schema does not say: taken apart, it gives them as results."""


def decomposition_table() -> dict[Any, Any]:
    """The table for `ExportedProgram.run_decompositions`: all that torch can take apart but what is converted."""
    return dict(_program_table(*_registered()))


def graph_decompositions() -> dict[Any, Any]:
    """The table for graphs that `torch.compile` captures, where composite operators are taken apart already."""
    return dict(_graph_table(*_registered()))


def _registered() -> tuple[frozenset[str], frozenset[str]]:
    """What tables are made from, of torch and of ours. A table looks at all operators of torch: it is made anew only
    where there are others than before."""
    import torch

    composite = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    return frozenset(composite), registered_operators()


@lru_cache(maxsize=1)
def _program_table(composite: frozenset[str], ours: frozenset[str]) -> dict[Any, Any]:
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
    return dict(table)


def decomposed(program: Any) -> Any:
    """An exported program, functional and taken apart as far as needed.

    Torch runs the program to do it, and puts its inputs and outputs together as the user's classes. Some of those
    compute (a cache of `transformers` appends to empty tensors), which leaves constants in the graph that nobody has.
    Such a program is taken apart with plain lists in their place.
    """
    signature = program.module_call_graph[0].signature
    if _is_plain_structure(signature.in_spec) and _is_plain_structure(signature.out_spec):
        return program.run_decompositions(decomposition_table())
    flat = copy.copy(program)
    # Torch would check conditions that name parts of the structures; the importer reads those of the program itself.
    flat._guards_code, flat._example_inputs = [], None
    plain = dataclasses.replace(
        signature,
        in_spec=_list_of(signature.in_spec.num_leaves, called=True),
        out_spec=_list_of(signature.out_spec.num_leaves, called=False),
        forward_arg_names=None,
    )
    first, *others = program.module_call_graph
    flat._module_call_graph = [dataclasses.replace(first, signature=plain), *others]
    return flat.run_decompositions(decomposition_table())


def _is_plain_structure(spec: Any) -> bool:
    """Whether a structure is made of tuples, lists and dictionaries."""
    plain = spec.type in (tuple, list, dict, None)
    return plain and all(_is_plain_structure(part) for part in spec.children())


def _list_of(count: int, called: bool) -> Any:
    """The structure of so many results, or of a call with so many arguments."""
    from torch.utils import _pytree as pytree

    items = tuple(range(count))
    return pytree.tree_structure((items, {}) if called else items)


@lru_cache(maxsize=1)
def _graph_table(composite: frozenset[str], ours: frozenset[str]) -> dict[Any, Any]:
    from torch._decomp import core_aten_decompositions

    usual: Any = core_aten_decompositions()
    table = dict(_known()) | {operator: usual[operator] for operator in list(usual.keys())}
    kept = {operator: decompose for operator, decompose in table.items() if not _is_kept(operator)}
    return kept | gradient_decompositions() | {_assert_without_message(): _assert_with_message}


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
