"""A self-signed certificate made on the spot, so that TLS works with nothing installed and nothing configured.

Nobody has to trust the certificate as such: both sides prove that they know the token in a way that is bound to the
certificate each of them sees (`security.py`), so a connection through someone in the middle is refused.
The key is on the curve P-256 (`support/p256.py`), made once per start of a server to sign one certificate.
TLS itself is done by Python's `ssl`.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import secrets
from dataclasses import dataclass

from tilewright.runtime.core.keys import SigningKey
from tilewright.support import p256
from tilewright.support.der import bits, identifier, integer, pem, sequence, wrap

_ECDSA_SHA256 = "1.2.840.10045.4.3.2"
_COMMON_NAME = "2.5.4.3"
_LIFETIME = datetime.timedelta(days=3650)


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
    key = SigningKey.new()
    algorithm = sequence(identifier(_ECDSA_SHA256))
    subject = sequence(wrap(0x31, sequence(identifier(_COMMON_NAME), wrap(0x0C, name.encode()))))
    now = datetime.datetime.now(datetime.UTC)
    validity = sequence(_time(now - datetime.timedelta(days=1)), _time(now + _LIFETIME))
    version = wrap(0xA0, integer(2))
    serial = integer(1 + secrets.randbits(127))
    body = sequence(version, serial, algorithm, subject, validity, subject, key.public.der())
    certificate = sequence(body, algorithm, bits(_signature(key, body)))
    return Certificate(pem("CERTIFICATE", certificate), key.pem())


def _signature(key: SigningKey, message: bytes) -> bytes:
    r, s = p256.sign(key.secret, hashlib.sha256(message).digest())
    return sequence(integer(r), integer(s))


def _time(moment: datetime.datetime) -> bytes:
    if moment.year < 2050:
        return wrap(0x17, moment.strftime("%y%m%d%H%M%SZ").encode())
    return wrap(0x18, moment.strftime("%Y%m%d%H%M%SZ").encode())
