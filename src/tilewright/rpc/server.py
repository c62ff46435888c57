"""The server on a device: gives every client a process of its own, and survives whatever happens in it.

    tilewright rpc server --port 9090
    tilewright rpc server --tracker board-farm:9190 --key rpi5 --token ...

A session's frames pass through the server, which keeps the time limit of each request and the memory limit of the
process. With a tracker, only clients that hold a lease are let in, one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.rpc.security import Credentials
from tilewright.rpc.service import Peer, Service, ended, within
from tilewright.rpc.tracker_link import TrackerLink
from tilewright.rpc.wire import DamagedHeader, Disconnected, Frame, WireError, error_header
from tilewright.support.errors import UserError
from tilewright.support.processors import usable_cpus
from tilewright.support.version import VERSION

DEFAULT_PORT = 9090
_MOST_REQUEST_SECONDS = 3600.0
_MOST_SESSIONS = 64
_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server serves. `memory_bytes` limits the address space of a session (0: no limit)."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: str | None = None
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
        self.credentials = Credentials.resolve(options.host, options.token, options.tls, serving=True)
        self.port = options.port
        self._service = Service(self.credentials, self._handle, certificate=options.certificate, key=options.key_file)
        self._link: TrackerLink | None = None
        self._sessions = 0
        self._leased: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Listen, and register with the tracker if there is one."""
        self.port = await self._service.listen(self.options.host, self.options.port)
        if self.options.tracker is not None:
            advertised = self.options.advertise or self.options.host
            self._link = TrackerLink(
                self.options.tracker,
                self.credentials.token or None,
                self.options.tls,
                {"key": self.options.key, "host": advertised, "port": self.port, "info": device_info(self.options)},
                self._end_session,
                self.options.say,
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

    async def _handle(self, peer: Peer, first: Frame) -> None:
        if first.header.get("role") != "session":
            await peer.send(error_header("this is an RPC server; it serves sessions only"))
            return
        lease = first.header.get("lease")
        if self._link is not None and not self._link.admit(lease):
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
        if isinstance(lease, str):
            self._leased[lease] = task
        self.options.say(f"session of {peer.name} begins")
        try:
            async with _Process(self.options.memory_bytes) as process:
                if not await process.ready():
                    await peer.send(error_header(await process.obituary(), kind="died"))
                    return
                await peer.send({"status": "ok", "info": device_info(self.options)})
                await _relay(peer, process, self.options.request_seconds)
        finally:
            self._sessions -= 1
            self.options.say(f"session of {peer.name} ends")
            if self._link is not None:
                self._leased.pop(str(lease), None)
                self._link.finished(lease)

    def _end_session(self, lease: str) -> bool:
        """Stop the session of a lease; False if none runs."""
        task = self._leased.get(lease)
        return task is not None and task.cancel()


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
        self._folder = Path(tempfile.mkdtemp(prefix="tilewright-session-"))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed in __aexit__)
        ours, theirs = socket.socketpair()
        try:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "tilewright.rpc.session", str(theirs.fileno()), str(self._folder), str(self._memory)),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                # The code that clients send may print; the server's own output stays readable.
                stdout=asyncio.subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        except OSError:
            ours.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        self.peer = Peer(reader, writer, "the session's process")
        return self

    async def __aexit__(self, *unused: object) -> None:
        self.peer.close()
        with contextlib.suppress(ProcessLookupError):
            # The whole group: compiled code may have started processes of its own.
            os.killpg(self.process.pid, signal.SIGKILL)
        ended = asyncio.ensure_future(self.process.wait())
        while not ended.done():
            # A killed process ends soon, and it must be reaped even when the session itself is being cancelled.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(ended)
        self._errors.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def ready(self) -> bool:
        """Wait until the process can take requests, so that its start does not count against their time."""
        try:
            await within(_START_SECONDS, self.peer.receive(0))
        except (Disconnected, TimeoutError):
            self.process.kill()
            return False
        return True

    async def obituary(self) -> str:
        """Why the process ended."""
        code = await self.process.wait()
        if code >= 0:
            self._errors.seek(0)
            last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
            return ": ".join([f"the session's process ended with the exit code {code}", *last])
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"the session's process was killed by {name}"


async def _relay(peer: Peer, process: _Process, most_seconds: float) -> None:
    """Pass requests to the process and answers back, until either side ends."""
    while True:
        try:
            request = await peer.receive()
        except Disconnected:
            return
        except DamagedHeader as error:
            await peer.send(error_header(error.message))
            continue
        seconds = min(_seconds(request.header), most_seconds)
        answer = asyncio.ensure_future(_ask(process.peer, request))
        gone = asyncio.ensure_future(peer.gone())
        try:
            await asyncio.wait({answer, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                gone.result()
                return
            if not answer.done():
                await peer.send(error_header(f"the request took more than {seconds:g} s", kind="died"))
                return
            try:
                reply = answer.result()
            except Disconnected:
                await peer.send(error_header(await process.obituary(), kind="died"))
                return
        finally:
            # Both are awaited so that nothing reads from the connection when the next request is.
            await ended(answer, gone, expected=(UserError,))
        await peer.send(reply.header, reply.payload)


async def _ask(process: Peer, request: Frame) -> Frame:
    await process.send(request.header, request.payload)
    return await process.receive()


def _seconds(header: Mapping[str, Any]) -> float:
    """The time limit that a request sets itself."""
    value = header.get("seconds")
    if value is None:
        return _MOST_REQUEST_SECONDS
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise WireError("a damaged time limit")
    return float(value)
