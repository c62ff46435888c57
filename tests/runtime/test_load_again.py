"""A load means the bytes that are in the file now, however they got there, and the loaded ones stay what they are."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.runtime import mini
from tilewright.backends.llvm import deploy
from tilewright.runtime import Executable, load
from tilewright.runtime.core import image
from tilewright.support.errors import UserError


def _scaled(factor: float, path: Path) -> bytes:
    """A library whose outputs are `factor` times those of the mini model, and its bytes."""
    artifact = mini.model_artifact(threads=1)
    weights = artifact.constants[:144].view(np.float32)
    artifact.constants = artifact.constants.copy()
    artifact.constants[:144] = (weights * np.float32(factor)).view(np.uint8)
    deploy.export_library(artifact, path)
    return path.read_bytes()


@pytest.fixture(autouse=True, scope="module")
def _what_others_left_is_no_garbage() -> None:
    """A look for garbage goes through all that the process holds, and there are many looks below."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Libraries of one length, one soname and one set of symbols, with different weights."""
    folder = tmp_path_factory.mktemp("versions")
    made = [_scaled(factor, folder / "model.so") for factor in (1.0, 2.0, 4.0)]
    assert len({len(content) for content in made}) == 1
    return made


def _value(model: object) -> float:
    """How much larger than the mini model's the outputs are."""
    assert isinstance(model, Executable)
    x = mini.sample_input()
    return float((model(x)[0] / np.maximum(mini.expected(x)[0], 1e-9)).max().round(3))


def _over(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _by_rename(path: Path, content: bytes) -> None:
    path.with_suffix(".new").write_bytes(content)
    os.replace(path.with_suffix(".new"), path)


def _after_unlink(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def _at_the_same_time(path: Path, content: bytes) -> None:
    """In place, with the time of change set back: nothing but the bytes tells."""
    before = path.stat() if path.exists() else None
    path.write_bytes(content)
    if before is not None:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("replace", [_over, _by_rename, _after_unlink, _at_the_same_time])
@pytest.mark.parametrize("keeps", [True, False], ids=["old one in use", "old one dropped"])
def test_a_path_that_was_loaded_before(
    versions: list[bytes], tmp_path: Path, replace: Callable[[Path, bytes], None], keeps: bool
) -> None:
    path = tmp_path / "model.so"
    loaded: list[Executable] = []
    for content, factor in zip(versions, (1.0, 2.0, 4.0), strict=True):
        replace(path, content)
        model = load(path)
        assert _value(model) == factor
        if keeps:
            loaded.append(model)
        del model
        gc.collect()
    path.write_bytes(bytes(len(versions[0])))
    assert [_value(model) for model in loaded] == ([1.0, 2.0, 4.0] if keeps else [])


def test_two_paths_with_one_soname_and_other_spellings_of_one_path(
    versions: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, folder in enumerate(("a", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.so").write_bytes(versions[number])
    (tmp_path / "link.so").symlink_to(tmp_path / "a" / "model.so")
    monkeypatch.chdir(tmp_path / "a")
    assert [_value(load(place)) for place in ("model.so", "../b/model.so", "../link.so")] == [1.0, 2.0, 1.0]
    os.replace(tmp_path / "b" / "model.so", tmp_path / "a" / "model.so")
    assert [_value(load(place)) for place in ("./model.so", tmp_path / "link.so")] == [2.0, 2.0]


def test_the_file_may_go_and_be_cut_under_a_loaded_library(versions: list[bytes], tmp_path: Path) -> None:
    """A mapped file that is truncated would end the process with SIGBUS."""
    path = tmp_path / "model.so"
    path.write_bytes(versions[2])
    model = load(path)
    os.truncate(path, 0)
    assert _value(model) == 4.0
    path.unlink()
    model.export_library(tmp_path / "copy.so")
    assert (tmp_path / "copy.so").read_bytes() == versions[2]


def test_equal_bytes_are_loaded_once(versions: list[bytes], tmp_path: Path) -> None:
    """Libraries are never unloaded: a program that loads a file again and again must not grow."""
    path = tmp_path / "model.so"
    path.write_bytes(versions[1])
    first = load(path)
    shutil.copy(path, tmp_path / "other.so")
    descriptors = len(os.listdir("/proc/self/fd"))
    for source in (path, tmp_path / "other.so", versions[1], bytearray(versions[1]), memoryview(versions[1])):
        assert load(source).library is first.library
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_refused_libraries_leave_nothing_open(versions: list[bytes]) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    for damaged in (b"", versions[0][:100], versions[0][:-3], bytes(100)):
        with pytest.raises(UserError):
            load(damaged)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_closed_descriptors_do_not_bring_an_old_library_back(versions: list[bytes], tmp_path: Path) -> None:
    """Programs that become daemons close every descriptor: its number, and with it a name, comes again."""
    code = """
import os, sys
from tests.runtime.test_load_again import _value
from tilewright.runtime import load
for number, factor in enumerate((1.0, 2.0, 1.0, 4.0)):
    with open(f"{sys.argv[1]}/{factor}.so", "rb") as file:
        content = file.read()
    assert _value(load(content)) == factor, factor
    os.closerange(3, 256)
print("right")
"""
    root = Path(__file__).parents[2]
    for factor, content in zip((1.0, 2.0, 4.0), versions, strict=True):
        (tmp_path / f"{factor}.so").write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.stdout == "right\n", done.stderr


def test_many_threads_load_one_file(versions: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    found: list[float] = []

    def work() -> None:
        found.extend(_value(load(path)) for _ in range(10))

    for content, factor in zip(versions, (1.0, 2.0, 4.0), strict=True):
        _by_rename(path, content)
        found.clear()
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [factor] * 40


def test_systems_without_anonymous_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*words: object, **options: object) -> int:
        raise PermissionError(13, "Permission denied")

    content = _scaled(8.0, tmp_path / "model.so")
    monkeypatch.setattr(image.os, "memfd_create", forbidden)
    assert _value(load(content)) == 8.0
    monkeypatch.setattr(image.tempfile, "mkstemp", forbidden)
    with pytest.raises(UserError, match="cannot read the library: Permission denied"):
        load(content)


def test_an_image_cannot_be_written(versions: list[bytes]) -> None:
    held = image.LibraryImage.of(versions[0])
    with held.content() as content:
        assert content == versions[0]
        with pytest.raises(TypeError):
            content[0] = 0
    with pytest.raises(OSError, match="not permitted"):
        os.pwrite(held._descriptor, b"x", 0)
    held.close()


@pytest.mark.parametrize("small", [True, False])
def test_large_libraries_hold_a_descriptor_and_small_ones_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    monkeypatch.setattr(image, "_SMALL", (1 << 20) if small else 0)
    content = _scaled(16.0 if small else 32.0, tmp_path / "model.so")
    before = set(os.listdir("/proc/self/fd"))
    model = load(tmp_path / "model.so")
    held = set(os.listdir("/proc/self/fd")) - before
    assert len(held) == (0 if small else 1)
    assert load(content).library is model.library
    model.export_library(tmp_path / "copy.so")
    assert (tmp_path / "copy.so").read_bytes() == content
    for descriptor in held:
        os.close(int(descriptor))
        with pytest.raises(UserError, match="the bytes of the library are gone"):
            model.export_library(tmp_path / "copy.so")
