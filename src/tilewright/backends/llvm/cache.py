"""The disk cache of compiled objects and models: safe under many processes, and it heals itself.

An entry is one file named by the SHA-256 of everything that decides the machine code. Files are written beside their
place and moved over it, so a reader sees a whole file or none; each starts with the CRC-32 of its content, so a file
that was truncated or damaged is deleted and built again (models are hundreds of megabytes: a digest would take longer
than to write them). A folder that cannot be written (read-only, full disk) costs one warning and then the compiler
goes on without a cache. So does one that others could change: entries are machine code, and who can write them runs
code as this user (`support/ownership.py`).
"""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, reduce
from io import FileIO
from pathlib import Path
from typing import TypeVar

from tilewright.backends.llvm import toolchain
from tilewright.runtime.core.convert import Array, lasting_empty
from tilewright.support import settings, trace
from tilewright.support.files import temporary_name
from tilewright.support.fingerprint import source_fingerprint
from tilewright.support.ownership import make_private_folder, why_changeable, why_exposed
from tilewright.support.version import VERSION

M = TypeVar("M", bytearray, Array)

_MAGIC = b"TWOBJ02\n"
_CHECKSUM_BYTES = 4
_STORES_BETWEEN_PRUNES = 64
_LARGE = 1 << 24
"""Bytes above which a new entry is followed by pruning at once."""
_COMPILER = "backends/llvm/toolchain.py"
"""Where LLVM's options are: what the text of a module does not say of its code."""
# Pruning goes below the limit by this share, so that it does not run again on the next store.
_PRUNE_TO = 0.8


def object_key(text: str, *, triple: str, cpu: str, features: str, opt_level: int) -> str:
    """The name of the object that these inputs compile to."""
    digest = hashlib.sha256()
    compiler = (toolchain.llvm_version(), source_fingerprint(_COMPILER), VERSION)
    for part in (text, triple, cpu, features, str(opt_level), *compiler):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


class ObjectCache:
    """A folder of checksummed files, `limit` bytes at most (the least recently used go first)."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._usable = True
        self._checked = False
        self._told = False
        self._stores = 0

    def path(self, key: str) -> Path:
        """The file that holds `key`; the first two digits name a subfolder, to keep folders small."""
        return self.folder / key[:2] / f"{key[2:]}.o"

    def has(self, key: str) -> bool:
        """Whether there is an entry of `key` (it may still turn out damaged)."""
        return self._is_safe() and self.path(key).exists()

    def load(self, key: str) -> bytes | None:
        """The object stored under `key`, or None; a damaged file is deleted."""
        content = self._read(key, lambda size: bytearray(size))
        return None if content is None else bytes(content)

    def load_array(self, key: str) -> Array | None:
        """As `load`, as an array whose memory is aligned for vectors: what is large is read once and not copied."""
        return self._read(key, lasting_empty)

    def discard(self, key: str) -> None:
        """Delete an entry that its reader could make nothing of."""
        with suppress(OSError):
            self.path(key).unlink()

    def store(self, key: str, *parts: bytes | memoryview) -> None:
        """Keep bytes (the parts, one after the other) under `key`; a folder that refuses costs one warning, no more."""
        if not self._usable:
            return
        path = self.path(key)
        checksum = reduce(lambda value, part: zlib.crc32(part, value), parts, 0)
        try:
            make_private_folder(path.parent)
            if not self._is_safe():
                return
            _write_atomically(path, [_MAGIC, checksum.to_bytes(_CHECKSUM_BYTES), *parts])
        except OSError as error:
            self._give_up(f"cannot be written ({error.strerror})", "a writable folder")
            return
        self._stores += 1
        if self._stores % _STORES_BETWEEN_PRUNES == 1 or sum(map(len, parts)) > _LARGE:
            self.prune()

    def _read(self, key: str, allocate: Callable[[int], M]) -> M | None:
        """The payload of an entry in memory that `allocate` makes; None if there is none that can be trusted."""
        if not self._is_safe():
            return None
        path = self.path(key)
        header = len(_MAGIC) + _CHECKSUM_BYTES
        try:
            with open(path, "rb", buffering=0, opener=_open_plainly) as stream:
                status = os.fstat(stream.fileno())
                exposed = why_changeable(path, status) or why_changeable(path.parent, os.lstat(path.parent))
                start = stream.read(header) if stat.S_ISREG(status.st_mode) and not exposed else b""
                payload = allocate(max(0, status.st_size - header) if start else 0)
                whole = _read_into(stream, _memory(payload)) if start else False
        except OSError:
            # Absent, unreadable, a link, or deleted by another process a moment ago: all mean "build it".
            return None
        if exposed and not self._told:
            self._told = True
            self._warn(f"has an entry that {exposed}; it is deleted and built again")
        sound = start[: len(_MAGIC)] == _MAGIC and int.from_bytes(start[len(_MAGIC) :]) == zlib.crc32(_memory(payload))
        if exposed or not whole or not sound:
            self.discard(key)
            return None
        with suppress(OSError):
            os.utime(path)
        return payload

    def _is_safe(self) -> bool:
        """Whether this cache can be used. A folder that others could change costs one warning."""
        if self._usable and not self._checked:
            exposed = why_exposed(self.folder)
            if exposed is not None:
                self._give_up(f"is not used: it {exposed}", "a folder of your own")
            # One that is not there yet is looked at again when it is.
            self._checked = self.folder.exists()
        return self._usable

    def _give_up(self, why: str, remedy: str) -> None:
        self._usable = False
        self._warn(
            f"{why}; compiling without it. Set TILEWRIGHT_CACHE_DIR to {remedy}, or TILEWRIGHT_CACHE=0 to silence this."
        )

    def _warn(self, text: str) -> None:
        warnings.warn(f"the object cache {self.folder} {text}", RuntimeWarning, stacklevel=2)

    def _files(self) -> list[tuple[float, int, Path]]:
        """Time of last use, size and path of each file."""
        files = []
        for path in self.folder.glob("??/*"):
            # Another process may delete files while this one looks.
            with suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        return files

    def sizes(self) -> list[int]:
        """The bytes of each entry."""
        return [size for _, size, _ in self._files()]

    def clear(self) -> tuple[int, int]:
        """Delete all entries; returns how many went and their bytes."""
        removed = freed = 0
        for _, size, path in self._files():
            with suppress(OSError):
                path.unlink()
                removed += 1
                freed += size
        return removed, freed

    def prune(self) -> int:
        """Delete the least recently used files while the cache is over its limit; returns how many went."""
        files = self._files()
        total = sum(size for _, size, _ in files)
        if total <= self.limit:
            return 0
        removed = 0
        for _, size, path in sorted(files):
            if total <= self.limit * _PRUNE_TO:
                break
            with suppress(OSError):
                path.unlink()
                removed += 1
            total -= size
        return removed


def _memory(payload: bytearray | Array) -> memoryview:
    return memoryview(payload) if isinstance(payload, bytearray) else payload.data


def _read_into(stream: FileIO, memory: memoryview) -> bool:
    """Fill memory from a file; whether there was enough. One read gives at most 2 GB."""
    while memory:
        count = stream.readinto(memory)
        if not count:
            return False
        memory = memory[count:]
    return True


def _open_plainly(path: str, flags: int) -> int:
    """Open a file, but neither follow a link nor wait for a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _create_privately(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL, 0o600)


def _write_atomically(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    temporary = temporary_name(path)
    try:
        with open(temporary, "wb", opener=_create_privately) as stream:
            for part in parts:
                stream.write(part)
        os.replace(temporary, path)
    finally:
        # Also after an interrupt from the keyboard.
        with suppress(OSError):
            temporary.unlink()


@lru_cache(maxsize=8)
def _cache_at(folder: Path, limit: int) -> ObjectCache:
    return ObjectCache(folder, limit)


def shared_cache() -> ObjectCache | None:
    """The cache that the settings name, or None when they turn it off."""
    if not settings.CACHE.get():
        return None
    return _cache_at(settings.CACHE_DIR.get() / "objects", settings.CACHE_LIMIT.get())


def compile_cached(text: str, *, triple: str, cpu: str = "", features: str = "", opt_level: int = 2) -> bytes:
    """`toolchain.compile_ir` through the disk cache."""
    cache = shared_cache()
    if cache is None:
        return toolchain.compile_ir(text, triple=triple, cpu=cpu, features=features, opt_level=opt_level)
    key = object_key(text, triple=triple, cpu=cpu, features=features, opt_level=opt_level)
    with trace.span("cache:load"):
        cached = cache.load(key)
    if cached is not None:
        return cached
    payload = toolchain.compile_ir(text, triple=triple, cpu=cpu, features=features, opt_level=opt_level)
    with trace.span("cache:store"):
        cache.store(key, payload)
    return payload
