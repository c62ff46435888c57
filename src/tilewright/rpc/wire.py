"""The wire format: frames of a JSON header and raw bytes, with versions and lengths checked before memory is taken.

    offset 0   4 bytes   b"TWRP"
    offset 4   2 bytes   version of the format
    offset 6   2 bytes   zero
    offset 8   4 bytes   length of the header
    offset 12  8 bytes   length of the payload
    then the header (a JSON object in UTF-8) and the payload (the bytes of an array or a file)

Numbers are little-endian. `Channel` is the blocking end of a connection; servers read the same frames with asyncio.
"""

from __future__ import annotations

import json
import math
import socket
import ssl
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.support.errors import UserError
from tilewright.support.text import human_bytes

MAGIC = b"TWRP"
WIRE_VERSION = 2
MOST_HEADER_BYTES = 1 << 20
MOST_PAYLOAD_BYTES = 1 << 32
MOST_GREETING_BYTES = 4096
"""What a stranger may send before it has proved who it is."""
MOST_FIRST_BYTES = 16384
"""The longest header of a first message, and of all messages to and from trackers."""
MOST_SECONDS = 1e7
"""The longest time that a message may ask for."""
_PIECE_BYTES = 1 << 18
_MOST_TEXT = 4096
_MOST_NUMBER = 1 << 53

_PREFIX = struct.Struct("<4sHHIQ")
PREFIX_BYTES = _PREFIX.size


class WireError(UserError):
    """The other side does not speak this protocol, or a newer one, or sent a damaged message."""


class VersionError(WireError):
    """The other side speaks another version of the protocol."""


class DamagedHeader(WireError):
    """A message whose header is no JSON object; where the next one begins is still known."""


class Disconnected(UserError):
    """The connection ended while something was expected of it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    header: dict[str, Any]
    payload: bytes | bytearray | memoryview = field(default=b"", repr=False)

    def text(self, key: str, most: int = _MOST_TEXT) -> str:
        """A field of the header that must be a text, of at most so many characters, that can be written anywhere."""
        value = self.header.get(key)
        if not isinstance(value, str) or len(value) > most:
            raise WireError(f"the message has no text '{key}' of at most {most} characters")
        if not value.isascii() and not _is_text(value):
            raise WireError(f"the text '{key}' of the message is damaged")
        return value

    def name(self, key: str, most: int = 200) -> str:
        """A text that can stand in a line: not empty, and without control characters."""
        value = self.text(key, most)
        if not value or not value.isprintable():
            raise WireError(f"the text '{key}' of the message is no name")
        return value

    def number(self, key: str, least: int = 0, most: int = _MOST_NUMBER) -> int:
        """A field of the header that must be a whole number from `least` to `most`."""
        value = self.header.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise WireError(f"the message has no number '{key}' of {least} to {most}")
        return value

    def real(self, key: str, most: float = MOST_SECONDS) -> float:
        """A field of the header that must be a number from 0 to `most`."""
        value = self.header.get(key)
        # Compared before it is converted: a whole number may be larger than any float.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
            raise WireError(f"the message has no number '{key}' of 0 to {most:g}")
        return float(value)

    def items(self, key: str) -> list[Any]:
        """A field of the header that must be a list."""
        value = self.header.get(key)
        if not isinstance(value, list):
            raise WireError(f"the message has no list '{key}'")
        return value

    def table(self, key: str) -> dict[str, Any]:
        """A field of the header that must be an object."""
        value = self.header.get(key)
        if not isinstance(value, dict):
            raise WireError(f"the message has no object '{key}'")
        return value


def _is_text(value: str) -> bool:
    """Whether a text is valid Unicode; JSON can spell halves of characters, which cannot be printed or stored."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode(header: Mapping[str, Any], payload_bytes: int = 0) -> bytes:
    """The prefix and header of a frame whose payload of so many bytes follows."""
    return encode_text(json.dumps(header, separators=(",", ":"), allow_nan=False).encode(), payload_bytes)


def encode_text(text: bytes, payload_bytes: int) -> bytes:
    """As `encode`, of a header that is JSON text already."""
    if len(text) > MOST_HEADER_BYTES:
        raise UserError(f"a message's header of {human_bytes(len(text))} is too long")
    if payload_bytes > MOST_PAYLOAD_BYTES:
        raise UserError(f"{human_bytes(payload_bytes)} is more than one message can carry")
    return _PREFIX.pack(MAGIC, WIRE_VERSION, 0, len(text), payload_bytes) + text


def decode_prefix(
    prefix: bytes, most_header: int = MOST_HEADER_BYTES, most_payload: int = MOST_PAYLOAD_BYTES
) -> tuple[int, int]:
    """The lengths of the header and the payload that follow a prefix."""
    magic, version, reserved, header_bytes, payload_bytes = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise WireError("the other side does not speak Tilewright's protocol", hint="check the address and TLS")
    if version != WIRE_VERSION:
        raise VersionError(
            f"the other side speaks version {version} of the protocol, this is {WIRE_VERSION}",
            hint="install the same version of Tilewright on both sides",
        )
    if reserved or not 2 <= header_bytes <= most_header or payload_bytes > most_payload:
        raise WireError("a damaged message: its lengths make no sense")
    return header_bytes, payload_bytes


def decode_header(text: bytes) -> dict[str, Any]:
    """The header of a frame."""
    try:
        header = json.loads(text.decode(), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise DamagedHeader("a damaged message: its header is not a JSON object")
    return header


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number that is too large")
    return value


class Channel:
    """The blocking end of a connection: one request at a time, replies in order. Safe to share between threads."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.peer = peer
        self._socket = connection
        self._lock = threading.Lock()
        self._piece = memoryview(bytearray(_PIECE_BYTES))
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def certificate(self) -> bytes:
        """The certificate of the other side, empty without TLS."""
        if isinstance(self._socket, ssl.SSLSocket):
            return self._socket.getpeercert(binary_form=True) or b""
        return b""

    def settimeout(self, seconds: float | None) -> None:
        """How long one read or write may take."""
        self._socket.settimeout(seconds)

    def send(self, header: Mapping[str, Any], payload: bytes | bytearray | memoryview = b"") -> None:
        """Send one frame."""
        body = memoryview(payload).cast("B") if len(payload) else memoryview(b"")
        try:
            self._socket.sendall(encode(header, body.nbytes))
            if body.nbytes:
                self._socket.sendall(body)
        except TimeoutError:
            raise Disconnected(f"{self.peer} does not take what is sent to it") from None
        except OSError as error:
            raise Disconnected(f"the connection to {self.peer} is lost: {error.strerror or error}") from None

    def receive(self, most_payload: int = MOST_PAYLOAD_BYTES) -> Frame:
        """Wait for one frame. One that there is no memory for is dropped with `MemoryError`; the next can be read."""
        header_bytes, payload_bytes = decode_prefix(bytes(self._exactly(PREFIX_BYTES)), most_payload=most_payload)
        header, payload = self._taken(header_bytes), self._taken(payload_bytes)
        if header is None or payload is None:
            raise MemoryError(f"no memory for a message of {human_bytes(header_bytes + payload_bytes)}")
        # Decoded when all of the frame is read: where the next one begins is known whatever is wrong with this one.
        return Frame(decode_header(bytes(header)), payload)

    def request(self, header: Mapping[str, Any], payload: bytes | bytearray | memoryview = b"") -> Frame:
        """Send a frame and wait for the answer; an answer that reports an error raises it."""
        with self._lock:
            self.send(header, payload)
            answer = self.receive()
        return raise_reported(answer, self.peer)

    def close(self) -> None:
        """End the connection; harmless when it has ended already."""
        self._socket.close()

    def _exactly(self, count: int) -> bytearray:
        data = self._taken(count)
        if data is None:
            raise MemoryError(f"no memory for {human_bytes(count)} of a message")
        return data

    def _taken(self, count: int) -> bytearray | None:
        """The next bytes of the connection, read to the last one; None where there is no memory for them."""
        data: bytearray | None = bytearray()
        try:
            while count:
                # In pieces: a length that lies does not make us take memory for what never comes. Into memory that is
                # there already: a read that ran out of memory would leave the rest to be taken for the next message.
                read = self._socket.recv_into(self._piece, min(count, len(self._piece)))
                if not read:
                    raise Disconnected(f"{self.peer} closed the connection")
                count -= read
                try:
                    if data is not None:
                        data += self._piece[:read]
                except MemoryError:
                    data = None
        except TimeoutError:
            raise Disconnected(f"{self.peer} does not answer") from None
        except OSError as error:
            raise Disconnected(f"the connection to {self.peer} is lost: {error.strerror or error}") from None
        return data


def bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """The elements of an array as a payload, without a copy where they lie in order."""
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat)


class RemoteError(UserError):
    """The other side could not do what it was asked; the message is its own."""


class SessionDied(RemoteError):
    """The process that served the session is gone: it crashed, ran out of time or out of memory."""


_KINDS: dict[str, type[UserError]] = {"error": RemoteError, "died": SessionDied, "refused": UserError}


def error_header(message: str, *, kind: str = "error", hint: str | None = None) -> dict[str, Any]:
    """The header of an answer that reports an error."""
    return {"status": kind, "message": message, "hint": hint}


def raise_reported(answer: Frame, peer: str) -> Frame:
    """The answer itself, or the error it reports."""
    status = answer.header.get("status")
    if status == "ok":
        return answer
    kind = _KINDS.get(str(status))
    if kind is None:
        raise WireError(f"{peer} sent an answer with the unknown status {status!r}")
    hint = answer.header.get("hint")
    raise kind(str(answer.header.get("message", "unknown error")), where=peer, hint=None if hint is None else str(hint))


def raise_refused(answer: Frame, peer: str) -> Frame:
    """An answer of the handshake, which has no status unless it is a refusal; that is raised."""
    return raise_reported(answer, peer) if "status" in answer.header else answer
