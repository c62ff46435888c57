"""Relocatable objects of every format: which format a triple has, and symbols of objects whatever they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tilewright.backends.llvm.coff import COFF, MACHINES
from tilewright.backends.llvm.elf import ELF
from tilewright.backends.llvm.macho import MACH_O
from tilewright.backends.llvm.object_format import ObjectFormat, is_macos, is_windows
from tilewright.support.errors import CompilerBug

_BEGINNINGS: Final = {
    b"\x7fELF": ELF,
    b"\xcf\xfa\xed\xfe": MACH_O,
    **{number.to_bytes(2, "little"): COFF for number in MACHINES.values()},
}


def object_format(triple: str) -> ObjectFormat:
    """The format of objects for a triple."""
    if is_windows(triple):
        return COFF
    return MACH_O if is_macos(triple) else ELF


def write_data_object(
    path: Path, symbol: str, data: npt.NDArray[np.uint8], *, triple: str, is_code: bool = False
) -> None:
    """Write an object whose read-only, 64-byte-aligned section holds `data` under the hidden global `symbol`."""
    if data.ndim != 1 or data.dtype != np.uint8 or not data.size:
        raise CompilerBug(f"a data object takes a flat, non-empty array of bytes, not {data.dtype}{list(data.shape)}")
    with open(path, "wb") as file:
        object_format(triple).write_data(file, symbol, data, triple, is_code)


def _format_of(image: bytes) -> ObjectFormat:
    for beginning, known in _BEGINNINGS.items():
        if image.startswith(beginning):
            return known
    raise CompilerBug("expected an ELF64, ELF32, COFF or Mach-O object")


def undefined_symbols(image: bytes) -> set[str]:
    """The global symbols that a relocatable object uses but does not define."""
    return {symbol.name for symbol in _format_of(image).symbols(image) if not symbol.is_defined}


def defined_symbols(image: bytes) -> set[str]:
    """The global symbols that a relocatable object defines."""
    return {symbol.name for symbol in _format_of(image).symbols(image) if symbol.is_defined and not symbol.is_local}


def renamed_symbols(image: bytes, names: Mapping[str, str]) -> bytes:
    """The object with other names for some of its global symbols."""
    return _format_of(image).renamed(image, names)
