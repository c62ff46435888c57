"""Mach-O relocatable objects, which become dylibs of macOS: a writer for data, a reader and a renamer of symbols."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
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
from tilewright.support.errors import UnsupportedError

_MACHINES: Final = {"x86_64": (0x01000007, 3), "aarch64": (0x0100000C, 0)}
_MAGIC = 0xFEEDFACF
_HEADER = struct.Struct("<IIIIIIII")
_SEGMENT = struct.Struct("<II16sQQQQIIII")
_SECTION = struct.Struct("<16s16sQQIIIIIIII")
_BUILD_VERSION = struct.Struct("<IIIIII")
_SYMBOL_TABLE = struct.Struct("<IIIIII")
_SYMBOL = struct.Struct("<IBBHQ")
_COMMAND_SYMBOLS, _COMMAND_SEGMENT, _COMMAND_BUILD_VERSION = 0x2, 0x19, 0x32
_PLATFORM_MACOS = 1
_IS_EXTERNAL, _IS_PRIVATE, _TYPE_BITS, _IN_SECTION, _DEBUG_BITS = 0x01, 0x10, 0x0E, 0x0E, 0xE0
_HAS_INSTRUCTIONS = 0x80000400
OLDEST_MACOS: Final = "11.0"
"""The oldest system that libraries are for."""


def machine_of(triple: str) -> tuple[int, int]:
    """The numbers that Mach-O gives the architecture of a triple."""
    name = architecture(triple)
    if name not in _MACHINES:
        raise UnsupportedError(
            f"exporting a dylib for the architecture '{name}' is not supported",
            where=f"triple {triple}",
            hint=f"supported: {', '.join(sorted(_MACHINES))}",
        )
    return _MACHINES[name]


def _write_data(file: BinaryIO, symbol: str, data: npt.NDArray[np.uint8], triple: str, is_code: bool) -> None:
    processor, variant = machine_of(triple)
    commands = _SEGMENT.size + _SECTION.size + _BUILD_VERSION.size + _SYMBOL_TABLE.size
    offset = rounded_up(_HEADER.size + commands, DATA_ALIGNMENT)
    symbols_at = rounded_up(offset + data.nbytes, 8)
    strings = b"\0_" + symbol.encode() + b"\0"
    size = data.nbytes
    version = int(OLDEST_MACOS.split(".")[0]) << 16
    section = (b"__text" if is_code else b"__const", b"__TEXT", 0, size, offset, DATA_ALIGNMENT.bit_length() - 1)
    header = b"".join(
        [
            _HEADER.pack(_MAGIC, processor, variant, 1, 3, commands, 0, 0),
            _SEGMENT.pack(_COMMAND_SEGMENT, _SEGMENT.size + _SECTION.size, b"", 0, size, offset, size, 7, 7, 1, 0),
            _SECTION.pack(*section, 0, 0, _HAS_INSTRUCTIONS if is_code else 0, 0, 0, 0),
            _BUILD_VERSION.pack(_COMMAND_BUILD_VERSION, _BUILD_VERSION.size, _PLATFORM_MACOS, version, version, 0),
            _SYMBOL_TABLE.pack(
                _COMMAND_SYMBOLS, _SYMBOL_TABLE.size, symbols_at, 1, symbols_at + _SYMBOL.size, len(strings)
            ),
        ]
    )
    file.write(header.ljust(offset, b"\0"))
    write_array(file, data)
    file.write(bytes(symbols_at - offset - size))
    file.write(_SYMBOL.pack(1, _IN_SECTION | _IS_EXTERNAL | _IS_PRIVATE, 1, 0, 0) + strings)


def _symbol_table(image: bytes) -> tuple[int, tuple[int, ...]]:
    """Where the command of the symbol table is, and what it says."""
    count = _HEADER.unpack_from(image)[4]
    at = _HEADER.size
    for _ in range(count):
        command, size = struct.unpack_from("<II", image, at)
        if command == _COMMAND_SYMBOLS:
            return at, _SYMBOL_TABLE.unpack_from(image, at)
        at += size
    return 0, (0, 0, 0, 0, 0, 0)


def _records(image: bytes) -> Iterator[tuple[int, str, int]]:
    """Each symbol: where its record is, its name in C, and its kind."""
    _, (_, _, symbols_at, count, strings_at, _) = _symbol_table(image)
    for at in range(symbols_at, symbols_at + count * _SYMBOL.size, _SYMBOL.size):
        start, kind, _, _, _ = _SYMBOL.unpack_from(image, at)
        name = image[strings_at + start : image.index(b"\0", strings_at + start)].decode()
        if not kind & _DEBUG_BITS:
            yield at, name.removeprefix("_"), kind


def _symbols(image: bytes) -> Iterator[Symbol]:
    for _, name, kind in _records(image):
        yield Symbol(name, is_defined=bool(kind & _TYPE_BITS), is_local=not kind & _IS_EXTERNAL)


def _renamed(image: bytes, names: Mapping[str, str]) -> bytes:
    """The names of symbols go to a new table of strings behind the object's content."""
    command_at, (command, size, symbols_at, count, strings_at, strings_size) = _symbol_table(image)
    changed = bytearray(image)
    table = bytearray(image[strings_at : strings_at + strings_size])
    for at, name, kind in _records(image):
        if kind & _IS_EXTERNAL and name in names:
            struct.pack_into("<I", changed, at, len(table))
            table += b"_" + names[name].encode() + b"\0"
    if not count:
        return image
    _SYMBOL_TABLE.pack_into(changed, command_at, command, size, symbols_at, count, len(changed), len(table))
    return bytes(changed + table)


MACH_O: Final = ObjectFormat(_write_data, _symbols, _renamed)
