"""What `make demo` shows: ResNet-18 compiled, checked, timed, exported, and loaded again in a new process."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import tilewright as tw
from bench import harness, zoo
from tilewright.cli import measure, peers, versus
from tilewright.support.errors import UserError
from tilewright.support.text import human_bytes, human_count, human_seconds, table

MODEL = "resnet18"
TOLERANCE = 1e-4
ROUNDS = 8

# What the new process runs: nothing but the exported library and the runtime.
_LOADER = """
import sys, numpy as np, tilewright as tw
library, inputs, outputs = sys.argv[1:]
executable = tw.load(library)
np.savez(outputs, *executable.run(dict(np.load(inputs))))
"""


def main() -> int:
    """Run the demonstration; returns the exit code."""
    os.environ.setdefault("TILEWRIGHT_PROGRESS", "always")
    start = time.perf_counter()
    print(f"Tilewright {tw.__version__} on {harness.machine_line()}\n")
    try:
        worst = demonstrate()
    except UserError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    if worst > TOLERANCE:
        print(f"\nWRONG: the largest relative error, {worst:.1e}, is above {TOLERANCE:.0e}", file=sys.stderr)
        return 1
    print(f"\nAll good, in {human_seconds(time.perf_counter() - start)}. Next: docs/tutorials/, or `make bench`.")
    return 0


def demonstrate() -> float:
    """All the steps; returns the largest relative error seen."""
    with step(1, "Build ResNet-18 with random weights, as ONNX"):
        path, inputs = zoo.path(MODEL), zoo.inputs(MODEL)
        print(f"    {human_count(zoo.SPECS[MODEL].parameters)} parameters, {human_bytes(path.stat().st_size)}: {path}")
    with step(2, "Compile it for this machine"):
        print(f"    target: {tw.Target('native').describe()}", flush=True)
        module = tw.frontend.from_onnx(str(path))
        counts = sorted({1, harness.all_threads()})
        executables = {threads: tw.compile(module, target="native", threads=threads) for threads in counts}
    with step(3, "Check the answer against onnxruntime"):
        expected = peers.onnxruntime(path, 1, inputs)()
        errors = [measure.max_relative_error(exe.run(inputs), expected) for exe in executables.values()]
        print(f"    max relative error {max(errors):.1e} (allowed: {TOLERANCE:.0e})")
        print(f"    top classes {top_classes(executables[1].run(inputs)[0])}, onnxruntime {top_classes(expected[0])}")
    with step(4, "Time it"):
        print(latency_table(path, inputs, executables))
    with step(5, "Export a library, load it in a new process"):
        errors.append(export_and_load(executables[1], inputs))
    return max(errors)


@contextmanager
def step(number: int, title: str) -> Iterator[None]:
    """Announce a step, and say how long it took."""
    print(f"[{number}/5] {title}", flush=True)
    start = time.perf_counter()
    yield
    print(f"    ({human_seconds(time.perf_counter() - start)})", flush=True)


def top_classes(logits: np.ndarray) -> list[int]:
    """The three classes with the largest logits."""
    return [int(index) for index in np.argsort(-logits.reshape(-1))[:3]]


def latency_table(path: Path, inputs: zoo.Arrays, executables: dict[int, tw.Executable]) -> str:
    """Median and least latency of Tilewright and onnxruntime, for each number of threads."""
    rows = []
    for threads, executable in executables.items():
        rival = measure.LocalSampler(peers.onnxruntime(path, threads, inputs))
        ours = measure.LocalSampler(functools.partial(executable.run, inputs))
        standing = versus.against(lambda place, ours=ours: ours, {"onnxruntime": rival}, ROUNDS, threads=threads)
        for name, (median, least) in standing.times("Tilewright").items():
            rate = zoo.SPECS[MODEL].gflop / median * 1e3
            rows.append([name, str(threads), measure.format_ms(median), measure.format_ms(least), f"{rate:.1f}"])
    text = table(["", "threads", "median ms", "min ms", "GFLOP/s"], rows)
    return "\n".join(f"    {line}" for line in text.splitlines())


def export_and_load(executable: tw.Executable, inputs: zoo.Arrays) -> float:
    """Export, run the library in a new process on the same inputs, and give its largest relative difference."""
    with tempfile.TemporaryDirectory() as folder:
        library, fed, answers = (Path(folder) / name for name in ("resnet18.so", "inputs.npz", "outputs.npz"))
        executable.export_library(str(library))
        print(f"    exported {library.name}, {human_bytes(library.stat().st_size)}")
        np.savez(fed, **inputs)
        result = subprocess.run(
            [sys.executable, "-c", _LOADER, str(library), str(fed), str(answers)],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise UserError(f"the new process could not run the exported library:\n{result.stderr.strip()}")
        with np.load(answers, allow_pickle=False) as loaded:
            outputs = [loaded[name] for name in loaded.files]
    difference = measure.max_relative_error(outputs, executable.run(inputs))
    print(f"    a new process loaded and ran it: its answer differs from ours by {difference:.1e} at most")
    return difference


if __name__ == "__main__":
    sys.exit(main())
