"""Tracing: nesting, counts, the report, and silence when off."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from tilewright.support import trace


def test_off_returns_one_shared_object() -> None:
    assert trace.span("a") is trace.span("b")


def test_nesting_counts_and_report() -> None:
    with trace.collect() as times:
        for _ in range(3):
            with trace.span("outer"), trace.span("inner"):
                pass
        with trace.span("last"):
            pass
    assert times.count("outer") == 3
    assert times.count("outer", "inner") == 3
    assert times.count("inner") == 0
    assert times.seconds("outer") >= times.seconds("outer", "inner") > 0
    lines = times.report().splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["outer", "inner", "last"]
    assert lines[3].startswith("  inner")
    assert trace.span("after") is trace.span("collect")


def test_span_closes_on_error() -> None:
    with trace.collect() as times:
        try:
            with trace.span("fails"):
                raise ValueError
        except ValueError:
            pass
        with trace.span("next"):
            pass
    assert times.count("next") == 1


def test_threads_have_their_own_nesting() -> None:
    with trace.collect() as times, trace.span("main"):

        def work() -> None:
            with trace.span("worker"):
                pass

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert times.count("worker") == 1


def test_time_setting_prints_a_table_at_exit() -> None:
    code = "from tilewright.support import trace\nwith trace.span('parse'): pass"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TILEWRIGHT_TRACE": "time"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "time per stage" in done.stderr
    assert "parse" in done.stderr
