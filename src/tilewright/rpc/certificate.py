"""A self-signed certificate made on the spot, so that TLS works with nothing installed and nothing configured.

Nobody has to trust the certificate as such: both sides prove that they know the token in a way that is bound to the
certificate each of them sees (`security.py`), so a connection through someone in the middle is refused.
The key is on the curve P-256; the arithmetic is plain Python, used once per start of a server to make the key and to
sign one certificate. TLS itself is done by Python's `ssl`.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import secrets
from dataclasses import dataclass

_P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BASE = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_EC_PUBLIC_KEY = "1.2.840.10045.2.1"
_P256 = "1.2.840.10045.3.1.7"
_ECDSA_SHA256 = "1.2.840.10045.4.3.2"
_COMMON_NAME = "2.5.4.3"
_LIFETIME = datetime.timedelta(days=3650)

_Point = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, in PEM."""

    certificate: str
    key: str

    @property
    def der(self) -> bytes:
        """The certificate in binary form, as the other side of a connection sees it."""
        return base64.b64decode("".join(self.certificate.splitlines()[1:-1]))


def self_signed(name: str = "tilewright") -> Certificate:
    """A new key and a certificate for it, signed with itself."""
    secret = 1 + secrets.randbelow(_N - 1)
    public = _multiply(secret, _BASE)
    assert public is not None
    point = b"\x04" + public[0].to_bytes(32, "big") + public[1].to_bytes(32, "big")
    algorithm = _sequence(_identifier(_ECDSA_SHA256))
    subject = _sequence(_wrap(0x31, _sequence(_identifier(_COMMON_NAME), _wrap(0x0C, name.encode()))))
    now = datetime.datetime.now(datetime.UTC)
    validity = _sequence(_time(now - datetime.timedelta(days=1)), _time(now + _LIFETIME))
    key_info = _sequence(_sequence(_identifier(_EC_PUBLIC_KEY), _identifier(_P256)), _bits(point))
    version = _wrap(0xA0, _integer(2))
    serial = _integer(1 + secrets.randbits(127))
    body = _sequence(version, serial, algorithm, subject, validity, subject, key_info)
    certificate = _sequence(body, algorithm, _bits(_signature(secret, body)))
    private = _sequence(
        _integer(1),
        _wrap(0x04, secret.to_bytes(32, "big")),
        _wrap(0xA0, _identifier(_P256)),
        _wrap(0xA1, _bits(point)),
    )
    return Certificate(_pem("CERTIFICATE", certificate), _pem("EC PRIVATE KEY", private))


def _add(a: _Point, b: _Point) -> _Point:
    if a is None or b is None:
        return b if a is None else a
    if a[0] == b[0]:
        if (a[1] + b[1]) % _P == 0:
            return None
        slope = 3 * (a[0] * a[0] - 1) * pow(2 * a[1], -1, _P)
    else:
        slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, _P)
    x = (slope * slope - a[0] - b[0]) % _P
    return x, (slope * (a[0] - x) - a[1]) % _P


def _multiply(factor: int, point: _Point) -> _Point:
    total: _Point = None
    while factor:
        if factor & 1:
            total = _add(total, point)
        point = _add(point, point)
        factor >>= 1
    return total


def _signature(secret: int, message: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
    while True:
        once = 1 + secrets.randbelow(_N - 1)
        point = _multiply(once, _BASE)
        assert point is not None
        r = point[0] % _N
        s = pow(once, -1, _N) * (digest + r * secret) % _N
        if r and s:
            return _sequence(_integer(r), _integer(s))


def _wrap(tag: int, content: bytes) -> bytes:
    """A value in the encoding of certificates (DER): tag, length, content."""
    size = len(content)
    if size < 0x80:
        length = bytes([size])
    else:
        digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
        length = bytes([0x80 | len(digits)]) + digits
    return bytes([tag]) + length + content


def _sequence(*parts: bytes) -> bytes:
    return _wrap(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _wrap(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return _wrap(0x03, b"\0" + content)


def _time(moment: datetime.datetime) -> bytes:
    if moment.year < 2050:
        return _wrap(0x17, moment.strftime("%y%m%d%H%M%SZ").encode())
    return _wrap(0x18, moment.strftime("%Y%m%d%H%M%SZ").encode())


def _identifier(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    content = bytearray([40 * first + second])
    for number in rest:
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(0x80 | number & 0x7F)
        content += bytes(reversed(digits))
    return _wrap(0x06, bytes(content))


def _pem(label: str, content: bytes) -> str:
    text = base64.b64encode(content).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])
