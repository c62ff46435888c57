"""The tracker: a pool of devices that clients lease one by one.

    tilewright rpc tracker --port 9190 --token-file clients --device-token-file devices

Servers register under a key (the kind of device) and send heartbeats; a client asks for a device of a key and holds
the connection as long as it wants it. A lease is good for one session. Waiting clients are served by priority, then
those who hold the fewest devices, then in order of arrival. A device or a client that falls silent is dropped, and
what it held is free again. A device says when it registers which lease it serves: a tracker that was started again,
and has forgotten, does not lend it a second time.

Clients and devices have tokens of their own: who may lease cannot register, who may register cannot lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.rpc.handshake import Gate
from tilewright.rpc.log import Log
from tilewright.rpc.peer import Peer, within
from tilewright.rpc.security import (
    CLIENT,
    DEVICE,
    RPC_DEVICE_TOKEN,
    RPC_TOKEN,
    checked_token,
    is_loopback,
    lease_name,
    needs_token,
)
from tilewright.rpc.service import Service, ended
from tilewright.rpc.tracker_link import DEFAULT_TRACKER_PORT, HEARTBEAT_SECONDS
from tilewright.rpc.wire import Disconnected, Frame, WireError, error_header
from tilewright.support.errors import UserError

SILENCE_SECONDS = HEARTBEAT_SECONDS * 5
"""How long a device or a client that holds a lease may be silent."""
_READY_SECONDS = 5.0
_MOST_WAITING = 4096
_MOST_DEVICES = 4096
_MOST_PRIORITY = 1_000_000
_WANTS = {CLIENT: ("lease", "query"), DEVICE: ("device",)}
"""What each role may ask for."""


@dataclass(frozen=True, slots=True)
class TrackerOptions:
    """How a tracker serves: `token` is the clients', `device_token` the devices'."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_TRACKER_PORT
    token: str | None = None
    device_token: str | None = None
    tls: bool | None = None
    certificate: Path | None = None
    key_file: Path | None = None
    say: Callable[[str], None] = field(default=lambda text: None)


@dataclass(slots=True, eq=False)
class _Device:
    number: int
    key: str
    host: str
    port: int
    info: dict[str, Any]
    peer: Peer
    lease: str | None = None
    """The name of the lease it serves."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    served: int = 0
    since: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return f"{self.key} at {self.host}:{self.port}"


@dataclass(slots=True, eq=False)
class _Waiting:
    number: int
    key: str
    client: str
    priority: int
    granted: asyncio.Future[tuple[_Device, str]]
    """The device, and the secret of its lease."""


class Tracker:
    """A tracker in an event loop: `await start()`, then `await wait()`."""

    def __init__(self, options: TrackerOptions) -> None:
        self.options = options
        self.log = Log(options.say)
        tokens = _tokens(options)
        self.tls = not is_loopback(options.host) if options.tls is None else options.tls
        self.has_token = bool(tokens[CLIENT])
        self.port = options.port
        self._service = Service(
            Gate(tokens), self._handle, self.log, tls=self.tls, certificate=options.certificate, key=options.key_file
        )
        self._devices: dict[int, _Device] = {}
        self._waiting: list[_Waiting] = []
        self._held: dict[str, int] = {}
        self._numbers = itertools.count(1)

    async def start(self) -> None:
        """Listen."""
        self.port = await self._service.listen(self.options.host, self.options.port)

    async def wait(self) -> None:
        """Serve until cancelled."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Stop."""
        await self._service.close()

    async def _handle(self, peer: Peer, first: Frame) -> None:
        wanted = first.header.get("role")
        if wanted not in ("device", "lease", "query"):
            await peer.send(error_header("this is a tracker", hint="connect sessions to a server"))
        elif wanted not in _WANTS.get(str(peer.role), ()):
            self.log.line("role", f"{peer.name} has the token of a {peer.role} and asked for a {wanted}")
            await peer.send(error_header(f"the token of a {peer.role} is not for this", hint="use the other token"))
        elif wanted == "device":
            await self._device(peer, first)
        elif wanted == "lease":
            await self._client(peer, first)
        else:
            await peer.send({"status": "ok"}, json.dumps(self.summary()).encode())

    def summary(self) -> dict[str, Any]:
        """Devices and waiting clients, for people to read."""
        now = time.monotonic()
        return {
            "devices": [
                {
                    "key": device.key,
                    "address": f"{device.host}:{device.port}",
                    "busy": device.lease is not None,
                    "served": device.served,
                    "seconds": round(now - device.since, 1),
                    "info": device.info,
                }
                for device in self._devices.values()
            ],
            "waiting": [{"key": item.key, "client": item.client, "priority": item.priority} for item in self._waiting],
        }

    async def _device(self, peer: Peer, first: Frame) -> None:
        if len(self._devices) >= _MOST_DEVICES:
            await peer.send(error_header("the tracker has too many devices"))
            return
        key, host, port = first.name("key"), first.name("host"), first.number("port", 1, 65535)
        running = None if first.header.get("lease") is None else first.name("lease")
        device = _Device(next(self._numbers), key, host, port, first.table("info"), peer, running)
        for other in [item for item in self._devices.values() if (item.host, item.port) == (host, port)]:
            # Its connection broke and nobody has noticed yet: one device must not be lent as two.
            del self._devices[other.number]
            other.peer.close()
        self._devices[device.number] = device
        self.log.line("device", f"{device.name} registered{' while it serves a lease' if running else ''}")
        try:
            await peer.send({"status": "ok"})
            self._serve_waiting()
            while True:
                await self._event(device, await within(SILENCE_SECONDS, peer.receive_small()))
        except (Disconnected, TimeoutError):
            self.log.line("device", f"{device.name} is gone")
        finally:
            self._devices.pop(device.number, None)

    async def _event(self, device: _Device, frame: Frame) -> None:
        event = frame.header.get("event")
        if event == "heartbeat":
            await device.peer.send({"event": "heartbeat"})
        elif event == "ready":
            if frame.name("lease") == device.lease:
                device.ready.set()
        elif event == "finished":
            if frame.name("lease") == device.lease:
                device.lease = None
                device.served += 1
                self._serve_waiting()
        else:
            raise WireError(f"a device sent the unknown event {event!r}")

    def _serve_waiting(self) -> None:
        """Give free devices to those who wait, best first."""
        for device in [item for item in self._devices.values() if item.lease is None]:
            candidates = [item for item in self._waiting if item.key == device.key and not item.granted.done()]
            if not candidates:
                continue
            best = min(candidates, key=lambda item: (-item.priority, self._held.get(item.client, 0), item.number))
            lease = secrets.token_urlsafe(24)
            device.lease = lease_name(lease)
            device.ready.clear()
            self._waiting.remove(best)
            self._held[best.client] = self._held.get(best.client, 0) + 1
            best.granted.set_result((device, lease))

    async def _client(self, peer: Peer, first: Frame) -> None:
        """Wait for a device, hand out the lease, and end it when the client hangs up, falls silent or overstays."""
        client = peer.name if first.header.get("client") is None else first.name("client")
        key, patience, seconds = first.name("key"), first.real("wait"), first.real("seconds")
        priority = first.number("priority", -_MOST_PRIORITY, _MOST_PRIORITY)
        if len(self._waiting) >= _MOST_WAITING:
            await peer.send(error_header("too many clients wait for devices"))
            return
        granted = await self._grant(peer, key, client, priority, patience)
        if granted is None:
            return
        device, lease = granted
        stopping = False
        try:
            if not await self._announce(device, lease, seconds):
                await peer.send(error_header("the device that was free is gone", hint="ask again"))
                return
            answer = {"status": "ok", "lease": lease, "host": device.host, "port": device.port, "info": device.info}
            await peer.send(answer)
            await self._hold(peer, time.monotonic() + seconds)
        except asyncio.CancelledError:
            # The tracker itself stops: who has a device keeps it, and the next tracker learns of it.
            stopping = True
            raise
        finally:
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]
            if not stopping:
                await self._revoke(lease_name(lease))

    async def _revoke(self, lease: str) -> None:
        """Take a device back from a lease, which is named; the device may have registered anew meanwhile."""
        for device in [item for item in self._devices.values() if item.lease == lease]:
            with contextlib.suppress(Disconnected):
                await device.peer.send({"event": "revoke", "lease": lease})

    async def _grant(
        self, peer: Peer, key: str, client: str, priority: int, patience: float
    ) -> tuple[_Device, str] | None:
        """A device for a client and the lease's secret, or None after telling it why there is none."""
        loop = asyncio.get_running_loop()
        entry = _Waiting(next(self._numbers), key, client, priority, loop.create_future())
        self._waiting.append(entry)
        self._serve_waiting()
        gone = asyncio.ensure_future(peer.gone())
        try:
            either: set[asyncio.Future[Any]] = {entry.granted, gone}
            await asyncio.wait(either, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not entry.granted.done() and not gone.done():
                known = sorted({item.key for item in self._devices.values()})
                await peer.send(
                    error_header(
                        f"no device of the key '{key}' became free in {patience:g} s",
                        hint=f"devices here: {', '.join(known) or 'none'}",
                    )
                )
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
            await ended(gone, expected=(WireError,))
        return entry.granted.result() if entry.granted.done() else None

    async def _announce(self, device: _Device, lease: str, seconds: float) -> bool:
        """Tell the device whom to expect; False if it does not react."""
        try:
            await device.peer.send({"event": "lease", "lease": lease, "seconds": seconds})
            await within(_READY_SECONDS, device.ready.wait())
        except (Disconnected, TimeoutError):
            device.peer.close()
            return False
        return True

    async def _hold(self, peer: Peer, until: float) -> None:
        """Wait while the client holds its lease."""
        while (left := until - time.monotonic()) > 0:
            try:
                frame = await within(min(left, SILENCE_SECONDS), peer.receive_small())
            except (Disconnected, TimeoutError):
                return
            if frame.header.get("event") != "heartbeat":
                raise WireError("a client sent an unknown event")


def _tokens(options: TrackerOptions) -> dict[str, str]:
    """The tokens of both roles: two that differ, or, on loopback, none."""
    client = checked_token(options.token, RPC_TOKEN)
    device = checked_token(options.device_token, RPC_DEVICE_TOKEN)
    if not is_loopback(options.host):
        if not client:
            raise needs_token(options.host, serving=True, option="token", setting=RPC_TOKEN)
        if not device:
            raise needs_token(options.host, serving=True, option="device-token", setting=RPC_DEVICE_TOKEN)
    if bool(client) != bool(device):
        raise UserError(
            "a tracker needs a token for clients and another for devices, or none",
            hint=f"give --token and --device-token, or set {RPC_TOKEN.name} and {RPC_DEVICE_TOKEN.name}",
        )
    if client and client == device:
        raise UserError("clients and devices have the same token: either could then take the other's role")
    return {CLIENT: client, DEVICE: device}
