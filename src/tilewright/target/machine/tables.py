"""Tables of machine parameters: files of JSON that come with Tilewright, and those of `tilewright calibrate`.

A table has a version, the family of processors it is for, and for each subject (a group of `CpuParameters` or
`GpuParameters`) its values, and by which command, where and when they were fitted. A table that is `like` another one
has that one's values where it has none of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from tilewright.support.errors import UserError
from tilewright.support.files import cannot_write, replacing
from tilewright.target.target import Target

VERSION = 1
SHIPPED = Path(__file__).parent / "tables"
DAMAGED = "install Tilewright again"
Value = int | float
Values = Mapping[str, Mapping[str, Value]]
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Fit:
    """Where values of a table come from: the command that fits them, the machine and the day."""

    by: str
    on: str
    when: str


@dataclass(frozen=True, slots=True)
class Processors:
    """Which processors a table is for: all that have what is named here."""

    device: str
    """`cpu` or `gpu`."""
    arch: str = "*"
    """The target's architecture, a pattern: `x86_64`, `sm_90*`."""
    names: tuple[str, ...] = ()
    """Patterns of names that LLVM has for CPUs; any, if there are none."""
    features: tuple[str, ...] = ()
    """Features that they all have."""
    without: tuple[str, ...] = ()
    """Features that none of them has."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Processors:
        """What the file of a table says."""
        options: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in data.items()}
        return cls(**options)

    def include(self, target: Target) -> bool:
        """Whether a target is one of them."""
        if self.device != ("cpu" if target.is_cpu else "gpu") or not fnmatchcase(target.arch, self.arch):
            return False
        named = not self.names or any(fnmatchcase(target.cpu, name) for name in self.names)
        present = target.feature_set
        return named and present.issuperset(self.features) and present.isdisjoint(self.without)


@dataclass(frozen=True, slots=True)
class Table:
    """One file."""

    family: str
    about: str
    processors: Processors
    values: Values
    fits: Mapping[str, Fit]
    like: str | None = None
    version: int = field(default=VERSION)

    def to_json(self) -> dict[str, Any]:
        """What its file holds."""
        parameters = {
            group: {"fitted": asdict(self.fits[group]), "values": dict(values)} for group, values in self.values.items()
        }
        place = {name: value for name, value in asdict(self.processors).items() if value not in ((), "*")}
        like = {} if self.like is None else {"like": self.like}
        head = {"version": self.version, "family": self.family, "about": self.about, "processors": place}
        return {**head, **like, "parameters": parameters}


def read_table(path: Path, hint: str) -> Table:
    """The table in a file; `hint` says how to get rid of a bad one."""

    def refuse(problem: str) -> UserError:
        return UserError(f"the table of machine parameters {problem}", where=str(path), hint=hint)

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            raise refuse(f"has version {data['version']}, but this Tilewright reads version {VERSION}")
        groups = data["parameters"]
        return Table(
            data["family"],
            data["about"],
            Processors.from_json(data["processors"]),
            {name: _checked(group["values"]) for name, group in groups.items()},
            {name: Fit(**group["fitted"]) for name, group in groups.items()},
            data.get("like"),
        )
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise refuse(f"is damaged ({type(error).__name__}: {error})") from None


def _checked(values: Mapping[str, object]) -> Mapping[str, Value]:
    checked: dict[str, Value] = {}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ValueError(f"'{name}' is {value!r}, not a positive number")
        checked[name] = value
    return checked


def write_table(table: Table, path: Path) -> None:
    """Write a table to a file, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(table.to_json(), indent=2) + "\n", encoding="utf-8")


@cache
def shipped_tables() -> Mapping[str, Table]:
    """The tables that come with Tilewright, by family."""
    return {path.stem: read_table(path, DAMAGED) for path in sorted(SHIPPED.glob("*.json"))}


def all_values(table: Table) -> Values:
    """The values of a shipped table, with those of the table that it is like."""
    if table.like is None:
        return table.values
    return merged(all_values(shipped_tables()[table.like]), table.values)


def merged(values: Values, changes: Values) -> Values:
    """Values with others in their place."""
    return {group: {**values.get(group, {}), **changes.get(group, {})} for group in {**values, **changes}}


def build(form: type[P], values: Values, where: str, hint: str) -> P:
    """Parameters from values: each field has one, of its type, and there are no others."""
    groups = get_type_hints(form)
    _compare(groups, values, "group", where, hint)
    built = {}
    for name, group in groups.items():
        types = get_type_hints(group)
        _compare(types, values[name], f"parameter of '{name}'", where, hint)
        for item, value in values[name].items():
            if types[item] is int and not isinstance(value, int):
                raise UserError(f"'{name}.{item}' must be a whole number, not {value}", where=where, hint=hint)
        built[name] = group(**{item: types[item](value) for item, value in values[name].items()})
    return form(**built)


def _compare(known: Mapping[str, object], given: Mapping[str, object], what: str, where: str, hint: str) -> None:
    for name in sorted(set(known) ^ set(given)):
        problem = "is missing" if name in known else "is unknown"
        raise UserError(f"the {what} '{name}' {problem}", where=where, hint=hint)


def values_of(parameters: Any) -> dict[str, dict[str, Value]]:
    """What `build` makes parameters from."""
    return {item.name: asdict(getattr(parameters, item.name)) for item in fields(parameters)}
