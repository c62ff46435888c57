"""Requests over a serial line that loses and damages bytes: frames with checksums, sent again until they are answered.

    END | number, kind, payload, CRC-32 | END

Bytes END and ESC inside a frame are escaped (as SLIP does, RFC 1055), so that a reader who has lost the thread finds it
at the next END. A frame whose checksum is wrong is dropped. A request without an answer is sent again under the same
number; the other side answers a number that it has answered with what it said then, and does nothing twice.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import termios
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from tilewright.support.errors import UserError

END, ESC, END_ESCAPED, ESC_ESCAPED = 0xC0, 0xDB, 0xDC, 0xDD
_CHECKSUM_BYTES: Final = 4
_HEAD_BYTES: Final = 2
_TRIES: Final = 6
_BITS_A_BYTE: Final = 10
"""On the line: start, eight of data, stop."""
_LONGEST_FRAME: Final = 1 << 16


class Port(Protocol):
    """A line of bytes."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def read(self, seconds: float) -> bytes:
        """What has come; nothing if nothing comes in this time."""

    def close(self) -> None:
        """Let the line go."""


class FilePort:
    """A line behind a file descriptor: a device, or a socket."""

    def __init__(self, descriptor: int, close: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self.close = close

    def write(self, data: bytes) -> None:
        """Send bytes."""
        while data:
            data = data[os.write(self._descriptor, data) :]

    def read(self, seconds: float) -> bytes:
        """What has come; nothing if nothing comes in this time."""
        ready, _, _ = select.select([self._descriptor], [], [], max(seconds, 0.0))
        if not ready:
            return b""
        data = os.read(self._descriptor, 1 << 12)
        if not data:
            raise ConnectionResetError("the other side closed the line")
        return data


def open_port(address: str, baud: int) -> Port:
    """A serial device by its path; or `tcp:HOST:PORT` or `unix:PATH`, as emulators and servers of serial lines have."""
    scheme, separator, rest = address.partition(":")
    try:
        if separator and scheme == "tcp":
            host, _, port = rest.rpartition(":")
            return _socket_port(socket.create_connection((host or "localhost", int(port)), 10.0))
        if separator and scheme == "unix":
            line = socket.socket(socket.AF_UNIX)
            line.connect(rest)
            return _socket_port(line)
        return _device_port(address, baud)
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"the serial line {address} cannot be opened: {error}",
            hint="a device (/dev/ttyUSB0), tcp:HOST:PORT or unix:PATH; may this user open it?",
        ) from None


def _socket_port(line: socket.socket) -> Port:
    line.settimeout(None)
    return FilePort(line.fileno(), line.close)


def _device_port(path: str, baud: int) -> Port:
    speed = getattr(termios, f"B{baud}", None)
    if speed is None:
        raise UserError(f"a serial line has no speed of {baud} bits a second", hint="115200, 230400, 921600, ...")
    descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY)
    try:
        # Eight bits, no parity, nothing translated.
        control = termios.CS8 | termios.CREAD | termios.CLOCAL
        special = termios.tcgetattr(descriptor)[6]
        termios.tcsetattr(descriptor, termios.TCSANOW, [0, 0, control, 0, speed, speed, special])
        termios.tcflush(descriptor, termios.TCIOFLUSH)
    except termios.error as error:
        os.close(descriptor)
        raise OSError(f"{path} is no serial device ({error})") from None
    return FilePort(descriptor, lambda: os.close(descriptor))


def framed(body: bytes) -> bytes:
    """A frame as it goes over the line."""
    whole = body + zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little")
    escaped = whole.replace(bytes([ESC]), bytes([ESC, ESC_ESCAPED])).replace(bytes([END]), bytes([ESC, END_ESCAPED]))
    return bytes([END]) + escaped + bytes([END])


@dataclass(slots=True)
class FrameReader:
    """Finds frames in what comes over a line, whatever lies between them."""

    damaged: int = 0
    """Frames that came with a wrong checksum, or none."""
    _frames: deque[bytes] = field(default_factory=deque)
    _begun: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> None:
        """More bytes of the line."""
        for byte in data:
            if byte != END:
                self._begun.append(byte)
                # Noise without an END is not kept for ever.
                if len(self._begun) > _LONGEST_FRAME:
                    self._begun.clear()
                continue
            if self._begun:
                body = _body(bytes(self._begun))
                self._begun.clear()
                if body is None:
                    self.damaged += 1
                else:
                    self._frames.append(body)

    def take(self) -> bytes | None:
        """The next whole frame."""
        return self._frames.popleft() if self._frames else None


def _body(escaped: bytes) -> bytes | None:
    """What a frame holds; None where it is damaged."""
    whole = bytearray()
    place = 0
    while place < len(escaped):
        byte = escaped[place]
        if byte == ESC:
            place += 1
            follows = escaped[place] if place < len(escaped) else None
            if follows not in (END_ESCAPED, ESC_ESCAPED):
                return None
            byte = END if follows == END_ESCAPED else ESC
        whole.append(byte)
        place += 1
    body, checksum = bytes(whole[:-_CHECKSUM_BYTES]), bytes(whole[-_CHECKSUM_BYTES:])
    is_right = len(body) >= _HEAD_BYTES and zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little") == checksum
    return body if is_right else None


class SerialLink:
    """Requests and answers over a line."""

    def __init__(self, port: Port, baud: int, seconds: float, name: str) -> None:
        """`seconds` is how long the other side may take for an answer, beside what the line takes for its bytes."""
        self._port = port
        self._baud = baud
        self._seconds = seconds
        self._name = name
        self._reader = FrameReader()
        self._number = int.from_bytes(os.urandom(1), "little")
        self.repeated = 0
        """Requests that had to be sent again."""

    def close(self) -> None:
        """Let the line go."""
        self._port.close()

    def ask(self, kind: str, payload: bytes = b"", answer_bytes: int = 0, seconds: float = 0.0) -> bytes:
        """The answer to a request. `seconds` is how long the work behind it may take."""
        self._number = (self._number + 1) % 256
        request = framed(bytes([self._number, ord(kind)]) + payload)
        on_the_line = 2 * _BITS_A_BYTE * (len(request) + answer_bytes) / self._baud
        patience = time.monotonic() + seconds
        try:
            for turn in itertools.count():
                if turn >= _TRIES and time.monotonic() > patience:
                    break
                self.repeated += turn > 0
                # Asking again while the board works does no harm: it answers twice, and numbers tell answers apart.
                self._port.write(request)
                wait = self._seconds * min(1 + turn, _TRIES) + on_the_line
                answer = self._answer(kind, time.monotonic() + wait)
                if answer is not None:
                    return answer
        except OSError as error:
            raise UserError(f"the serial line to the board at {self._name} broke: {error}") from None
        raise UserError(
            f"the board at {self._name} does not answer ({turn} times asked, {self._reader.damaged} damaged frames)",
            hint="does its runtime run (`tilewright board`), at this speed? is the line the right one?",
        )

    def _answer(self, kind: str, end: float) -> bytes | None:
        """The answer to the last request; None where none comes, or where it came damaged."""
        damaged = self._reader.damaged
        while (left := end - time.monotonic()) > 0 and self._reader.damaged == damaged:
            self._reader.feed(self._port.read(left))
            while (body := self._reader.take()) is not None:
                if body[0] != self._number:
                    # An answer to what was asked twice.
                    continue
                if body[1] == ord("E"):
                    raise UserError(f"the board refused a request: {_REFUSALS.get(body[2:3], 'unknown reason')}")
                if body[1] == ord(kind.lower()):
                    return body[_HEAD_BYTES:]
        return None


_REFUSALS: Final = {
    b"\x01": "it does not know it (is its runtime of another version?)",
    b"\x02": "memory that is not the runtime's to give",
    b"\x03": "it is too long",
}
