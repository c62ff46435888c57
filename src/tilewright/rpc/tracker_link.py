"""A server's standing connection to its tracker: registers, sends heartbeats, learns of leases, connects again."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Mapping
from typing import Any, Protocol

from tilewright.rpc import security
from tilewright.rpc.handshake import ClientHandshake
from tilewright.rpc.log import Log
from tilewright.rpc.peer import Peer, within
from tilewright.rpc.security import DEVICE, Credentials, lease_name
from tilewright.rpc.service import ended
from tilewright.rpc.wire import Disconnected, raise_refused, raise_reported
from tilewright.support.errors import UserError

DEFAULT_TRACKER_PORT = 9190
HEARTBEAT_SECONDS = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
_ANSWER_SECONDS = 10.0
_GRACE_SECONDS = 10.0
"""How long a lease may outlast its time: the tracker that gave it ends it first, if it is there."""


def split_address(text: str, default_port: int) -> tuple[str, int]:
    """`host:port`, `host` or `[v6]:port` as host and port."""
    host, colon, port = text.rpartition(":")
    if not colon or (host.count(":") and not host.startswith("[")):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"{text!r} is no address", hint=f"write host:port, for example 127.0.0.1:{default_port}")
    return host, int(port)


class Sessions(Protocol):
    """The sessions of the server, by the names of their leases."""

    def end_session(self, lease: str) -> bool:
        """Stop one; False if it does not run."""

    def running_lease(self) -> str | None:
        """The one that runs."""


class TrackerLink:
    """Keeps a server registered. A lease is a secret word: a client that proves to know it may have one session."""

    def __init__(
        self,
        address: str,
        token: str | None,
        tls: bool | None,
        registration: Mapping[str, Any],
        sessions: Sessions,
        log: Log,
    ) -> None:
        self._host, self._port = split_address(address, DEFAULT_TRACKER_PORT)
        self._credentials = Credentials.resolve(self._host, token, tls, role=DEVICE)
        self._registration = dict(registration)
        self._sessions = sessions
        self._log = log
        self._leases: dict[str, str] = {}
        self._deadlines: dict[str, asyncio.TimerHandle] = {}
        self._finished: asyncio.Queue[str] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, in the background, and stay connected."""
        self._task = asyncio.create_task(self._keep_connected())

    async def close(self) -> None:
        """Leave the tracker."""
        for deadline in self._deadlines.values():
            deadline.cancel()
        if self._task is not None:
            await ended(self._task)

    def find(self, name: str) -> str | None:
        """The secret of a lease that no session has used yet, by its name."""
        return self._leases.get(name)

    def admit(self, lease: str | None) -> bool:
        """Whether a client holds a lease of this server; it is good for one session."""
        return lease is not None and self._leases.pop(lease_name(lease), None) is not None

    def finished(self, lease: str) -> None:
        """Tell the tracker that the session of a lease, which is named, is over."""
        deadline = self._deadlines.pop(lease, None)
        if deadline is not None:
            deadline.cancel()
        self._finished.put_nowait(lease)

    async def _keep_connected(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._stay()
                pause = _FIRST_PAUSE
            except (UserError, OSError, ssl.SSLError, TimeoutError) as error:
                self._log.line("tracker", f"no connection to the tracker: {error}")
            # Not all servers of a fleet at the same moment.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _stay(self) -> None:
        context = security.client_tls() if self._credentials.tls else None
        reader, writer = await within(_ANSWER_SECONDS, asyncio.open_connection(self._host, self._port, ssl=context))
        peer = Peer(reader, writer, f"the tracker {self._host}:{self._port}")
        try:
            await within(_ANSWER_SECONDS, shake_hands(peer, self._credentials))
            # Leases of an earlier connection that nobody has used are void: a tracker that forgot them lends the
            # device anew. A session that runs is reported, so that it does not.
            self._leases.clear()
            await peer.send({"role": "device", **self._registration, "lease": self._sessions.running_lease()})
            raise_reported(await within(_ANSWER_SECONDS, peer.receive_small()), peer.name)
            self._log.line("tracker", f"registered with {peer.name} under the key '{self._registration['key']}'")
            await self._serve(peer)
        except Disconnected:
            self._log.line("tracker", f"{peer.name} is gone")
        finally:
            writer.close()

    async def _serve(self, peer: Peer) -> None:
        beating = asyncio.create_task(self._beat(peer))
        try:
            while True:
                # The tracker answers heartbeats, so silence means that it is gone.
                frame = await within(HEARTBEAT_SECONDS * 5, peer.receive_small())
                event = frame.header.get("event")
                if event == "lease":
                    name = self._promise(frame.name("lease"), frame.real("seconds"))
                    await peer.send({"event": "ready", "lease": name})
                elif event == "revoke":
                    self._revoke(frame.name("lease"))
        except TimeoutError:
            raise Disconnected(f"{peer.name} does not answer") from None
        finally:
            await ended(beating, expected=(Disconnected,))

    def _promise(self, lease: str, seconds: float) -> str:
        """Expect a client with a lease; returns the lease's name. It ends in time even if no tracker remembers it."""
        name = lease_name(lease)
        self._leases[name] = lease
        loop = asyncio.get_running_loop()
        self._deadlines[name] = loop.call_later(seconds + _GRACE_SECONDS, self._revoke, name)
        return name

    def _revoke(self, lease: str) -> None:
        """End a lease: its session, if one runs (which then reports the end itself), or the promise of one."""
        if not self._sessions.end_session(lease):
            self._leases.pop(lease, None)
            self.finished(lease)

    async def _beat(self, peer: Peer) -> None:
        while True:
            try:
                lease = await within(HEARTBEAT_SECONDS, self._finished.get())
            except TimeoutError:
                await peer.send({"event": "heartbeat"})
            else:
                await peer.send({"event": "finished", "lease": lease})


async def shake_hands(peer: Peer, credentials: Credentials) -> None:
    """The connecting side of the handshake, for connections of an event loop."""
    handshake = ClientHandshake(credentials)
    await peer.send(handshake.hello())
    answer = raise_refused(await peer.receive_small(), peer.name)
    tls = peer.writer.get_extra_info("ssl_object")
    certificate = (tls.getpeercert(binary_form=True) or b"") if tls is not None else b""
    # In a thread: making a key out of a token takes long enough for sessions to notice.
    await peer.send(await asyncio.to_thread(handshake.prove, answer, certificate))
    handshake.confirm(raise_reported(await peer.receive_small(), peer.name))
    peer.role = "tracker"
