"""The table of converters: which function turns which PaddlePaddle operator into graph operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tilewright.frontend.core.registry import Registry
from tilewright.frontend.paddle.context import NodeContext
from tilewright.graph.ir.expr import GraphExpr

Result = GraphExpr | Sequence[GraphExpr | Sequence[GraphExpr] | None]
Converter = Callable[[NodeContext], Result]
"""Gives the outputs in order, an output that is a list as a list; one value stands for a single output."""
C = TypeVar("C", bound=Converter)


@dataclass(frozen=True, slots=True)
class Entry:
    """A converter, and the parameters that its inputs and outputs have in programs of PaddlePaddle 2.

    Programs of PaddlePaddle 3 give them in the same order, without names.
    """

    convert: Converter
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


_TABLE: Registry[str, Entry] = Registry()


def converter(*kinds: str, inputs: str = "X", outputs: str = "Out") -> Callable[[C], C]:
    """Register a converter for operators, with the names of their parameters in order."""

    def register(convert: C) -> C:
        for kind in kinds:
            _TABLE.add(kind, Entry(convert, tuple(inputs.split()), tuple(outputs.split())), convert)
        return convert

    return register


def find_converter(kind: str) -> Entry | None:
    """The converter of an operator, if there is one."""
    return _TABLE.get(kind)


def converted_operators() -> tuple[str, ...]:
    """The operators that there are converters for."""
    return tuple(_TABLE.entries())
