"""What is seen of a file or folder before it is read whole: first bytes, texts, names in archives, protobuf fields.

Formats are recognised by this. Nothing here trusts a length that a file states: reads are bounded.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from tilewright.support.errors import UserError
from tilewright.support.file_kinds import begin_of_text

Source = str | os.PathLike[str] | bytes
"""A file or folder by its path, or the content of a file."""
HEAD = 1 << 16
"""Bytes at the beginning of a file that formats are recognised by."""
_MOST_FIELDS = 1 << 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Sample:
    """A file, a folder or the bytes of a file, as formats look at it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.path = None if isinstance(source, bytes) else Path(os.fspath(source))
        if self.path is not None and not self.path.exists():
            raise UserError(f"there is no file {self.path}", hint="check the path of the model")

    def __str__(self) -> str:
        return "the bytes" if self.path is None else str(self.path)

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.path is not None and self.path.is_dir()

    @property
    def suffix(self) -> str:
        """The end of its name, in small letters (`.onnx`); empty for bytes."""
        return "" if self.path is None else self.path.suffix.lower()

    @cached_property
    def entries(self) -> frozenset[str]:
        """The names in a folder; none for a file."""
        return frozenset(os.listdir(self.path)) if self.path is not None and self.is_folder else frozenset()

    @cached_property
    def head(self) -> bytes:
        """The first bytes of a file; none of a folder."""
        if self.is_folder:
            return b""
        with self._open() as stream:
            return stream.read(HEAD)

    @cached_property
    def text(self) -> str:
        """The beginning of a text; empty if it is none."""
        return begin_of_text(self.head)

    @cached_property
    def archive(self) -> frozenset[str]:
        """The names in a ZIP archive; none if it is none, or damaged."""
        if not self.head.startswith(b"PK\x03\x04"):
            return frozenset()
        try:
            with self._open() as stream, zipfile.ZipFile(stream) as file:
                return frozenset(file.namelist())
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
            return frozenset()

    @cached_property
    def fields(self) -> dict[int, int]:
        """The wire type of each top-level field of a protobuf message by its number, up to where it makes no sense."""
        return self.nested_fields()

    def nested_fields(self, *path: int) -> dict[int, int]:
        """The fields of the first message inside, reached by numbers of fields: `nested_fields(1, 5)`."""
        if self.is_folder:
            return {}
        with self._open() as stream:
            begin, end = 0, stream.seek(0, os.SEEK_END)
            for number in path:
                inside = (item[2:] for item in _fields(stream, begin, end) if item[:2] == (number, _BYTES))
                begin, end = next(inside, (0, 0))
            return {number: kind for number, kind, _, _ in _fields(stream, begin, end)}

    def _open(self) -> BinaryIO:
        if self.path is None:
            assert isinstance(self.source, bytes)
            return io.BytesIO(self.source)
        try:
            return self.path.open("rb")
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror or error}") from error


def _fields(stream: BinaryIO, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type and place of the fields of the message between two places; contents are skipped."""
    stream.seek(begin)
    for _ in range(_MOST_FIELDS):
        if stream.tell() >= end:
            return
        tag = _varint(stream)
        if tag is None or tag < 8:
            return
        number, kind = tag >> 3, tag & 7
        start = stream.tell()
        if kind == _VARINT:
            if _varint(stream) is None:
                return
            yield number, kind, start, stream.tell()
            continue
        if kind not in (_FIXED64, _BYTES, _FIXED32):
            return
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind) if kind != _BYTES else _varint(stream)
        if length is None:
            return
        start = stream.tell()
        yield number, kind, start, min(start + length, end)
        if length > end - start:
            return
        stream.seek(start + length)


def _varint(stream: BinaryIO) -> int | None:
    value = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)
        if not byte:
            return None
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    return None
