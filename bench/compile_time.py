"""How long compiling takes: `python -m bench.compile_time`.

Measures, in new processes: `import tilewright`; ResNet-50 compiled with an empty cache folder, then again from that
cache; and, here, schedule primitives on a convolution. Prints tables (with the time of every pass of the cold
compilation), writes JSON into `bench/results/`, ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import harness, zoo
from bench.kernel_cases import convolution
from tilewright.compiler import Compilation
from tilewright.support.errors import UserError
from tilewright.support.text import table
from tilewright.target import Target
from tilewright.tir.schedule.schedule import Schedule

_IMPORT = "import time; start = time.perf_counter(); import tilewright; print(time.perf_counter() - start)"

# What a user waits for, imports included; the report of passes goes to stderr and the figures to stdout.
_COMPILE = """
import json, sys, time
start = time.perf_counter()
import tilewright as tw
from tilewright.support import trace
with trace.collect() as times:
    tw.compile(sys.argv[1], target="native", threads=int(sys.argv[2]))
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "report": times.report()}))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.model not in zoo.SPECS:
        print(f"error: unknown model '{options.model}': the models are {', '.join(zoo.names())}", file=sys.stderr)
        return 2
    harness.say(harness.machine_line())
    harness.write_bytecode()
    imports = import_seconds(options.repeat)
    cold, warm, report = compile_seconds(options.model, options.threads, options.repeat)
    primitives = primitive_milliseconds(options.repeat)
    print(report)
    rows = [
        ["import tilewright", f"{imports:.3f} s", "0.2 s"],
        [f"{options.model}, empty cache", f"{cold:.2f} s", "20 s"],
        [f"{options.model}, from the cache", f"{warm:.2f} s", "1 s"],
        ["a schedule primitive, median", f"{statistics.median(primitives.values()):.2f} ms", "2 ms"],
    ]
    print(table(["", "measured", "goal"], rows))
    print(table(["primitive", "ms"], [[name, f"{value:.3f}"] for name, value in primitives.items()]))
    summary = {
        "import_s": round(imports, 4),
        "cold_s": round(cold, 3),
        "warm_s": round(warm, 3),
        "model": options.model,
        "primitive_ms": round(statistics.median(primitives.values()), 4),
        "primitives_ms": {name: round(value, 4) for name, value in primitives.items()},
        "machine": harness.machine(),
    }
    path = options.json or harness.RESULTS_FOLDER / "compile_time.json"
    harness.write_json(path, summary)
    print(json.dumps(summary))
    return 0


def import_seconds(repeat: int) -> float:
    """The median time of `import tilewright` in a new process."""
    return statistics.median(float(_run(["-c", _IMPORT])) for _ in range(repeat + 1))


def compile_seconds(model: str, threads: int, repeat: int) -> tuple[float, float, str]:
    """Median seconds with an empty cache folder and with the filled one, and the pass times of a cold compilation."""
    path = zoo.path(model)
    cold: list[float] = []
    warm: list[float] = []
    report = ""
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            for samples in (cold, warm):
                reply = json.loads(_run(["-c", _COMPILE, str(path), str(threads)], TILEWRIGHT_CACHE_DIR=folder))
                samples.append(reply["seconds"])
                report = reply["report"] if samples is cold else report
                harness.say(f"{model}: {reply['seconds']:.2f} s {'cold' if samples is cold else 'from the cache'}")
    return statistics.median(cold), statistics.median(warm), report


def _run(arguments: Sequence[str], **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise UserError(f"the measured process failed:\n{result.stderr.strip()}")
    return result.stdout.strip()


def primitive_milliseconds(repeat: int) -> dict[str, float]:
    """Median milliseconds of schedule primitives on a 3 x 3 convolution with bias and ReLU: a tiled, fused schedule."""
    case = convolution("primitives", 28, 128, 128, 3)
    compilation = Compilation(case.module(), Target("native"), threads=1, winograd=False)
    [kernel] = compilation.kernels
    samples: dict[str, list[float]] = {}
    for _ in range(max(3, repeat)):
        tile_convolution(_Timed(Schedule(kernel.func), samples))
    return {name: statistics.median(values) for name, values in samples.items()}


class _Timed:
    """Calls primitives of a schedule and keeps how long each took."""

    def __init__(self, schedule: Schedule, samples: dict[str, list[float]]) -> None:
        self.schedule = schedule
        self._samples = samples

    def do(self, name: str, *arguments: Any) -> Any:
        """Apply a primitive."""
        # The time of this thread: what other processes do on a busy machine is no part of a primitive.
        start = time.thread_time()
        result = getattr(self.schedule, name)(*arguments)
        self._samples.setdefault(name, []).append((time.thread_time() - start) * 1e3)
        return result


def tile_convolution(timed: _Timed) -> None:
    """A schedule of the usual kind: epilogue in the tile, register tile, vectors, reduction started apart."""
    schedule = timed.schedule
    products, epilogue = schedule.get_block("conv2d"), schedule.get_block("relu")
    timed.do("compute_inline", schedule.get_block("add"))
    timed.do("compute_inline", schedule.get_block("pad_data"))
    batch, row, column, channel = schedule.get_loops(epilogue)
    timed.do("annotate", batch, "note", 1)
    column_outer, column_inner = timed.do("split", column, [None, 7])
    channel_outer, channel_inner = timed.do("split", channel, [None, 32])
    timed.do("reorder", row, column_outer, channel_outer, column_inner, channel_inner)
    timed.do("compute_at", products, channel_outer)
    timed.do("vectorize", channel_inner)
    timed.do("unroll", column_inner)
    timed.do("parallel", timed.do("fuse", batch, row))
    loops = schedule.get_loops(products)
    timed.do("decompose_reduction", products, loops[-3])
    timed.do("cache_read", products, "p1", "local")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.compile_time", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="resnet50", help="the model to compile (default: resnet50)")
    parser.add_argument("--threads", type=int, default=1, help="threads it is compiled for (default: 1)")
    parser.add_argument("--repeat", type=int, default=3, help="times each thing is measured (default: 3)")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench/results/)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
