"""The table of converters: which function turns which OpenVINO operator into graph operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tilewright.frontend.core.registry import Registry
from tilewright.frontend.openvino.context import NodeContext
from tilewright.graph.ir.expr import GraphExpr

Converter = Callable[[NodeContext], GraphExpr | Sequence[GraphExpr]]
"""Gives the outputs in order; one value stands for a single output."""
C = TypeVar("C", bound=Converter)

_TABLE: Registry[str, Converter] = Registry()


def converter(*kinds: str) -> Callable[[C], C]:
    """Register a converter for operators by the types that files give them, in all opsets."""

    def register(convert: C) -> C:
        for kind in kinds:
            _TABLE.add(kind, convert, convert)
        return convert

    return register


def find_converter(kind: str) -> Converter | None:
    """The converter of an operator, if there is one."""
    return _TABLE.get(kind)


def converted_operators() -> tuple[str, ...]:
    """The operators that there are converters for."""
    return tuple(_TABLE.entries())
