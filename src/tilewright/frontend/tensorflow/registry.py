"""The table of converters: which function turns which TensorFlow operator into graph operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.values import Value
from tilewright.support.errors import UserError
from tilewright.support.extensions import note_registration

Converter = Callable[[NodeContext], Value | Sequence[Value | None]]
"""Gives the outputs in order; one value stands for a single output."""
C = TypeVar("C", bound=Converter)

_TABLE: dict[str, Converter] = {}
_OUTPUTS: dict[str, tuple[str, ...]] = {}
_EFFECTS: set[str] = set()


def converter(*operators: str, outputs: Sequence[str] = (), effect: bool = False) -> Callable[[C], C]:
    """Register a converter for operators.

    `outputs`: the names of the outputs, if there are several of different names (functions refer to them by name).
    `effect`: the operator is run for what it does, even if nothing takes its results. A converter that is defined again
    (a cell of a notebook that runs twice) takes the place of its former self.
    """

    def register(convert: C) -> C:
        for name in operators:
            old = _TABLE.get(name)
            if old is not None and _place(old) != _place(convert):
                raise UserError(f"there is a converter for the operator {name} already")
            _TABLE[name] = convert
            if outputs:
                _OUTPUTS[name] = tuple(outputs)
            if effect:
                _EFFECTS.add(name)
        note_registration(convert)
        return convert

    return register


def _place(convert: Converter) -> tuple[str, str]:
    return getattr(convert, "__module__", ""), getattr(convert, "__qualname__", "")


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
    return frozenset(_TABLE)
