"""Boards without an operating system, over a serial line: memory to write and read, and functions to call.

    with tw.rpc.connect_board("/dev/ttyUSB0", baud=115200) as board:
        board.write(board.memory, code)
        status, count = board.call(entry, [address, address])

A board has a runtime of about 2 KB (`tilewright board` writes and builds it) and 64 KB of RAM or less. The tuner
measures kernels there: `tw.tune.BoardMeasurer(target, serial="/dev/ttyUSB0")`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from tilewright.rpc.serial_link import SerialLink, open_port
from tilewright.support.errors import UserError

DEFAULT_BAUD: Final = 115200
_MAGIC: Final = b"TWB1"
_SECONDS: Final = 1.0
_CALL_SECONDS: Final = 120.0


class BoardSession:
    """The runtime of a board."""

    def __init__(self, link: SerialLink) -> None:
        self._link = link
        hello = link.ask("H", answer_bytes=32)
        if hello[:4] != _MAGIC or len(hello) != struct.calcsize("<4sIIHHI"):
            raise UserError(
                f"what answers is no runtime of this version: {hello[:8]!r}", hint="write it again: tilewright board"
            )
        _, self.memory, self.room, self._most_bytes, self.most_arguments, counts = struct.unpack("<4sIIHHI", hello)
        self.counts_cycles = bool(counts)
        """Whether `call` counts cycles; else instructions of an emulator, or ticks."""

    @property
    def repeated(self) -> int:
        """Requests that had to be sent again, because the line lost or damaged them or their answers."""
        return self._link.repeated

    def write(self, address: int, data: bytes) -> None:
        """Put bytes into the board's memory."""
        for offset in range(0, len(data), self._most_bytes):
            part = data[offset : offset + self._most_bytes]
            self._link.ask("W", struct.pack("<I", address + offset) + part)

    def read(self, address: int, size: int) -> bytes:
        """Bytes of the board's memory."""
        parts = []
        for offset in range(0, size, self._most_bytes):
            count = min(self._most_bytes, size - offset)
            part = self._link.ask("R", struct.pack("<IH", address + offset, count), count)
            if len(part) != count:
                raise UserError(f"the board gave {len(part)} bytes of memory, not {count}")
            parts.append(part)
        return b"".join(parts)

    def call(self, entry: int, arguments: Sequence[int], seconds: float = _CALL_SECONDS) -> tuple[int, int]:
        """Call a function with an array of words; what it returns, and what it took. It may take so many seconds."""
        payload = struct.pack(f"<I{len(arguments)}I", entry, *arguments)
        status, count = struct.unpack("<iI", self._link.ask("C", payload, 8, seconds))
        return status, count

    def close(self) -> None:
        """Let the line go; the runtime waits for the next session."""
        self._link.close()

    def __enter__(self) -> BoardSession:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def connect_board(address: str, *, baud: int = DEFAULT_BAUD, timeout: float = _SECONDS) -> BoardSession:
    """A session with the runtime of a board on a serial line: a device, `tcp:HOST:PORT` or `unix:PATH`.

    `timeout` is how many seconds the board may take for an answer, beside the time that bytes and kernels take.
    """
    link = SerialLink(open_port(address, baud), baud, timeout, address)
    try:
        return BoardSession(link)
    except BaseException:
        link.close()
        raise
