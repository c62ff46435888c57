"""A table of converters by what a format calls its operators, and the place that errors inside of one name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from tilewright.frontend.core.builder import Builder
from tilewright.support.errors import UserError
from tilewright.support.extensions import note_registration
from tilewright.support.span import Span

K = TypeVar("K")
E = TypeVar("E")


class Registry(Generic[K, E]):
    """Converters by key. One that is defined again (a cell of a notebook that runs twice) replaces its former self."""

    def __init__(self) -> None:
        self._entries: dict[K, E] = {}
        self._converters: dict[K, Callable[..., Any]] = {}

    def add(self, key: K, entry: E, convert: Callable[..., Any]) -> None:
        """Register an entry, which holds a converter or is one."""
        old = self._converters.get(key)
        if old is not None and _place(old) != _place(convert):
            name = key[0] if isinstance(key, tuple) else key
            raise UserError(f"there is a converter for the operator {name} already")
        self._entries[key] = entry
        self._converters[key] = convert
        note_registration(convert)

    def get(self, key: K) -> E | None:
        """What is registered for an operator."""
        return self._entries.get(key)

    def entries(self) -> dict[K, E]:
        """All of it."""
        return dict(self._entries)


def _place(convert: Callable[..., Any]) -> tuple[str, str]:
    return getattr(convert, "__module__", ""), getattr(convert, "__qualname__", "")


@contextmanager
def located(builder: Builder, source: str, name: str, kind: str, said: str | None = None) -> Iterator[None]:
    """Put a node's name on what is built, and on errors that do not say where they are.

    `said`: what these say of its kind, if that is more than its name.
    """
    builder.span = Span(name, operation=kind)
    try:
        yield
    except UserError as error:
        if error.where is None:
            error.where = f"{source}, '{name}' ({said or kind})"
        raise
