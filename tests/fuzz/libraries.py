"""Mutated libraries: `python -m tests.fuzz.libraries --count 2000 --seed 0`.

Damage of every kind must be refused with a `UserError` before the system's loader sees it. One library of five has a
changed description under a seal that fits it, as only somebody who means it would write: loading that gives a
program or a `UserError`. (It is not run: it is native code, and may say anything about itself.)
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tilewright as tw
from tests.fuzz.children import run_campaign
from tests.graph.helpers import random as random_array
from tests.integration import small_models
from tests.lower.vm.test_programs import loop_module
from tilewright import te
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.core.keys import SigningKey
from tilewright.runtime.core.seal import SEAL_BYTES, SIGNATURE_BYTES, seal
from tilewright.support.errors import UserError

LONGEST = 60.0
"""Seconds that one library may take."""
DESCRIBED_EVERY = 5
"""One library of so many has a changed description."""

Random = np.random.Generator


def victims(folder: Path) -> list[bytes]:
    """Libraries of all kinds: a model, one with symbolic shapes, a program, functions; one of them signed."""
    node = small_models.helper.make_node("Relu", ["x"], ["y"])
    shape = (small_models.FLOAT, ["n", 3])
    symbolic = small_models.model([node], {"x": shape}, {"y": shape})
    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="b")
    programs = [
        tw.compile(small_models.classifier().SerializeToString(), threads=1),
        tw.compile(symbolic.SerializeToString(), threads=1),
        tw.compile(loop_module(3), threads=1),
        tw.build(te.create_schedule(b.op), [a, b], name="twice"),
    ]
    for number, program in enumerate(programs):
        program.export_library(folder / f"lib{number}.so", sign=SigningKey(7) if number == 1 else None)
    return [(folder / f"lib{number}.so").read_bytes() for number in range(len(programs))]


def damaged(content: bytes, other: bytes, random: Random) -> bytes:
    """The library with something lost, changed or added."""
    data = bytearray(content)
    for _ in range(random.integers(1, 3)):
        size = max(len(data), 1)
        # The header, the seal and what is between them are met alike.
        spans = [(0, min(64, size)), (max(size - SEAL_BYTES - SIGNATURE_BYTES, 0), size), (0, size)]
        low, high = spans[random.integers(3)]
        place = int(random.integers(low, high))
        count = int(2 ** random.integers(0, 13))
        match random.integers(7):
            case 0 | 1:
                data[place : place + 1] = bytes([(data[place] if data else 0) ^ 1 << int(random.integers(8))])
            case 2:
                data[place : place + count] = random.bytes(count)
            case 3:
                del data[place:]
            case 4:
                del data[place : place + count]
            case 5:
                data[place:place] = bytes(count)
            case _:
                data[place : place + count] = other[place : place + count]
    return bytes(data)


def described(content: bytes, folder: Path, random: Random) -> bytes:
    """The library with letters of its description changed, sealed again."""
    start = content.index(b'{"format":')
    end = content.index(b"\0", start)
    data = bytearray(content[:-SEAL_BYTES])
    for _ in range(random.integers(1, 4)):
        place = int(random.integers(start, end))
        pool = b"0123456789" if chr(data[place]).isdigit() else b'0123456789"{}[],:-.entrufalsx_ \\'
        data[place] = pool[random.integers(len(pool))]
    (folder / "described.so").write_bytes(data)
    seal(folder / "described.so")
    return (folder / "described.so").read_bytes()


def prepare() -> Callable[[int], str]:
    """The function that loads the library of a seed."""
    # The folder is there as long as the process.
    folder = tempfile.TemporaryDirectory(prefix="tilewright-fuzz-")
    place = Path(folder.name)
    whole = victims(place)
    # Models that were loaded before must not answer for damaged ones.
    models = [tw.load(content) for content in whole]
    first = models[0]
    assert isinstance(first, Executable)
    right = first(random_array(1, 1, 3, 32, 32))
    path = place / "library.so"

    def run(seed: int) -> str:
        assert folder.name
        random = np.random.default_rng(seed)
        number, other = random.integers(len(whole), size=2)
        if seed % DESCRIBED_EVERY == 0:
            content, expected = described(whole[number], place, random), "described"
        else:
            content, expected = damaged(whole[number], whole[other], random), "damaged"
        path.write_bytes(content)
        try:
            # A library that lost its whole seal, and nothing but that, is one from before there were seals.
            tw.load(path, require="sealed")
        except UserError:
            return f"{expected} refused"
        assert expected == "described" or content in (whole[number], whole[other]), "damage was loaded"
        np.testing.assert_array_equal(first(random_array(1, 1, 3, 32, 32)), right)
        return f"{expected} loaded"

    return run


if __name__ == "__main__":
    sys.exit(run_campaign("tests.fuzz.libraries", "libraries", 2_000, prepare, LONGEST))
