"""The table of converters: which function turns which TFLite operator into graph operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tilewright.frontend.core.registry import Registry
from tilewright.frontend.tflite.context import NodeContext
from tilewright.graph.ir.expr import GraphExpr

Converter = Callable[[NodeContext], GraphExpr | Sequence[GraphExpr | None]]
"""Gives the outputs in order; one value stands for a single output."""
C = TypeVar("C", bound=Converter)

_TABLE: Registry[tuple[str, bool], Converter] = Registry()


def converter(*operators: str, custom: bool = False) -> Callable[[C], C]:
    """Register a converter for built-in operators, or for custom ones by the names that files give them."""

    def register(convert: C) -> C:
        for name in operators:
            _TABLE.add((name, custom), convert, convert)
        return convert

    return register


def find_converter(name: str, is_custom: bool) -> Converter | None:
    """The converter of an operator, if there is one."""
    return _TABLE.get((name, is_custom))


def converted_operators() -> dict[tuple[str, bool], Converter]:
    """What there are converters for: (name, whether it is a custom operator)."""
    return _TABLE.entries()
