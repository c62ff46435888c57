"""What all implementations of the accelerator share: memory that a program is written to, a run, and its counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tilewright.accel.config import AccelConfig
from tilewright.accel.encoding import INSTRUCTION_BYTES
from tilewright.accel.instructions import Unit
from tilewright.support.errors import UserError


@dataclass(frozen=True, slots=True)
class UnitCounters:
    """What one unit did in a run."""

    instructions: int
    """Instructions that it executed."""
    busy: int
    """Cycles in which it worked. Of a machine without cycles: the steps of its instructions (see `steps`)."""
    token_wait: int | None = None
    """Cycles in which its next instruction waited for a token; None where there are no cycles."""
    memory_wait: int | None = None
    """Cycles in which it waited for the memory port or for data of it."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What one run cost."""

    cycles: int | None
    """From the start to FINISH; None for a machine without cycles."""
    units: Mapping[Unit, UnitCounters]
    bytes_read: int
    """What LOADs took from DRAM; the instructions themselves are not in it."""
    bytes_written: int
    """What STOREs gave to DRAM."""

    @property
    def instructions(self) -> int:
        """Instructions that were executed, by all units."""
        return sum(unit.instructions for unit in self.units.values())


@dataclass(frozen=True, slots=True)
class Event:
    """One instruction of a run: when its unit began and ended it, in cycles or in steps."""

    index: int
    """Its place in the program."""
    unit: Unit
    start: int
    end: int
    ready: int
    """When its unit was free for it; from here to `start` it waited for tokens."""


class Machine(Protocol):
    """An accelerator with its DRAM. DRAM and on-chip memories keep what they hold between runs."""

    @property
    def config(self) -> AccelConfig:
        """What it is."""

    @property
    def dram_bytes(self) -> int:
        """The size of its DRAM."""

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes to DRAM."""

    def read(self, address: int, size: int) -> bytes:
        """Copy bytes from DRAM."""

    def run(self, address: int, count: int, most_cycles: int | None = None) -> Counters:
        """Execute the `count` instructions that lie at byte `address` of DRAM, to FINISH.

        A deadlock, a program that takes more than `most_cycles`, and an error of the program (a bad instruction, an
        index past a memory's end, a token too many) are a `UserError`; DRAM can be read and written afterwards.
        """

    def close(self) -> None:
        """Free what it holds; nothing else may be called afterwards. A second call does nothing."""


def check_dram(config: AccelConfig, dram_bytes: int) -> None:
    """Refuse a DRAM that is no whole number of words of the bus, or that addresses do not reach."""
    most = config.bus_bytes << 32
    if not 0 < dram_bytes <= most or dram_bytes % config.bus_bytes:
        raise UserError(
            f"accelerator: a DRAM of {dram_bytes} bytes",
            hint=f"a multiple of the bus's {config.bus_bytes} bytes, at most {most}",
        )


def check_range(machine: Machine, address: int, size: int) -> None:
    """Refuse bytes that are not in a machine's DRAM."""
    if address < 0 or size < 0 or address + size > machine.dram_bytes:
        raise UserError(
            f"accelerator: {size} bytes at {address} are not in the DRAM of {machine.dram_bytes} bytes",
        )


def check_program(machine: Machine, address: int, count: int) -> None:
    """Refuse a program that does not lie in DRAM, at a word of the bus."""
    check_range(machine, address, count * INSTRUCTION_BYTES)
    if count < 1:
        raise UserError(f"accelerator: a program of {count} instructions")
    if address % machine.config.bus_bytes:
        raise UserError(
            f"accelerator: a program at byte {address}",
            hint=f"it must begin at a word of the bus: a multiple of {machine.config.bus_bytes}",
        )
