"""Damaged libraries for the runtime for C: `python -m tests.bindings.damage LIBTILEWRIGHT MODELS COUNT [SEED]`.

All must be refused with an error, and none may end the process.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.fuzz.libraries import damaged
from tilewright.runtime.core.seal import SEAL_BYTES

REFUSALS = (3, 4)
"""TILEWRIGHT_BAD_LIBRARY, TILEWRIGHT_UNSUPPORTED."""


def main(arguments: Sequence[str]) -> int:
    """Open as many damaged libraries as asked for; returns the exit code."""
    runtime, models, count, seed = ctypes.CDLL(arguments[0]), Path(arguments[1]), int(arguments[2]), int(arguments[3])
    whole = [(models / f"{name}.so").read_bytes() for name in ("digits", "rows", "loop", "functions")]
    # A library without its seal is one that a tool has written again: nothing says what it was.
    unsealed = {len(content) - SEAL_BYTES for content in whole}
    model, error = ctypes.c_int64(), ctypes.create_string_buffer(1024)
    for number in range(seed, seed + count):
        random = np.random.default_rng(number)
        first, other = random.integers(len(whole), size=2)
        content = damaged(whole[first], whole[other], random)
        size = ctypes.c_int64(len(content))
        status = runtime.tilewright_open_bytes(content, size, ctypes.byref(model), ctypes.byref(error))
        if status not in REFUSALS and content not in whole and len(content) not in unsealed:
            print(f"the library of seed {number} was not refused: status {status}", file=sys.stderr)
            return 1
    print(f"{count} libraries refused")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
