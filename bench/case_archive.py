"""Many small arrays in one file: an index, and all their bytes one after the other. Needs numpy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_archive(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays under their names; bytes are arrays of bytes."""
    index: dict[str, list[Any]] = {}
    parts: list[bytes] = []
    at = 0
    for name, value in arrays.items():
        array = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.asarray(value)
        content = np.ascontiguousarray(array).tobytes()
        index[name] = [array.dtype.str, list(array.shape), at]
        parts.append(content)
        at += len(content)
    text = np.frombuffer(json.dumps(index).encode(), np.uint8)
    np.savez_compressed(path, index=text, data=np.frombuffer(b"".join(parts), np.uint8))


def read_archive(path: str | Path) -> dict[str, dict[str, Any]]:
    """The arrays of each case, whose names are `case|part`."""
    with np.load(path, allow_pickle=False) as file:
        index, data = json.loads(file["index"].tobytes()), file["data"].tobytes()
    found: dict[str, dict[str, Any]] = {}
    for key, (kind, shape, at) in index.items():
        name, _, part = key.partition("|")
        count = int(np.prod(shape, dtype=np.int64))
        found.setdefault(name, {})[part] = np.frombuffer(data, np.dtype(kind), count, at).reshape(shape)
    return found
