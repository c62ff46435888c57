"""Messages between the benchmark and a peer's process: length-prefixed pickles over pipes."""

from __future__ import annotations

import pickle
from typing import IO

_LENGTH = 8


def send(stream: IO[bytes], value: object) -> None:
    """Write one value."""
    payload = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(len(payload).to_bytes(_LENGTH, "little"))
    stream.write(payload)
    stream.flush()


def receive(stream: IO[bytes]) -> object | None:
    """Read one value, or None at the end of the stream."""
    header = stream.read(_LENGTH)
    if len(header) < _LENGTH:
        return None
    size = int.from_bytes(header, "little")
    payload = stream.read(size)
    return pickle.loads(payload) if len(payload) == size else None
