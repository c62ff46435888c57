"""Reading MLIR bytecode piece by piece: numbers of variable length, texts, sections."""

from __future__ import annotations

from typing import NoReturn

from tilewright.support.errors import UserError


class BytesReader:
    """A place in bytes, and the end of what may be read."""

    def __init__(self, data: bytes, start: int = 0, end: int | None = None) -> None:
        self.data, self.at = data, start
        self.end = len(data) if end is None else end

    def fail(self, message: str) -> NoReturn:
        """An error that says where in the bytes it is."""
        raise UserError(f"{message} in MLIR bytecode", where=f"byte {self.at}")

    @property
    def is_done(self) -> bool:
        """Whether all was read."""
        return self.at >= self.end

    def take(self, count: int) -> bytes:
        """So many bytes."""
        if count < 0 or self.at + count > self.end:
            self.fail(f"{count} bytes are missing")
        self.at += count
        return self.data[self.at - count : self.at]

    def byte(self) -> int:
        """One byte."""
        return self.take(1)[0]

    def number(self) -> int:
        """A number: the zeros at the low end of its first byte say how many bytes follow."""
        first = self.byte()
        if first & 1:
            return first >> 1
        if first == 0:
            return int.from_bytes(self.take(8), "little")
        more = (first & -first).bit_length() - 1
        return int.from_bytes(bytes([first]) + self.take(more), "little") >> (more + 1)

    def signed(self) -> int:
        """A number with a sign, which is its lowest bit."""
        value = self.number()
        return (value >> 1) ^ -(value & 1)

    def count(self) -> int:
        """The number of items that follow, each of which takes a byte at least."""
        value = self.number()
        if value > self.end - self.at:
            self.fail(f"a list of {value} items is longer than what follows")
        return value

    def text(self) -> str:
        """A text up to a zero."""
        stop = self.data.find(b"\0", self.at, self.end)
        if stop < 0:
            self.fail("a text has no end")
        found = self.data[self.at : stop]
        self.at = stop + 1
        return found.decode("utf-8", "replace")

    def part(self, length: int) -> BytesReader:
        """A reader of the next bytes, which are passed."""
        start = self.at
        self.take(length)
        return BytesReader(self.data, start, self.at)

    def section(self) -> tuple[int, BytesReader]:
        """A section: its kind and its content."""
        kind = self.byte()
        length = self.number()
        if kind & 0x80:
            alignment = self.number()
            if not 0 < alignment <= 1 << 20:
                self.fail(f"an alignment of {alignment}")
            self.take(-self.at % alignment)
        return kind & 0x7F, self.part(length)
