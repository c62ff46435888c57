"""The checksum of an exported library: computed by parts, it is that of the whole, and every change breaks it."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from tilewright.runtime import seal


@pytest.fixture
def parts_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts so small that a few kilobytes have many."""
    monkeypatch.setattr(seal, "_PART", 1000)


@pytest.mark.usefixtures("parts_of")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 2000, 12345])
def test_it_is_the_checksum_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, threads: int
) -> None:
    monkeypatch.setattr(seal, "usable_cpus", lambda: frozenset(range(threads)))
    content = np.random.default_rng(size).bytes(size)
    file = tmp_path / "library"
    file.write_bytes(content)
    seal.seal(file)
    assert file.read_bytes() == content + b"TWSEAL1\n" + zlib.crc32(content).to_bytes(4, "little")
    assert not seal.breaks_seal(file)


@pytest.mark.usefixtures("parts_of")
def test_bits_that_changed_and_parts_that_swapped_places_break_it(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(4321)
    file = tmp_path / "library"
    file.write_bytes(content)
    seal.seal(file)
    sealed = file.read_bytes()
    for place in (0, 999, 1000, 2500, 4320):
        file.write_bytes(sealed[:place] + bytes([sealed[place] ^ 4]) + sealed[place + 1 :])
        assert seal.breaks_seal(file)
    file.write_bytes(sealed[1000:2000] + sealed[:1000] + sealed[2000:])
    assert seal.breaks_seal(file)


@pytest.mark.usefixtures("parts_of")
def test_a_part_that_cannot_be_read_is_the_callers_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is a helping thread that meets it."""
    file = tmp_path / "library"
    file.write_bytes(bytes(4321))
    monkeypatch.setattr(seal, "usable_cpus", lambda: frozenset(range(4)))
    checksum_of_part = seal._checksum_of_part

    def unreadable(stream: object, start: int, size: int) -> int:
        if start == 3000:
            raise OSError(5, "Input/output error")
        return checksum_of_part(stream, start, size)

    monkeypatch.setattr(seal, "_checksum_of_part", unreadable)
    with pytest.raises(OSError, match="Input/output error"):
        seal.seal(file)
