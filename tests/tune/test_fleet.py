"""A tuning job on a fleet: servers die, candidates crash, hang or eat memory; each candidate is measured once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.fleet import (
    DEVICE_TOKEN,
    SYMBOL,
    TOKEN,
    ReadyBuilder,
    fleet,
    measurer,
    programs_may_sleep,
    rate,
    sleeping_program,
    sleeping_task,
)
from tilewright import te
from tilewright.ir.build import cast
from tilewright.lower.database import Database
from tilewright.lower.records import Record
from tilewright.rpc.background import serve_in_background
from tilewright.rpc.tracker import Tracker, TrackerOptions
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tune.measure import Measurement


def _program(kind: str) -> PrimFunc:
    """`b = 2 a`, with a fault of some kind."""
    a = te.placeholder((4,), "float32", "a")
    if kind == "crash":
        b = te.compute((4,), lambda i: a[cast(a[i] * 1e18 + 1e17, "int64")], "b")
    elif kind == "memory":
        large = te.compute((1 << 36,), lambda i: a[i % 4], "large")
        b = te.compute((4,), lambda i: large[i * 1000] * 2.0, "b")
    elif kind == "wrong":
        b = te.compute((4,), lambda i: a[i] * 3.0, "b")
    else:
        return sleeping_program({"good": 0.0002, "hang": 600.0}[kind])
    return te.create_schedule(b.op).func([a, b]).replace(name=SYMBOL)


@pytest.fixture(autouse=True)
def _candidates_may_sleep() -> Iterator[None]:
    with programs_may_sleep():
        yield


@pytest.fixture(scope="module")
def tracker() -> Iterator[Tracker]:
    with serve_in_background(Tracker(TrackerOptions(port=0, token=TOKEN, device_token=DEVICE_TOKEN))) as running:
        yield running


@pytest.mark.slow
def test_a_job_survives_its_fleet(tracker: Tracker, tmp_path: Path) -> None:
    target = Target("native").replace(cores=1)
    kinds = ["good"] * 5 + ["crash", "good", "wrong", "good", "memory"] + ["good"] * 4
    kinds = kinds * 3 + ["hang"] + ["good"] * 5
    points = [{"kind": kind, "number": number} for number, kind in enumerate(kinds)]
    builder = ReadyBuilder(target, {kind: _program(kind) for kind in dict.fromkeys(kinds)})
    with fleet(tracker, 8) as servers, measurer(tracker, 8, builder) as measuring:
        killed = threading.Event()

        def kill_some() -> None:
            time.sleep(1.0)
            for server in servers[:3]:
                os.kill(server.pid, signal.SIGKILL)
            killed.set()

        threading.Thread(target=kill_some, daemon=True).start()
        results: list[Measurement] = []
        with Database(tmp_path / "fleet.db") as database:
            for result in measuring.measure(sleeping_task(target, 0.0002), points):
                results.append(result)
                database.add([Record(SYMBOL, str(target), result.answers, result.seconds, result.error)])
            assert database.count() == len(points)
        assert killed.wait(10)
    assert [result.answers["number"] for result in results] == list(range(len(points)))
    for result in results:
        kind = result.answers["kind"]
        if kind == "good":
            assert result.seconds is not None, result.error
        else:
            assert result.seconds is None
            assert {"crash": "SIG", "hang": "took more", "memory": "memory", "wrong": "wrong result"}[str(kind)] in str(
                result.error
            )


@pytest.mark.slow
def test_throughput_grows_with_the_fleet(tracker: Tracker) -> None:
    """Measurements of 200 ms each: four servers do several times what one does."""
    target = Target("native").replace(cores=1)
    with fleet(tracker, 4):
        one, four = (rate(tracker, devices, 3 * devices, target) for devices in (1, 4))
    # The machine of the tests is shared; `bench.fleet` measures this on a quiet one.
    assert four / one > 2.0
