"""Structural keys and equality of IR, the same for every level.

Two programs are the same when they differ only in names, in the identity of variables and buffers, and in spans.
Variables, buffers and other nodes that are unique by identity are numbered by first occurrence. Whether equal
sub-structures that are not unique are one object or several makes no difference. The key is a SHA-256: it names
kernels in the cache and tuning records, so it must not depend on the process.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import struct
from enum import Enum
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

import numpy as np

from tilewright.ir.codec import to_text
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import IntImm
from tilewright.ir.function import BaseFunction, IRModule
from tilewright.ir.node import Node
from tilewright.support.errors import CompilerBug

_counted: Final[dict[type, tuple[str, ...]]] = {}


def counted_fields(cls: type[Node]) -> tuple[str, ...]:
    """The fields of a node class that belong to its structure."""
    found = _counted.get(cls)
    if found is None:
        found = tuple(name for name in cls.fields if name not in cls.structural_ignored)
        _counted[cls] = found
    return found


def _sorted_items(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(value.items(), key=lambda item: str(item[0]))


_LEAVES: Final = frozenset((str, int, bool, float, type(None), DataType))
"""Types of most values that hold no nodes."""


def _add_parts(value: object, found: list[Node]) -> None:
    """Collect the nodes in a field's value, in canonical order."""
    kind = type(value)
    if kind in _LEAVES:
        return
    if isinstance(value, Node):
        found.append(value)
    elif kind is tuple or kind is list:
        for item in value:  # type: ignore[attr-defined]
            _add_parts(item, found)
    elif isinstance(value, dict):
        for _, item in _sorted_items(value):
            _add_parts(item, found)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _add_parts(getattr(value, field.name), found)
    elif isinstance(value, IRModule):
        # Functions have keys of their own: variables do not reach from one to another.
        found.extend(definition for _, definition in _sorted_items(value.types))
        _add_parts(value.attributes, found)


_digests: Final[dict[int, tuple[Any, str]]] = {}


def _array_digest(array: np.ndarray[Any, Any]) -> str:
    """The content of an array as a short text; remembered for arrays that cannot change."""
    known = _digests.get(id(array))
    if known is not None and known[0]() is array:
        return known[1]
    content = np.ascontiguousarray(array)
    digest = hashlib.sha256(content.view(np.uint8).data if content.size else b"").hexdigest()
    text = f"array({content.dtype.str},{content.shape},{digest})"
    if not array.flags.writeable:
        key = id(array)
        _digests[key] = (ref(array, lambda _: _digests.pop(key, None)), text)
    return text


class _Numbering:
    """Gives each distinct structure a number; the sequence of new structures determines the key."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.table: dict[str, int] = {}
        self.entries: list[str] = []

    def add(self, root: object) -> str:
        """The text of a value, with every node below it numbered."""
        numbers = self.numbers
        roots: list[Node] = []
        _add_parts(root, roots)
        stack: list[tuple[Node, bool]] = [(item, False) for item in reversed(roots)]
        while stack:
            item, expanded = stack.pop()
            if id(item) in numbers:
                continue
            if expanded or type(item) is IntImm:
                self._number(item)
                continue
            stack.append((item, True))
            below: list[Node] = []
            for name in counted_fields(type(item)):
                value = getattr(item, name)
                if isinstance(value, Node):
                    below.append(value)
                else:
                    _add_parts(value, below)
            stack.extend([(part, False) for part in reversed(below) if id(part) not in numbers])
        return self._text(root)

    def _number(self, item: Node) -> None:
        cls = type(item)
        numbers, texts = self.numbers, []
        for name in counted_fields(cls):
            value = getattr(item, name)
            texts.append(f"#{numbers[id(value)]}" if isinstance(value, Node) else self._text(value))
        entry = f"{cls.__module__}.{cls.__name__}({','.join(texts)})"
        if cls.structural_unique:
            entry = f"{entry}@{len(self.entries)}"
        number = self.table.get(entry)
        if number is None:
            number = self.table[entry] = len(self.entries)
            self.entries.append(entry)
        numbers[id(item)] = number

    def _text(self, value: object) -> str:
        # What most values are comes first.
        if isinstance(value, Node):
            return f"#{self.numbers[id(value)]}"
        kind = type(value)
        if kind is tuple:
            return f"({','.join([self._text(item) for item in value])})"  # type: ignore[attr-defined]
        if kind is str:
            return repr(value)
        if kind is DataType:
            return f"dtype:{value}"
        if kind is int:
            return str(value)
        return self._other_text(value)

    def _other_text(self, value: object) -> str:
        if value is None or isinstance(value, (bool, np.bool_)):
            return str(value)
        if isinstance(value, Enum):
            return f"{type(value).__name__}.{value.name}"
        if isinstance(value, str):
            return repr(value)
        if isinstance(value, (int, np.integer)):
            return str(int(value))
        if isinstance(value, (float, np.floating)):
            return f"float:{struct.pack('<d', float(value)).hex()}"
        if isinstance(value, tuple):
            return f"({','.join([self._text(item) for item in value])})"
        if isinstance(value, list):
            return f"[{','.join([self._text(item) for item in value])}]"
        if isinstance(value, dict):
            return f"{{{','.join([f'{key!r}:{self._text(item)}' for key, item in _sorted_items(value)])}}}"
        if isinstance(value, (set, frozenset)):
            return f"set({','.join(sorted(self._text(item) for item in value))})"
        return self._rare(value)

    def _rare(self, value: object) -> str:
        if isinstance(value, np.ndarray):
            return _array_digest(value)
        if isinstance(value, bytes):
            return f"bytes:{hashlib.sha256(value).hexdigest()}"
        if isinstance(value, IRModule):
            functions = [f"{name!r}:{structural_key(item)}" for name, item in _sorted_items(value.functions)]
            types = [f"{name!r}:{self._text(item)}" for name, item in _sorted_items(value.types)]
            return f"module({','.join(functions)};{','.join(types)};{self._text(value.attributes)})"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            items = [f"{f.name}={self._text(getattr(value, f.name))}" for f in dataclasses.fields(value)]
            return f"{type(value).__name__}({','.join(items)})"
        describe = getattr(value, "structural_text", None)
        if callable(describe):
            return str(describe())
        raise CompilerBug(f"a {type(value).__name__} in the IR has no structural text")


_keys: Final[WeakKeyDictionary[BaseFunction, str]] = WeakKeyDictionary()


def structural_key(value: Node | IRModule | object) -> str:
    """The canonical key (64 hexadecimal digits) of a node, a module, or a tuple or dictionary of these."""
    if isinstance(value, BaseFunction):
        known = _keys.get(value)
        if known is not None:
            return known
    numbering = _Numbering()
    root = numbering.add(value)
    text = "\n".join([*numbering.entries, root])
    key = hashlib.sha256(text.encode()).hexdigest()
    if isinstance(value, BaseFunction):
        _keys[value] = key
    return key


def structural_equal(a: Node | IRModule | object, b: Node | IRModule | object) -> bool:
    """Whether two IR values are the same up to names and the identity of variables."""
    return a is b or structural_key(a) == structural_key(b)


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two IR values differ."""

    path: str
    left: object
    right: object

    def __str__(self) -> str:
        return f"{self.path or 'the root'}: {_brief(self.left)} and {_brief(self.right)}"


def _brief(value: object) -> str:
    text = repr(value) if not isinstance(value, Node) else _brief_node(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _brief_node(value: Node) -> str:
    name = getattr(value, "name", None)
    return f"{type(value).__name__} {name}" if isinstance(name, str) else type(value).__name__


_Path = tuple[Any, str] | None
"""Steps from the root, the last one outermost (as text only when a difference is found: graphs are deep)."""


def _path_text(path: _Path) -> str:
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(step)
    return "".join(reversed(steps))


def first_difference(a: object, b: object) -> Difference | None:
    """The first differing place of two IR values in traversal order, or None."""
    forward: dict[int, object] = {}
    backward: dict[int, object] = {}
    done: set[tuple[int, int]] = set()
    stack: list[tuple[_Path, object, object]] = [(None, a, b)]
    while stack:
        path, x, y = stack.pop()
        if isinstance(x, Node) and isinstance(y, Node):
            if type(x) is not type(y):
                return Difference(_path_text(path), x, y)
            if type(x).structural_unique:
                if id(x) in forward or id(y) in backward:
                    if forward.get(id(x)) is not y or backward.get(id(y)) is not x:
                        return Difference(_path_text(path), x, y)
                    continue
                forward[id(x)], backward[id(y)] = y, x
            elif (id(x), id(y)) in done:
                continue
            done.add((id(x), id(y)))
            pairs = [(f".{name}", getattr(x, name), getattr(y, name)) for name in counted_fields(type(x))]
        elif isinstance(x, (tuple, list)) and isinstance(y, (tuple, list)) and type(x) is type(y):
            if len(x) != len(y):
                return Difference(_path_text(path), f"{len(x)} items", f"{len(y)} items")
            pairs = [(f"[{place}]", item, other) for place, (item, other) in enumerate(zip(x, y, strict=True))]
        elif isinstance(x, dict) and isinstance(y, dict):
            if x.keys() != y.keys():
                return Difference(_path_text(path), sorted(map(str, x)), sorted(map(str, y)))
            pairs = [(f"[{key!r}]", item, y[key]) for key, item in _sorted_items(x)]
        elif isinstance(x, IRModule) and isinstance(y, IRModule):
            found = _function_difference(_path_text(path), x, y)
            if found is not None:
                return found
            pairs = [(f".{name}", getattr(x, name), getattr(y, name)) for name in ("types", "attributes")]
        elif isinstance(x, Node) or isinstance(y, Node) or structural_key((x,)) != structural_key((y,)):
            return Difference(_path_text(path), x, y)
        else:
            continue
        stack.extend(((path, step), item, other) for step, item, other in reversed(pairs))
    return None


def _function_difference(path: str, x: IRModule, y: IRModule) -> Difference | None:
    if set(x) != set(y):
        return Difference(f"{path}.functions", sorted(x), sorted(y))
    for name, function in _sorted_items(x.functions):
        found = first_difference(function, y[name])
        if found is not None:
            return Difference(f"{path}.functions[{name!r}]{found.path}", found.left, found.right)
    return None


def assert_same_ir(actual: Node | IRModule, expected: Node | IRModule) -> None:
    """Raise an AssertionError, with the place and a diff of the printed forms, unless two IR values are the same."""
    if structural_equal(actual, expected):
        return
    difference = first_difference(actual, expected)
    lines = difflib.unified_diff(
        to_text(expected).split("\n"), to_text(actual).split("\n"), "expected", "actual", lineterm=""
    )
    place = f"first difference at {difference} (actual and expected)" if difference else "the keys differ"
    raise AssertionError("the IR differs\n" + place + "\n" + "\n".join(lines))
