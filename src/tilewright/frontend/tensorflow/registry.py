"""The table of converters: which function turns which TensorFlow operator into graph operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tilewright.frontend.core.registry import Registry
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.values import Value

Converter = Callable[[NodeContext], Value | Sequence[Value | None]]
"""Gives the outputs in order; one value stands for a single output."""
C = TypeVar("C", bound=Converter)

_TABLE: Registry[str, Converter] = Registry()
_OUTPUTS: dict[str, tuple[str, ...]] = {}
_EFFECTS: set[str] = set()


def converter(*operators: str, outputs: Sequence[str] = (), effect: bool = False) -> Callable[[C], C]:
    """Register a converter for operators.

    `outputs`: the names of the outputs, if there are several of different names (functions refer to them by name).
    `effect`: the operator is run for what it does, even if nothing takes its results.
    """

    def register(convert: C) -> C:
        for name in operators:
            _TABLE.add(name, convert, convert)
            if outputs:
                _OUTPUTS[name] = tuple(outputs)
            if effect:
                _EFFECTS.add(name)
        return convert

    return register


def find_converter(name: str) -> Converter | None:
    """The converter of an operator, if there is one."""
    return _TABLE.get(name)


def output_names(name: str) -> tuple[str, ...]:
    """The names of an operator's outputs, where there are several names."""
    return _OUTPUTS.get(name, ())


def has_effect(name: str) -> bool:
    """Whether an operator is run for what it does."""
    return name in _EFFECTS


def converted_operators() -> frozenset[str]:
    """The operators that there are converters for."""
    return frozenset(_TABLE.entries())
