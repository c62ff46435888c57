"""What is done with relocatable objects of any format: data becomes one, symbols are read and renamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

DATA_ALIGNMENT: Final = 64
"""Where data begins in memory: at a multiple of this."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named symbol of a relocatable object, under the name that it has in C."""

    name: str
    is_defined: bool
    is_local: bool


@dataclass(frozen=True, slots=True)
class ObjectFormat:
    """A format of relocatable objects."""

    write_data: Callable[[BinaryIO, str, npt.NDArray[np.uint8], str, bool], None]
    """Writes bytes (data, or machine code) under a symbol that only the library sees, for a triple."""
    symbols: Callable[[bytes], Iterator[Symbol]]
    """The named symbols of an object."""
    renamed: Callable[[bytes, Mapping[str, str]], bytes]
    """The object with other names for some symbols, whether it defines or uses them."""


def architecture(triple: str) -> str:
    """The architecture of a triple: one name for each, however it is spelt."""
    name = triple.split("-", 1)[0]
    if name.startswith("arm") and name != "arm64":
        return "arm"
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name, name)


def is_windows(triple: str) -> bool:
    """Whether a triple is one of Windows."""
    return "windows" in triple or "mingw" in triple


def is_macos(triple: str) -> bool:
    """Whether a triple is one of macOS."""
    return "darwin" in triple or "macos" in triple


def rounded_up(number: int, step: int) -> int:
    """The least multiple of `step` that is no less."""
    return -(-number // step) * step


def write_array(file: BinaryIO, data: npt.NDArray[np.uint8]) -> None:
    """Through a memory view: no copy of the array is made."""
    contiguous = np.ascontiguousarray(data)
    step = 1 << 26
    for start in range(0, contiguous.nbytes, step):
        file.write(contiguous[start : start + step].data)
