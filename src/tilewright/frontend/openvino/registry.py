"""The table of converters: which function turns which OpenVINO operator into graph operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tilewright.frontend.openvino.context import NodeContext
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError
from tilewright.support.extensions import note_registration

Converter = Callable[[NodeContext], GraphExpr | Sequence[GraphExpr]]
"""Gives the outputs in order; one value stands for a single output."""
C = TypeVar("C", bound=Converter)

_TABLE: dict[str, Converter] = {}


def converter(*kinds: str) -> Callable[[C], C]:
    """Register a converter for operators by the types that files give them, in all opsets.

    A converter that is defined again (a cell of a notebook that runs twice) takes the place of its former self.
    """

    def register(convert: C) -> C:
        for kind in kinds:
            old = _TABLE.get(kind)
            if old is not None and _place(old) != _place(convert):
                raise UserError(f"there is a converter for the operator {kind} already")
            _TABLE[kind] = convert
        note_registration(convert)
        return convert

    return register


def _place(convert: Converter) -> tuple[str, str]:
    return getattr(convert, "__module__", ""), getattr(convert, "__qualname__", "")


def find_converter(kind: str) -> Converter | None:
    """The converter of an operator, if there is one."""
    return _TABLE.get(kind)


def converted_operators() -> tuple[str, ...]:
    """The operators that there are converters for."""
    return tuple(_TABLE)
