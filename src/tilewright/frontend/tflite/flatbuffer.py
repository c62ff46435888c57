"""A reader of flatbuffers whose every step is checked: damaged files are errors, never crashes or endless work.

A flatbuffer is tables that refer to each other by offsets. Nothing keeps a damaged file from having many references to
one large table, so what is read is counted: a file gives at most some times as many values as it has bytes.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tilewright.frontend.tflite.schema import TABLES
from tilewright.graph.ir.op import Array
from tilewright.support.errors import CompilerBug, UserError

_WORK = 16
"""Values read for each byte of a file, at most: valid files take less than one."""
_SIZES = {kind: struct.calcsize("<" + kind) for kind in "bBhHiIqQfd?"}
_NUMPY = dict(
    zip("bBhHiIqQfd?", ("i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8", "?"), strict=True)
)


class Field(NamedTuple):
    """A field of a table: its place, its kind and its default."""

    slot: int
    kind: str
    default: float


@cache
def fields_of(table: str) -> dict[str, Field]:
    """The fields of a table by name."""
    fields: dict[str, Field] = {}
    for slot, item in enumerate(TABLES.get(table, "").split()):
        if item == "_":
            continue
        name, _, kind = item.partition(":")
        kind, _, default = kind.partition("=")
        fields[name] = Field(slot, kind, float(default or 0))
    return fields


class Buffer:
    """The bytes of a file, read at checked places."""

    def __init__(self, data: bytes | memoryview, source: str) -> None:
        self.data = memoryview(data)
        self.source = source
        self._left = 4096 + _WORK * len(self.data)

    def damaged(self, what: str) -> UserError:
        """The error for contents that make no sense."""
        return UserError(f"the file is damaged: {what}", where=self.source, hint="convert or download the model again")

    def charge(self, count: int) -> None:
        """Count values that are read."""
        self._left -= count
        if self._left < 0:
            raise self.damaged("its tables refer to each other more often than it has bytes")

    def number(self, kind: str, place: int) -> Any:
        """A number at a place."""
        if place < 0 or place + _SIZES[kind] > len(self.data):
            raise self.damaged(f"it refers to byte {place} of {len(self.data)}")
        return struct.unpack_from("<" + kind, self.data, place)[0]

    def part(self, place: int, size: int) -> memoryview:
        """Some bytes."""
        if place < 0 or size < 0 or place + size > len(self.data):
            raise self.damaged(f"it refers to bytes {place} to {place + size} of {len(self.data)}")
        return self.data[place : place + size]

    def root(self, table: str) -> Table:
        """The table that a file begins with."""
        return Table(self, int(self.number("I", 0)), table)


class Table:
    """One table: fields by name."""

    def __init__(self, buffer: Buffer, place: int, name: str) -> None:
        self.buffer = buffer
        self.name = name
        self._place = place
        buffer.charge(1)
        # The offset of the table of offsets is signed and counts backwards.
        self._offsets = place - int(buffer.number("i", place))
        self._size = int(buffer.number("H", self._offsets))

    def _field(self, name: str) -> tuple[Field, int | None]:
        field = fields_of(self.name).get(name)
        if field is None:
            raise CompilerBug(f"the table {self.name} has no field {name}")
        entry = 4 + 2 * field.slot
        if entry + 2 > self._size:
            return field, None
        offset = int(self.buffer.number("H", self._offsets + entry))
        return field, self._place + offset if offset else None

    def has(self, name: str) -> bool:
        """Whether a field is there."""
        return self._field(name)[1] is not None

    def number(self, name: str) -> int:
        """A whole number, or 1 for true."""
        field, place = self._field(name)
        return int(field.default if place is None else self.buffer.number(field.kind, place))

    def real(self, name: str) -> float:
        """A number with a fraction."""
        field, place = self._field(name)
        return float(field.default if place is None else self.buffer.number(field.kind, place))

    def text(self, name: str) -> str:
        """A text; an empty one if there is none."""
        _, place = self._field(name)
        return "" if place is None else self._text(self._target(place))

    def _text(self, place: int) -> str:
        raw = bytes(self.buffer.part(place + 4, int(self.buffer.number("I", place))))
        self.buffer.charge(len(raw) // 16)
        return raw.decode(errors="replace")

    def _target(self, place: int) -> int:
        return place + int(self.buffer.number("I", place))

    def _vector(self, name: str, size: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are."""
        _, place = self._field(name)
        if place is None:
            return 0, 0
        start = self._target(place)
        count = int(self.buffer.number("I", start))
        self.buffer.part(start + 4, count * size)
        return start + 4, count

    def bytes(self, name: str) -> memoryview:
        """A vector of bytes, which is not copied."""
        start, count = self._vector(name, 1)
        return self.buffer.part(start, count)

    def numbers(self, name: str) -> Array:
        """A vector of numbers."""
        kind = self._field(name)[0].kind.strip("[]")
        start, count = self._vector(name, _SIZES[kind])
        self.buffer.charge(count)
        return np.frombuffer(self.buffer.part(start, count * _SIZES[kind]), _NUMPY[kind]).copy()

    def table(self, name: str) -> Table | None:
        """Another table."""
        field, place = self._field(name)
        return None if place is None else Table(self.buffer, self._target(place), field.kind)

    def union(self, name: str, table: str) -> Table | None:
        """A table whose kind another field says."""
        _, place = self._field(name)
        return None if place is None else Table(self.buffer, self._target(place), table)

    def tables(self, name: str) -> list[Table]:
        """A vector of tables."""
        kind = self._field(name)[0].kind.strip("[]")
        start, count = self._vector(name, 4)
        self.buffer.charge(count)
        return [Table(self.buffer, self._target(start + 4 * item), kind) for item in range(count)]

    def values(self) -> dict[str, Any]:
        """All fields as plain values: what options of operators hold."""
        result: dict[str, Any] = {}
        for name, field in fields_of(self.name).items():
            if field.kind == "s":
                result[name] = self.text(name)
            elif field.kind == "[B]":
                result[name] = bytes(self.bytes(name))
            elif field.kind.startswith("["):
                result[name] = tuple(self.numbers(name).tolist()) if self.has(name) else None
            elif field.kind in "fd":
                result[name] = self.real(name)
            else:
                result[name] = self.number(name)
        return result
