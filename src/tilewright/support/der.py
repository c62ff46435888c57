"""DER and PEM, the encodings of keys and certificates: the few kinds of values that P-256 keys need."""

from __future__ import annotations

import base64
import binascii
import re

INTEGER, BITS, BYTES, IDENTIFIER, SEQUENCE = 0x02, 0x03, 0x04, 0x06, 0x30

EC_PUBLIC_KEY = "1.2.840.10045.2.1"
P256 = "1.2.840.10045.3.1.7"


def wrap(tag: int, content: bytes) -> bytes:
    """A value: tag, length, content."""
    size = len(content)
    if size < 0x80:
        length = bytes([size])
    else:
        digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
        length = bytes([0x80 | len(digits)]) + digits
    return bytes([tag]) + length + content


def sequence(*parts: bytes) -> bytes:
    """Values in order."""
    return wrap(SEQUENCE, b"".join(parts))


def integer(value: int) -> bytes:
    """A number of at least 0."""
    return wrap(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def bits(content: bytes) -> bytes:
    """Whole bytes as a string of bits."""
    return wrap(BITS, b"\0" + content)


def identifier(dotted: str) -> bytes:
    """An object identifier."""
    first, second, *rest = map(int, dotted.split("."))
    content = bytearray([40 * first + second])
    for number in rest:
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(0x80 | number & 0x7F)
        content += bytes(reversed(digits))
    return wrap(IDENTIFIER, bytes(content))


def values(content: bytes) -> list[tuple[int, bytes]]:
    """The values that stand one after the other in `content`, as (tag, content); a ValueError where they do not."""
    found = []
    place = 0
    while place < len(content):
        if place + 2 > len(content):
            raise ValueError("a value is cut off")
        tag, size = content[place], content[place + 1]
        place += 2
        if size & 0x80:
            digits = size & 0x7F
            size = int.from_bytes(content[place : place + digits], "big")
            place += digits
        if place + size > len(content):
            raise ValueError("a value is cut off")
        found.append((tag, content[place : place + size]))
        place += size
    return found


def pem(label: str, content: bytes) -> str:
    """A value as text."""
    text = base64.b64encode(content).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


def read_pem(text: str) -> list[tuple[str, bytes]]:
    """The labels and contents of all blocks in a text; a ValueError where one is damaged."""
    blocks = re.findall(r"-----BEGIN ([A-Z0-9 ]+)-----\s(.*?)-----END \1-----", text, re.DOTALL)
    try:
        return [(label, base64.b64decode("".join(body.split()), validate=True)) for label, body in blocks]
    except binascii.Error:
        raise ValueError("a block of it is not base 64") from None
