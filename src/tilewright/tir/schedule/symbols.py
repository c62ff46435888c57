"""Expressions of a function's symbols as arguments of primitives, and as text in traces."""

from __future__ import annotations

import ast

from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import PrimExpr, Var
from tilewright.ir.visit import variables
from tilewright.support.errors import UserError
from tilewright.tir.index_map import parsed_index, text_of_index
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, For


def _known(state: ScheduleState) -> dict[str, Var]:
    """The symbols of a function by name: scalar parameters, and what the shapes of buffers are made of."""
    symbols: dict[str, Var] = {}
    for param in state.func.params:
        for var in [param] if isinstance(param, Var) else [var for dim in param.shape for var in variables(dim)]:
            if var.dtype is INDEX:
                symbols.setdefault(var.name, var)
    return symbols


def expression(state: ScheduleState, value: PrimExpr | str, mark: For | Block, what: str) -> PrimExpr:
    """An expression of the function's symbols, or the one that a text describes."""
    known = _known(state)
    if isinstance(value, PrimExpr):
        _require_known(state, value, known, mark, what)
        return value.astype(INDEX)
    try:
        return parsed_index(ast.parse(value, mode="eval").body, known, value)
    except (SyntaxError, UserError):
        state.fail(
            f"{what}: {value!r} is not an expression of the symbols of {state.func.name}",
            mark,
            f"its symbols are: {', '.join(known) or 'none'}; use +, -, *, // and % of them and integers",
        )


def text(state: ScheduleState, value: PrimExpr, mark: For | Block, what: str) -> str:
    """An expression of the function's symbols as text."""
    known = _known(state)
    _require_known(state, value, known, mark, what)
    return text_of_index(value, {var: name for name, var in known.items()})


def _require_known(state: ScheduleState, value: PrimExpr, known: dict[str, Var], mark: For | Block, what: str) -> None:
    for var in variables(value):
        if known.get(var.name) is not var:
            state.fail(
                f"{what}: {var.name} is not a symbol of {state.func.name}",
                mark,
                f"its symbols are: {', '.join(known) or 'none'}",
            )
