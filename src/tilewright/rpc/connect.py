"""The connecting side: reach an address, shake hands, get a `Channel` to a server or tracker that knows the token."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Any

from tilewright.rpc import security
from tilewright.rpc.security import Credentials
from tilewright.rpc.wire import Channel, Disconnected, raise_reported
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
    client_nonce = security.nonce()
    try:
        channel.send({"hello": 1, "nonce": client_nonce.hex()})
        server_nonce = security.read_nonce(channel.receive(0).header.get("nonce"))
        exchanged = (client_nonce, server_nonce, channel.certificate)
        channel.send({"proof": credentials.proof("client", *exchanged)})
        answer = raise_reported(channel.receive(0), channel.peer)
    except Disconnected as error:
        raise UserError(
            error.message, where=channel.peer, hint="it may want TLS (tls=True), or be too busy: try again"
        ) from None
    if not credentials.check(answer.header.get("proof"), "server", *exchanged):
        raise UserError(
            "the server did not prove that it knows the token: someone may be in between", where=channel.peer
        )
