"""The seal of an exported library: a checksum behind its content, where the system's loader does not look.

A library is code. One that lost a bit on its way would load all the same, and then give wrong answers or end the
process. Libraries from before there were seals, and those that a tool such as `strip` has written again, have none
and are taken as they are.
"""

from __future__ import annotations

import os
import zlib
from io import FileIO
from pathlib import Path

_MAGIC = b"TWSEAL1\n"
SEAL_BYTES = len(_MAGIC) + 4
"""The length of a seal."""
_CHUNK = 1 << 18


def seal(file: Path) -> None:
    """Append the seal of what the file holds."""
    with open(file, "rb", buffering=0) as stream:
        checksum = _checksum(stream, os.fstat(stream.fileno()).st_size)
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
        stream.seek(0)
        return found[len(_MAGIC) :] != _checksum(stream, size)


def _checksum(stream: FileIO, size: int) -> bytes:
    """The CRC-32 of the next `size` bytes."""
    value = 0
    memory = memoryview(bytearray(_CHUNK))
    while size > 0 and (count := stream.readinto(memory[:size])):
        value = zlib.crc32(memory[:count], value)
        size -= count
    return value.to_bytes(4, "little")
