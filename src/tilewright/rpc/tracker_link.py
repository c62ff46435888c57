"""A server's standing connection to its tracker: registers, sends heartbeats, learns of leases, connects again."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.rpc import security
from tilewright.rpc.security import Credentials
from tilewright.rpc.service import Peer, ended, within
from tilewright.rpc.wire import Disconnected, raise_reported
from tilewright.support.errors import UserError

DEFAULT_TRACKER_PORT = 9190
HEARTBEAT_SECONDS = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
_ANSWER_SECONDS = 10.0


def split_address(text: str, default_port: int) -> tuple[str, int]:
    """`host:port`, `host` or `[v6]:port` as host and port."""
    host, colon, port = text.rpartition(":")
    if not colon or (host.count(":") and not host.startswith("[")):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"{text!r} is no address", hint=f"write host:port, for example 127.0.0.1:{default_port}")
    return host, int(port)


class TrackerLink:
    """Keeps a server registered. A lease is a secret word: a client that presents it may have one session."""

    def __init__(
        self,
        address: str,
        token: str | None,
        tls: bool | None,
        registration: Mapping[str, Any],
        end_session: Callable[[str], bool],
        say: Callable[[str], None],
    ) -> None:
        self._host, self._port = split_address(address, DEFAULT_TRACKER_PORT)
        self._credentials = Credentials.resolve(self._host, token, tls, serving=False)
        self._registration = dict(registration)
        self._end_session = end_session
        self._say = say
        self._leases: set[str] = set()
        self._finished: asyncio.Queue[str] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, in the background, and stay connected."""
        self._task = asyncio.create_task(self._keep_connected())

    async def close(self) -> None:
        """Leave the tracker."""
        if self._task is not None:
            await ended(self._task)

    def admit(self, lease: object) -> bool:
        """Whether a client holds a lease of this server; it is good for one session."""
        if not isinstance(lease, str) or lease not in self._leases:
            return False
        self._leases.discard(lease)
        return True

    def finished(self, lease: object) -> None:
        """Tell the tracker that the session of a lease is over."""
        self._finished.put_nowait(str(lease))

    async def _keep_connected(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._stay()
                pause = _FIRST_PAUSE
            except (UserError, OSError, ssl.SSLError, TimeoutError) as error:
                self._say(f"no connection to the tracker: {error}")
            # Not all servers of a fleet at the same moment.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _stay(self) -> None:
        context = security.client_tls() if self._credentials.tls else None
        reader, writer = await within(_ANSWER_SECONDS, asyncio.open_connection(self._host, self._port, ssl=context))
        peer = Peer(reader, writer, f"the tracker {self._host}:{self._port}")
        try:
            await within(_ANSWER_SECONDS, shake_hands(peer, self._credentials))
            await peer.send({"role": "device", **self._registration})
            raise_reported(await within(_ANSWER_SECONDS, peer.receive(0)), peer.name)
            self._say(f"registered with {peer.name} under the key '{self._registration['key']}'")
            # Leases of an earlier connection are void: the tracker forgot them with it.
            self._leases.clear()
            await self._serve(peer)
        except Disconnected:
            self._say(f"{peer.name} is gone")
        finally:
            writer.close()

    async def _serve(self, peer: Peer) -> None:
        beating = asyncio.create_task(self._beat(peer))
        try:
            while True:
                # The tracker answers heartbeats, so silence means that it is gone.
                frame = await within(HEARTBEAT_SECONDS * 5, peer.receive(0))
                event = frame.header.get("event")
                if event == "lease":
                    self._leases.add(frame.text("lease"))
                    await peer.send({"event": "ready", "lease": frame.text("lease")})
                elif event == "revoke":
                    self._revoke(frame.text("lease"))
        except TimeoutError:
            raise Disconnected(f"{peer.name} does not answer") from None
        finally:
            await ended(beating, expected=(Disconnected,))

    def _revoke(self, lease: str) -> None:
        """End a lease: its session, if one runs (which then reports the end itself), or the promise of one."""
        if not self._end_session(lease):
            self._leases.discard(lease)
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
    """The client's side of the handshake, for connections of an event loop."""
    client_nonce = security.nonce()
    await peer.send({"hello": 1, "nonce": client_nonce.hex()})
    server_nonce = security.read_nonce((await peer.receive(0)).header.get("nonce"))
    tls = peer.writer.get_extra_info("ssl_object")
    certificate = (tls.getpeercert(binary_form=True) or b"") if tls is not None else b""
    exchanged = (client_nonce, server_nonce, certificate)
    await peer.send({"proof": credentials.proof("client", *exchanged)})
    answer = raise_reported(await peer.receive(0), peer.name)
    if not credentials.check(answer.header.get("proof"), "server", *exchanged):
        raise UserError("the tracker did not prove that it knows the token", where=peer.name)
