"""The accelerator on a board: registers of 32 bits that start a program and tell how it went, and a DRAM beside them.

`RegisterMachine` drives a board by register reads and writes alone, as a driver of a real one would. `MockBoard` is a
board whose programs are executed by a machine in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, IntFlag
from typing import Protocol

from tilewright.accel.checker import check
from tilewright.accel.config import AccelConfig
from tilewright.accel.encoding import INSTRUCTION_BYTES, decode
from tilewright.accel.instructions import Unit
from tilewright.accel.machine import Counters, Machine, UnitCounters, check_program, check_range
from tilewright.support.errors import UserError

IDENTITY = 0x54574131
"""What the register IDENTITY holds."""
_MASK = (1 << 32) - 1
_NOT_COUNTED = (1 << 64) - 1
_UNIT_COUNTERS = ("instructions", "busy", "token_wait", "memory_wait")


class Register(IntEnum):
    """Registers by their byte offsets. Numbers of 64 bits have their low half first."""

    IDENTITY = 0x00
    CONTROL = 0x04
    STATUS = 0x08
    ERROR = 0x0C
    ADDRESS = 0x10
    """The first instruction, in words of the bus."""
    COUNT = 0x14
    """Instructions."""
    MOST_CYCLES = 0x18
    """64 bits; 0: no limit of its own."""
    CYCLES = 0x20
    """64 bits, as the ones that follow; all ones: not counted."""
    BYTES_READ = 0x28
    BYTES_WRITTEN = 0x30
    UNITS = 0x40
    """Four counters of each unit: instructions, busy, waiting for tokens, waiting for memory."""


class Control(IntFlag):
    """Bits of CONTROL, which reads as zero."""

    START = 1
    """Start the program. Nothing happens while one runs."""
    CLEAR = 2
    """Forget `done` and the error."""


class Status(IntFlag):
    """Bits of STATUS."""

    BUSY = 1
    DONE = 2
    ERROR = 4


class BoardError(IntEnum):
    """What ERROR holds."""

    NONE = 0
    PROGRAM = 1
    """The program deadlocks, takes too long, or an instruction is illegal."""
    REGISTER = 2
    """A register was written that cannot be, or while a program ran."""


class Board(Protocol):
    """What a driver sees of a board."""

    @property
    def config(self) -> AccelConfig:
        """The accelerator on it."""

    @property
    def dram_bytes(self) -> int:
        """The size of its DRAM."""

    def read_register(self, offset: int) -> int:
        """32 bits of a register."""

    def write_register(self, offset: int, value: int) -> None:
        """Write 32 bits of a register."""

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes to DRAM."""

    def read(self, address: int, size: int) -> bytes:
        """Copy bytes from DRAM."""


class MockBoard:
    """A board without hardware. A program that is started runs when STATUS has been read busy once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.config = machine.config
        self.dram_bytes = machine.dram_bytes
        self.write = machine.write
        self.read = machine.read
        self._values = {Register.ADDRESS: 0, Register.COUNT: 0, Register.MOST_CYCLES: 0, Register.MOST_CYCLES + 4: 0}
        self._status = Status(0)
        self._error = BoardError.NONE
        self._counters: Counters | None = None

    def read_register(self, offset: int) -> int:
        """32 bits of a register; those that there are not read as zero."""
        if offset == Register.STATUS:
            status = self._status
            if Status.BUSY in status:
                self._execute()
            return int(status)
        fixed = {Register.IDENTITY: IDENTITY, Register.ERROR: int(self._error), **self._values}
        return fixed[offset] if offset in fixed else self._counter(offset)

    def write_register(self, offset: int, value: int) -> None:
        """Write a register; one that cannot be written, or not now, is an error of the board."""
        if offset == Register.CONTROL:
            self._control(Control(value & 3))
        elif offset not in self._values or Status.BUSY in self._status:
            self._fail(BoardError.REGISTER)
        else:
            self._values[offset] = value & _MASK

    def _control(self, bits: Control) -> None:
        if Status.BUSY in self._status:
            return
        if Control.CLEAR in bits:
            self._status, self._error = Status(0), BoardError.NONE
        if Control.START in bits and Status.ERROR not in self._status:
            self._status = Status.BUSY

    def _execute(self) -> None:
        most = self._values[Register.MOST_CYCLES] | self._values[Register.MOST_CYCLES + 4] << 32
        address = self._values[Register.ADDRESS] * self.config.bus_bytes
        try:
            self._counters = self._machine.run(address, self._values[Register.COUNT], most or None)
        except UserError:
            # A board has no texts: whoever drives it finds out why.
            self._fail(BoardError.PROGRAM)
        else:
            self._status = Status.DONE

    def _fail(self, error: BoardError) -> None:
        self._status = (self._status & ~Status.BUSY) | Status.ERROR
        self._error = error

    def _counter(self, offset: int) -> int:
        if self._counters is None:
            return 0
        units = self._counters.units
        values: dict[int, int | None] = {
            Register.CYCLES: self._counters.cycles,
            Register.BYTES_READ: self._counters.bytes_read,
            Register.BYTES_WRITTEN: self._counters.bytes_written,
        }
        for unit in Unit:
            for number, name in enumerate(_UNIT_COUNTERS):
                values[counter_offset(unit, number)] = getattr(units[unit], name)
        if offset & ~4 not in values:
            return 0
        value = values[offset & ~4]
        whole = _NOT_COUNTED if value is None else value
        return (whole >> (32 if offset & 4 else 0)) & _MASK


def counter_offset(unit: Unit, number: int) -> int:
    """Where the counters of a unit lie."""
    return Register.UNITS + 8 * (len(_UNIT_COUNTERS) * unit + number)


class RegisterMachine:
    """The accelerator on a board (a `Machine`), driven by registers; `wait` is called between two looks at STATUS."""

    def __init__(self, board: Board, *, most_polls: int = 10**7, wait: Callable[[], None] | None = None) -> None:
        identity = board.read_register(Register.IDENTITY)
        if identity != IDENTITY:
            raise UserError(f"accelerator: the board says {identity:#x}, and not {IDENTITY:#x}")
        self.config = board.config
        self.dram_bytes = board.dram_bytes
        self.write = board.write
        self._board = board
        self._most_polls = most_polls
        self._wait = wait

    def read(self, address: int, size: int) -> bytes:
        """Copy bytes from DRAM."""
        check_range(self, address, size)
        return self._board.read(address, size)

    def run(self, address: int, count: int, most_cycles: int | None = None) -> Counters:
        """Execute a program."""
        check_program(self, address, count)
        most = most_cycles or 0
        self._board.write_register(Register.CONTROL, Control.CLEAR)
        for register, value in (
            (Register.ADDRESS, address // self.config.bus_bytes),
            (Register.COUNT, count),
            (Register.MOST_CYCLES, most & _MASK),
            (Register.MOST_CYCLES + 4, most >> 32),
        ):
            self._board.write_register(register, value)
        self._board.write_register(Register.CONTROL, Control.START)
        status = self._end()
        if Status.ERROR in status:
            raise self._failure(address, count)
        return self._counters()

    def close(self) -> None:
        """A board stays as it is."""

    def _end(self) -> Status:
        """The status when the board is no longer busy; a board that stays so is given up."""
        for _ in range(self._most_polls):
            status = Status(self._board.read_register(Register.STATUS) & 7)
            if Status.BUSY not in status:
                if not status:
                    raise UserError("accelerator: the board did not start the program")
                return status
            if self._wait is not None:
                self._wait()
        raise UserError(f"accelerator: the board is still busy after {self._most_polls} looks")

    def _failure(self, address: int, count: int) -> UserError:
        """Why the board says that a program failed: what can be proved about the program, else the board's number."""
        number = self._board.read_register(Register.ERROR)
        name = BoardError(number).name.lower() if number in set(BoardError) else "unknown"
        if number == BoardError.PROGRAM:
            try:
                program = decode(self.read(address, count * INSTRUCTION_BYTES), self.config)
                check(program, self.config, self.read)
            except UserError as error:
                return error
        return UserError(f"accelerator: the board reports error {number} ({name})")

    def _counters(self) -> Counters:
        units = {
            unit: UnitCounters(
                self._long(counter_offset(unit, 0)) or 0,
                self._long(counter_offset(unit, 1)) or 0,
                self._long(counter_offset(unit, 2)),
                self._long(counter_offset(unit, 3)),
            )
            for unit in Unit
        }
        read, written = self._long(Register.BYTES_READ), self._long(Register.BYTES_WRITTEN)
        return Counters(self._long(Register.CYCLES), units, read or 0, written or 0)

    def _long(self, offset: int) -> int | None:
        value = self._board.read_register(offset) | self._board.read_register(offset + 4) << 32
        return None if value == _NOT_COUNTED else value
