"""A tuning job on a fleet: servers die, candidates crash, hang or eat memory; each candidate is measured once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tilewright import rpc, te
from tilewright.codegen.llvm import link
from tilewright.codegen.llvm.build import compile_functions
from tilewright.ir.build import cast
from tilewright.ir.intrinsics import call_extern
from tilewright.lower.cost import work_of
from tilewright.lower.database import Database, Record
from tilewright.lower.kernel import CompiledKernel, Kernel
from tilewright.rpc.background import serve_in_background
from tilewright.rpc.tracker import Tracker, TrackerOptions
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tune.builder import BuildRequest
from tilewright.tune.measure import Limits, Measurement
from tilewright.tune.remote import RemoteMeasurer
from tilewright.tune.runner import Budget
from tilewright.tune.task import Task

HOST = "127.0.0.1"
TOKEN = "a token of some length"
SYMBOL = "tw_fleet_0"
KEY = "cpu"


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
        micro = {"good": 200, "slow": 200_000, "hang": 600_000_000}[kind] // 4
        b = te.compute((4,), lambda i: a[i] * 2.0 + cast(call_extern("int32", "usleep", micro), "float32"), "b")
    return te.create_schedule(b.op).func([a, b]).replace(name=SYMBOL)


def _task(target: Target) -> Task:
    func = _program("good")
    return Task(Kernel(SYMBOL, func, work_of(func)), target)


class _Builder:
    """In place of a building process: candidates say of themselves what is wrong with them."""

    def __init__(self, target: Target) -> None:
        kinds = ("good", "slow", "crash", "hang", "memory", "wrong")
        self.codes = {kind: CompiledKernel(compile_functions([_program(kind)], target), {}) for kind in kinds}

    def ask(self, request: object, seconds: float) -> object:
        assert isinstance(request, BuildRequest)
        return self.codes[str(request.kernel.answers["kind"])]

    def close(self) -> None: ...


@contextmanager
def _fleet(tracker: Tracker, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    words = ["rpc", "server", "--port", "0", "--tracker", f"{HOST}:{tracker.port}", "--key", KEY]
    words += ["--token", TOKEN, "--target", "llvm -mtriple=x86_64-linux-gnu", "--memory", "16GB"]
    command = [sys.executable, "-m", "tilewright", *words]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(count)]
    try:
        client = rpc.connect_tracker(HOST, tracker.port, token=TOKEN)
        deadline = time.monotonic() + 120
        while len(client.query()["devices"]) < count:
            assert time.monotonic() < deadline, "the servers did not register"
            time.sleep(0.1)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(autouse=True)
def _candidates_may_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled programs never call `usleep`; the faulty ones of this test do."""
    monkeypatch.setattr(link, "_LIBC", link._LIBC | {"usleep"})


@pytest.fixture(scope="module")
def tracker() -> Iterator[Tracker]:
    with serve_in_background(Tracker(TrackerOptions(port=0, token=TOKEN))) as running:
        yield running


def _measurer(tracker: Tracker, devices: int, target: Target) -> RemoteMeasurer:
    measurer = RemoteMeasurer(
        rpc.connect_tracker(HOST, tracker.port, token=TOKEN),
        KEY,
        devices=devices,
        budget=Budget(sample_seconds=0.001, samples=1),
        limits=Limits(run_seconds=6),
        wait_seconds=60,
    )
    measurer._builders = [_Builder(target)]  # type: ignore[list-item]
    return measurer


@pytest.mark.slow
def test_a_job_survives_its_fleet(tracker: Tracker, tmp_path: Path) -> None:
    target = Target("native").replace(cores=1)
    kinds = ["good"] * 5 + ["crash", "good", "wrong", "good", "memory"] + ["good"] * 4
    kinds = kinds * 3 + ["hang"] + ["good"] * 5
    points = [{"kind": kind, "number": number} for number, kind in enumerate(kinds)]
    with _fleet(tracker, 8) as servers, _measurer(tracker, 8, target) as measurer:
        killed = threading.Event()

        def kill_some() -> None:
            time.sleep(1.0)
            for server in servers[:3]:
                os.kill(server.pid, signal.SIGKILL)
            killed.set()

        threading.Thread(target=kill_some, daemon=True).start()
        results: list[Measurement] = []
        with Database(tmp_path / "fleet.db") as database:
            for result in measurer.measure(_task(target), points):
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
    """Measurements of 200 ms each: eight servers do several times what one does."""
    target = Target("native").replace(cores=1)
    rates = []
    with _fleet(tracker, 8):
        for devices, count in ((1, 3), (8, 24)):
            with _measurer(tracker, devices, target) as measurer:
                warm = [{"kind": "slow", "number": -1 - n} for n in range(devices)]
                list(measurer.measure(_task(target), warm))
                start = time.monotonic()
                points = [{"kind": "slow", "number": number} for number in range(count)]
                assert all(result.seconds for result in measurer.measure(_task(target), points))
                rates.append(count / (time.monotonic() - start))
    # The machine of the tests is shared; `bench.tuning` measures this on a quiet one.
    assert rates[1] / rates[0] > 3.0
