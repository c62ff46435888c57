"""Metrics on disk while training goes on: a CSV file, and an event file that TensorBoard shows.

An event file is a row of records: length, checksum of the length, a message of protocol buffers, checksum of it. The
messages are Event{wall_time = 1, step = 2, file_version = 3, summary = 5}, Summary{value = 1} and
Value{tag = 1, simple_value = 2}.
"""

from __future__ import annotations

import csv
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tilewright.support.errors import UserError
from tilewright.support.files import cannot_write


class Log(Protocol):
    """Where metrics go."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of a step."""

    def close(self) -> None:
        """Nothing more comes."""


def open_log(path: str | os.PathLike[str], columns: Sequence[str], resumed_at: int = 0) -> Log:
    """The log of a path: a .csv file with these columns, or a folder of event files.

    A CSV file of a run that goes on keeps its lines up to the step where it does.
    """
    place = Path(path)
    try:
        return CsvLog(place, columns, resumed_at) if place.suffix == ".csv" else EventLog(place)
    except OSError as error:
        raise cannot_write(place, error) from None


class CsvLog:
    """One line a step, one column a metric."""

    def __init__(self, path: Path, columns: Sequence[str], resumed_at: int = 0) -> None:
        self._columns = list(columns)
        kept: list[list[str]] = []
        if resumed_at and path.exists():
            with open(path, newline="") as file:
                rows = [row for row in csv.reader(file) if row]
            if rows and rows[0][1:] == self._columns:
                # A run that was killed has written lines, the last perhaps in part, of steps that are done again.
                whole = [row for row in rows[1:] if len(row) == len(rows[0]) and row[0].isdecimal()]
                kept = [row for row in whole if int(row[0]) <= resumed_at]
        self._file = path.open("w", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerows([["step", *self._columns], *kept])
        self._file.flush()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One line; what it has no number for is empty."""
        self._writer.writerow([step, *(repr(float(values[name])) if name in values else "" for name in self._columns)])
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class EventLog:
    """An event file in a folder, as TensorBoard reads them."""

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is no folder for event files", hint="name a folder, or a file that ends in .csv")
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{time.time_ns() % 10**9}"
        self._file = (folder / name).open("wb")
        self._record(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One event with a number for each metric."""
        summary = b"".join(_bytes(1, _bytes(1, name.encode()) + _float(2, value)) for name, value in values.items())
        self._record(_double(1, time.time()) + _varint(2 << 3) + _varint(step) + _bytes(5, summary))

    def _record(self, message: bytes) -> None:
        length = struct.pack("<Q", len(message))
        self._file.write(length + _masked(length) + message + _masked(message))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def _bytes(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | 1) + struct.pack("<d", value)


def _float(number: int, value: float) -> bytes:
    return _varint(number << 3 | 5) + struct.pack("<f", value)


def _castagnoli() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _castagnoli()


def crc32c(data: bytes) -> int:
    """The checksum that event files have."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 255] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    """A checksum as records hold it: rotated, and moved by a constant."""
    value = crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)
