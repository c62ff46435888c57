"""Settings: environment, defaults, overrides and the messages for bad values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.support import settings
from tilewright.support.errors import CompilerBug, UserError


def test_default_environment_and_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_NUM_THREADS", raising=False)
    assert settings.NUM_THREADS.get() is None
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", " 3 ")
    assert settings.NUM_THREADS.get() == 3
    with settings.NUM_THREADS.override(7):
        assert settings.NUM_THREADS.get() == 7
    assert settings.NUM_THREADS.get() == 3
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "")
    assert settings.NUM_THREADS.get() is None


@pytest.mark.parametrize(
    ("name", "setting", "text", "message"),
    [
        ("NUM_THREADS", settings.NUM_THREADS, "0", "at least 1"),
        ("NUM_THREADS", settings.NUM_THREADS, "many", "whole number"),
        ("CACHE", settings.CACHE, "perhaps", "expected one of 1, true"),
        ("CACHE_LIMIT", settings.CACHE_LIMIT, "a lot", "a size such as 512M"),
        ("CACHE_LIMIT", settings.CACHE_LIMIT, "-1G", "a size such as 512M"),
        ("TRACE", settings.TRACE, "time,color", "unknown word 'color'"),
        ("PROGRESS", settings.PROGRESS, "loud", "expected one of auto, always, never"),
    ],
)
def test_bad_value_is_a_user_error(
    monkeypatch: pytest.MonkeyPatch, name: str, setting: settings.Setting[object], text: str, message: str
) -> None:
    monkeypatch.setenv(f"TILEWRIGHT_{name}", text)
    with pytest.raises(UserError, match=message) as caught:
        setting.get()
    assert f"TILEWRIGHT_{name}" in str(caught.value)
    assert "default:" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"), [("10", 10), ("2k", 2048), ("512M", 512 * 2**20), ("2GB", 2 * 2**30), ("1.5GiB", 3 * 2**29)]
)
def test_sizes(text: str, size: int) -> None:
    assert settings.read_bytes(text) == size


def test_words_bools_and_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_TRACE", "time, dump")
    assert settings.TRACE.get() == {"time", "dump"}
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    assert settings.CACHE.get() is False
    monkeypatch.setenv("TILEWRIGHT_CACHE", "ON")
    assert settings.CACHE.get() is True
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert settings.CACHE_DIR.get() == tmp_path / "tilewright"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert settings.CACHE_DIR.get() == Path.home() / ".cache" / "tilewright"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "~/objects")
    assert settings.CACHE_DIR.get() == Path.home() / "objects"


def test_unknown_variables_suggest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_NUM_THREDS", "2")
    assert any("did you mean TILEWRIGHT_NUM_THREADS?" in line for line in settings.unknown_variables())


def test_every_setting_is_documented_and_defined_once() -> None:
    assert all(setting.doc and setting.default_text for setting in settings.all_settings())
    with pytest.raises(CompilerBug, match="defined twice"):
        settings.define("CACHE", settings.read_bool, lambda: True, default_text="on", doc="again")


def test_the_table_in_the_docs_is_complete() -> None:
    text = (Path(__file__).parents[2] / "docs" / "runtime.md").read_text()
    for setting in settings.all_settings():
        assert f"| `{setting.name}` |" in text


def test_a_child_process_sees_overrides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "1")
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "3")
    with (
        settings.CACHE_DIR.override(tmp_path),
        settings.CACHE.override(False),
        settings.TRACE.override(frozenset({"time", "dump"})),
        settings.NUM_THREADS.override(None),
    ):
        environment = settings.child_environment()
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
    assert settings.CACHE_DIR.get() == tmp_path
    assert settings.CACHE.get() is False
    assert settings.TRACE.get() == {"time", "dump"}
    assert settings.NUM_THREADS.get() is None
