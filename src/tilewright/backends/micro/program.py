"""Programs for boards as a linker wrote them (ELF of 32 bits): what to put into memory, where names are, and sizes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tilewright.support.errors import UserError

_HEADER: Final = struct.Struct("<16xHHIIIIIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIIIIIII")
_SECTION: Final = struct.Struct("<IIIIIIIIII")
_SYMBOL: Final = struct.Struct("<IIIBBH")
_LOADED, _SYMBOLS, _NO_BITS = 1, 2, 8
_ALLOCATED, _WRITTEN = 2, 1


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes that are in memory before a program starts."""

    address: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Program:
    """A program for a board."""

    entry: int
    segments: tuple[Segment, ...]
    symbols: dict[str, int]
    flash_bytes: int
    """Code, weights, and the first values of what is written."""
    ram_bytes: int
    """What is written: the arena, inputs and outputs, without the stack."""

    def symbol(self, name: str) -> int:
        """The address of a name."""
        found = self.symbols.get(name)
        if found is None:
            raise UserError(f"the program has no '{name}'", hint="build it from the example folder of the model")
        return found


def read_program(path: Path) -> Program:
    """The program in a file."""
    data = path.read_bytes()
    try:
        return _parse(data)
    except (struct.error, IndexError, UnicodeDecodeError):
        raise UserError(f"{path} is no program of 32 bits for a board", hint="name an ELF file") from None


def _parse(data: bytes) -> Program:
    if data[:6] != b"\x7fELF\x01\x01":
        raise IndexError("the wrong kind of file")
    _, _, _, entry, segments_at, sections_at, _, _, _, segment_count, _, section_count, _ = _HEADER.unpack_from(data)
    segments = []
    for number in range(segment_count):
        kind, offset, _, physical, size, _, _, _ = _SEGMENT.unpack_from(data, segments_at + number * _SEGMENT.size)
        if kind == _LOADED and size:
            segments.append(Segment(physical, data[offset : offset + size]))
    sections = [_SECTION.unpack_from(data, sections_at + n * _SECTION.size) for n in range(section_count)]
    flash = ram = 0
    symbols: dict[str, int] = {}
    for _, kind, flags, _, offset, size, link, _, _, _ in sections:
        if flags & _ALLOCATED:
            flash += size if kind != _NO_BITS else 0
            ram += size if flags & _WRITTEN else 0
        if kind == _SYMBOLS:
            symbols.update(_names(data, offset, size, sections[link][4]))
    return Program(entry, tuple(segments), symbols, flash, ram)


def _names(data: bytes, offset: int, size: int, strings: int) -> dict[str, int]:
    found = {}
    for place in range(offset, offset + size, _SYMBOL.size):
        name, value, _, _, _, section = _SYMBOL.unpack_from(data, place)
        if name and section:
            end = data.index(b"\0", strings + name)
            found[data[strings + name : end].decode()] = value
    return found
