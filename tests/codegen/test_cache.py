"""The object cache: hits, damage, refusal, pruning, and many processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tilewright.backends.llvm import cache, toolchain
from tilewright.support import settings

TEXT = "define i32 @f() { ret i32 42 }"
TRIPLE = "x86_64-linux-gnu"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    return tmp_path


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_second_compile_comes_from_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache.compile_cached(TEXT, triple=TRIPLE)
    assert len(_files(folder)) == 1

    def refuse(*args: object, **options: object) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(toolchain, "compile_ir", refuse)
    assert cache.compile_cached(TEXT, triple=TRIPLE) == first


def test_key_depends_on_everything() -> None:
    base = {"triple": TRIPLE, "cpu": "a", "features": "+x", "opt_level": 2}
    keys = {cache.object_key(TEXT, **base)}  # type: ignore[arg-type]
    for change in ({"triple": "aarch64-linux-gnu"}, {"cpu": "b"}, {"features": "+y"}, {"opt_level": 3}):
        keys.add(cache.object_key(TEXT, **{**base, **change}))  # type: ignore[arg-type]
    keys.add(cache.object_key(TEXT + " ", **base))  # type: ignore[arg-type]
    # Moving a letter from one field to the next is another key too.
    keys.add(cache.object_key(TEXT, triple=TRIPLE, cpu="a+", features="x", opt_level=2))
    assert len(keys) == 7


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "garbage"])
def test_damaged_file_is_rebuilt(folder: Path, damage: str) -> None:
    good = cache.compile_cached(TEXT, triple=TRIPLE)
    [path] = _files(folder)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-5] ^= 1
    changed = {"truncate": content[: len(content) // 2], "flip": content, "empty": b"", "garbage": b"x" * 500}[damage]
    path.write_bytes(bytes(changed))
    assert cache.compile_cached(TEXT, triple=TRIPLE) == good
    assert cache.shared_cache().load(cache.object_key(TEXT, triple=TRIPLE, cpu="", features="", opt_level=2)) == good  # type: ignore[union-attr]


def test_unwritable_folder_warns_once_and_works(tmp_path: Path) -> None:
    # A file where the folder should be refuses even the superuser.
    blocked = tmp_path / "file"
    blocked.write_text("")
    with settings.CACHE_DIR.override(blocked):
        with pytest.warns(RuntimeWarning, match="cannot be written .* TILEWRIGHT_CACHE_DIR"):
            first = cache.compile_cached(TEXT, triple=TRIPLE)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cache.compile_cached(TEXT + "\n", triple=TRIPLE)
            assert cache.compile_cached(TEXT, triple=TRIPLE) == first


def test_failed_write_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        cache.ObjectCache(folder / "full", 10**9).store("ab" * 32, b"payload")
    assert _files(folder) == []


def test_cache_can_be_turned_off(folder: Path) -> None:
    with settings.CACHE.override(False):
        assert cache.shared_cache() is None
        assert cache.compile_cached(TEXT, triple=TRIPLE)
    assert _files(folder) == []


def test_prune_removes_the_least_recently_used(tmp_path: Path) -> None:
    store = cache.ObjectCache(tmp_path, limit=3500)
    keys = [f"{index:064x}" for index in range(6)]
    for age, key in enumerate(keys):
        store.path(key).parent.mkdir(exist_ok=True)
        store.store(key, bytes(960))
        os.utime(store.path(key), (age, age))
    os.utime(store.path(keys[0]), (100, 100))
    assert store.prune() == 4
    left = [key for key in keys if store.load(key) is not None]
    assert keys[0] in left
    assert keys[5] in left
    assert len(left) == 2
    assert store.prune() == 0


def test_processes_share_the_cache(folder: Path) -> None:
    code = (
        "from tilewright.backends.llvm.cache import compile_cached\n"
        "for index in range(20):\n"
        "    compile_cached(f'define i32 @f() {{ ret i32 {index} }}', triple='x86_64-linux-gnu')\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ)) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    files = _files(folder)
    assert len(files) == 20
    assert all(path.suffix == ".o" for path in files)
