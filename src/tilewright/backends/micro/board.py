"""The processors and QEMU's boards that examples are built for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tilewright.support.errors import UserError
from tilewright.target.kinds import closest
from tilewright.target.llvm_cpus import arch_of_triple


@dataclass(frozen=True, slots=True)
class Board:
    """What the Makefile and the linker script of an example say of a board."""

    tools: str
    """What names of the compiler and its tools begin with."""
    machine: str
    """What QEMU calls the board."""
    flags: str
    """The options of GCC for the processor."""
    emulator: str
    """The command of QEMU."""
    flash: tuple[str, str]
    """Where code and weights lie, and how much room there is."""
    ram: tuple[str, str]
    start: str
    """The start-up file."""
    clock_mhz: int
    """How often the clock ticks that the start-up file reads; 1000: at each instruction, as QEMU counts them."""
    uart: tuple[str, str] = ("uart_cmsdk.h", "0x40004000")
    """The serial line: the file that drives it, and its address."""
    specs: str = ""
    """The file that tells the compiler of its C library, where it does not know of one by itself."""


def _arm(
    flags: str,
    machine: str,
    flash: tuple[str, str] = ("0x0", "4M"),
    ram: str = "0x20000000",
    clock: int = 25,
    uart: str = "0x40004000",
) -> Board:
    return Board(
        "arm-none-eabi-",
        machine,
        f"-mthumb {flags}",
        f"qemu-system-arm -M {machine}",
        flash,
        (ram, "4M"),
        "cortex_m.c",
        clock,
        ("uart_cmsdk.h", uart),
    )


_AN385: Final = "mps2-an385"
_RISCV: Final = Board(
    "riscv64-unknown-elf-",
    "virt",
    "-march=rv32imac -mabi=ilp32 -mcmodel=medany",
    "qemu-system-riscv32 -M virt -bios none",
    ("0x80000000", "8M"),
    ("0x80800000", "8M"),
    "riscv.c",
    1000,
    ("uart_16550.h", "0x10000000"),
    "picolibc.specs",
)
_SOFT: Final = "-mfloat-abi=soft"
_BOARDS: Final = {
    "cortex-m0": _arm(f"-mcpu=cortex-m0 {_SOFT}", _AN385),
    "cortex-m0plus": _arm(f"-mcpu=cortex-m0plus {_SOFT}", _AN385),
    "cortex-m3": _arm(f"-mcpu=cortex-m3 {_SOFT}", _AN385),
    "cortex-m4": _arm("-mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16", "mps2-an386"),
    "cortex-m7": _arm("-mcpu=cortex-m7 -mfloat-abi=hard -mfpu=fpv5-d16", "mps2-an500"),
    "cortex-m33": _arm(f"-mcpu=cortex-m33 {_SOFT}", "mps2-an505", ("0x10000000", "4M"), "0x38000000", 20, "0x50200000"),
    "cortex-m55": _arm(
        "-mcpu=cortex-m55 -mfloat-abi=hard", "mps3-an547", ("0x10000000", "512K"), "0x31000000", 32, "0x59303000"
    ),
}


def board_of(triple: str, cpu: str, features: str = "") -> Board:
    """The board for a processor; one of the same architecture where QEMU has none with that processor."""
    if arch_of_triple(triple) == "riscv32":
        is_atomic = "-a" not in features.split(",")
        return _RISCV if is_atomic else replace(_RISCV, flags=_RISCV.flags.replace("rv32imac", "rv32imc"))
    return _BOARDS.get(cpu, _BOARDS["cortex-m3"])


def processor_of(machine: str) -> str:
    """The processor of one of QEMU's boards, as a target names it."""
    boards = {_RISCV.machine: "rv32imac", **{board.machine: cpu for cpu, board in reversed(_BOARDS.items())}}
    boards[_AN385] = "cortex-m3"
    if machine not in boards:
        raise UserError(
            f"there is no board '{machine}'{closest(machine, boards)}",
            hint=f"boards are {', '.join(sorted(boards))}",
        )
    return boards[machine]
