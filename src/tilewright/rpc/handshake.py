"""The handshake, apart from how its messages travel: what the connecting side sends, and how a service judges it.

client   {"hello": 2, "role": "client", "nonce": ...}
service  {"nonce": ..., "salt": ...}
client   {"proof": ...}                               or the connection ends here
service  {"status": "ok", "proof": ...}               or {"status": "refused", ...}
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.rpc import security
from tilewright.rpc.security import LEASE, SALT_BYTES, Credentials, Exchange
from tilewright.rpc.wire import Frame, WireError
from tilewright.support.errors import UserError


class ClientHandshake:
    """The connecting side."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._nonce = security.nonce()
        self._exchange: Exchange | None = None
        self._key = b""

    def hello(self) -> dict[str, Any]:
        """The first message."""
        return self._credentials.hello(self._nonce)

    def prove(self, answer: Frame, certificate: bytes) -> dict[str, Any]:
        """The second message, after the service's first; takes a tenth of a second, the first time for a service."""
        theirs = security.read_random(answer.header.get("nonce"))
        salt = security.read_random(answer.header.get("salt"), SALT_BYTES)
        self._exchange = Exchange(self._credentials.role, self._nonce, theirs, salt, certificate)
        self._key = self._credentials.key(salt)
        return {"proof": self._exchange.proof("client", self._key)}

    def confirm(self, answer: Frame) -> None:
        """Check that the service knows the secret too."""
        if self._exchange is None or not self._exchange.check(answer.header.get("proof"), "server", self._key):
            raise UserError("the other side did not prove that it knows the token: someone may be in between")


class Gate:
    """Whom a service lets in: the tokens of roles, and leases if it gives sessions to those who hold one.

    `find_lease` gives a lease's secret by its name.
    """

    def __init__(self, tokens: Mapping[str, str], find_lease: Callable[[str], str | None] | None = None) -> None:
        self._tokens = dict(tokens)
        self._find_lease = find_lease
        self._salt = secrets.token_bytes(SALT_BYTES)
        self._keys: dict[str, bytes] = {}

    def prepare(self) -> None:
        """Make the keys of all tokens, once; it takes a tenth of a second for each."""
        self._keys = {role: security.token_key(token, self._salt) for role, token in self._tokens.items()}

    def knock(self, hello: Frame, certificate: bytes) -> Visitor:
        """Someone who has said hello."""
        role, lease = hello.text("role", 16), None
        theirs = security.read_random(hello.header.get("nonce"))
        if role == LEASE and self._find_lease is not None:
            lease = self._find_lease(hello.text("lease", 64))
        key = self._keys.get(role) if lease is None else security.lease_key(lease)
        if key is None:
            # A role that nobody can have here looks from outside like a token that is wrong.
            key = secrets.token_bytes(32)
        return Visitor(Exchange(role, theirs, security.nonce(), self._salt, certificate), key, lease)


class Visitor:
    """One who shakes hands with a service; `lease` is the secret of the lease that it must know."""

    def __init__(self, exchange: Exchange, key: bytes, lease: str | None) -> None:
        self.role = exchange.role
        self.lease = lease
        self._exchange = exchange
        self._key = key

    def challenge(self) -> dict[str, Any]:
        """What the visitor is asked."""
        return {"nonce": self._exchange.server_nonce.hex(), "salt": self._exchange.salt.hex()}

    def admit(self, answer: Frame) -> dict[str, Any]:
        """What the visitor hears if its proof is right; a `WireError` if it is not."""
        if not self._exchange.check(answer.header.get("proof"), "client", self._key):
            raise WireError("a wrong token")
        return {"status": "ok", "proof": self._exchange.proof("server", self._key)}
