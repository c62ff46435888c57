"""What compiles the text of kernels to the code that an artifact keeps, by back end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tilewright.backends import slices
from tilewright.target.target import Target


@dataclass(frozen=True, slots=True)
class Assembly:
    """Machine code as assembly, there and back: to look at, and for what a user has changed."""

    emit: Callable[[str, Target], str]
    assemble: Callable[[str, Target], bytes]


@dataclass(frozen=True, slots=True)
class Compiler:
    """From a program's text to its code: machine code where it can be made without the device."""

    compile: Callable[[str, Target], bytes]
    version: Callable[[], str] = lambda: "text"
    """Name and version of a compiler that is not part of Tilewright: they decide the code. A `UserError` without it."""
    assembly: Assembly | None = None


_DRIVERS_OWN: Final = Compiler(lambda source, target: source.encode())
"""Drivers that compile themselves are given the text."""


def compiler_of(kind: str) -> Compiler:
    """The compiler of a kind of target."""
    return slices.load(kind, "compiler", Compiler) if kind in slices.names("compiler") else _DRIVERS_OWN
