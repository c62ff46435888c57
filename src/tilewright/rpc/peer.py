"""One connection as an event loop sees it: frames in and out, and payloads that pass through in pieces.

A payload may be larger than the memory that a session is allowed. A server never holds one: it passes it on piece by
piece (`copy_payload`), so that what takes the memory is the session's own process, which has the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tilewright.rpc.wire import (
    MOST_FIRST_BYTES,
    MOST_GREETING_BYTES,
    MOST_HEADER_BYTES,
    MOST_PAYLOAD_BYTES,
    PREFIX_BYTES,
    Disconnected,
    Frame,
    WireError,
    decode_header,
    decode_prefix,
    encode,
    encode_text,
)

_SEND_SECONDS = 120.0
_PIECE = 1 << 18

T = TypeVar("T")


async def within(seconds: float, work: Awaitable[T]) -> T:
    """The result of some work, or `TimeoutError`. (`asyncio.wait_for` of Python 3.11 may lose a cancellation.)"""
    async with asyncio.timeout(seconds):
        return await work


@dataclass(frozen=True, slots=True)
class Head:
    """The header of a frame as it came, and how many bytes of payload follow it."""

    text: bytes
    payload_bytes: int


class Peer:
    """One connection. `role` is what the other side has proved to be, `lease` the lease that it holds."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        self.reader = reader
        self.writer = writer
        self.name = name
        self.role: str | None = None
        self.lease: str | None = None

    async def receive_small(self) -> Frame:
        """Wait for one frame without a payload: of a stranger, who may not send much, or of and to a tracker."""
        most = MOST_GREETING_BYTES if self.role is None else MOST_FIRST_BYTES
        header_bytes, _ = decode_prefix(await self._exactly(PREFIX_BYTES), most, 0)
        return Frame(decode_header(await self._exactly(header_bytes)))

    async def receive_head(self) -> Head:
        """Wait for a frame's header; whoever asks must take the payload next."""
        lengths = decode_prefix(await self._exactly(PREFIX_BYTES), MOST_HEADER_BYTES, MOST_PAYLOAD_BYTES)
        return Head(await self._exactly(lengths[0]), lengths[1])

    async def copy_payload(self, count: int, sink: Peer | None) -> bool:
        """Take a payload and pass it on to another, or to nobody; whether that one took all of it.

        All of it is taken even so: where the next frame begins stays known.
        """
        failed = False
        while count:
            try:
                piece = await self.reader.read(min(count, _PIECE))
            except OSError:
                piece = b""
            if not piece:
                raise Disconnected(f"{self.name} closed the connection")
            count -= len(piece)
            if not failed and sink is not None:
                try:
                    await sink.send_bytes(piece)
                except Disconnected:
                    failed = True
        return not failed

    async def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        try:
            while count:
                part = await self.reader.readexactly(min(count, 1 << 20))
                parts.append(part)
                count -= len(part)
        except (asyncio.IncompleteReadError, OSError):
            raise Disconnected(f"{self.name} closed the connection") from None
        return b"".join(parts)

    async def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send one frame; a receiver that takes nothing for too long is dropped."""
        await self.send_bytes(encode(header, len(payload)) + payload)

    async def send_head(self, head: Head) -> None:
        """Send the header of a frame; the payload must follow."""
        await self.send_bytes(encode_text(head.text, head.payload_bytes))

    async def send_bytes(self, data: bytes) -> None:
        """Send a piece of a frame."""
        try:
            self.writer.write(data)
            await within(_SEND_SECONDS, self.writer.drain())
        except (OSError, TimeoutError):
            raise Disconnected(f"{self.name} does not take what is sent to it") from None

    def close(self) -> None:
        """End the connection."""
        self.writer.close()

    async def gone(self) -> None:
        """Wait until the other side hangs up. It must not speak meanwhile."""
        try:
            extra = await self.reader.read(1)
        except OSError:
            return
        if extra:
            raise WireError(f"{self.name} spoke out of turn")
