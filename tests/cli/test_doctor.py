"""`tilewright doctor`: what it finds, what it calls broken, and the list of settings."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.backends.llvm.cache import shared_cache
from tilewright.cli import doctor
from tilewright.cli.main import main
from tilewright.runtime.device.devices import device_kinds
from tilewright.support import settings
from tilewright.support.errors import UserError

Captured = pytest.CaptureFixture[str]


def test_a_machine_in_order(capsys: Captured, tmp_path: Path) -> None:
    with settings.CACHE_DIR.override(tmp_path / "not" / "yet"):
        code = main(["doctor"])
    text = capsys.readouterr().out
    assert "[ok] target native:" in text
    assert "[ok] object cache:" in text
    assert "[ok] onnx " in text
    assert "export for" in text
    assert (code == 1) == ("[!!]" in text)
    assert not (tmp_path / "not").exists()


def test_all_settings_are_listed(capsys: Captured) -> None:
    assert main(["doctor", "--settings"]) == 0
    text = capsys.readouterr().out
    for setting in settings.all_settings():
        assert setting.name in text
        assert setting.doc in text


def test_what_is_broken_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "file").write_text("")
    with settings.CACHE_DIR.override(tmp_path / "file" / "cache"):
        assert main(["doctor"]) == 0  # kernels are compiled anew each time, but they are compiled
    assert "[--] object cache: " in (text := capsys.readouterr().out) and "cannot be written (Not a directory)" in text
    monkeypatch.setenv("TILEWRIGHT_CASH", "1")
    monkeypatch.setenv("TILEWRIGHT_CACHE", "maybe")
    monkeypatch.setenv("TILEWRIGHT_LINKER", "no-such-linker")
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "[--] TILEWRIGHT_CASH is not a setting; did you mean TILEWRIGHT_CACHE?" in text
    assert "[!!] bad value 'maybe' for the setting TILEWRIGHT_CACHE" in text
    assert "the linker 'no-such-linker' is not there" in text


def test_only_what_is_needed_makes_it_fail(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("TILEWRIGHT_LINKER", "no-such-linker")
    assert main(["doctor"]) == 0
    assert "[--] export for" in (text := capsys.readouterr().out) and "[ok] compile and run" in text

    def broken(*args: object, **named: object) -> bytes:
        raise UserError("LLVM does not know this processor")

    monkeypatch.setattr("tilewright.cli.doctor.compile_ir", broken)
    assert main(["doctor"]) == 1
    assert "[!!] compile and run: LLVM does not know this processor" in capsys.readouterr().out


def test_a_cache_that_others_could_change_is_said(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with settings.CACHE_DIR.override(tmp_path / "cache"):
        assert main(["doctor"]) == 0
    assert "others may write (mode 0777); whoever can change it runs code as you" in capsys.readouterr().out


def test_a_cache_that_is_turned_off(capsys: Captured) -> None:
    with settings.CACHE.override(False):
        main(["doctor"])
    assert "[ok] object cache: turned off by TILEWRIGHT_CACHE" in capsys.readouterr().out


def test_packages_that_are_missing_come_with_a_command(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("tilewright.cli.doctor.metadata.version", missing)
    main(["doctor"])
    assert "[--] onnx is not installed: needed to import ONNX models; pip install 'tilewright[onnx]'" in (
        capsys.readouterr().out
    )


def test_the_cache_can_be_emptied(tmp_path: Path, capsys: Captured) -> None:
    with settings.CACHE_DIR.override(tmp_path):
        store = shared_cache()
        assert store is not None
        store.store("a" * 64, b"content")
        assert main(["doctor"]) in (0, 1)
        assert "(1 file, " in capsys.readouterr().out
        assert main(["doctor", "--clear-cache"]) == 0
        assert "1 file deleted" in capsys.readouterr().out
        assert store.sizes() == []


@pytest.mark.parametrize("found", [True, False])
def test_what_drivers_print_is_shown_where_it_explains_something(
    monkeypatch: pytest.MonkeyPatch, capfd: Captured, found: bool
) -> None:
    def find(kind: str) -> SimpleNamespace:
        os.write(2, b"driver: no display\ndriver: no display\n")
        if not found:
            raise UserError("there is none", hint="get one")
        return SimpleNamespace(name="a device")

    monkeypatch.setattr(doctor, "find_device", find)
    main(["doctor"])
    captured = capfd.readouterr()
    assert "driver" not in captured.err
    assert ("[ok] target opencl: a device" in captured.out) is found
    assert captured.out.count("     a driver says: driver: no display") == (0 if found else len(device_kinds()))
