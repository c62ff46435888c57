"""COFF relocatable objects, which become DLLs of Windows: a writer for data, a reader and a renamer of symbols."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from tilewright.backends.llvm.object_format import DATA_ALIGNMENT, ObjectFormat, Symbol, architecture, write_array
from tilewright.support.errors import UnsupportedError, UserError

MACHINES: Final = {"x86_64": 0x8664, "aarch64": 0xAA64}
"""The numbers that COFF gives architectures."""
_HEADER = struct.Struct("<HHIIIHH")
_SECTION = struct.Struct("<8sIIIIIIHHI")
_SYMBOL = struct.Struct("<8sIhHBB")
_EXTERNAL, _STATIC = 2, 3
_IS_FUNCTION = 0x20
_ALIGN_64 = 0x00700000
_READ_ONLY_DATA = 0x40000040 | _ALIGN_64
_CODE = 0x60000020 | _ALIGN_64
_MOST_BYTES = (2 << 30) - (64 << 20)
"""An image of Windows has less than 2 GiB in all."""


def machine_of(triple: str) -> int:
    """The number that COFF gives the architecture of a triple."""
    name = architecture(triple)
    if name not in MACHINES:
        raise UnsupportedError(
            f"exporting a DLL for the architecture '{name}' is not supported",
            where=f"triple {triple}",
            hint=f"supported: {', '.join(sorted(MACHINES))}",
        )
    return MACHINES[name]


def _write_data(file: BinaryIO, symbol: str, data: npt.NDArray[np.uint8], triple: str, is_code: bool) -> None:
    if data.nbytes > _MOST_BYTES:
        raise UserError(
            f"the model's constants have {data.nbytes} bytes, and a DLL of Windows has less than 2 GiB",
            hint="store weights in fewer bits: precision='int8' or 'int4_weights'",
        )
    offset = DATA_ALIGNMENT
    strings = symbol.encode() + b"\0"
    symbols_at = offset + data.nbytes
    header = _HEADER.pack(machine_of(triple), 1, 0, symbols_at, 1, 0, 0)
    name = b".text" if is_code else b".rdata"
    section = _SECTION.pack(name, 0, 0, data.nbytes, offset, 0, 0, 0, 0, _CODE if is_code else _READ_ONLY_DATA)
    file.write((header + section).ljust(offset, b"\0"))
    write_array(file, data)
    # The name lies in the table of strings, whose first four bytes are its own size.
    place = struct.pack("<II", 0, 4)
    file.write(_SYMBOL.pack(place, 0, 1, _IS_FUNCTION if is_code else 0, _EXTERNAL, 0))
    file.write(struct.pack("<I", 4 + len(strings)) + strings)


def _records(image: bytes) -> Iterator[tuple[int, str, int, int, int]]:
    """Each symbol: where its record is, its name, section, value and storage class."""
    symbols_at, count = _HEADER.unpack_from(image)[3:5]
    strings_at = symbols_at + count * _SYMBOL.size
    index = 0
    while index < count:
        at = symbols_at + index * _SYMBOL.size
        raw, value, section, _, storage, auxiliary = _SYMBOL.unpack_from(image, at)
        if raw[:4] == bytes(4):
            start = strings_at + int.from_bytes(raw[4:], "little")
            name = image[start : image.index(b"\0", start)]
        else:
            name = raw.rstrip(b"\0")
        yield at, name.decode(), section, value, storage
        index += 1 + auxiliary


def _symbols(image: bytes) -> Iterator[Symbol]:
    for _, name, section, value, storage in _records(image):
        if storage in (_EXTERNAL, _STATIC) and section >= 0:
            # A size without a section is common memory, which is defined too.
            yield Symbol(name, is_defined=section != 0 or value != 0, is_local=storage == _STATIC)


def _renamed(image: bytes, names: Mapping[str, str]) -> bytes:
    symbols_at, count = _HEADER.unpack_from(image)[3:5]
    strings_at = symbols_at + count * _SYMBOL.size
    changed = bytearray(image)
    for at, name, _, _, storage in _records(image):
        if storage == _EXTERNAL and name in names:
            struct.pack_into("<II", changed, at, 0, len(changed) - strings_at)
            changed += names[name].encode() + b"\0"
    struct.pack_into("<I", changed, strings_at, len(changed) - strings_at)
    return bytes(changed)


COFF: Final = ObjectFormat(_write_data, _symbols, _renamed)
