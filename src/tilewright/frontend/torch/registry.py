"""The table of converters: which function turns which ATen operator into graph operators.

A converter is named after an operator and covers all its overloads, or after one overload (`"max.dim"`). It is called
with the builder and the operator's arguments by the names of its schema (`self` is `x`), tensors as graph values and
everything else as Python values; arguments that say where a result lives (`device`, `layout` ...) are left out.
What it gives stands for the node: a value, or a sequence of values where the operator has several results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tilewright.support.errors import CompilerBug

Converter = Callable[..., Any]
_C = TypeVar("_C", bound=Converter)

_TABLE: dict[str, Converter] = {}
_REFUSED: dict[str, str] = {}


def converter(*names: str) -> Callable[[_C], _C]:
    """Register a converter for operators (`"add"`) or single overloads (`"max.dim"`)."""

    def register(convert: _C) -> _C:
        for name in names:
            if name in _TABLE:
                raise CompilerBug(f"two converters for {name}")
            _TABLE[name] = convert
        return convert

    return register


def refuse(reason: str, *names: str) -> None:
    """Say why operators are not supported; they are not decomposed either, so that errors name them."""
    for name in names:
        _REFUSED[name] = reason


def _keys(name: str) -> tuple[str, str]:
    """The full key and the operator's own name: `aten::max.dim` is looked up as `max.dim`, then as `max`."""
    plain = name.removeprefix("aten::")
    return plain, plain.split(".")[0]


def find_converter(name: str) -> Converter | None:
    """The converter of an operator by its qualified name (`aten::add.Tensor`)."""
    overload, operator = _keys(name)
    return _TABLE.get(overload) or _TABLE.get(operator)


def refusal(name: str) -> str | None:
    """Why an operator is refused on principle, if it is."""
    overload, operator = _keys(name)
    return _REFUSED.get(overload) or _REFUSED.get(operator)


def converted_operators() -> list[str]:
    """The names that there are converters for."""
    return sorted(_TABLE)


def registered_operators() -> frozenset[str]:
    """The names that there are converters or refusals for."""
    return frozenset((*_TABLE, *_REFUSED))
