"""Who may connect: the shared token, TLS, and the proof both sides give that they know the token.

Servers run code that others send, so off loopback TLS and a token are the rule. The token never travels: each side
sends a random number, then a keyed hash (HMAC-SHA256) of both numbers and of the certificate that it sees. A stranger
learns nothing from a refusal, and whoever sits in the middle with another certificate cannot pass the proof on.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tilewright.rpc.certificate import Certificate, self_signed
from tilewright.support import settings
from tilewright.support.errors import UserError

NONCE_BYTES = 32
_LEAST_TOKEN = 16

RPC_TOKEN = settings.define(
    "RPC_TOKEN",
    str,
    lambda: None,
    default_text="none",
    doc="the secret that RPC servers, trackers and their clients share",
)


def is_loopback(host: str) -> bool:
    """Whether an address reaches this machine only. A name that cannot be resolved is not loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = {item[4][0] for item in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(str(address)).is_loopback for address in found)


def new_token() -> str:
    """A secret that cannot be guessed."""
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a side of a connection brings: the token (empty: none) and whether it speaks TLS."""

    token: str
    tls: bool

    @classmethod
    def resolve(cls, host: str, token: str | None, tls: bool | None, *, serving: bool) -> Credentials:
        """The credentials for an address: off loopback, TLS unless it is turned off, and never without a token."""
        local = is_loopback(host)
        given = token if token is not None else RPC_TOKEN.get()
        if given is not None and len(given) < _LEAST_TOKEN:
            raise UserError(
                f"the token has {len(given)} characters, {_LEAST_TOKEN} are the least",
                hint=f"use a random one, for example {new_token()}",
            )
        if given is None and not local:
            doing = "listening on" if serving else "connecting to"
            raise UserError(
                f"{doing} {host}, which is not loopback, needs a token: servers run the code that clients send",
                hint=f"give --token (token=...) or set {RPC_TOKEN.name}, the same on both sides",
            )
        return cls(given or "", not local if tls is None else tls)

    def proof(self, side: str, client_nonce: bytes, server_nonce: bytes, certificate: bytes) -> str:
        """What `side` ("client" or "server") sends to show that it knows the token."""
        seen = hashlib.sha256(certificate).digest()
        message = b"\0".join([b"tilewright-rpc-1", side.encode(), client_nonce, server_nonce, seen])
        return hmac.new(self.token.encode(), message, hashlib.sha256).hexdigest()

    def check(self, proof: object, side: str, client_nonce: bytes, server_nonce: bytes, certificate: bytes) -> bool:
        """Whether a proof of `side` is right; takes the same time for right and wrong ones."""
        expected = self.proof(side, client_nonce, server_nonce, certificate)
        return isinstance(proof, str) and hmac.compare_digest(proof.encode(), expected.encode())


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The TLS side of a server, and the certificate its clients will see."""

    context: ssl.SSLContext
    certificate: bytes


def server_tls(certificate: Path | None = None, key: Path | None = None) -> ServerTls:
    """TLS with a certificate from files, or with a new self-signed one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is None:
        made = self_signed()
        with tempfile.TemporaryDirectory(prefix="tilewright-rpc-") as folder:
            # The ssl module reads keys from files only; the folder is ours alone and is gone at once.
            place = Path(folder) / "server.pem"
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT, 0o600)
            with open(descriptor, "w") as file:
                file.write(made.key + made.certificate)
            context.load_cert_chain(place)
        return ServerTls(context, made.der)
    try:
        text = certificate.read_text()
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"cannot use the certificate: {error}", where=str(certificate)) from None
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = text[text.index(begin) : text.index(end) + len(end)] + "\n"
    return ServerTls(context, Certificate(first, "").der)


def client_tls() -> ssl.SSLContext:
    """TLS that takes any certificate: what proves the server is the token, bound to the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def nonce() -> bytes:
    """A number used once."""
    return secrets.token_bytes(NONCE_BYTES)


def read_nonce(text: object) -> bytes:
    """A nonce from a message."""
    try:
        value = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        value = b""
    if len(value) != NONCE_BYTES:
        raise UserError("a damaged greeting")
    return value
