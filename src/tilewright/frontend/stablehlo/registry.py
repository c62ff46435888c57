"""The table of converters: which function turns which StableHLO operation into graph operators.

A converter is named after an operation without its dialect (`dot_general`; `chlo.erf` where it is not StableHLO's own).
It is called with the builder, the operation and its operands as values; what it gives stands for the results: a value,
or a list of values where there are several. An operand of complex numbers is `Complex`: converters say how they take
those (`partwise`: each part by itself), and the others refuse them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tilewright.support.errors import CompilerBug

Converter = Callable[..., Any]
_C = TypeVar("_C", bound=Converter)


@dataclass(frozen=True, slots=True)
class Entry:
    """A converter, and what it does to complex numbers: refuses them, takes them, or is called for each part."""

    convert: Converter
    of_complex: str


_TABLE: dict[str, Entry] = {}
_REFUSED: dict[str, str] = {}


def converter(*names: str, of_complex: str = "refused") -> Callable[[_C], _C]:
    """Register a converter for operations; `of_complex` is "refused", "taken" or "partwise"."""

    def register(convert: _C) -> _C:
        for name in names:
            if name in _TABLE:
                raise CompilerBug(f"two converters for {name}")
            _TABLE[name] = Entry(convert, of_complex)
        return convert

    return register


def refuse(reason: str, *names: str) -> None:
    """Say why operations are not supported."""
    for name in names:
        _REFUSED[name] = reason


def find_converter(name: str) -> Entry | None:
    """The converter of an operation by its full name (`stablehlo.add`, `chlo.erf`)."""
    return _TABLE.get(name) or _TABLE.get(_plain(name))


def refusal(name: str) -> str | None:
    """Why an operation is refused on principle, if it is."""
    return _REFUSED.get(_plain(name))


def _plain(name: str) -> str:
    dialect, _, rest = name.partition(".")
    return rest if dialect in ("stablehlo", "mhlo", "vhlo", "func") else name


def converted_operations() -> list[str]:
    """The names that there are converters for."""
    return sorted(_TABLE)
