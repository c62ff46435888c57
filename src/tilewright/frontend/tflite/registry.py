"""The table of converters: which function turns which TFLite operator into graph operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tilewright.frontend.tflite.context import NodeContext
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError
from tilewright.support.extensions import note_registration

Converter = Callable[[NodeContext], GraphExpr | Sequence[GraphExpr | None]]
"""Gives the outputs in order; one value stands for a single output."""
C = TypeVar("C", bound=Converter)

_TABLE: dict[tuple[str, bool], Converter] = {}


def converter(*operators: str, custom: bool = False) -> Callable[[C], C]:
    """Register a converter for built-in operators, or for custom ones by the names that files give them.

    A converter that is defined again (a cell of a notebook that runs twice) takes the place of its former self.
    """

    def register(convert: C) -> C:
        for name in operators:
            old = _TABLE.get((name, custom))
            if old is not None and _place(old) != _place(convert):
                raise UserError(f"there is a converter for the operator {name} already")
            _TABLE[name, custom] = convert
        note_registration(convert)
        return convert

    return register


def _place(convert: Converter) -> tuple[str, str]:
    return getattr(convert, "__module__", ""), getattr(convert, "__qualname__", "")


def find_converter(name: str, is_custom: bool) -> Converter | None:
    """The converter of an operator, if there is one."""
    return _TABLE.get((name, is_custom))


def converted_operators() -> dict[tuple[str, bool], Converter]:
    """What there are converters for: (name, whether it is a custom operator)."""
    return dict(_TABLE)
