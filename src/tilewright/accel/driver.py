"""The driver interface in the C ABI: a table of functions that any implementation of the accelerator can fill.

An exported library or a C program sees `tw_accel_driver` alone. `driver_table` makes one of machines written in Python;
`DriverMachine` makes a `Machine` of one, wherever it comes from.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tilewright.accel.config import AccelConfig
from tilewright.accel.instructions import Unit, check_formats
from tilewright.accel.machine import Counters, Machine, UnitCounters, check_dram, check_program, check_range
from tilewright.support.errors import TilewrightError, UserError

DRIVER_VERSION = 1
_KEPT = (TilewrightError, ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)
"""Errors of machines that a caller in C is told."""
_NOT_COUNTED = (1 << 64) - 1
"""A counter that a machine does not have."""

DRIVER_HEADER = f"""
/* The driver interface. Functions that return int give 0, or another number for an error, which `error` explains. */
#define TW_ACCEL_DRIVER_VERSION {DRIVER_VERSION}
/* A counter that a machine does not have. */
#define TW_ACCEL_NOT_COUNTED UINT64_MAX

typedef struct tw_accel_unit_counters {{
    uint64_t instructions, busy, token_wait, memory_wait;
}} tw_accel_unit_counters;

typedef struct tw_accel_counters {{
    uint64_t cycles, bytes_read, bytes_written;
    tw_accel_unit_counters units[{len(Unit)}]; /* load, compute, store */
}} tw_accel_counters;

typedef struct tw_accel_driver {{
    uint32_t version; /* TW_ACCEL_DRIVER_VERSION */
    uint32_t size;    /* bytes of this structure */
    void *context;    /* the first argument of every function */
    /* A machine, or NULL. The configuration is JSON; what it leaves out has its default. */
    void *(*open)(void *context, const char *config, uint64_t dram_bytes);
    void (*close)(void *context, void *machine);
    int (*write)(void *context, void *machine, uint64_t address, const void *data, uint64_t size);
    int (*read)(void *context, void *machine, uint64_t address, void *data, uint64_t size);
    /* Executes `count` instructions at a byte of DRAM, to FINISH; `most_cycles` 0: as many as the machine allows. */
    int (*run)(void *context, void *machine, uint64_t address, uint64_t count, uint64_t most_cycles);
    /* Of the last run that succeeded. */
    int (*counters)(void *context, void *machine, tw_accel_counters *counters);
    /* What the last error of a machine was (NULL: of `open`), in UTF-8; it lasts until the next call. */
    const char *(*error)(void *context, void *machine);
}} tw_accel_driver;
"""


class UnitCountersStruct(ctypes.Structure):
    """`tw_accel_unit_counters`."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("instructions", "busy", "token_wait", "memory_wait")]


class CountersStruct(ctypes.Structure):
    """`tw_accel_counters`."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("cycles", "bytes_read", "bytes_written")),
        ("units", UnitCountersStruct * len(Unit)),
    ]


_Handle = ctypes.c_void_p
_FUNCTIONS: dict[str, Any] = {
    "open": ctypes.CFUNCTYPE(_Handle, _Handle, ctypes.c_char_p, ctypes.c_uint64),
    "close": ctypes.CFUNCTYPE(None, _Handle, _Handle),
    "write": ctypes.CFUNCTYPE(ctypes.c_int, _Handle, _Handle, ctypes.c_uint64, _Handle, ctypes.c_uint64),
    "read": ctypes.CFUNCTYPE(ctypes.c_int, _Handle, _Handle, ctypes.c_uint64, _Handle, ctypes.c_uint64),
    "run": ctypes.CFUNCTYPE(ctypes.c_int, _Handle, _Handle, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64),
    "counters": ctypes.CFUNCTYPE(ctypes.c_int, _Handle, _Handle, ctypes.POINTER(CountersStruct)),
    # The text belongs to the driver: as a pointer, since ctypes keeps no text that a callback returns.
    "error": ctypes.CFUNCTYPE(_Handle, _Handle, _Handle),
}


class DriverStruct(ctypes.Structure):
    """`tw_accel_driver`."""

    _fields_ = [
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("context", _Handle),
        *_FUNCTIONS.items(),
    ]


class DriverTable:
    """A `tw_accel_driver` whose machines are made by a function in Python. It must live as long as it is used."""

    def __init__(self, make: Callable[[AccelConfig, int], Machine]) -> None:
        self._make = make
        self._machines: dict[int, Machine] = {}
        self._finished: dict[int, Counters] = {}
        self._errors: dict[int, Any] = {}
        self._last = 0
        callbacks = {name: kind(getattr(self, f"_{name}")) for name, kind in _FUNCTIONS.items()}
        self.struct = DriverStruct(DRIVER_VERSION, ctypes.sizeof(DriverStruct), None, **callbacks)

    def _guarded(self, machine: int | None, action: Callable[[Machine], object]) -> int:
        """Do something with a machine. No exception can pass through C: each is kept as a text."""
        try:
            known = self._machines.get(machine or 0)
            if known is None:
                raise UserError("accelerator: there is no such machine")
            action(known)
        except _KEPT as error:
            self._keep(machine, error)
            return 1
        return 0

    def _keep(self, machine: int | None, error: Exception) -> None:
        text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        self._errors[machine or 0] = ctypes.create_string_buffer(text.encode())

    def _open(self, context: int | None, config: bytes, dram_bytes: int) -> int | None:
        try:
            machine = self._make(AccelConfig.from_json(config.decode()), dram_bytes)
        except _KEPT as error:
            self._keep(None, error)
            return None
        self._last += 1
        self._machines[self._last] = machine
        return self._last

    def _close(self, context: int | None, machine: int | None) -> None:
        self._guarded(machine, lambda known: known.close())
        for table in (self._machines, self._finished, self._errors):
            table.pop(machine or 0, None)

    def _write(self, context: int | None, machine: int | None, address: int, data: int | None, size: int) -> int:
        return self._guarded(machine, lambda known: known.write(address, ctypes.string_at(data or 0, size)))

    def _read(self, context: int | None, machine: int | None, address: int, data: int | None, size: int) -> int:
        return self._guarded(machine, lambda known: ctypes.memmove(data or 0, known.read(address, size), size))

    def _run(self, context: int | None, machine: int | None, address: int, count: int, most_cycles: int) -> int:
        def run(known: Machine) -> None:
            self._finished[machine or 0] = known.run(address, count, most_cycles or None)

        return self._guarded(machine, run)

    def _counters(self, context: int | None, machine: int | None, target: Any) -> int:
        def fill(known: Machine) -> None:
            counters = self._finished.get(machine or 0)
            if counters is None:
                raise UserError("accelerator: nothing has run")
            target[0] = _filled(counters)

        return self._guarded(machine, fill)

    def _error(self, context: int | None, machine: int | None) -> int | None:
        text = self._errors.get(machine or 0)
        return None if text is None else ctypes.addressof(text)


def _filled(counters: Counters) -> CountersStruct:
    units = [
        UnitCountersStruct(unit.instructions, unit.busy, _counted(unit.token_wait), _counted(unit.memory_wait))
        for unit in (counters.units[unit] for unit in Unit)
    ]
    array = (UnitCountersStruct * len(Unit))(*units)
    return CountersStruct(_counted(counters.cycles), counters.bytes_read, counters.bytes_written, array)


def _counted(value: int | None) -> int:
    return _NOT_COUNTED if value is None else value


def _count(value: int) -> int | None:
    return None if value == _NOT_COUNTED else value


class DriverMachine:
    """A machine behind a `tw_accel_driver` (a `Machine`); `owner` is whatever must live as long as it does."""

    def __init__(self, driver: DriverStruct, config: AccelConfig, dram_bytes: int, *, owner: object = None) -> None:
        if driver.version != DRIVER_VERSION or driver.size < ctypes.sizeof(DriverStruct):
            raise UserError(
                f"accelerator: the driver has version {driver.version} of the interface, in {driver.size} bytes",
                hint=f"version {DRIVER_VERSION} in {ctypes.sizeof(DriverStruct)} bytes is known",
            )
        check_formats(config)
        check_dram(config, dram_bytes)
        self.config = config
        self.dram_bytes = dram_bytes
        self._driver = driver
        self._owner = owner
        self._handle: int | None = driver.open(driver.context, config.to_json().encode(), dram_bytes)
        if self._handle is None:
            raise self._failure("the driver opens no machine")

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes to DRAM."""
        content = bytes(data)
        check_range(self, address, len(content))
        self._call("write", address, ctypes.cast(ctypes.c_char_p(content), _Handle), len(content))

    def read(self, address: int, size: int) -> bytes:
        """Copy bytes from DRAM."""
        check_range(self, address, size)
        content = ctypes.create_string_buffer(size)
        self._call("read", address, ctypes.cast(content, _Handle), size)
        return content.raw

    def run(self, address: int, count: int, most_cycles: int | None = None) -> Counters:
        """Execute a program."""
        check_program(self, address, count)
        self._call("run", address, count, most_cycles or 0)
        counters = CountersStruct()
        self._call("counters", ctypes.byref(counters))
        units = {
            unit: UnitCounters(item.instructions, item.busy, _count(item.token_wait), _count(item.memory_wait))
            for unit, item in zip(Unit, counters.units, strict=True)
        }
        return Counters(_count(counters.cycles), units, counters.bytes_read, counters.bytes_written)

    def close(self) -> None:
        """Close the driver's machine."""
        if self._handle is not None:
            self._driver.close(self._driver.context, self._handle)
            self._handle = None

    def _call(self, name: str, *arguments: Any) -> None:
        if self._handle is None:
            raise UserError("accelerator: the machine is closed")
        if getattr(self._driver, name)(self._driver.context, self._handle, *arguments):
            raise self._failure(f"the driver's {name} fails")

    def _failure(self, otherwise: str) -> UserError:
        """What the driver says of its last error, as it says it."""
        address = self._driver.error(self._driver.context, self._handle)
        text = ctypes.string_at(address).decode(errors="replace") if address else ""
        return UserError(text or f"accelerator: {otherwise}, and does not say why")
