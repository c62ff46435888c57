"""The cache in the hands of others: what they could have changed is neither read nor run."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from tests.requirements import needs
from tilewright.backends.llvm import cache
from tilewright.support import settings

STRANGER = 65534
KEY = "ab" * 32
as_root = needs("root")


def _store(folder: Path) -> cache.ObjectCache:
    store = cache.ObjectCache(folder / "objects", 10**9)
    store.store(KEY, b"payload")
    assert store.load(KEY) == b"payload"
    return store


def test_entries_and_folders_are_private_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = _store(tmp_path / "new")
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in [tmp_path / "new", *(tmp_path / "new").rglob("*")]}
    assert modes == {0o700, 0o600}
    assert store.path(KEY).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("which", ["", "objects"])
def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path, which: str) -> None:
    exposed = tmp_path / "cache" / which
    _store(tmp_path / "cache")
    exposed.chmod(0o777)
    store = cache.ObjectCache(tmp_path / "cache" / "objects", 10**9)
    with pytest.warns(RuntimeWarning, match="is not used: .*others may write .mode 0777.*TILEWRIGHT_CACHE_DIR"):
        assert store.load(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.load(KEY) is None
        assert store.load_array(KEY) is None
        assert not store.has(KEY)
        store.store("cd" * 32, b"more")
    assert not store.path("cd" * 32).exists()


@as_root
def test_the_folder_of_another_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    os.chown(tmp_path / "cache", STRANGER, STRANGER)
    with (
        settings.CACHE_DIR.override(tmp_path / "cache"),
        pytest.warns(RuntimeWarning, match="is not used: .*belongs to the user"),
    ):
        assert cache.compile_cached("define i32 @f() { ret i32 7 }", triple="x86_64-linux-gnu")
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_a_folder_that_another_makes_first_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not there when the cache looked, and is not ours when it is."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    store = cache.ObjectCache(tmp_path / "shared" / "mine" / "objects", 10**9)
    assert store.load(KEY) is None
    (tmp_path / "shared" / "mine").mkdir()
    (tmp_path / "shared" / "mine").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="others may write"):
        store.store(KEY, b"payload")
    assert not store.path(KEY).exists()


@as_root
def test_an_entry_of_another_is_deleted(tmp_path: Path) -> None:
    store = _store(tmp_path)
    os.chown(store.path(KEY), STRANGER, STRANGER)
    with pytest.warns(RuntimeWarning, match="an entry that belongs to the user"):
        assert store.load(KEY) is None
    assert not store.path(KEY).exists()
    store.store(KEY, b"payload")
    assert store.load(KEY) == b"payload"


@pytest.mark.parametrize("read", ["load", "load_array"])
def test_an_entry_that_others_may_write_is_deleted(tmp_path: Path, read: str) -> None:
    store = _store(tmp_path)
    store.path(KEY).chmod(0o666)
    with pytest.warns(RuntimeWarning, match="an entry that others may write"):
        assert getattr(store, read)(KEY) is None
    assert not store.path(KEY).exists()
    store.store(KEY, b"payload")
    store.path(KEY).parent.chmod(0o777)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was said once
        assert getattr(store, read)(KEY) is None


def test_links_and_pipes_are_no_entries(tmp_path: Path) -> None:
    store = _store(tmp_path)
    path = store.path(KEY)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert store.load(KEY) is None
    path.unlink()
    os.mkfifo(path, 0o600)
    assert store.load(KEY) is None  # and does not wait for a writer
    assert elsewhere.exists()
