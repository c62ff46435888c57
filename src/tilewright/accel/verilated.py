"""The hardware itself as a machine: the generated core, simulated cycle by cycle."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from tilewright.accel.assembler import place
from tilewright.accel.config import AccelConfig
from tilewright.accel.encoding import INSTRUCTION_BYTES, decode
from tilewright.accel.hardware.build import simulator_library
from tilewright.accel.instructions import Instruction, Unit, check_formats
from tilewright.accel.machine import Counters, UnitCounters, check_dram, check_program, check_range
from tilewright.support.errors import UserError

MOST_CYCLES = 10**9
"""Cycles after which a run is given up where nothing else was said."""
_SLICE = 1 << 19
"""Cycles between two looks at what the user wants (a second or two)."""
_QUEUES = ((Unit.LOAD, Unit.COMPUTE), (Unit.COMPUTE, Unit.LOAD), (Unit.COMPUTE, Unit.STORE), (Unit.STORE, Unit.COMPUTE))


class _Status(IntEnum):
    """How a run stands, as the harness says it."""

    RUNNING = 0
    DONE = 1
    ILLEGAL = 2
    OVERFLOW = 3
    DEADLOCK = 4
    OUTSIDE = 5


class _UnitReport(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("instructions", "busy", "memory_wait", "token_wait", "wants_prev", "wants_next", "works")
    ]


class _Report(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("cycles", "address", "words_read", "words_written")),
        ("units", _UnitReport * len(Unit)),
        ("tokens", ctypes.c_uint64 * len(_QUEUES)),
    ]


class VerilatedMachine:
    """The hardware of a configuration (a `Machine`), with a DRAM of any latency; built by Verilator where it is new.

    `vcd` names a file that all signals are written to, cycle by cycle (a build of its own, and many times as slow).
    """

    def __init__(
        self, config: AccelConfig, dram_bytes: int, *, latency: int | None = None, vcd: str | Path | None = None
    ) -> None:
        check_formats(config)
        check_dram(config, dram_bytes)
        self.config = config
        self.dram_bytes = dram_bytes
        self.latency = config.memory_latency if latency is None else latency
        """Cycles from a read's acceptance to its data; it may be changed between runs."""
        self._handle: int | None = None
        with simulator_library(config, with_trace=vcd is not None) as path:
            self._library = _open(path)
        self._handle = self._library.accel_open(dram_bytes)
        if self._handle is None:
            raise UserError(f"accelerator: there is no memory for a DRAM of {dram_bytes} bytes")
        self._dram = self._library.accel_dram(self._handle)
        if vcd is not None and not self._library.accel_trace(self._handle, str(vcd).encode()):
            raise UserError(f"accelerator: cannot write the signals to {vcd}")

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes to DRAM."""
        content = bytes(data)
        check_range(self, address, len(content))
        ctypes.memmove(self._dram + address, content, len(content))

    def read(self, address: int, size: int) -> bytes:
        """Copy bytes from DRAM."""
        check_range(self, address, size)
        return ctypes.string_at(self._dram + address, size)

    def run(self, address: int, count: int, most_cycles: int | None = None) -> Counters:
        """Execute a program. The hardware takes an index past a memory's end modulo its depth, and reports nothing."""
        check_program(self, address, count)
        if not 1 <= self.latency <= 1 << 20:
            raise UserError(f"accelerator: a memory latency of {self.latency} cycles")
        left = MOST_CYCLES if most_cycles is None else most_cycles
        self._library.accel_start(self._handle, address // self.config.bus_bytes, count, self.latency)
        status = _Status.RUNNING
        while status is _Status.RUNNING and left > 0:
            status = _Status(self._library.accel_advance(self._handle, min(left, _SLICE)))
            left -= _SLICE
        report = _Report()
        self._library.accel_report(self._handle, ctypes.byref(report))
        self._check(status, report, address, count)
        return self._counters(report)

    def close(self) -> None:
        """Free the simulated core and its DRAM."""
        if self._handle is not None:
            self._library.accel_close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def _counters(self, report: _Report) -> Counters:
        units = {
            unit: UnitCounters(counts.instructions, counts.busy, counts.token_wait, counts.memory_wait)
            for unit, counts in zip(Unit, report.units, strict=True)
        }
        bus = self.config.bus_bytes
        return Counters(report.cycles, units, report.words_read * bus, report.words_written * bus)

    def _check(self, status: _Status, report: _Report, address: int, count: int) -> None:
        """A `UserError` for a run that did not end as it should."""
        if status is _Status.DONE and all(not n for n in report.tokens) and not _unfinished(report, count):
            return
        # What an instruction is called; one that means nothing is reported here.
        program = decode(self.read(address, count * INSTRUCTION_BYTES), self.config)
        if status is _Status.DONE:
            raise _too_early(report, count)
        if status is _Status.DEADLOCK:
            raise UserError(f"accelerator: the program deadlocks\n{_waiting(report, program)}")
        if status is _Status.RUNNING:
            raise UserError(
                f"accelerator: the program takes more than {report.cycles} cycles\n{_waiting(report, program)}",
                hint="give most_cycles if it is meant to",
            )
        if status is _Status.OVERFLOW:
            raise UserError(
                f"accelerator: a token too many in a queue of {self.config.token_queue}\n{_waiting(report, program)}"
            )
        if status is _Status.OUTSIDE:
            byte = report.address * self.config.bus_bytes
            raise UserError(
                f"accelerator: the program reads or writes byte {byte} of a DRAM of {self.dram_bytes}\n"
                f"{_waiting(report, program)}"
            )
        raise UserError(
            "accelerator: an instruction gives or takes a token of a unit that is not there, or stores what cannot be"
        )


def _open(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    handle = ctypes.c_void_p
    for name, result, parameters in (
        ("accel_open", handle, [ctypes.c_uint64]),
        ("accel_close", None, [handle]),
        ("accel_dram", handle, [handle]),
        ("accel_trace", ctypes.c_int, [handle, ctypes.c_char_p]),
        ("accel_start", None, [handle, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64]),
        ("accel_advance", ctypes.c_int, [handle, ctypes.c_uint64]),
        ("accel_report", None, [handle, handle]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
    return library


def _unfinished(report: _Report, count: int) -> bool:
    return any(unit.works for unit in report.units) or sum(unit.instructions for unit in report.units) != count


def _too_early(report: _Report, count: int) -> UserError:
    """FINISH left something behind."""
    for (giver, taker), tokens in zip(_QUEUES, report.tokens, strict=True):
        if tokens:
            return UserError(
                f"accelerator: {tokens} tokens from {giver.name.lower()} to {taker.name.lower()} are left",
                hint="each token that is given must be taken",
            )
    executed = sum(unit.instructions - bool(unit.works) for unit in report.units)
    return UserError(
        f"accelerator: {count - executed} instructions are not executed when FINISH is",
        hint="FINISH must wait for tokens that order them before it, and be the last instruction",
    )


def _waiting(report: _Report, program: Sequence[Instruction]) -> str:
    """What each unit waits for, with the instruction that it is at."""
    lines = []
    for unit, state in zip(Unit, report.units, strict=True):
        own = [index for index, instruction in enumerate(program) if instruction.unit is unit]
        name, at = unit.name.lower(), state.instructions
        following = f": {place(own[at], program[own[at]])}" if at < len(own) else ""
        current = f": {place(own[at - 1], program[own[at - 1]])}" if 0 < at <= len(own) else ""
        if state.wants_prev or state.wants_next:
            giver = Unit(unit - 1) if state.wants_prev else Unit(unit + 1)
            bit = "pop_prev" if state.wants_prev else "pop_next"
            lines.append(f"  {name} waits for a token of {giver.name.lower()} ({bit}){following}")
        elif state.works:
            lines.append(f"  {name} is at work{current}")
        elif at < len(own):
            lines.append(f"  {name} waits for its next instruction{following}")
        else:
            lines.append(f"  {name} has executed all of its instructions")
    return "\n".join(lines)
