"""The seal of an exported library: a checksum behind its content, where the system's loader does not look.

A library is code. One that lost a bit on its way would load all the same, and then give wrong answers or end the
process. Libraries from before there were seals, and those that a tool such as `strip` has written again, have none
and are taken as they are.
"""

from __future__ import annotations

import os
import threading
import zlib
from io import FileIO
from pathlib import Path

from tilewright.support.processors import usable_cpus

_MAGIC = b"TWSEAL1\n"
SEAL_BYTES = len(_MAGIC) + 4
"""The length of a seal."""
_CHUNK = 1 << 18
_PART = 2 << 20
"""What a thread takes at a time: more than a millisecond's work, where it starts in a tenth of one."""
_MOST_THREADS = 8
"""More share the bandwidth of memory without gain."""


def seal(file: Path) -> None:
    """Append the seal of what the file holds."""
    checksum = _checksum(file, file.stat().st_size)
    with open(file, "ab") as end:
        end.write(_MAGIC + checksum)


def breaks_seal(file: Path) -> bool:
    """Whether the file has a seal that its content does not fit."""
    with open(file, "rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size - SEAL_BYTES
        if size < 0:
            return False
        stream.seek(size)
        found = stream.read(SEAL_BYTES)
        if found[: len(_MAGIC)] != _MAGIC:
            return False
    return found[len(_MAGIC) :] != _checksum(file, size)


def _checksum(file: Path, size: int) -> bytes:
    """The CRC-32 of the first `size` bytes, by parts that several threads take one after another."""
    value = 0
    shift = _shift_by(_PART)
    for start, part in sorted(_checksums_of_parts(file, size).items()):
        value = _times(value, shift if start + _PART <= size else _shift_by(size - start)) ^ part
    return value.to_bytes(4, "little")


def _checksums_of_parts(file: Path, size: int) -> dict[int, int]:
    """The CRC-32 of each part, by where it starts. Reading and zlib let go of Python's lock, so that threads help."""
    starts = range(0, size, _PART)
    waiting = iter(starts)
    found: dict[int, int] = {}
    errors: list[OSError] = []

    def take_parts() -> None:
        try:
            with open(file, "rb", buffering=0) as stream:
                for start in waiting:
                    found[start] = _checksum_of_part(stream, start, min(_PART, size - start))
        except OSError as error:
            errors.append(error)

    threads = min(_MOST_THREADS, len(usable_cpus()), len(starts))
    helpers = [threading.Thread(target=take_parts) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    take_parts()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
    return found


def _checksum_of_part(stream: FileIO, start: int, size: int) -> int:
    value = 0
    memory = memoryview(bytearray(_CHUNK))
    stream.seek(start)
    while size > 0 and (count := stream.readinto(memory[:size])):
        value = zlib.crc32(memory[:count], value)
        size -= count
    return value


# A CRC is a remainder of polynomials over the bits, so that of a whole follows from those of its parts: the first one's
# is moved up by the length of the second, and both are added. A polynomial lies in 32 bits, its constant term highest.
_ONE = 1 << 31
_POLYNOMIAL = 0xEDB88320


def _times(left: int, right: int) -> int:
    """The product of two polynomials, modulo that of CRC-32."""
    product = 0
    while right:
        if right & _ONE:
            product ^= left
        right = right << 1 & 0xFFFFFFFF
        left = left >> 1 ^ (_POLYNOMIAL if left & 1 else 0)
    return product


def _shift_by(count: int) -> int:
    """The polynomial that moves a CRC up by a number of bytes: x to the power of their bits."""
    power, factor = _ONE, _ONE >> 8
    while count:
        if count & 1:
            power = _times(power, factor)
        factor = _times(factor, factor)
        count >>= 1
    return power
