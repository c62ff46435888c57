"""The serving side of connections: listen, shake hands within a time limit, hand over those who know the token."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tilewright.rpc import security
from tilewright.rpc.security import Credentials
from tilewright.rpc.wire import (
    MOST_GREETING_BYTES,
    MOST_PAYLOAD_BYTES,
    PREFIX_BYTES,
    Disconnected,
    Frame,
    WireError,
    decode_header,
    decode_prefix,
    encode,
    error_header,
)
from tilewright.support.errors import UserError

_GREETING_SECONDS = 10.0
_MOST_STRANGERS = 64
"""Connections that may be shaking hands at one time; one more, and the oldest is closed."""
_SEND_SECONDS = 120.0
_LISTEN_BACKLOG = 256


T = TypeVar("T")


async def within(seconds: float, work: Awaitable[T]) -> T:
    """The result of some work, or `TimeoutError`. (`asyncio.wait_for` of Python 3.11 may lose a cancellation.)"""
    async with asyncio.timeout(seconds):
        return await work


async def ended(*tasks: asyncio.Task[Any], expected: tuple[type[Exception], ...] = ()) -> None:
    """Cancel tasks and wait until they are done. Failures that are not expected are raised.

    `with suppress(CancelledError): await task` would also drop a cancellation of the task that waits, which then goes
    on for ever: here that one is raised.
    """
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, expected):
            raise failure


class Peer:
    """One connection as a service sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        self.reader = reader
        self.writer = writer
        self.name = name

    async def receive(self, most_payload: int = MOST_PAYLOAD_BYTES) -> Frame:
        """Wait for one frame."""
        header_bytes, payload_bytes = await self._lengths(most_payload=most_payload)
        text, payload = await self._exactly(header_bytes), await self._exactly(payload_bytes)
        return Frame(decode_header(text), payload)

    async def receive_greeting(self) -> Frame:
        """Wait for one frame of a stranger, who may not send much."""
        header_bytes, _ = await self._lengths(MOST_GREETING_BYTES, 0)
        return Frame(decode_header(await self._exactly(header_bytes)))

    async def _lengths(self, most_header: int | None = None, most_payload: int = 0) -> tuple[int, int]:
        prefix = await self._exactly(PREFIX_BYTES)
        if most_header is None:
            return decode_prefix(prefix, most_payload=most_payload)
        return decode_prefix(prefix, most_header, most_payload)

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

    async def send(self, header: Mapping[str, Any], payload: bytes | bytearray | memoryview = b"") -> None:
        """Send one frame; a receiver that takes nothing for too long is dropped."""
        try:
            self.writer.write(encode(header, len(payload)))
            if len(payload):
                self.writer.write(payload)
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


Handler = Callable[[Peer, Frame], Awaitable[None]]
"""Serves one connection: the peer and its first frame (`role` and what goes with it)."""


class Service:
    """A listening socket whose connections reach `handler` only after the handshake."""

    def __init__(
        self,
        credentials: Credentials,
        handler: Handler,
        *,
        certificate: Path | None = None,
        key: Path | None = None,
        greeting_seconds: float = _GREETING_SECONDS,
    ) -> None:
        self.credentials = credentials
        self._handler = handler
        self._tls = security.server_tls(certificate, key) if credentials.tls else None
        self._greeting_seconds = greeting_seconds
        self._strangers: dict[asyncio.Task[None], None] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> int:
        """Start to listen; returns the port (a free one is chosen for 0)."""
        context = self._tls.context if self._tls is not None else None
        try:
            self._server = await asyncio.start_server(
                self._accept,
                host,
                port,
                ssl=context,
                ssl_handshake_timeout=self._greeting_seconds if context is not None else None,
                backlog=_LISTEN_BACKLOG,
            )
        except OSError as error:
            raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Stop to listen and end all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(Peer(reader, writer, _peer_name(writer)))
        except (UserError, TimeoutError, asyncio.CancelledError, ConnectionError):
            # A broken, slow or refused connection ends; it is no one else's business.
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, peer: Peer) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._strangers) >= _MOST_STRANGERS:
            # The one that has dawdled longest goes: an honest client needs milliseconds.
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        self._strangers[task] = None
        try:
            await within(self._greeting_seconds, self._shake_hands(peer))
        finally:
            self._strangers.pop(task, None)
        await self._handler(peer, await within(self._greeting_seconds, peer.receive()))

    async def _shake_hands(self, peer: Peer) -> None:
        hello = await peer.receive_greeting()
        client_nonce, server_nonce = security.read_nonce(hello.header.get("nonce")), security.nonce()
        await peer.send({"nonce": server_nonce.hex()})
        answer = await peer.receive_greeting()
        certificate = self._tls.certificate if self._tls is not None else b""
        exchanged = (client_nonce, server_nonce, certificate)
        if not self.credentials.check(answer.header.get("proof"), "client", *exchanged):
            with contextlib.suppress(Disconnected):
                await peer.send(error_header("the connection was refused", kind="refused", hint="is the token right?"))
            raise WireError("a wrong token")
        await peer.send({"status": "ok", "proof": self.credentials.proof("server", *exchanged)})


def _peer_name(writer: asyncio.StreamWriter) -> str:
    address = writer.get_extra_info("peername")
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a client"
