"""What a file says it is before the system's loader sees it: an ELF shared library, how long, with which symbols.

The loader's own messages say little, and some files crash it. Every place is checked: damaged bytes are a `UserError`.
"""

from __future__ import annotations

import platform
import struct
from dataclasses import dataclass

from tilewright.support.errors import UserError

_MACHINES = {62: "x86-64", 183: "aarch64", 243: "riscv64"}
_HOST_MACHINES = {"x86_64": 62, "amd64": 62, "aarch64": 183, "arm64": 183, "riscv64": 243}

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHARED_OBJECT = 3
_NO_BITS, _DYNAMIC_SYMBOLS = 8, 11


@dataclass(frozen=True, slots=True)
class SharedObject:
    """The header of a library: where its content ends, and what its sections are (type, offset, size, link)."""

    end: int
    """The first byte that is no part of the ELF file: the seal stands there."""
    sections: tuple[tuple[int, int, int, int], ...]


def check_identity(content: memoryview, where: str) -> None:
    """Refuse what is no shared library, or one for another machine."""
    if len(content) < _HEADER.size or bytes(content[:6]) != b"\x7fELF\x02\x01":
        raise UserError(
            "the file is not a shared library (it has no 64-bit ELF header)",
            where=where,
            hint="load takes what export_library wrote; models are for tilewright.compile",
        )
    kind, machine = _HEADER.unpack_from(content)[1:3]
    if kind != _SHARED_OBJECT:
        raise UserError("the file is an ELF file but not a shared library", where=where)
    host = _HOST_MACHINES.get(platform.machine().lower())
    if host is not None and machine != host:
        raise UserError(
            f"the library is for {_MACHINES.get(machine, f'ELF machine {machine}')}, "
            f"this machine is {platform.machine()}",
            where=where,
            hint="export it with a target for this machine",
        )


def read_layout(content: memoryview, where: str) -> SharedObject:
    """Where the parts of a library lie, all of them inside it."""
    header = _HEADER.unpack_from(content)
    segments_at, sections_at = header[5:7]
    segment_size, segments, section_size, sections = header[9:13]
    ends = [_HEADER.size, segments_at + segment_size * segments, sections_at + section_size * sections]
    _check_end(max(ends), content, where)
    if (segments and segment_size != _SEGMENT.size) or (sections and section_size != _SECTION.size):
        raise UserError("the library is damaged: its header makes no sense", where=where)
    for index in range(segments):
        _, _, offset, _, _, size, _, _ = _SEGMENT.unpack_from(content, segments_at + index * segment_size)
        ends.append(offset + size)
    section_table = []
    for index in range(sections):
        _, type_, _, _, offset, size, link, _, _, _ = _SECTION.unpack_from(content, sections_at + index * section_size)
        section_table.append((type_, offset, size, link))
        if type_ != _NO_BITS:
            ends.append(offset + size)
    _check_end(max(ends), content, where)
    return SharedObject(max(ends), tuple(section_table))


def _check_end(end: int, content: memoryview, where: str) -> None:
    if end > len(content):
        raise UserError("the library is truncated", where=where, hint="export or copy it again")


def exported_names(content: memoryview, header: SharedObject) -> list[str]:
    """The symbols that a library defines for others."""
    names = []
    for type_, offset, size, link in header.sections:
        if type_ != _DYNAMIC_SYMBOLS or link >= len(header.sections):
            continue
        _, strings_at, strings_size, _ = header.sections[link]
        strings = bytes(content[strings_at : strings_at + strings_size])
        for at in range(offset, offset + size - _SYMBOL.size + 1, _SYMBOL.size):
            name, _, _, index, _, _ = _SYMBOL.unpack_from(content, at)
            end = strings.find(b"\0", name)
            if name and index and end > name:
                names.append(strings[name:end].decode("utf-8", "replace"))
    return names
