"""Where the pool's workers wake up: not on the caller's CPU, and with every CPU that they were allowed before."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.requirements import needs

SCRIPT = """
import ctypes, json, os, threading, time
from tilewright.backends.llvm import pool

imports = pool.runtime_imports()
parallel = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(imports["tw_parallel"])
ctypes.CFUNCTYPE(None, ctypes.c_int64)(imports["tw_set_num_threads"])(2)
notes = []
seen = ctypes.CDLL(None)

@ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
def body(closure, begin, end):
    notes.append((threading.get_native_id(), seen.sched_getcpu()))
    time.sleep(0.02)
    return 0

def region():
    # (the worker's number, its CPU), where it came in time
    notes.clear()
    parallel(ctypes.cast(body, ctypes.c_void_p), None, 2)
    others = [item for item in notes if item[0] != threading.get_native_id()]
    time.sleep(0.02)
    return others[0] if others else None

one, other = sorted(os.sched_getaffinity(0))[:2]
worker = None
while worker is None:
    worker = region()
worker = worker[0]
result = {"apart": 0, "kept": [], "alone": []}
for _ in range(6):
    # The worker falls asleep on the CPU that the caller comes to next.
    os.sched_setaffinity(0, {other})
    os.sched_setaffinity(worker, {one})
    region()
    os.sched_setaffinity(0, {one})
    os.sched_setaffinity(worker, {one, other})
    found = region()
    result["apart"] += found is not None and found[1] == other
    result["kept"].append(sorted(os.sched_getaffinity(worker)) == [one, other])
    # One that may run nowhere else stays.
    os.sched_setaffinity(worker, {one})
    region()
    result["alone"].append(sorted(os.sched_getaffinity(worker)) == [one])
print(json.dumps(result))
"""


@needs("affinity", "two-processors")
def test_workers_wake_beside_their_caller() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True)
    result = json.loads(run.stdout)
    # Others that keep the CPU busy may have the system move it back.
    assert result["apart"] >= 1, result
    assert all(result["kept"]) and all(result["alone"]), result
