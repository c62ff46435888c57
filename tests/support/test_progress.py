"""Progress lines: quiet by default, redrawn on a terminal, full lines when forced elsewhere."""

from __future__ import annotations

import io

import pytest

from tilewright.support import progress, settings


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_silent_when_no_terminal() -> None:
    stream = io.StringIO()
    with progress.Progress("compiling", 2, stream=stream) as line:
        line._next = 0.0
        line.step("a")
    assert stream.getvalue() == ""


def test_silent_when_short_or_forbidden() -> None:
    stream = _Terminal()
    with progress.Progress("compiling", stream=stream) as line:
        line.step("a")
    with settings.PROGRESS.override("never"), progress.Progress("compiling", stream=stream) as line:
        line._next = 0.0
        line.step("a")
    assert stream.getvalue() == ""


def test_terminal_line_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_REDRAW_SECONDS", 0.0)
    stream = _Terminal()
    with progress.Progress("compiling", 2, stream=stream) as line:
        line.step("conv")
        line.step("relu")
    assert "\rcompiling: 1/2" in stream.getvalue()
    assert "relu" in stream.getvalue()
    assert stream.getvalue().endswith("\n")
    assert "done in" in stream.getvalue()


def test_forced_without_terminal_prints_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    stream = io.StringIO()
    with settings.PROGRESS.override("always"), progress.Progress("tuning", stream=stream) as line:
        line.step("trial")
    assert "tuning: 1" in stream.getvalue()
    assert "\r" not in stream.getvalue()
