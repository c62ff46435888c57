"""Keys that sign exported libraries, and the public keys that check them: files in PEM, on the curve P-256.

    key = SigningKey.new()
    key.save(Path("release.key"))             # secret: readable by its owner alone
    key.public.save(Path("release.pub"))      # for those who load

OpenSSL reads and writes the same files (`openssl ecparam -name prime256v1 -genkey -noout`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from tilewright.support import p256
from tilewright.support.der import (
    BITS,
    BYTES,
    EC_PUBLIC_KEY,
    P256,
    SEQUENCE,
    bits,
    identifier,
    integer,
    pem,
    read_pem,
    sequence,
    values,
    wrap,
)
from tilewright.support.errors import UserError
from tilewright.support.files import cannot_write, replacing
from tilewright.support.text import kind_of

KeyFile: TypeAlias = "str | os.PathLike[str]"

_ALGORITHM = sequence(identifier(EC_PUBLIC_KEY), identifier(P256))
_LARGEST_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The key that checks signatures; 64 bytes."""

    content: bytes

    @property
    def point(self) -> p256.Point:
        """The key as a point of the curve."""
        return int.from_bytes(self.content[:32], "big"), int.from_bytes(self.content[32:], "big")

    def der(self) -> bytes:
        """The key as certificates carry it."""
        return sequence(_ALGORITHM, bits(b"\x04" + self.content))

    def fingerprint(self) -> str:
        """The beginning of the key, to tell keys apart in messages."""
        return self.content[:8].hex()

    def save(self, path: Path) -> None:
        """Write the key as PEM."""
        with replacing(path) as temporary:
            temporary.write_text(pem("PUBLIC KEY", self.der()))

    def signed(self, digest: bytes, signature: bytes) -> bool:
        """Whether the 64 bytes of a signature are this key's for a SHA-256 digest."""
        pair = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
        return p256.is_signed(self.point, digest, pair)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The secret key that signs. Whoever has it can sign in its owner's name."""

    secret: int = field(repr=False)

    @staticmethod
    def new() -> SigningKey:
        """A new key."""
        return SigningKey(p256.new_secret())

    @property
    def public(self) -> PublicKey:
        """The key that checks what this one signs."""
        return PublicKey(b"".join(number.to_bytes(32, "big") for number in p256.public_point(self.secret)))

    def pem(self) -> str:
        """The secret key as text."""
        content = sequence(
            integer(1),
            wrap(BYTES, self.secret.to_bytes(32, "big")),
            wrap(0xA0, identifier(P256)),
            wrap(0xA1, bits(b"\x04" + self.public.content)),
        )
        return pem("EC PRIVATE KEY", content)

    def save(self, path: Path) -> None:
        """Write the secret key as PEM, for its owner alone. A file that is there stays: keys are not made twice."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise UserError(
                f"{path.name} is there already, and may be a key", where=str(path), hint="name another file"
            ) from None
        except OSError as error:
            raise cannot_write(path, error) from None
        with os.fdopen(descriptor, "w") as stream:
            stream.write(self.pem())

    def sign(self, digest: bytes) -> bytes:
        """The signature of a SHA-256 digest, 64 bytes."""
        return b"".join(number.to_bytes(32, "big") for number in p256.sign(self.secret, digest))


Trusted: TypeAlias = "PublicKey | KeyFile | Sequence[PublicKey | KeyFile]"
"""Whose signatures count: public keys, or files of them."""


def signing_key(key: SigningKey | KeyFile) -> SigningKey:
    """The key that a user names: the key itself, or a file that holds it."""
    if isinstance(key, SigningKey):
        return key
    blocks = _blocks(key, "a signing key")
    for label, content in blocks:
        try:
            if label == "EC PRIVATE KEY":
                return _secret(content)
            if label == "PRIVATE KEY":
                (_, whole), *_ = values(content)
                _, (_, algorithm), (_, inner), *_ = values(whole)
                if wrap(SEQUENCE, algorithm) != _ALGORITHM:
                    raise ValueError("it is not on the curve P-256")
                return _secret(inner)
        except ValueError as error:
            raise UserError(f"the key is damaged: {error}", where=os.fspath(key)) from None
    hint = "`tilewright key generate` makes one"
    if any(label == "PUBLIC KEY" for label, _ in blocks):
        raise UserError("the file holds a public key, which cannot sign", where=os.fspath(key), hint=hint)
    raise UserError("the file holds no P-256 key in PEM", where=os.fspath(key), hint=hint)


def trusted_keys(trusted: Trusted) -> list[PublicKey]:
    """The public keys that a user names."""
    if isinstance(trusted, (PublicKey, str, os.PathLike)):
        trusted = [trusted]
    if not isinstance(trusted, Sequence):
        raise UserError(f"trusted keys are public keys or files of them, not {kind_of(trusted)}")
    keys = []
    for item in trusted:
        keys += [item] if isinstance(item, PublicKey) else _public_keys(item)
    return keys


def _public_keys(file: KeyFile) -> list[PublicKey]:
    keys = []
    for label, content in _blocks(file, "public keys"):
        if label != "PUBLIC KEY":
            continue
        try:
            (_, whole), *_ = values(content)
            (_, algorithm), (tag, point), *_ = values(whole)
            key = PublicKey(point[2:])
            if wrap(SEQUENCE, algorithm) != _ALGORITHM or tag != BITS or point[:2] != b"\0\x04":
                raise ValueError("it is not on the curve P-256")
            if len(key.content) != 64 or not p256.is_on_curve(key.point):
                raise ValueError("it is no point of the curve")
        except ValueError as error:
            raise UserError(f"the key is damaged: {error}", where=os.fspath(file)) from None
        keys.append(key)
    if not keys:
        raise UserError(
            "the file holds no public key in PEM", where=os.fspath(file), hint="`tilewright key generate` makes one"
        )
    return keys


def _secret(content: bytes) -> SigningKey:
    (_, whole), *_ = values(content)
    (_, version), (tag, secret), *rest = values(whole)
    curves = [inner for kind, inner in rest if kind == 0xA0]
    if version != b"\1" or tag != BYTES or any(inner != identifier(P256) for inner in curves):
        raise ValueError("it is not on the curve P-256")
    number = int.from_bytes(secret, "big")
    if not 0 < number < p256.N:
        raise ValueError("its number is out of range")
    return SigningKey(number)


def _blocks(file: KeyFile, what: str) -> list[tuple[str, bytes]]:
    if not isinstance(file, (str, os.PathLike)):
        raise UserError(f"{what}: a key or the path of its file is needed, not {kind_of(file)}")
    try:
        with open(file, "rb") as stream:
            content = stream.read(_LARGEST_FILE)
    except OSError as error:
        raise UserError(f"cannot read the key: {error.strerror}", where=os.fspath(file)) from None
    try:
        return read_pem(content.decode("ascii", "replace"))
    except ValueError as error:
        raise UserError(f"the key is damaged: {error}", where=os.fspath(file)) from None
