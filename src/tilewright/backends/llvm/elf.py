"""ELF64 relocatable objects without a compiler: a writer for read-only data, a reader for undefined symbols.

The writer puts a model's constants into an object that the linker adds to an exported library. The blob goes straight
from its (possibly memory-mapped) array to the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from tilewright.support.errors import CompilerBug, UnsupportedError

# e_machine and e_flags. RISC-V's flags say "compressed code, double-precision float ABI" and must match the code's.
_MACHINES = {"x86_64": (62, 0), "aarch64": (183, 0), "riscv64": (243, 0x5)}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DATA_INDEX, _STRINGS_INDEX = 1, 3  # places in the section table below
_TYPE_DATA, _TYPE_SYMBOLS, _TYPE_STRINGS = 1, 2, 3
_FLAG_ALLOCATE = 0x2
_FLAG_X86_LARGE = 0x10000000
_GLOBAL_OBJECT = (1 << 4) | 1
_VISIBILITY_HIDDEN = 2

DATA_ALIGNMENT = 64


def architecture(triple: str) -> str:
    """The architecture of a triple, in the spelling of this file."""
    name = triple.split("-", 1)[0]
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name, name)


def _machine(triple: str) -> tuple[int, int]:
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
    return _machine(triple)[0]


def write_data_object(path: Path, symbol: str, data: npt.NDArray[np.uint8], *, triple: str) -> None:
    """Write an object whose read-only, 64-byte-aligned section holds `data` under the hidden global `symbol`."""
    if data.ndim != 1 or data.dtype != np.uint8 or not data.size:
        raise CompilerBug(f"a data object takes a flat, non-empty array of bytes, not {data.dtype}{list(data.shape)}")
    machine, flags = _machine(triple)
    with open(path, "wb") as file:
        _write(file, symbol, data, machine, flags)


def _write(file: BinaryIO, symbol: str, data: npt.NDArray[np.uint8], machine: int, flags: int) -> None:
    large = machine == _MACHINES["x86_64"][0]
    # x86-64 code reaches 2 GiB. Linkers keep the "large" read-only section away from code and small data, so
    # that gigabytes of constants do not push those apart.
    data_name = b".lrodata.tilewright" if large else b".rodata.tilewright"
    names = b"\0" + data_name + b"\0.symtab\0.strtab\0.shstrtab\0.note.GNU-stack\0"
    strings = b"\0" + symbol.encode() + b"\0"
    symbols = _SYMBOL.pack(0, 0, 0, 0, 0, 0) + _SYMBOL.pack(
        1, _GLOBAL_OBJECT, _VISIBILITY_HIDDEN, _DATA_INDEX, 0, data.nbytes
    )

    data_offset = -(-_HEADER.size // DATA_ALIGNMENT) * DATA_ALIGNMENT
    symbols_offset = -(-(data_offset + data.nbytes) // 8) * 8
    strings_offset = symbols_offset + len(symbols)
    names_offset = strings_offset + len(strings)
    sections_offset = -(-(names_offset + len(names)) // 8) * 8
    allocate = _FLAG_ALLOCATE | (_FLAG_X86_LARGE if large else 0)

    def section(name: bytes, kind: int, flag: int, at: int, size: int, *rest: int) -> bytes:
        link, info, align, entry_size = rest
        place = names.index(b"\0" + name + b"\0") + 1
        return _SECTION.pack(place, kind, flag, 0, at, size, link, info, align, entry_size)

    sections = [
        bytes(_SECTION.size),
        section(data_name, _TYPE_DATA, allocate, data_offset, data.nbytes, 0, 0, DATA_ALIGNMENT, 0),
        section(b".symtab", _TYPE_SYMBOLS, 0, symbols_offset, len(symbols), _STRINGS_INDEX, 1, 8, _SYMBOL.size),
        section(b".strtab", _TYPE_STRINGS, 0, strings_offset, len(strings), 0, 0, 1, 0),
        section(b".shstrtab", _TYPE_STRINGS, 0, names_offset, len(names), 0, 0, 1, 0),
        # Its absence would ask the linker for an executable stack.
        section(b".note.GNU-stack", _TYPE_DATA, 0, sections_offset, 0, 0, 0, 1, 0),
    ]
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = _HEADER.pack(
        identity, 1, machine, 1, 0, 0, sections_offset, flags, _HEADER.size, 0, 0, _SECTION.size, len(sections), 4
    )
    file.write(header.ljust(data_offset, b"\0"))
    _write_array(file, data)
    file.write(bytes(symbols_offset - data_offset - data.nbytes))
    file.write(symbols + strings + names)
    file.write(bytes(sections_offset - names_offset - len(names)))
    file.write(b"".join(sections))


def _write_array(file: BinaryIO, data: npt.NDArray[np.uint8]) -> None:
    """Through a memory view: no copy of the array is made."""
    contiguous = np.ascontiguousarray(data)
    step = 1 << 26
    for start in range(0, contiguous.nbytes, step):
        file.write(contiguous[start : start + step].data)


def _symbols(image: bytes) -> Iterator[tuple[str, bool, bool]]:
    """Each named symbol of a relocatable object: its name, whether it is defined, whether it is local."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise CompilerBug("expected a little-endian ELF64 object")
    header = _HEADER.unpack_from(image)
    sections = [_SECTION.unpack_from(image, header[6] + header[11] * index) for index in range(header[12])]
    for section in sections:
        if section[1] != _TYPE_SYMBOLS:
            continue
        strings = sections[section[6]][4]
        for at in range(section[4] + _SYMBOL.size, section[4] + section[5], _SYMBOL.size):
            name, info, _, index, _, _ = _SYMBOL.unpack_from(image, at)
            if name:
                text = image[strings + name : image.index(b"\0", strings + name)].decode()
                yield text, index != 0, info >> 4 == 0


def undefined_symbols(image: bytes) -> set[str]:
    """The global symbols that a relocatable object uses but does not define."""
    return {name for name, defined, _ in _symbols(image) if not defined}


def defined_symbols(image: bytes) -> set[str]:
    """The global symbols that a relocatable object defines."""
    return {name for name, defined, local in _symbols(image) if defined and not local}
