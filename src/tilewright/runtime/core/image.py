"""The bytes of a library in memory of our own: read once, and from then on what is checked is what runs.

The system's loader goes by names and by files: a path that it has loaded before gives the old library, whatever is in
the file now, and a file that is written over changes under the code that runs from it. So a library is read into memory
that nobody else can write, and is loaded from there, under a name that no other load has had. Equal bytes are
loaded once in a process, as libraries are never unloaded (their idle threads live in them).
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO, RawIOBase
from pathlib import Path

import numpy as np

from tilewright.support.errors import UserError

_CHUNK = 1 << 24
_SMALL = 1 << 20
"""Once loaded, images up to this size are plain bytes: a process may load thousands, and have few descriptors."""
_numbers = itertools.count()


class LibraryImage:
    """A library's bytes in an anonymous file, or in an unlinked one where the system has no anonymous files."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self.size = size
        status = os.fstat(descriptor)
        self._identity = status.st_dev, status.st_ino
        self._bytes: bytes | None = None

    @staticmethod
    def of(source: bytes | bytearray | memoryview | Path) -> LibraryImage:
        """The bytes of a file as they are now, or bytes as they are given."""
        where = str(source) if isinstance(source, Path) else None
        try:
            if not isinstance(source, Path):
                return _filled(BytesIO(source), "memory")
            with open(source, "rb", buffering=0) as stream:
                return _filled(stream, source.name)
        except OSError as error:
            raise UserError(f"cannot read the library: {error.strerror or error}", where=where) from None

    @contextmanager
    def content(self) -> Iterator[memoryview]:
        """The bytes, to be read."""
        if self._bytes is not None or not self.size:
            yield memoryview(self._bytes or b"")
            return
        with mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ) as whole, memoryview(whole) as view:
            yield view

    def path(self) -> str:
        """A name for the loader. It compares names as texts, so each has a text of its own for the same place.

        The number of the descriptor alone would not do: a program that closes all descriptors lets it come again.
        """
        digits = "".join("/." if digit == "1" else "/" for digit in f"{next(_numbers):b}")
        return f"/proc/self/fd{digits}/{self._descriptor}"

    def equals(self, other: LibraryImage) -> bool:
        """Whether two images hold the same bytes."""
        if self.size != other.size or not (self._is_there() and other._is_there()):
            return False
        with self.content() as mine, other.content() as its:
            for start in range(0, self.size, _CHUNK):
                left = np.frombuffer(mine, np.uint8, min(_CHUNK, self.size - start), start)
                right = np.frombuffer(its, np.uint8, left.size, start)
                same = np.array_equal(left, right)
                # The views must be gone before the memory is.
                del left, right
                if not same:
                    return False
        return True

    def copy_to(self, path: Path, size: int | None = None) -> None:
        """Write the bytes (the first `size` of them) to a new file."""
        if not self._is_there():
            raise UserError("the bytes of the library are gone: the program has closed the descriptor that held them")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o777)
        with open(descriptor, "wb") as stream, self.content() as content:
            stream.write(content[:size])

    def loaded(self) -> None:
        """Let go of the descriptor of a small image, which the loader needs no more."""
        if self.size <= _SMALL:
            with self.content() as content:
                kept = bytes(content)
            self.close()
            self._bytes = kept

    def close(self) -> None:
        """Let go of the descriptor."""
        if self._bytes is None and self._is_open():
            os.close(self._descriptor)

    def _is_there(self) -> bool:
        return self._bytes is not None or self._is_open()

    def _is_open(self) -> bool:
        """Whether the descriptor is still ours: programs that become daemons close what they do not know."""
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity


def _filled(source: RawIOBase | BytesIO, name: str) -> LibraryImage:
    """An image of all that a stream gives."""
    image = _anonymous(name)
    try:
        with open(image, "wb", closefd=False) as stream:
            shutil.copyfileobj(source, stream, _CHUNK)
            size = stream.tell()
        _freeze(image)
    except BaseException:
        os.close(image)
        raise
    return LibraryImage(image, size)


def _anonymous(name: str) -> int:
    """The descriptor of a file without a name."""
    with suppress(OSError):
        # Some systems forbid these (vm.memfd_noexec): a file that is unlinked at once serves as well.
        return os.memfd_create(name.encode("ascii", "replace")[:200].decode(), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    descriptor, path = tempfile.mkstemp(prefix="tilewright-", suffix=".so")
    os.unlink(path)
    return descriptor


def _freeze(image: int) -> None:
    """From here on nobody can change the image, not even this process."""
    with suppress(OSError):
        # An unlinked file cannot be frozen; nobody else can open it either.
        fcntl.fcntl(image, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
