"""Words of the graph dialect, literals, and names that are unique in a text."""

from __future__ import annotations

import json
import keyword
import math
from typing import Final

from tilewright.graph.ir.op import operators
from tilewright.ir.dtype import SCALAR_NAMES, DataType

DIALECT: Final = frozenset(
    "graph module const constant let block Tensor Tuple Sequence Optional Function inf nan".split()
)
"""Words with a meaning of their own: no variable is printed with one of these names."""


def data_type_names() -> set[str]:
    """The names of the scalar data types."""
    return set(SCALAR_NAMES)


def reserved_words() -> set[str]:
    """Every name that a variable must not have: words of Python and of the dialect, operators, data types."""
    roots = {name.split(".")[0] for name in operators()}
    words = {*keyword.kwlist, "_", "match", "case", "type", "min", "max"}
    return {*words, *DIALECT, *roots, *data_type_names()}


def identifier(text: str) -> str:
    """A text as a Python identifier: other characters become underscores."""
    name = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in text) or "v"
    return f"v{name}" if name[0].isdigit() else name


class Names:
    """A distinct name for each object, kept once given.

    A function that captures nothing has a table of its own inside the table of the whole text, so that its names
    need not differ from those of other functions. Dimensions and type variables are named in the outermost table.
    """

    def __init__(self, outer: Names | None = None) -> None:
        self.outermost: Names = self if outer is None else outer.outermost
        self._fixed: frozenset[str] = frozenset(reserved_words()) if outer is None else outer._fixed
        self._taken: set[str] = set()
        self._names: dict[int, str] = {}
        self._next: dict[str, int] = {}

    def __contains__(self, item: object) -> bool:
        return id(item) in self._names

    def __getitem__(self, item: object) -> str:
        return self._names[id(item)]

    def reserve(self, name: str) -> None:
        """Keep a name from being given, here and in tables inside this one."""
        self._fixed |= {name}

    def give(self, item: object, wish: str) -> str:
        """A name for an object: the wish, or the wish with a number."""
        known = self._names.get(id(item))
        if known is not None:
            return known
        base = identifier(wish)
        name = base
        while name in self._taken or name in self._fixed:
            number = self._next.get(base, 1)
            self._next[base] = number + 1
            name = f"{base}_{number}"
        self._taken.add(name)
        self._names[id(item)] = name
        return name

    def number(self, item: object) -> str:
        """A name for a computed value: v0, v1, ..."""
        known = self._names.get(id(item))
        if known is not None:
            return known
        while True:
            count = self._next.get("<value>", 0)
            self._next["<value>"] = count + 1
            name = f"v{count}"
            if name not in self._taken and name not in self._fixed:
                self._taken.add(name)
                self._names[id(item)] = name
                return name


def quoted(text: str) -> str:
    """A text as a Python string literal in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def literal(value: object) -> str | None:
    """The text of an attribute's value, or None if it has no text form."""
    if value is None or isinstance(value, (bool, int)):
        return repr(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return repr(value)
    if isinstance(value, DataType):
        return value.name
    if isinstance(value, (tuple, list)):
        parts = [literal(item) for item in value]
        if any(part is None for part in parts):
            return None
        inner = ", ".join(part for part in parts if part is not None)
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(parts) == 1 else f"({inner})"
    if isinstance(value, dict):
        items = [(literal(key), literal(item)) for key, item in value.items()]
        if any(key is None or item is None for key, item in items):
            return None
        return "{" + ", ".join(f"{key}: {item}" for key, item in items) + "}"
    return None
