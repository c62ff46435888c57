"""The serving side of connections: listen, shake hands within a time limit, hand over those who know a token.

Strangers are counted from the moment they connect, before TLS: there are only so many, and who dawdles makes room.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from tilewright.rpc import security
from tilewright.rpc.handshake import Gate
from tilewright.rpc.log import Log
from tilewright.rpc.peer import Peer, within
from tilewright.rpc.wire import Disconnected, Frame, VersionError, WireError, error_header
from tilewright.support.errors import UserError

_GREETING_SECONDS = 10.0
_MOST_STRANGERS = 128
"""Connections that may be shaking hands at one time; one more, and one of the address with the most is closed."""
_TLS_CLOSE_SECONDS = 2.0
_LISTEN_BACKLOG = 256
_PAUSE_SECONDS = 0.1
_STREAM_BYTES = 1 << 16


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


Handler = Callable[[Peer, Frame], Awaitable[None]]
"""Serves one connection: the peer, whose role is proved, and its first frame (what it wants)."""


class Service:
    """A listening socket whose connections reach `handler` only after the handshake."""

    def __init__(
        self,
        gate: Gate,
        handler: Handler,
        log: Log,
        *,
        tls: bool,
        certificate: Path | None = None,
        key: Path | None = None,
        greeting_seconds: float = _GREETING_SECONDS,
    ) -> None:
        self._gate = gate
        self._handler = handler
        self._log = log
        self._tls = security.server_tls(certificate, key) if tls else None
        self._greeting_seconds = greeting_seconds
        self._strangers: dict[asyncio.Task[None], str] = {}
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def strangers(self) -> int:
        """How many connections are shaking hands."""
        return len(self._strangers)

    async def listen(self, host: str, port: int) -> int:
        """Start to listen; returns the port (a free one is chosen for 0)."""
        await asyncio.to_thread(self._gate.prepare)
        try:
            self._listeners = await asyncio.to_thread(_listen, host, port)
        except OSError as error:
            raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        for listener in self._listeners:
            self._start(self._accept(listener), "listening")
        found: int = self._listeners[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Stop to listen and end all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        self._log.close()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        """What nobody foresaw ends one connection, and is said."""
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self._log.bug(task.get_name(), failure)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                # Mostly that there are no descriptors left: strangers will time out and give theirs back.
                self._log.line("accept", f"cannot take a connection: {error.strerror or error}")
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            host = str(address[0]) if isinstance(address, tuple) else ""
            self._make_room()
            name = f"{host}:{address[1]}" if host else "a client"
            task = self._start(self._serve(connection, name), f"the connection of {name}")
            self._strangers[task] = host
            # A queue that is never empty must not keep those from being served who are in.
            await asyncio.sleep(0)

    def _make_room(self) -> None:
        """Close a stranger if there are too many: the oldest of the address that has the most.

        An honest client needs a fraction of a second, and is not closed for what others do from elsewhere.
        """
        if len(self._strangers) < _MOST_STRANGERS:
            return
        [(busiest, _)] = Counter(self._strangers.values()).most_common(1)
        oldest = next(task for task, host in self._strangers.items() if host == busiest)
        del self._strangers[oldest]
        oldest.cancel()
        self._log.line("strangers", f"too many connections shake hands: the oldest of {busiest} is closed")

    async def _serve(self, connection: socket.socket, name: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer: Peer | None = None
        try:
            async with asyncio.timeout(self._greeting_seconds):
                peer = await self._connected(connection, name)
                await self._shake_hands(peer)
            self._strangers.pop(task, None)
            first = await within(self._greeting_seconds, peer.receive_small())
            await self._handler(peer, first)
        except UserError as error:
            # A broken or refused connection ends; whoever runs the service may want to know, others not.
            self._log.line("connection", f"{name}: {error.message}")
        except TimeoutError:
            self._log.line("slow", f"{name} took too long to shake hands")
        except OSError as error:
            self._log.line("connection", f"{name}: {error.strerror or error}")
        finally:
            self._strangers.pop(task, None)
            if peer is not None:
                peer.close()
            else:
                connection.close()

    async def _connected(self, connection: socket.socket, name: str) -> Peer:
        """The streams of a connection, after TLS."""
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_STREAM_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        tls = self._tls
        limits = {} if tls is None else {"ssl_shutdown_timeout": _TLS_CLOSE_SECONDS}
        if tls is not None:
            limits["ssl_handshake_timeout"] = self._greeting_seconds
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=None if tls is None else tls.context, **limits
        )
        return Peer(reader, asyncio.StreamWriter(transport, protocol, reader, loop), name)

    async def _shake_hands(self, peer: Peer) -> None:
        try:
            hello = await peer.receive_small()
        except VersionError as error:
            # Our own version is in the prefix of what is sent: the other side can say which it is.
            await _refuse(peer, error.message)
            raise
        visitor = self._gate.knock(hello, self._tls.certificate if self._tls is not None else b"")
        await peer.send(visitor.challenge())
        answer = await peer.receive_small()
        try:
            accepted = visitor.admit(answer)
        except WireError:
            await _refuse(peer, "the connection was refused", "is the token right, and of the right role?")
            raise
        peer.role, peer.lease = visitor.role, visitor.lease
        await peer.send(accepted)


async def _refuse(peer: Peer, message: str, hint: str | None = None) -> None:
    with contextlib.suppress(Disconnected):
        await peer.send(error_header(message, kind="refused", hint=hint))


def _listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on all addresses of a host, on one port."""
    found: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            listener = socket.socket(family, kind, protocol)
            found.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = found[0].getsockname()[1] if len(found) > 1 else port
            listener.bind((address[0], chosen, *address[2:]))
            listener.listen(_LISTEN_BACKLOG)
            listener.setblocking(False)
    except OSError:
        for listener in found:
            listener.close()
        raise
    return found
