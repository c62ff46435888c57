"""The server on a device: gives every client a process of its own, and survives whatever happens in it.

    tilewright rpc server --port 9090
    tilewright rpc server --tracker board-farm:9190 --key rpi5 --device-token ...

A session's frames pass through the server, which keeps the time limit of each request and the memory limit of the
process, and holds no more of them than a piece at a time. With a tracker, only clients that hold a lease are let in,
one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tilewright.rpc import isolation
from tilewright.rpc.handshake import Gate
from tilewright.rpc.isolation import SessionFolder
from tilewright.rpc.log import Log
from tilewright.rpc.peer import Head, Peer, within
from tilewright.rpc.security import (
    CLIENT,
    LEASE,
    RPC_DEVICE_TOKEN,
    RPC_TOKEN,
    checked_token,
    is_loopback,
    lease_name,
    needs_token,
)
from tilewright.rpc.service import Service, ended
from tilewright.rpc.tracker_link import TrackerLink
from tilewright.rpc.wire import MOST_SECONDS, Disconnected, Frame, WireError, decode_header, error_header
from tilewright.support.children import python_command, python_environment
from tilewright.support.errors import UserError
from tilewright.support.processors import usable_cpus
from tilewright.support.version import VERSION

DEFAULT_PORT = 9090
_MOST_REQUEST_SECONDS = 3600.0
_MOST_SESSIONS = 64
_START_SECONDS = 60.0
_DYING_SECONDS = 5.0
_LAST_WORDS = 2000


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server serves. `memory_bytes` limits the address space of a session, and its files (0: no limit).

    `token` is for clients that connect by themselves; `device_token` lets the server join a tracker, which then sends
    clients with leases: these need no other token.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: str | None = None
    device_token: str | None = None
    tls: bool | None = None
    certificate: Path | None = None
    key_file: Path | None = None
    tracker: str | None = None
    key: str = "default"
    advertise: str | None = None
    target: str | None = None
    request_seconds: float = _MOST_REQUEST_SECONDS
    memory_bytes: int = 0
    say: Callable[[str], None] = field(default=lambda text: None)


class Server:
    """An RPC server in an event loop: `await start()`, then `await wait()`; `await close()` ends its sessions."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.log = Log(options.say)
        local, token = is_loopback(options.host), checked_token(options.token, RPC_TOKEN)
        if options.tracker is None and not token and not local:
            raise needs_token(options.host, serving=True, option="token", setting=RPC_TOKEN)
        self.tls = not local if options.tls is None else options.tls
        self.has_token = bool(token) or options.tracker is not None
        self.port = options.port
        # Without any token, clients of a server that has a tracker are told so; with one they are strangers.
        is_open = local and not checked_token(options.device_token, RPC_DEVICE_TOKEN)
        gate = Gate({CLIENT: token} if token or is_open else {}, self._find_lease if options.tracker else None)
        self._service = Service(
            gate, self._handle, self.log, tls=self.tls, certificate=options.certificate, key=options.key_file
        )
        self._link: TrackerLink | None = None
        self._sessions = 0
        self._leased: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Listen, and register with the tracker if there is one."""
        left = await asyncio.to_thread(isolation.remove_left_folders)
        if left:
            self.log.line("folders", f"{left} folders of sessions that had been left were deleted")
        self.port = await self._service.listen(self.options.host, self.options.port)
        if self.options.tracker is not None:
            advertised = self.options.advertise or self.options.host
            self._link = TrackerLink(
                self.options.tracker,
                self.options.device_token,
                self.options.tls,
                {"key": self.options.key, "host": advertised, "port": self.port, "info": device_info(self.options)},
                self,
                self.log,
            )
            self._link.start()

    async def wait(self) -> None:
        """Serve until cancelled."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """End all sessions and stop."""
        if self._link is not None:
            await self._link.close()
        await self._service.close()

    def _find_lease(self, name: str) -> str | None:
        return self._link.find(name) if self._link is not None else None

    async def _handle(self, peer: Peer, first: Frame) -> None:
        if first.header.get("role") != "session":
            await peer.send(error_header("this is an RPC server; it serves sessions only"))
            return
        if self._link is not None and not (peer.role == LEASE and self._link.admit(peer.lease)):
            await peer.send(
                error_header("this server is managed by a tracker", hint="ask the tracker: rpc.connect_tracker(...)")
            )
            return
        if self._sessions >= _MOST_SESSIONS:
            await peer.send(error_header("the server has too many sessions", hint="close some, or use a tracker"))
            return
        self._sessions += 1
        task = asyncio.current_task()
        assert task is not None
        lease = None if peer.lease is None else lease_name(peer.lease)
        if lease is not None:
            self._leased[lease] = task
        self.log.line("session", f"session of {peer.name} begins")
        try:
            async with _Process(self.options.memory_bytes) as process:
                if not await process.ready():
                    await peer.send(error_header(await process.obituary(), kind="died"))
                    return
                await peer.send({"status": "ok", "info": device_info(self.options)})
                await _relay(peer, process, self.options.request_seconds)
        finally:
            self._sessions -= 1
            self.log.line("session", f"session of {peer.name} ends")
            if self._link is not None and lease is not None:
                self._leased.pop(lease, None)
                self._link.finished(lease)

    def end_session(self, lease: str) -> bool:
        """Stop the session of a lease, by its name; False if none runs."""
        task = self._leased.get(lease)
        return task is not None and task.cancel()

    def running_lease(self) -> str | None:
        """The name of the lease whose session runs."""
        return next(iter(self._leased), None)


def device_info(options: ServerOptions) -> dict[str, Any]:
    """What a client may want to know of a device."""
    return {
        "tilewright": VERSION,
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": len(usable_cpus()),
        "target": options.target,
    }


class _Process:
    """The process of a session and the socket to it; leaving the `async with` kills it and removes its files."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory = memory_bytes

    async def __aenter__(self) -> _Process:
        self._folder = SessionFolder()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed in __aexit__)
        ours, theirs = socket.socketpair()
        try:
            self.process = await asyncio.create_subprocess_exec(
                *python_command("-m", "tilewright.rpc.session"),
                *(str(theirs.fileno()), str(self._folder.files), str(self._memory)),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                # The code that clients send may print; the server's own output stays readable.
                stdout=asyncio.subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
                # Without the tokens: the code of a client must not become a client or a device itself.
                env=python_environment(),
            )
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            # Also when the lease is taken back just now: nothing may be left.
            ours.close()
            if hasattr(self, "process"):
                self._kill()
            self._errors.close()
            self._folder.remove()
            raise
        finally:
            theirs.close()
        self.peer = Peer(reader, writer, "the session's process")
        return self

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            # The whole group: compiled code may have started processes of its own.
            os.killpg(self.process.pid, signal.SIGKILL)

    async def __aexit__(self, *unused: object) -> None:
        self.peer.close()
        self._kill()
        ended = asyncio.ensure_future(self.process.wait())
        while not ended.done():
            # A killed process ends soon, and it must be reaped even when the session itself is being cancelled.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(ended)
        self._errors.close()
        self._folder.remove()

    async def ready(self) -> bool:
        """Wait until the process can take requests, so that its start does not count against their time."""
        try:
            await within(_START_SECONDS, self.peer.receive_small())
        except (WireError, Disconnected, TimeoutError):
            self.process.kill()
            return False
        return True

    async def obituary(self) -> str:
        """Why the process ended."""
        try:
            code = await within(_DYING_SECONDS, self.process.wait())
        except TimeoutError:
            return "the session's process closed its connection"
        if code >= 0:
            # Compiled code may have printed more than there is memory for.
            size = self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, size - _LAST_WORDS))
            last = self._errors.read(_LAST_WORDS).decode(errors="replace").strip().splitlines()[-1:]
            return ": ".join([f"the session's process ended with the exit code {code}", *last])
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"the session's process was killed by {name}"


async def _relay(peer: Peer, process: _Process, most_seconds: float) -> None:
    """Pass requests to the process and answers back, until either side ends."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            request = await peer.receive_head()
            try:
                seconds = min(_seconds(decode_header(request.text)), most_seconds)
            except WireError as error:
                await peer.copy_payload(request.payload_bytes, None)
                await peer.send(error_header(error.message))
                continue
            until = loop.time() + seconds
            taken = await within(seconds, _pass_on(peer, process.peer, request))
        except Disconnected:
            return
        except TimeoutError:
            await peer.send(_too_slow(seconds))
            return
        answer = await _answer(peer, process, until - loop.time()) if taken else None
        if isinstance(answer, Head):
            try:
                if not await within(most_seconds, _pass_on(process.peer, peer, answer)):
                    return
            except (Disconnected, TimeoutError):
                # It broke off in the middle of its answer, which cannot be told apart from the rest of it.
                return
            continue
        if answer == "gone":
            return
        await peer.send(_too_slow(seconds) if answer == "slow" else error_header(await process.obituary(), kind="died"))
        return


def _too_slow(seconds: float) -> dict[str, Any]:
    return error_header(f"the request took more than {seconds:g} s", kind="died")


async def _pass_on(source: Peer, sink: Peer, head: Head) -> bool:
    """Pass one frame on; whether the other side took it."""
    try:
        await sink.send_head(head)
    except Disconnected:
        await source.copy_payload(head.payload_bytes, None)
        return False
    return await source.copy_payload(head.payload_bytes, sink)


async def _answer(peer: Peer, process: _Process, seconds: float) -> Head | Literal["gone", "slow"] | None:
    """The head of the process's answer; "gone" if the client is, "slow" if time is up, None if the process died."""
    answer = asyncio.ensure_future(process.peer.receive_head())
    gone = asyncio.ensure_future(peer.gone())
    try:
        await asyncio.wait({answer, gone}, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            gone.result()
            return "gone"
        return answer.result() if answer.done() else "slow"
    except Disconnected:
        return None
    finally:
        # Both are awaited so that nothing reads from the connection when the next request is.
        await ended(answer, gone, expected=(UserError,))


def _seconds(header: Mapping[str, Any]) -> float:
    """The time limit that a request sets itself."""
    value = header.get("seconds")
    if value is None:
        return _MOST_REQUEST_SECONDS
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MOST_SECONDS:
        raise WireError("a damaged time limit")
    return float(value)
