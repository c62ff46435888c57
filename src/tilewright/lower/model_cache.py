"""Whole compiled models on disk: compiling the same model file again is reading its artifact.

The key is a hash of the file's content, the target, the options, the versions of what takes part, and all sources of
the compiler. Entries live in the cache of compiled objects, under its limit and its checksums. Models are not looked up
while stages are dumped, replaced or verified, nor when someone has registered operators, converters or computations
of their own: their sources are not part of the key.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from tilewright.backends.llvm.cache import ObjectCache, shared_cache
from tilewright.frontend.format import Format
from tilewright.frontend.formats import identify, model_files
from tilewright.lower.cache_key import target_parts
from tilewright.runtime.core.artifact import Artifact, artifact_from_metadata
from tilewright.runtime.core.convert import Array
from tilewright.support import settings, trace
from tilewright.support.errors import UserError
from tilewright.support.extensions import is_extended
from tilewright.support.fingerprint import packages_fingerprint, source_fingerprint
from tilewright.target import Target

_EXTERNAL_DATA = b"\x0a\x08location"
"""How a reference to a file beside the model starts in a protobuf: that file is not part of the key."""
_PIECE = 1 << 20
"""Bytes of a model that are read at a time."""
_LARGEST_SHARE = 4
"""A model that takes more than one part in so many of the cache is not kept."""


def model_key(
    model: str | os.PathLike[str] | bytes,
    targets: Iterable[Target],
    parts: Mapping[str, object],
) -> str | None:
    """The name of what a model file compiles to for some targets; None where it must be compiled anew.

    `parts` are everything else that decides the result, of plain values.
    """
    if shared_cache() is None or settings.VERIFY.get() or settings.stages_are_files() or is_extended():
        return None
    try:
        format = identify(model)
        contents = _digests(model, format)
        compilers = [part for target in targets for part in target_parts(target)]
    except (OSError, UserError):
        # The importer says what is wrong with the file, the compiler what it misses.
        return None
    if contents is None:
        return None
    digest = hashlib.sha256(contents)
    plain = sorted((key, repr(value)) for key, value in parts.items())
    packages = packages_fingerprint(*format.packages)
    for part in (format.key, repr(plain), *compilers, packages, source_fingerprint()):
        digest.update(b"\0" + part.encode())
    return digest.hexdigest()


def _digest(stream: IO[bytes]) -> bytes | None:
    """The digest of a model, read piece by piece: copies of models add up. None where other files belong to it."""
    digest, before = hashlib.blake2b(), b""
    while piece := stream.read(_PIECE):
        seen = before + piece
        if _EXTERNAL_DATA in seen:
            return None
        before = seen[1 - len(_EXTERNAL_DATA) :]
        digest.update(piece)
    return digest.digest()


def _digests(model: str | os.PathLike[str] | bytes, format: Format) -> bytes | None:
    """The digests of all files of a model; None where they cannot be told."""
    if isinstance(model, bytes):
        return _digest(io.BytesIO(model))
    found = b""
    for path in model_files(Path(os.fspath(model)), format) or ():
        with path.open("rb") as stream:
            content = _digest(stream)
        if content is None:
            return None
        found += content
    return found or None


def load_model(key: str) -> Artifact | None:
    """The artifact that `store_model` kept, or None."""
    store = shared_cache()
    if store is None:
        return None
    with trace.span("cache:load model"):
        payload = store.load_array(key)
        try:
            return None if payload is None else _decode(payload)
        except (UserError, KeyError, TypeError, ValueError, RecursionError):
            store.discard(key)
            return None


def store_model(key: str, artifact: Artifact) -> None:
    """Keep a compiled model."""
    store: ObjectCache | None = shared_cache()
    if store is None:
        return
    table = json.dumps({"metadata": artifact.metadata(), "objects": [len(item) for item in artifact.objects]}).encode()
    constants = np.ascontiguousarray(artifact.constants)
    # Constants first: they are then as aligned as the memory that the entry is read into.
    code = [*artifact.objects, *artifact.device_code]
    parts: list[bytes | memoryview] = [constants.data, *code, table, len(table).to_bytes(8, "little")]
    if sum(len(part) for part in parts) > store.limit // _LARGEST_SHARE:
        return
    with trace.span("cache:store model"):
        store.store(key, *parts)


def _decode(payload: Array) -> Artifact:
    """The artifact in an entry; whatever does not fit together raises one of Python's own errors, or a `UserError`."""
    size = int.from_bytes(payload[-8:].tobytes(), "little")
    end = len(payload) - 8 - size
    if end < 0:
        raise ValueError("a table that is longer than the entry")
    table = json.loads(payload[end:-8].tobytes())
    start = table["metadata"]["constant_bytes"]
    constants = payload[:start]
    artifact = artifact_from_metadata(table["metadata"], constants, where="the cache of compiled models")
    for length in table["objects"]:
        artifact.objects.append(payload[start : start + length].tobytes())
        start += length
    for length in () if artifact.device is None else artifact.device.code_bytes:
        artifact.device_code.append(payload[start : start + length].tobytes())
        start += length
    if start != end:
        raise ValueError("parts that do not add up to the entry")
    return artifact
