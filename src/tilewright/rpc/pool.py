"""Clients of a tracker: lease a device, look at the pool.

tracker = tw.rpc.connect_tracker("board-farm", 9190, token=...)
with tracker.request("rpi5", priority=1) as remote:
    ...
print(tracker.text_summary())
"""

from __future__ import annotations

import getpass
import os
import socket
from typing import Any

from tilewright.rpc.client import Heartbeat, RemoteSession, open_session
from tilewright.rpc.connect import open_channel
from tilewright.rpc.security import Credentials
from tilewright.rpc.tracker_link import DEFAULT_TRACKER_PORT, HEARTBEAT_SECONDS
from tilewright.rpc.wire import Frame, decode_header, raise_reported
from tilewright.support.errors import UserError
from tilewright.support.text import human_seconds, table

_DEFAULT_LEASE_SECONDS = 3600.0
_DEFAULT_WAIT_SECONDS = 600.0
_ANSWER_SECONDS = 30.0


def connect_tracker(
    host: str, port: int = DEFAULT_TRACKER_PORT, *, token: str | None = None, tls: bool | None = None
) -> TrackerClient:
    """A client of the tracker at an address. Devices ask for no token but the lease; they speak TLS as `tls` says."""
    return TrackerClient(host, port, token, tls)


class TrackerClient:
    """Asks a tracker for devices."""

    def __init__(self, host: str, port: int, token: str | None, tls: bool | None) -> None:
        self.host, self.port = host, port
        self.token, self.tls = token, tls
        self.credentials = Credentials.resolve(host, token, tls)
        self.name = f"{_user()}@{socket.gethostname()}"

    def request(
        self,
        key: str,
        *,
        priority: int = 0,
        lease_seconds: float = _DEFAULT_LEASE_SECONDS,
        wait_seconds: float = _DEFAULT_WAIT_SECONDS,
        timeout: float | None = None,
        client: str | None = None,
    ) -> RemoteSession:
        """A session on a device of the key; waits until one is free. Close the session to give the device back.

        Higher priorities go first. The lease ends after `lease_seconds` at the latest. `timeout` limits each request
        of the session.
        """
        first = {
            "role": "lease",
            "key": key,
            "client": client or self.name,
            "priority": priority,
            "seconds": lease_seconds,
            "wait": wait_seconds,
        }
        channel = open_channel(self.host, self.port, self.credentials, first)
        channel.settimeout(wait_seconds + _ANSWER_SECONDS)
        try:
            answer = raise_reported(channel.receive(), channel.peer)
            host, port = answer.name("host"), answer.number("port", 1, 65535)
            credentials = Credentials.of_lease(host, answer.name("lease"), self.tls)
            session = open_session(host, port, credentials, timeout)
        except UserError:
            channel.close()
            raise
        session.on_close(Heartbeat(channel, HEARTBEAT_SECONDS).stop)
        return session

    def query(self) -> dict[str, Any]:
        """The devices of the tracker and the clients that wait."""
        channel = open_channel(self.host, self.port, self.credentials, {"role": "query"})
        channel.settimeout(_ANSWER_SECONDS)
        try:
            answer = raise_reported(channel.receive(), channel.peer)
        finally:
            channel.close()
        found = Frame(decode_header(bytes(answer.payload)))
        return {"devices": found.items("devices"), "waiting": found.items("waiting")}

    def text_summary(self) -> str:
        """The answer of `query` as a table."""
        found = self.query()
        rows = [
            [
                str(item["key"]),
                str(item["address"]),
                "busy" if item["busy"] else "free",
                str(item["served"]),
                human_seconds(float(item["seconds"])),
            ]
            for item in found["devices"]
        ]
        lines = [table(["key", "address", "state", "sessions served", "registered for"], rows)] if rows else []
        lines.append(f"{len(rows)} devices, {len(found['waiting'])} clients waiting")
        return "\n".join(lines)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user{os.getuid()}"
