"""The disk cache of compiled objects and models: safe under many processes, and it heals itself.

An entry is one file named by the SHA-256 of everything that decides the machine code. Files are written beside their
place and moved over it, so a reader sees a whole file or none; each starts with a checksum of its content, so a file
that was truncated or damaged is deleted and built again. A folder that cannot be written (read-only, full disk) costs
one warning and then the compiler goes on without a cache.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from io import FileIO
from pathlib import Path

from tilewright.codegen.llvm import toolchain
from tilewright.runtime.convert import Array, lasting_empty
from tilewright.support import settings, trace
from tilewright.support.files import temporary_name
from tilewright.support.version import VERSION

_MAGIC = b"TWOBJ01\n"
_DIGEST_BYTES = 32
_STORES_BETWEEN_PRUNES = 64
_LARGE = 1 << 24
"""Bytes above which a new entry is followed by pruning at once."""
# Pruning goes below the limit by this share, so that it does not run again on the next store.
_PRUNE_TO = 0.8


def object_key(text: str, *, triple: str, cpu: str, features: str, opt_level: int) -> str:
    """The name of the object that these inputs compile to."""
    digest = hashlib.sha256()
    for part in (text, triple, cpu, features, str(opt_level), toolchain.llvm_version(), VERSION):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


class ObjectCache:
    """A folder of checksummed files, `limit` bytes at most (the least recently used go first)."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._writable = True
        self._stores = 0

    def path(self, key: str) -> Path:
        """The file that holds `key`; the first two digits name a subfolder, to keep folders small."""
        return self.folder / key[:2] / f"{key[2:]}.o"

    def load(self, key: str) -> bytes | None:
        """The object stored under `key`, or None; a damaged file is deleted."""
        path = self.path(key)
        try:
            content = path.read_bytes()
        except OSError:
            # Absent, unreadable, or deleted by another process a moment ago: all mean "build it".
            return None
        header = len(_MAGIC) + _DIGEST_BYTES
        payload = content[header:]
        if content[: len(_MAGIC)] != _MAGIC or content[len(_MAGIC) : header] != hashlib.sha256(payload).digest():
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return payload

    def load_array(self, key: str) -> Array | None:
        """As `load`, as an array whose memory is aligned for vectors: what is large is read once and not copied."""
        path = self.path(key)
        header = len(_MAGIC) + _DIGEST_BYTES
        try:
            with open(path, "rb", buffering=0) as stream:
                start = stream.read(header)
                payload = lasting_empty(max(0, os.fstat(stream.fileno()).st_size - header))
                whole = _read_into(stream, payload.data)
        except OSError:
            return None
        digest = hashlib.sha256(payload.data).digest()
        if not whole or start[: len(_MAGIC)] != _MAGIC or start[len(_MAGIC) :] != digest:
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return payload

    def store(self, key: str, *parts: bytes | memoryview) -> None:
        """Keep bytes (the parts, one after the other) under `key`; a folder that refuses costs one warning, no more."""
        if not self._writable:
            return
        path = self.path(key)
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_atomically(path, [_MAGIC, digest.digest(), *parts])
        except OSError as error:
            self._writable = False
            warnings.warn(
                f"the object cache {self.folder} cannot be written ({error.strerror}); compiling without it. "
                f"Set TILEWRIGHT_CACHE_DIR to a writable folder, or TILEWRIGHT_CACHE=0 to silence this.",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        self._stores += 1
        if self._stores % _STORES_BETWEEN_PRUNES == 1 or sum(map(len, parts)) > _LARGE:
            self.prune()

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


def _read_into(stream: FileIO, memory: memoryview) -> bool:
    """Fill memory from a file; whether there was enough. One read gives at most 2 GB."""
    while memory:
        count = stream.readinto(memory)
        if not count:
            return False
        memory = memory[count:]
    return True


def _write_atomically(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    temporary = temporary_name(path)
    try:
        with open(temporary, "wb") as stream:
            for part in parts:
                stream.write(part)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


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
