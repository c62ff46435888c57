"""ECDSA on the curve P-256 with SHA-256, in plain Python: for the few signatures that this program makes and checks.

A signature or a check takes some ten milliseconds. The numbers that a signature needs once are derived from the key and
the message (RFC 6979), so that no weak source of randomness can give the key away. The time that a signature takes
depends on the key: sign where nobody measures it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator

P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of the curve: secrets are from 1 to below it."""
_B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
_BASE = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)

Point = tuple[int, int]
_Sum = Point | None
"""A point, or the neutral element."""


def new_secret() -> int:
    """A secret key from the system's source of randomness."""
    return 1 + secrets.randbelow(N - 1)


def public_point(secret: int) -> Point:
    """The public key of a secret one."""
    point = _multiply(secret, _BASE)
    assert point is not None
    return point


def is_on_curve(point: Point) -> bool:
    """Whether a pair of numbers is a public key at all."""
    x, y = point
    return 0 <= x < P and 0 <= y < P and (y * y - (x * x * x - 3 * x + _B)) % P == 0


def sign(secret: int, digest: bytes) -> tuple[int, int]:
    """The signature of a SHA-256 digest."""
    message = int.from_bytes(digest, "big")
    for once in _numbers_used_once(secret, digest):
        point = _multiply(once, _BASE)
        assert point is not None
        r = point[0] % N
        s = pow(once, -1, N) * (message + r * secret) % N
        if r and s:
            return r, s
    raise AssertionError


def is_signed(public: Point, digest: bytes, signature: tuple[int, int]) -> bool:
    """Whether a signature of a SHA-256 digest is that of the key."""
    r, s = signature
    if not (0 < r < N and 0 < s < N and is_on_curve(public)):
        return False
    inverse = pow(s, -1, N)
    message = int.from_bytes(digest, "big")
    point = _add(_multiply(message * inverse % N, _BASE), _multiply(r * inverse % N, public))
    return point is not None and point[0] % N == r


def _numbers_used_once(secret: int, digest: bytes) -> Iterator[int]:
    """RFC 6979, section 3.2: the candidates, in order; the first is taken but for one case in 2^256."""
    seed = secret.to_bytes(32, "big") + (int.from_bytes(digest, "big") % N).to_bytes(32, "big")
    key, value = bytes(32), b"\x01" * 32
    for separator in (b"\0", b"\1"):
        key = hmac.digest(key, value + separator + seed, hashlib.sha256)
        value = hmac.digest(key, value, hashlib.sha256)
    while True:
        value = hmac.digest(key, value, hashlib.sha256)
        once = int.from_bytes(value, "big")
        if 0 < once < N:
            yield once
        key = hmac.digest(key, value + b"\0", hashlib.sha256)
        value = hmac.digest(key, value, hashlib.sha256)


def _add(a: _Sum, b: _Sum) -> _Sum:
    if a is None or b is None:
        return b if a is None else a
    if a[0] == b[0]:
        if (a[1] + b[1]) % P == 0:
            return None
        slope = 3 * (a[0] * a[0] - 1) * pow(2 * a[1], -1, P)
    else:
        slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, P)
    x = (slope * slope - a[0] - b[0]) % P
    return x, (slope * (a[0] - x) - a[1]) % P


def _multiply(factor: int, point: _Sum) -> _Sum:
    total: _Sum = None
    while factor:
        if factor & 1:
            total = _add(total, point)
        point = _add(point, point)
        factor >>= 1
    return total
