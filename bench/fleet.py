"""How tuning scales with devices: `python -m bench.fleet`.

A tracker and up to eight servers on loopback; each candidate sleeps for 200 ms when it is measured, as if it ran on a
device of its own. Prints measurements a second with 1, 2, 4 and 8 servers and their ratio to one, writes JSON into
`bench/results/`, ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from bench import harness
from tilewright import rpc, te
from tilewright.backends.host import compile_functions
from tilewright.backends.llvm import link_elf
from tilewright.ir.build import cast
from tilewright.ir.intrinsics import call_extern
from tilewright.lower.cost import work_of
from tilewright.lower.kernel import CompiledKernel, Kernel
from tilewright.rpc.background import serve_in_background
from tilewright.rpc.tracker import Tracker, TrackerOptions
from tilewright.support.text import table
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tune.builder import BuildRequest
from tilewright.tune.measure import Limits
from tilewright.tune.remote import RemoteMeasurer
from tilewright.tune.runner import Budget
from tilewright.tune.task import Task

HOST = "127.0.0.1"
TOKEN = "a token of some length"
DEVICE_TOKEN = "a token of the fleet's devices"
SYMBOL = "tw_fleet_0"
KEY = "cpu"
_SECONDS = 0.2
_PER_DEVICE = 6


def sleeping_program(seconds: float) -> PrimFunc:
    """`b = 2 a`, four elements, which takes so long."""
    a = te.placeholder((4,), "float32", "a")
    micro = round(seconds * 1e6 / 4)
    b = te.compute((4,), lambda i: a[i] * 2.0 + cast(call_extern("int32", "usleep", micro), "float32"), "b")
    return te.create_schedule(b.op).func([a, b]).replace(name=SYMBOL)


def sleeping_task(target: Target, seconds: float) -> Task:
    """A task whose default takes so long."""
    func = sleeping_program(seconds)
    return Task(Kernel(SYMBOL, func, work_of(func)), target)


@contextmanager
def programs_may_sleep() -> Iterator[None]:
    """Compiled programs never call `usleep`; those that stand for slow devices do."""
    with mock.patch.object(link_elf, "_LIBC", link_elf._LIBC | {"usleep"}):
        yield


class ReadyBuilder:
    """In place of a building process: candidates are built beforehand; their answer `kind` says which is meant."""

    def __init__(self, target: Target, programs: dict[str, PrimFunc]) -> None:
        self._codes = {kind: CompiledKernel(compile_functions([func], target), {}) for kind, func in programs.items()}

    def ask(self, request: object, seconds: float) -> object:
        """The candidate's code."""
        assert isinstance(request, BuildRequest)
        return self._codes[str(request.kernel.answers["kind"])]

    def close(self) -> None:
        """Nothing runs."""


@contextmanager
def fleet(tracker: Tracker, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many servers in processes of their own, registered with the tracker."""
    words = ["rpc", "server", "--port", "0", "--tracker", f"{HOST}:{tracker.port}", "--key", KEY]
    words += ["--device-token", DEVICE_TOKEN, "--target", "llvm -mtriple=x86_64-linux-gnu", "--memory", "16GB"]
    command = [sys.executable, "-m", "tilewright", *words]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(count)]
    try:
        client = rpc.connect_tracker(HOST, tracker.port, token=TOKEN)
        deadline = time.monotonic() + 120
        while len(client.query()["devices"]) < count:
            if time.monotonic() > deadline:
                raise TimeoutError("the servers did not register")
            time.sleep(0.1)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measurer(tracker: Tracker, devices: int, builder: ReadyBuilder) -> RemoteMeasurer:
    """Measures on so many devices of the fleet, one sample a candidate."""
    made = RemoteMeasurer(
        rpc.connect_tracker(HOST, tracker.port, token=TOKEN),
        KEY,
        devices=devices,
        builders=1,
        budget=Budget(sample_seconds=0.001, samples=1),
        limits=Limits(run_seconds=6),
        wait_seconds=60,
    )
    made._builders = [builder]  # type: ignore[list-item]
    return made


def rate(tracker: Tracker, devices: int, count: int, target: Target) -> float:
    """Measurements a second on so many devices, each with its session open already."""
    task = sleeping_task(target, _SECONDS)
    builder = ReadyBuilder(target, {"slow": sleeping_program(_SECONDS)})
    with measurer(tracker, devices, builder) as measuring:
        list(measuring.measure(task, [{"kind": "slow", "number": -1 - n} for n in range(2 * devices)]))
        points = [{"kind": "slow", "number": number} for number in range(count)]
        start = time.monotonic()
        if not all(result.seconds for result in measuring.measure(task, points)):
            raise RuntimeError("a measurement failed")
        return count / (time.monotonic() - start)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument("--per-device", type=int, default=_PER_DEVICE, help="measurements for each server")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args(arguments)
    harness.say(harness.machine_line())
    target = Target("native").replace(cores=1)
    rates: dict[int, float] = {}
    tracker_options = TrackerOptions(port=0, token=TOKEN, device_token=DEVICE_TOKEN)
    with programs_may_sleep(), serve_in_background(Tracker(tracker_options)) as tracker, fleet(tracker, 8):
        for devices in (1, 2, 4, 8):
            harness.say(f"{devices} of 8 servers")
            rates[devices] = rate(tracker, devices, devices * options.per_device, target)
    rows = [[str(devices), f"{value:.2f}", f"{value / rates[1]:.2f}x"] for devices, value in rates.items()]
    print(table(["servers", "measurements a second", "against one"], rows))
    summary = {
        "measurement_seconds": _SECONDS,
        "rates": {str(devices): round(value, 3) for devices, value in rates.items()},
        "speedup_8": round(rates[8] / rates[1], 3),
        "machine": harness.machine(),
    }
    harness.write_json(options.json or harness.RESULTS_FOLDER / "fleet.json", summary)
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
