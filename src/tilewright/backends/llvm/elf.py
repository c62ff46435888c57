"""ELF relocatable objects without a compiler: a writer for read-only data, a reader and a renamer of symbols.

The writer puts a model's constants into an object that the linker adds to an exported library. The blob goes straight
from its (possibly memory-mapped) array to the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from tilewright.backends.llvm.object_format import (
    DATA_ALIGNMENT,
    ObjectFormat,
    Symbol,
    architecture,
    rounded_up,
    write_array,
)
from tilewright.support.errors import CompilerBug, UnsupportedError


@dataclass(frozen=True, slots=True)
class _Layout:
    """The records of one of ELF's two classes; symbols have another order of fields in each."""

    identity: bytes
    header: struct.Struct
    section: struct.Struct
    symbol: struct.Struct
    symbol_fields: tuple[int, int, int, int, int, int]
    """Where name, info, visibility, section, value and size stand in a symbol's record."""


_CLASS_64 = _Layout(
    b"\x7fELF\x02\x01\x01",
    struct.Struct("<16sHHIQQQIHHHHHH"),
    struct.Struct("<IIQQQQIIQQ"),
    struct.Struct("<IBBHQQ"),
    (0, 1, 2, 3, 4, 5),
)
_CLASS_32 = _Layout(
    b"\x7fELF\x01\x01\x01",
    struct.Struct("<16sHHIIIIIHHHHHH"),
    struct.Struct("<IIIIIIIIII"),
    struct.Struct("<IIIBBH"),
    (0, 3, 4, 5, 1, 2),
)

# Class, e_machine and e_flags, which must match those of code. RISC-V's say "compressed code, double-precision float
# ABI", Arm's "EABI version 5".
_MACHINES = {
    "x86_64": (_CLASS_64, 62, 0),
    "aarch64": (_CLASS_64, 183, 0),
    "riscv64": (_CLASS_64, 243, 0x5),
    "arm": (_CLASS_32, 40, 0x05000000),
}
_DATA_INDEX, _STRINGS_INDEX = 1, 3  # places in the section table below
_TYPE_DATA, _TYPE_SYMBOLS, _TYPE_STRINGS = 1, 2, 3
_FLAG_ALLOCATE, _FLAG_EXECUTE = 0x2, 0x4
_FLAG_X86_LARGE = 0x10000000
_GLOBAL_OBJECT, _GLOBAL_FUNCTION = (1 << 4) | 1, (1 << 4) | 2
_VISIBILITY_HIDDEN = 2


def _machine(triple: str) -> tuple[_Layout, int, int]:
    name = architecture(triple)
    if name not in _MACHINES:
        raise UnsupportedError(
            f"exporting a library for the architecture '{name}' is not supported",
            where=f"triple {triple}",
            hint=f"supported: {', '.join(sorted(_MACHINES))}",
        )
    return _MACHINES[name]


def machine_code(triple: str) -> int:
    """The number ELF gives the triple's architecture."""
    return _machine(triple)[1]


def _write_data(file: BinaryIO, symbol: str, data: npt.NDArray[np.uint8], triple: str, is_code: bool) -> None:
    layout, machine, flags = _machine(triple)
    # x86-64 code reaches 2 GiB. Linkers keep the "large" read-only section away from code and small data, so
    # that gigabytes of constants do not push those apart.
    is_large = machine == _MACHINES["x86_64"][1] and not is_code
    data_name = b".text.tilewright" if is_code else b".lrodata.tilewright" if is_large else b".rodata.tilewright"
    names = b"\0" + data_name + b"\0.symtab\0.strtab\0.shstrtab\0.note.GNU-stack\0"
    strings = b"\0" + symbol.encode() + b"\0"
    info = _GLOBAL_FUNCTION if is_code else _GLOBAL_OBJECT
    fields = [1, info, _VISIBILITY_HIDDEN, _DATA_INDEX, 0, data.nbytes]
    ordered = [value for _, value in sorted(zip(layout.symbol_fields, fields, strict=True))]
    symbols = bytes(layout.symbol.size) + layout.symbol.pack(*ordered)

    data_offset = rounded_up(layout.header.size, DATA_ALIGNMENT)
    symbols_offset = rounded_up(data_offset + data.nbytes, 8)
    strings_offset = symbols_offset + len(symbols)
    names_offset = strings_offset + len(strings)
    sections_offset = rounded_up(names_offset + len(names), 8)
    allocate = _FLAG_ALLOCATE | (_FLAG_X86_LARGE if is_large else 0) | (_FLAG_EXECUTE if is_code else 0)

    def section(name: bytes, kind: int, flag: int, at: int, size: int, *rest: int) -> bytes:
        link, info, align, entry_size = rest
        place = names.index(b"\0" + name + b"\0") + 1
        return layout.section.pack(place, kind, flag, 0, at, size, link, info, align, entry_size)

    sections = [
        bytes(layout.section.size),
        section(data_name, _TYPE_DATA, allocate, data_offset, data.nbytes, 0, 0, DATA_ALIGNMENT, 0),
        section(b".symtab", _TYPE_SYMBOLS, 0, symbols_offset, len(symbols), _STRINGS_INDEX, 1, 8, layout.symbol.size),
        section(b".strtab", _TYPE_STRINGS, 0, strings_offset, len(strings), 0, 0, 1, 0),
        section(b".shstrtab", _TYPE_STRINGS, 0, names_offset, len(names), 0, 0, 1, 0),
        # Its absence would ask the linker for an executable stack.
        section(b".note.GNU-stack", _TYPE_DATA, 0, sections_offset, 0, 0, 0, 1, 0),
    ]
    identity = layout.identity.ljust(16, b"\0")
    sizes = (layout.header.size, 0, 0, layout.section.size, len(sections), 4)
    header = layout.header.pack(identity, 1, machine, 1, 0, 0, sections_offset, flags, *sizes)
    file.write(header.ljust(data_offset, b"\0"))
    write_array(file, data)
    file.write(bytes(symbols_offset - data_offset - data.nbytes))
    file.write(symbols + strings + names)
    file.write(bytes(sections_offset - names_offset - len(names)))
    file.write(b"".join(sections))


def _layout_of(image: bytes) -> _Layout:
    for layout in (_CLASS_64, _CLASS_32):
        if image[:6] == layout.identity[:6]:
            return layout
    raise CompilerBug("expected a little-endian ELF64 or ELF32 object")


def _sections(image: bytes, layout: _Layout) -> list[tuple[int, ...]]:
    header = layout.header.unpack_from(image)
    return [layout.section.unpack_from(image, header[6] + header[11] * index) for index in range(header[12])]


def _symbols(image: bytes) -> Iterator[Symbol]:
    layout = _layout_of(image)
    sections = _sections(image, layout)
    for section in sections:
        if section[1] != _TYPE_SYMBOLS:
            continue
        strings = sections[section[6]][4]
        for at in range(section[4] + layout.symbol.size, section[4] + section[5], layout.symbol.size):
            record = layout.symbol.unpack_from(image, at)
            name, info, _, index, _, _ = (record[place] for place in layout.symbol_fields)
            if name:
                text = image[strings + name : image.index(b"\0", strings + name)].decode()
                yield Symbol(text, is_defined=index != 0, is_local=info >> 4 == 0)


def _renamed(image: bytes, names: Mapping[str, str]) -> bytes:
    """The names of symbols go to a new table of strings behind the object's content."""
    layout = _layout_of(image)
    header = layout.header.unpack_from(image)
    changed = bytearray(image)
    sections = _sections(image, layout)
    for section in sections:
        if section[1] != _TYPE_SYMBOLS:
            continue
        place = header[6] + header[11] * section[6]
        old = sections[section[6]]
        table = bytearray(image[old[4] : old[4] + old[5]])
        for at in range(section[4] + layout.symbol.size, section[4] + section[5], layout.symbol.size):
            record = list(layout.symbol.unpack_from(image, at))
            start = record[0]
            text = bytes(table[start : table.index(b"\0", start)]).decode()
            if start and text in names:
                record[0] = len(table)
                table += names[text].encode() + b"\0"
                layout.symbol.pack_into(changed, at, *record)
        layout.section.pack_into(changed, place, *old[:4], len(changed), len(table), *old[6:])
        changed += table
    return bytes(changed)


ELF: Final = ObjectFormat(_write_data, _symbols, _renamed)
