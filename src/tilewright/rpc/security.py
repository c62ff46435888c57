"""Who may connect: shared tokens, TLS, and the proof both sides give that they know the token of a role.

Servers run code that others send, so off loopback TLS and a token are the rule. There is a token a role: one lets
clients lease and use devices, another lets devices join a tracker. Tokens never travel: each side sends a random
number, then a keyed hash (HMAC-SHA256) of both numbers, the role and the certificate that it sees. The key is made of
the token by scrypt, so that whoever has heard or tricked out a proof pays for each token that he tries with memory and
time. A stranger learns nothing from a refusal, and whoever sits in the middle with another certificate cannot pass the
proof on.
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
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from tilewright.rpc.certificate import Certificate, self_signed
from tilewright.support import settings
from tilewright.support.errors import UserError
from tilewright.support.ownership import why_changeable

NONCE_BYTES = 32
_LEAST_TOKEN = 16

CLIENT, DEVICE, LEASE = "client", "device", "lease"
"""The roles of those who connect: they use devices, they are devices, they hold a lease of a device."""
# 32 MiB and about a tenth of a second a guess. Both sides agree by the version of the protocol: a server that could
# choose would make clients cheap to guess, or slow.
_SCRYPT_COST, _SCRYPT_BLOCK, _SCRYPT_MEMORY = 1 << 15, 8, 64 << 20
SALT_BYTES = 16

RPC_TOKEN = settings.define(
    "RPC_TOKEN",
    str,
    lambda: None,
    default_text="none",
    doc="the secret that RPC servers, trackers and their clients share",
    secret=True,
)
RPC_DEVICE_TOKEN = settings.define(
    "RPC_DEVICE_TOKEN",
    str,
    lambda: None,
    default_text="none",
    doc="the secret with which RPC servers join a tracker",
    secret=True,
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


def read_token_file(path: Path) -> str:
    """The token in a file: its first line. A file that others may read or change holds no secret."""
    try:
        status = path.stat()
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the token: {error}", where=str(path)) from None
    exposed = why_changeable(path, status)
    if exposed is None and status.st_mode & 0o077:
        exposed = f"others may use (mode {status.st_mode & 0o777:04o})"
    if exposed is not None:
        raise UserError(f"the token's file {exposed}", where=str(path), hint=f"chmod 600 {path}")
    lines = text.strip().splitlines()
    if len(lines) != 1:
        raise UserError(f"the token's file has {len(lines)} lines", where=str(path), hint="the token, and nothing else")
    return lines[0].strip()


def given_token(token: str | None, file: Path | None, option: str) -> str | None:
    """The token that the options `--option` and `--option-file` give; None where neither does."""
    if token is not None and file is not None:
        raise UserError(f"--{option} and --{option}-file are both given", hint="one of them is enough")
    return read_token_file(file) if file is not None else token


def checked_token(token: str | None, setting: settings.Setting[str | None]) -> str:
    """A token that was given, else the setting's; empty where there is none."""
    given = token if token is not None else setting.get()
    if given is None:
        return ""
    if len(given) < _LEAST_TOKEN:
        raise UserError(
            f"the token has {len(given)} characters, {_LEAST_TOKEN} are the least",
            hint=f"use a random one, for example {new_token()}",
        )
    return given


def needs_token(host: str, *, serving: bool, option: str, setting: settings.Setting[str | None]) -> UserError:
    """The error for an address off loopback without a token."""
    doing = "listening on" if serving else "connecting to"
    return UserError(
        f"{doing} {host}, which is not loopback, needs a token: servers run the code that clients send",
        hint=f"give --{option} ({option.replace('-', '_')}=...) or set {setting.name}, the same on both sides",
    )


@lru_cache(maxsize=64)
def token_key(token: str, salt: bytes) -> bytes:
    """The key that a token and a server's salt make; slow, so that guessing is."""
    if not token:
        return b""
    return hashlib.scrypt(
        token.encode(), salt=salt, n=_SCRYPT_COST, r=_SCRYPT_BLOCK, p=1, maxmem=_SCRYPT_MEMORY, dklen=32
    )


def lease_name(lease: str) -> str:
    """What a lease is called where its secret must not be said."""
    return hashlib.sha256(b"tilewright-lease-name\0" + lease.encode()).hexdigest()[:32]


def lease_key(lease: str) -> bytes:
    """The key of a lease, which is random and long: it needs no slow derivation."""
    return hashlib.sha256(b"tilewright-lease-key\0" + lease.encode()).digest()


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the connecting side brings: its role, the secret of that role (empty: none) and whether it speaks TLS."""

    token: str = field(repr=False)
    tls: bool
    role: str = CLIENT

    @classmethod
    def resolve(cls, host: str, token: str | None, tls: bool | None, *, role: str = CLIENT) -> Credentials:
        """The credentials for an address: off loopback, TLS unless it is turned off, and never without a token."""
        local = is_loopback(host)
        option, setting = ("device-token", RPC_DEVICE_TOKEN) if role == DEVICE else ("token", RPC_TOKEN)
        given = checked_token(token, setting)
        if not given and not local:
            raise needs_token(host, serving=False, option=option, setting=setting)
        return cls(given, not local if tls is None else tls, role)

    @classmethod
    def of_lease(cls, host: str, lease: str, tls: bool | None) -> Credentials:
        """The credentials of who holds a lease of the device at an address."""
        return cls(lease, not is_loopback(host) if tls is None else tls, LEASE)

    def hello(self, nonce: bytes) -> dict[str, object]:
        """The first message of this side."""
        name = {"lease": lease_name(self.token)} if self.role == LEASE else {}
        return {"hello": 2, "role": self.role, "nonce": nonce.hex(), **name}

    def key(self, salt: bytes) -> bytes:
        """The key of this side's proofs to a server of this salt."""
        return lease_key(self.token) if self.role == LEASE else token_key(self.token, salt)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What both sides have seen of a handshake: a proof is about all of it."""

    role: str
    client_nonce: bytes
    server_nonce: bytes
    salt: bytes
    certificate: bytes

    def proof(self, side: str, key: bytes) -> str:
        """What `side` ("client" or "server") sends to show that it knows the key."""
        parts = (side.encode(), self.role.encode(), self.client_nonce, self.server_nonce, self.salt)
        seen = hashlib.sha256(self.certificate).digest()
        message = b"".join(len(part).to_bytes(2, "little") + part for part in (b"tilewright-rpc-2", *parts, seen))
        return hmac.new(key, message, hashlib.sha256).hexdigest()

    def check(self, proof: object, side: str, key: bytes) -> bool:
        """Whether a proof of `side` is right; takes the same time for right and wrong ones."""
        expected = self.proof(side, key)
        return isinstance(proof, str) and proof.isascii() and hmac.compare_digest(proof.encode(), expected.encode())


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
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    try:
        text = certificate.read_text()
        context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot use the certificate: {error}", where=str(certificate)) from None
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


def read_random(text: object, size: int = NONCE_BYTES) -> bytes:
    """A nonce or a salt from a message."""
    try:
        value = bytes.fromhex(text) if isinstance(text, str) and len(text) == 2 * size else b""
    except ValueError:
        value = b""
    if len(value) != size:
        raise UserError("a damaged greeting")
    return value
