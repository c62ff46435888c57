"""Types of values at the border of a program, so that what users pass is checked before compiled code reads it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tilewright.runtime.core.artifact import Shape


class Kind(IntEnum):
    """What a value is."""

    TENSOR = 0
    TUPLE = 1
    SEQUENCE = 2
    OPTIONAL = 3
    DATA = 4
    VARIABLE = 5
    FUNCTION = 6
    ANY_SHAPE = 7
    """A tensor of a data type; each item of a sequence may have a shape of its own."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type: `name` is a tensor's data type or the name of an algebraic data type; `items` are the types inside.

    A variable is parameter `number` of the data type whose definition it is in.
    """

    kind: Kind
    name: str = ""
    shape: Shape = ()
    items: tuple[ValueType, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True)
class DataDefinition:
    """An algebraic data type: the types of the fields of each constructor, by the constructor's name."""

    name: str
    constructors: tuple[tuple[str, tuple[ValueType, ...]], ...]
