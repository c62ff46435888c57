"""What a parallel region costs: `python -m bench.fork_join`.

A region of one empty iteration a thread, repeated in one compiled loop: the time from the call to the return, with the
workers awake (regions follow at once) and after a pause in which they keep waiting. Prints a table, writes JSON into
`bench/results/`, ends with one line of JSON. Figures for more threads than idle cores measure the system's scheduler.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import harness
from tilewright.backends.llvm.jit import JitLibrary
from tilewright.backends.llvm.pool import runtime_imports
from tilewright.backends.llvm.toolchain import compile_ir, host_triple
from tilewright.runtime.core.library import bind
from tilewright.support.text import table

_TEXT = """
declare i32 @tw_parallel(ptr, ptr, i64)

define internal i32 @empty(ptr %closure, i64 %begin, i64 %end) {
  ret i32 0
}
define i32 @regions(i64 %threads, i64 %times) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %code = call i32 @tw_parallel(ptr @empty, ptr null, i64 %threads)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %times
  br i1 %more, label %loop, label %done
done:
  ret i32 %code
}
"""
_REGIONS = 2000
_PAUSE = 20e-6
"""Seconds between regions of the second figure: less than workers spin before they sleep."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    harness.say(harness.machine_line())
    counts = sorted({2, 4, harness.all_threads()} & set(range(2, harness.all_threads() + 1)))
    results = {str(threads): measure(threads, options.repeat) for threads in counts}
    rows = [[threads, *(f"{value:.2f}" for value in result.values())] for threads, result in results.items()]
    print(table(["threads", "at once, us", "after a pause, us"], rows))
    summary = {"fork_join_us": results, "machine": harness.machine()}
    harness.write_json(options.json or harness.RESULTS_FOLDER / "fork_join.json", summary)
    print(json.dumps(summary))
    return 0


def measure(threads: int, repeat: int) -> dict[str, float]:
    """Microseconds of a region: the least over the repeats of the mean over regions, and the median after pauses."""
    library = JitLibrary([compile_ir(_TEXT, triple=host_triple())], runtime_imports())
    regions = bind(library, "regions", ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)
    set_threads = bind(library, "tw_set_num_threads", None, ctypes.c_int64)
    set_threads(threads)
    try:
        regions(threads, _REGIONS)
        together = min(_timed(lambda: regions(threads, _REGIONS)) / _REGIONS for _ in range(repeat))
        apart = statistics.median(_after_pause(lambda: regions(threads, 1)) for _ in range(_REGIONS))
        alone = statistics.median(_timed(lambda: regions(1, 1)) for _ in range(_REGIONS))
    finally:
        set_threads(0)
    return {"at_once": round(together * 1e6, 3), "after_pause": round(max(0.0, apart - alone) * 1e6, 3)}


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _after_pause(call: Callable[[], object]) -> float:
    end = time.perf_counter() + _PAUSE
    while time.perf_counter() < end:
        pass
    return _timed(call)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.fork_join", description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=20, help="times each thing is measured (default: 20)")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench/results/)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
