"""The checksum and the signature of an exported library: every change breaks them."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from tilewright.runtime.core import seal
from tilewright.runtime.core.keys import SigningKey
from tilewright.support.errors import UserError


@pytest.fixture
def parts_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts so small that a few kilobytes have many."""
    monkeypatch.setattr(seal, "_PART", 1000)


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.new()


def _read(content: bytes) -> seal.Seal:
    return seal.read_seal(memoryview(content), "here")


def _sealed(folder: Path, content: bytes, key: SigningKey | None = None) -> bytes:
    file = folder / "library"
    file.write_bytes(content)
    seal.seal(file, key)
    return file.read_bytes()


@pytest.mark.usefixtures("parts_of")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [1, 999, 1000, 1001, 2000, 12345])
def test_it_is_the_checksum_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, threads: int
) -> None:
    monkeypatch.setattr(seal, "usable_cpus", lambda: frozenset(range(threads)))
    content = np.random.default_rng(size).bytes(size)
    sealed = _sealed(tmp_path, content)
    assert sealed == content + b"TWSEAL1\n" + zlib.crc32(content).to_bytes(4, "little")
    found = _read(sealed)
    assert found.is_sealed
    assert (found.start, found.key) == (size, None)


@pytest.mark.usefixtures("parts_of")
def test_bits_that_changed_and_parts_that_swapped_places_break_it(tmp_path: Path) -> None:
    sealed = _sealed(tmp_path, np.random.default_rng(0).bytes(4321))
    changed = [sealed[:at] + bytes([sealed[at] ^ 4]) + sealed[at + 1 :] for at in (0, 999, 1000, 2500, 4320)]
    for content in (*changed, sealed[1000:2000] + sealed[:1000] + sealed[2000:]):
        with pytest.raises(UserError, match="does not fit its checksum"):
            _read(content)


def test_what_is_no_seal_is_none_and_what_stands_in_its_place_is_damage(tmp_path: Path) -> None:
    content = bytes(range(100))
    sealed = _sealed(tmp_path, content)
    assert not _read(content).is_sealed
    seal.check_end(_read(content), 100, "here")
    seal.check_end(_read(sealed), 100, "here")
    for damaged in (sealed[:-1], sealed + b"\0", content + bytes(12), sealed[:101]):
        with pytest.raises(UserError, match="the seal of the library is damaged"):
            seal.check_end(_read(damaged), 100, "here")


def test_a_signature_is_of_one_key_and_of_every_bit(tmp_path: Path, key: SigningKey) -> None:
    content = np.random.default_rng(1).bytes(500)
    sealed = memoryview(_sealed(tmp_path, content, key))
    found = seal.read_seal(sealed, "here")
    assert (found.start, found.key) == (500, key.public)
    seal.check_end(found, 500, "here")
    assert found.is_signed_by(sealed, [SigningKey(7).public, key.public])
    assert not found.is_signed_by(sealed, [SigningKey(7).public])
    changed = bytearray(sealed)
    changed[250] ^= 1
    assert not found.is_signed_by(memoryview(changed), [key.public])


def test_a_signature_of_another_key_under_this_keys_name_is_no_signature(tmp_path: Path, key: SigningKey) -> None:
    """Whoever changes a library can compute its checksum again, and put any key and any signature there."""
    sealed = _sealed(tmp_path, bytes(500), SigningKey(7))
    forged = sealed[:508] + key.public.content + sealed[572:-4]
    forged += zlib.crc32(forged[:-8]).to_bytes(4, "little")
    found = _read(forged)
    assert found.key == key.public
    assert not found.is_signed_by(memoryview(forged), [key.public])
