"""Kernels for microcontrollers stay C: whoever builds the firmware compiles them."""

from __future__ import annotations

from typing import Final

from tilewright.backends.compiler import Compiler
from tilewright.support.errors import UserError
from tilewright.target.target import Target

_ARCHITECTURES: Final = ("thumb", "riscv32")


def check_architecture(target: Target) -> None:
    """A `UserError` for a processor that is no microcontroller."""
    if target.arch not in _ARCHITECTURES:
        raise UserError(
            f"the target kind 'micro' is for microcontrollers, not for {target.arch} ({target.triple})",
            hint="'micro -mcpu=cortex-m4', 'micro -mtriple=riscv32-unknown-elf'; target='c' is C for other CPUs",
        )


def _compiled(text: str, target: Target) -> bytes:
    check_architecture(target)
    return text.encode()


COMPILER: Final = Compiler(_compiled)
