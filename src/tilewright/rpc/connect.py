"""The connecting side: reach an address, shake hands, get a `Channel` to a server or tracker that knows the token."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Any

from tilewright.rpc import security
from tilewright.rpc.handshake import ClientHandshake
from tilewright.rpc.security import Credentials
from tilewright.rpc.wire import WIRE_VERSION, Channel, Disconnected, raise_refused, raise_reported
from tilewright.support.errors import UserError

_CONNECT_SECONDS = 10.0


def open_channel(host: str, port: int, credentials: Credentials, first: Mapping[str, Any]) -> Channel:
    """A channel to `host:port` past the handshake; `first` says what it is for (its `role`)."""
    peer = f"{host}:{port}"
    try:
        connection = socket.create_connection((host, port), _CONNECT_SECONDS)
    except OSError as error:
        raise UserError(
            f"cannot connect to {peer}: {error.strerror or error}", hint="is the server running there?"
        ) from None
    try:
        if credentials.tls:
            connection = security.client_tls().wrap_socket(connection, server_hostname=host)
        channel = Channel(connection, peer)
        _shake_hands(channel, credentials)
        channel.send(first)
    except ssl.SSLError as error:
        connection.close()
        raise UserError(
            f"{peer} does not speak TLS: {error.reason or error}", hint="tls=False, if that is meant"
        ) from None
    except TimeoutError:
        connection.close()
        raise UserError(f"{peer} does not answer", hint="does one side speak TLS and the other not?") from None
    except OSError as error:
        connection.close()
        raise UserError(f"the connection to {peer} is lost: {error.strerror or error}") from None
    except UserError:
        connection.close()
        raise
    channel.settimeout(None)
    return channel


def _shake_hands(channel: Channel, credentials: Credentials) -> None:
    handshake = ClientHandshake(credentials)
    try:
        channel.send(handshake.hello())
        channel.send(handshake.prove(raise_refused(channel.receive(0), channel.peer), channel.certificate))
        handshake.confirm(raise_reported(channel.receive(0), channel.peer))
    except Disconnected as error:
        raise UserError(
            error.message,
            where=channel.peer,
            hint=f"it may want TLS (tls=True), speak another version of the protocol than {WIRE_VERSION}, or be too "
            "busy: try again",
        ) from None
