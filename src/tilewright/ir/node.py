"""Node machinery: the `@node` decorator that turns an annotated class into an IR node.

A node class lists typed fields. The decorator gives it `__slots__`, a constructor, `fields` and `rebuild`;
`interned=True` also makes equal nodes one object (a weak table), so equality is `is` and memo tables key on
identity. Nodes are immutable by convention.

Every pass of the compiler spends its time in `children`, `rebuild` and `replace`: a class gets these written out for
its own fields when they are first used (`_write_out`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any, ClassVar, NoReturn, Self, TypeVar, dataclass_transform
from weakref import ref

from tilewright.support.errors import CompilerBug

T = TypeVar("T")
_MISSING = object()


class Node:
    """Base of every IR node."""

    __slots__ = ("__weakref__",)
    fields: ClassVar[tuple[str, ...]] = ()
    """Names of the fields, in constructor order."""
    structural_unique: ClassVar[bool] = False
    """Whether a node is unique by identity, so that structural equality maps occurrences one to one."""
    structural_ignored: ClassVar[tuple[str, ...]] = ()
    """Fields that structural equality and keys leave out (names that are printing hints)."""
    holds_nodes: ClassVar[bool] = False
    """Whether fields that are annotated as nodes hold nodes and nothing else (no numbers): walks then do not ask."""

    def field_values(self) -> tuple[object, ...]:
        """The values of the fields, in order."""
        return tuple([getattr(self, name) for name in self.fields])

    def children(self) -> tuple[Node, ...]:
        """Nodes directly below this one: in fields and in (nested) tuples and dictionaries of fields."""
        _write_out(type(self))
        return self.children()

    def rebuild(self, function: Callable[[Node], Node]) -> Self:
        """This node with `function` applied to each child; the same object when nothing changed."""
        _write_out(type(self))
        return self.rebuild(function)

    def with_values(self, values: Sequence[object]) -> Self:
        """A node of this class from values of all fields in order, with this node's side data (span) kept."""
        result = type(self)(*values)
        self.copy_side_data(result)
        return result

    def replace(self, **changes: object) -> Self:
        """This node with some fields changed."""
        _write_out(type(self))
        return self.replace(**changes)

    def copy_side_data(self, other: Node) -> None:
        """Copy what is not a field (spans) to a rebuilt node. Nodes with side data override this."""

    def __reduce__(self) -> tuple[object, ...]:
        # Rebuilt through the constructor, so interned nodes are interned again in the receiving process.
        return (type(self), self.field_values())

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={getattr(self, name, None)!r}" for name in self.fields)
        return f"{type(self).__name__}({inner})"


def _add_nodes(value: object, found: list[Node]) -> None:
    """Collect the nodes in a (nested) tuple or dictionary."""
    if isinstance(value, Node):
        found.append(value)
    elif type(value) is tuple:
        for item in value:
            _add_nodes(item, found)
    elif type(value) is dict:
        for item in value.values():
            _add_nodes(item, found)


def map_value(value: object, function: Callable[[Node], Node]) -> object:
    """Apply `function` to the nodes in a field's value (a node, a tuple, a dictionary); what is unchanged is kept."""
    if isinstance(value, Node):
        return function(value)
    if type(value) is tuple:
        items = [function(item) if isinstance(item, Node) else map_value(item, function) for item in value]
        for old, new in zip(value, items, strict=True):
            if old is not new:
                return tuple(items)
        return value
    if type(value) is dict:
        mapped = {key: map_value(item, function) for key, item in value.items()}
        if any(mapped[key] is not item for key, item in value.items()):
            return mapped
    return value


def _map_nodes(values: tuple[Node, ...], function: Callable[[Node], Node]) -> tuple[Node, ...]:
    """The same of a tuple of nodes alone."""
    items = [function(item) for item in values]
    for old, new in zip(values, items, strict=True):
        if old is not new:
            return tuple(items)
    return values


_PLAIN = frozenset(("int", "str", "bool", "float", "DataType", "IterKind", "LoopKind", "str | None", "float | None"))
"""Types of fields that hold no nodes."""
_ONE = frozenset(("PrimExpr", "Var", "Range", "Stmt", "Buffer"))
"""Types of fields that hold a node, where a class promises it (`holds_nodes`)."""
_SEVERAL = frozenset(f"tuple[{name}, ...]" for name in _ONE)
"""Types of fields that hold a tuple of nodes and nothing else."""


def _write_out(cls: type[Node]) -> None:
    """Give a class `children`, `rebuild` and `replace` for its own fields, except those that it defines itself."""
    kinds = {name: _annotation(cls, name) for name in cls.fields}
    if not cls.holds_nodes:
        kinds = {name: kind if kind in _PLAIN else "object" for name, kind in kinds.items()}
    scope: dict[str, Any] = {
        "__name__": __name__,
        "_Node": Node,
        "_add": _add_nodes,
        "_map": map_value,
        "_map_nodes": _map_nodes,
        "_MISSING": _MISSING,
        "_unknown": _unknown_fields,
    }
    keeps_nothing = cls.copy_side_data is Node.copy_side_data
    exec(_children_source({name: kind for name, kind in kinds.items() if kind not in _PLAIN}), scope)
    exec(_rebuild_source(kinds, keeps_nothing), scope)
    for method in ("children", "rebuild", "replace"):
        if getattr(cls, method).__module__ == __name__:
            setattr(cls, method, scope[method])


def _annotation(cls: type[Node], name: str) -> str:
    for base in cls.__mro__:
        found = base.__dict__.get("__annotations__", {}).get(name)
        if found is not None:
            return str(found)
    return ""


def _unknown_fields(node: Node, names: dict[str, object]) -> NoReturn:
    raise CompilerBug(f"{type(node).__name__} has no field {', '.join(sorted(names))}")


def _children_source(kinds: Mapping[str, str]) -> str:
    """`children`; `kinds` has the types of the fields that may hold nodes."""
    if all(kind in _ONE or kind in _SEVERAL for kind in kinds.values()):
        items = "".join(f"self.{name}, " if kind in _ONE else f"*self.{name}, " for name, kind in kinds.items())
        return f"def children(self):\n    return ({items})\n"
    collect = "".join(
        f"    v = self.{name}\n"
        "    if isinstance(v, _Node): found.append(v)\n"
        "    elif v.__class__ is tuple or v.__class__ is dict: _add(v, found)\n"
        for name in kinds
    )
    return f"def children(self):\n    found = []\n{collect}    return tuple(found)\n"


def _mapped_source(kind: str) -> str:
    """What gives a field of a type, `{0}`, with its nodes mapped."""
    if kind in _ONE:
        return "function(o_{0})"
    if kind in _SEVERAL:
        return "_map_nodes(o_{0}, function)"
    return "function(o_{0}) if isinstance(o_{0}, _Node) else _map(o_{0}, function)"


def _rebuild_source(kinds: Mapping[str, str], keeps_nothing: bool) -> str:
    """`rebuild` and `replace`: both end in a new node with this one's side data."""
    names = tuple(kinds)
    plain = {name for name, kind in kinds.items() if kind in _PLAIN}
    nodes = [name for name in names if name not in plain]
    mapped = "".join(
        f"    o_{name} = self.{name}\n    n_{name} = {_mapped_source(kinds[name]).format(name)}\n" for name in nodes
    )
    same = " and ".join(f"n_{name} is o_{name}" for name in nodes) or "True"
    rebuilt = ", ".join(f"self.{name}" if name in plain else f"n_{name}" for name in names)
    changed = ", ".join(f"self.{name} if {name} is _MISSING else {name}" for name in names)
    options = "*, " + "".join(f"{name}=_MISSING, " for name in names) if names else ""
    end = "" if keeps_nothing else "    self.copy_side_data(result)\n"
    return (
        f"def rebuild(self, function):\n{mapped}"
        f"    if {same}: return self\n"
        f"    result = type(self)({rebuilt})\n{end}    return result\n"
        f"def replace(self, {options}**unknown):\n"
        "    if unknown: _unknown(self, unknown)\n"
        f"    result = type(self)({changed})\n{end}    return result\n"
    )


_TABLE: dict[tuple[object, ...], ref[Any]] = {}
"""The interned nodes by class and fields. A plain dictionary of weak references without callbacks: several times faster
than a WeakValueDictionary. Keys of nodes that died stay until the table has doubled (`_sweep`)."""

_LOCK = RLock()
"""Guards changes of the table."""
_SMALL_TABLE = 1 << 16
_most_entries = _SMALL_TABLE


def _sweep() -> None:
    """Drop the entries of nodes that died: the last ones first, because the key of a node holds its operands."""
    global _most_entries
    keys = list(_TABLE)
    while keys:
        key = keys.pop()
        if _TABLE[key]() is None:
            del _TABLE[key]
    _most_entries = max(_SMALL_TABLE, 2 * len(_TABLE))


def _publish(node: Any, key: tuple[object, ...]) -> Any:
    """Enter a new node; the node of another thread that entered an equal one first wins."""
    entry = ref(node)
    # In one step, whatever other threads do; the lock is for what takes several.
    earlier = _TABLE.setdefault(key, entry)
    if earlier is entry and len(_TABLE) <= _most_entries:
        return node
    with _LOCK:
        present = _TABLE.get(key)
        winner = None if present is None else present()
        if winner is not None and winner is not node:
            return winner
        _TABLE[key] = entry
        if len(_TABLE) > _most_entries:
            _sweep()
    return node


def _collect_fields(cls: type) -> tuple[list[str], dict[str, object]]:
    names: list[str] = []
    defaults: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        for name, annotation in base.__dict__.get("__annotations__", {}).items():
            if "ClassVar" in str(annotation) or name.startswith("_"):
                continue
            if name in base.__dict__.get("side_data", ()):
                continue
            if name not in names:
                names.append(name)
            default = base.__dict__.get(name, _MISSING)
            if default is not _MISSING and not hasattr(default, "__get__"):
                defaults[name] = default
    # Recreated classes keep defaults beside, because a slot cannot share its name with a class attribute.
    for base in reversed(cls.__mro__):
        for name, default in base.__dict__.get("_node_defaults", {}).items():
            defaults.setdefault(name, default)
    return names, defaults


def _source(names: list[str], defaults: dict[str, object], interned: bool, hooks: dict[str, bool]) -> str:
    params = ", ".join(f"{n}=_d_{n}" if n in defaults else n for n in names)
    assigns = "\n".join(f"    self.{n} = {n}" for n in names) or "    pass"
    post = "    self._post_init()\n" if hooks["post"] else ""
    if not interned:
        return f"def __init__(self, {params}):\n{assigns}\n{post}"
    key = ", ".join(names)
    key_expression = f"cls._intern_key({key})" if hooks["key"] else f"(cls, {key},)"
    return (
        f"def __new__(cls, {params}):\n"
        f"    key = {key_expression}\n"
        "    entry = _find(key)\n"
        "    if entry is not None:\n"
        "        self = entry()\n"
        "        if self is not None:\n"
        "            return self\n"
        "    self = _new(cls)\n"
        f"{assigns}\n{post}"
        "    return _publish(self, key)\n"
    )


@dataclass_transform(eq_default=False)
def node(*, interned: bool = False) -> Callable[[type[T]], type[T]]:
    """Class decorator: make an annotated class a node.

    Hooks a class may define: `_post_init(self)` runs once after the fields are set (checks, derived slots listed
    in `_slots`); `_intern_key(cls, *fields)` overrides the key of an interned node. Annotations that are ClassVar,
    start with an underscore or are named in the class's `side_data` are not fields.
    """

    def decorate(cls: type[T]) -> type[T]:
        names, defaults = _collect_fields(cls)
        inherited = {slot for base in cls.__mro__[1:] for slot in base.__dict__.get("__slots__", ())}
        extra = cls.__dict__.get("_slots", ())
        slots = tuple(n for n in (*names, *extra) if n not in inherited)
        namespace = {
            key: value
            for key, value in cls.__dict__.items()
            if key not in ("__dict__", "__weakref__", "_slots", *slots, *names)
        }
        namespace["__slots__"] = slots
        namespace["_node_defaults"] = defaults
        namespace["fields"] = tuple(names)
        hooks = {"post": hasattr(cls, "_post_init"), "key": hasattr(cls, "_intern_key")}
        scope: dict[str, object] = {f"_d_{name}": value for name, value in defaults.items()}
        scope.update(_find=_TABLE.get, _publish=_publish, _new=object.__new__)
        exec(_source(names, defaults, interned, hooks), scope)
        name = "__new__" if interned else "__init__"
        namespace[name] = scope[name]
        for method in ("children", "rebuild", "replace"):
            # What was written out for a base is for the base's fields.
            if getattr(cls, method).__module__ == __name__:
                namespace[method] = getattr(Node, method)
        result: type[T] = type(cls.__name__, cls.__bases__, namespace)
        result.__qualname__ = cls.__qualname__
        return result

    return decorate
