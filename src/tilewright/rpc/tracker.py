"""The tracker: a pool of devices that clients lease one by one.

    tilewright rpc tracker --port 9190 --token ...

Servers register under a key (the kind of device) and send heartbeats; a client asks for a device of a key and holds
the connection as long as it wants it. A lease is good for one session. Waiting clients are served by priority, then
those who hold the fewest devices, then in order of arrival. A device or a client that falls silent is dropped, and
what it held is free again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.rpc.security import Credentials
from tilewright.rpc.service import Peer, Service, ended, within
from tilewright.rpc.tracker_link import DEFAULT_TRACKER_PORT, HEARTBEAT_SECONDS
from tilewright.rpc.wire import Disconnected, Frame, WireError, error_header

SILENCE_SECONDS = HEARTBEAT_SECONDS * 5
"""How long a device or a client that holds a lease may be silent."""
_READY_SECONDS = 5.0
_MOST_WAITING = 4096


@dataclass(frozen=True, slots=True)
class TrackerOptions:
    """How a tracker serves."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_TRACKER_PORT
    token: str | None = None
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
    granted: asyncio.Future[_Device]


class Tracker:
    """A tracker in an event loop: `await start()`, then `await wait()`."""

    def __init__(self, options: TrackerOptions) -> None:
        self.options = options
        self.credentials = Credentials.resolve(options.host, options.token, options.tls, serving=True)
        self.port = options.port
        self._service = Service(self.credentials, self._handle, certificate=options.certificate, key=options.key_file)
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
        role = first.header.get("role")
        if role == "device":
            await self._device(peer, first)
        elif role == "lease":
            await self._client(peer, first)
        elif role == "query":
            await peer.send({"status": "ok", **self.summary()})
        else:
            await peer.send(error_header("this is a tracker", hint="connect sessions to a server"))

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
        port = first.number("port", 1)
        device = _Device(next(self._numbers), first.text("key"), first.text("host"), port, first.table("info"), peer)
        await peer.send({"status": "ok"})
        self._devices[device.number] = device
        self.options.say(f"{device.name} registered")
        try:
            self._serve_waiting()
            while True:
                await self._event(device, await within(SILENCE_SECONDS, peer.receive(0)))
        except (Disconnected, TimeoutError):
            self.options.say(f"{device.name} is gone")
        finally:
            del self._devices[device.number]

    async def _event(self, device: _Device, frame: Frame) -> None:
        event = frame.header.get("event")
        if event == "heartbeat":
            await device.peer.send({"event": "heartbeat"})
        elif event == "ready":
            if frame.text("lease") == device.lease:
                device.ready.set()
        elif event == "finished":
            if frame.text("lease") == device.lease:
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
            device.lease = secrets.token_urlsafe(24)
            device.ready.clear()
            self._waiting.remove(best)
            self._held[best.client] = self._held.get(best.client, 0) + 1
            best.granted.set_result(device)

    async def _client(self, peer: Peer, first: Frame) -> None:
        """Wait for a device, hand out the lease, and end it when the client hangs up, falls silent or overstays."""
        client, seconds = str(first.header.get("client") or peer.name), first.real("seconds")
        priority = first.header.get("priority", 0)
        if not isinstance(priority, int):
            raise WireError("a damaged priority")
        if len(self._waiting) >= _MOST_WAITING:
            await peer.send(error_header("too many clients wait for devices"))
            return
        device = await self._grant(peer, first.text("key"), client, priority, first.real("wait"))
        if device is None:
            return
        lease = device.lease
        try:
            assert lease is not None
            if not await self._announce(device, lease):
                await peer.send(error_header("the device that was free is gone", hint="ask again"))
                return
            answer = {"status": "ok", "lease": lease, "host": device.host, "port": device.port, "info": device.info}
            await peer.send(answer)
            await self._hold(peer, time.monotonic() + seconds)
        finally:
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]
            if device.lease == lease and device.number in self._devices:
                with contextlib.suppress(Disconnected):
                    await device.peer.send({"event": "revoke", "lease": lease})

    async def _grant(self, peer: Peer, key: str, client: str, priority: int, patience: float) -> _Device | None:
        """A device for a client, or None after telling it why there is none."""
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

    async def _announce(self, device: _Device, lease: str) -> bool:
        """Tell the device whom to expect; False if it does not react."""
        try:
            await device.peer.send({"event": "lease", "lease": lease})
            await within(_READY_SECONDS, device.ready.wait())
        except (Disconnected, TimeoutError):
            device.peer.close()
            return False
        return True

    async def _hold(self, peer: Peer, until: float) -> None:
        """Wait while the client holds its lease."""
        while (left := until - time.monotonic()) > 0:
            try:
                frame = await within(min(left, SILENCE_SECONDS), peer.receive(0))
            except (Disconnected, TimeoutError):
                return
            if frame.header.get("event") != "heartbeat":
                raise WireError("a client sent an unknown event")
