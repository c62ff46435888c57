"""Universal Binary JSON, as XGBoost writes it: numbers are big-endian, arrays may have a type and a length."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.support.errors import UserError

_NUMBERS = {b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8"}
_CONSTANTS: dict[bytes, Any] = {b"Z": None, b"T": True, b"F": False}
_DEEPEST = 64


def read_ubjson(data: bytes) -> Any:
    """The value in a file; typed arrays are arrays of numpy."""
    reader = _Reader(data)
    return reader.value(reader.marker(), 0)


class _Reader:
    """Reads from a place in the data on; every length is checked against what is left."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def damaged(self, why: str) -> UserError:
        """The error for data that makes no sense."""
        return UserError(f"the UBJSON file is damaged at byte {self.at}: {why}", hint="save the model again")

    def take(self, count: int) -> bytes:
        if count < 0 or count > len(self.data) - self.at:
            raise self.damaged(f"{count} bytes are wanted, {len(self.data) - self.at} are left")
        self.at += count
        return self.data[self.at - count : self.at]

    def marker(self) -> bytes:
        """The next marker that is not a filler."""
        while (found := self.take(1)) == b"N":
            pass
        return found

    def value(self, marker: bytes, depth: int) -> Any:
        if depth > _DEEPEST:
            raise self.damaged("its values are nested too deep")
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker in _NUMBERS:
            return self.numbers(marker, 1)[0].item()
        if marker == b"C":
            return self.take(1).decode("latin-1")
        if marker in (b"S", b"H"):
            return self.text()
        if marker == b"[":
            return self.array(depth)
        if marker == b"{":
            return self.mapping(depth)
        raise self.damaged(f"there is no value of the kind {marker!r}")

    def numbers(self, marker: bytes, count: int) -> Any:
        kind = np.dtype(_NUMBERS[marker])
        return np.frombuffer(self.take(count * kind.itemsize), kind).astype(kind.newbyteorder("="))

    def length(self) -> int:
        marker = self.take(1)
        if marker not in _NUMBERS or marker in (b"d", b"D"):
            raise self.damaged(f"a length is no whole number ({marker!r})")
        found = int(self.numbers(marker, 1)[0])
        if not 0 <= found <= len(self.data):
            raise self.damaged(f"a length of {found}")
        return found

    def text(self) -> str:
        return self.take(self.length()).decode("utf-8", errors="replace")

    def header(self) -> tuple[bytes | None, int | None]:
        """The type and the length that a container states, if any."""
        kind, count = None, None
        if self.data[self.at : self.at + 1] == b"$":
            self.at += 1
            kind = self.take(1)
        if self.data[self.at : self.at + 1] == b"#":
            self.at += 1
            count = self.length()
        if kind is not None and count is None:
            raise self.damaged("an array has a type and no length")
        return kind, count

    def array(self, depth: int) -> Any:
        kind, count = self.header()
        if kind in _NUMBERS and count is not None:
            return self.numbers(kind, count)
        items: list[Any] = []
        while count is None or len(items) < count:
            marker = kind or self.marker()
            if marker == b"]" and count is None:
                break
            items.append(self.value(marker, depth + 1))
        return items

    def mapping(self, depth: int) -> dict[str, Any]:
        kind, count = self.header()
        found: dict[str, Any] = {}
        read = 0
        while count is None or read < count:
            if count is None and self.data[self.at : self.at + 1] == b"}":
                self.at += 1
                break
            key = self.text()
            found[key] = self.value(kind or self.marker(), depth + 1)
            read += 1
        return found
