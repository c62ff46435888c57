"""Getting the programs of `bench.gpu` ready ahead of time, each in a process of its own.

torch.compile takes tens of seconds a model, minutes where it tries kernels; ours takes seconds. Both keep what they
made on disk. `bench.gpu --ahead 12` compiles all programs in 12 processes before it times the first one: then each is
timed from warm caches, with the GPU to itself. While kernels are being tried out to choose between them, the GPU is one
process's (a file lock), so that the choices are those of a compilation that runs alone.

    python3 -m bench.gpu_ahead resnet50 1 fp16 autotune channels_last      # one program
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from bench import harness, zoo

OURS = "tilewright"
GRAPH = "graph"
"""PyTorch as a CUDA graph of its operators: it is timed with whatever else is."""
IMAGES = (
    "resnet18",
    "resnet50",
    "mobilenet_v1",
    "mobilenet_v2",
    "dqn",
    "dcgan",
    "efficientnet_b0",
    "convnext_t",
    "densenet121",
    "regnet_y",
    "resnext50",
)
"""The models that have a layout to choose."""

PRECISIONS = {"fp32": "float32", "tf32": "tf32", "fp16": "float16"}
"""The precisions of the benchmark and what `tilewright.compile` calls them."""

_LONGEST_FIRST = ("resnet50", "mobilenet_v2", "resnet18", "mobilenet_v1", "bert_base", "lstm_lm_35", "bert_small")
_WAYS = (OURS, "compile", "autotune")
_LOCK = Path(tempfile.gettempdir()) / "tilewright-bench-gpu.lock"


@dataclass(frozen=True)
class Program:
    """One program to be timed: a model in one size and precision, compiled in one way, in one layout."""

    model: str
    batch: int
    precision: str
    way: str
    layout: str = ""

    @property
    def peer(self) -> str:
        """The way and the layout: what the program is called beside others of its model."""
        return f"{self.way} {self.layout}".rstrip()

    def __str__(self) -> str:
        return " ".join(str(part) for part in astuple(self) if part != "")


def layouts(model: str, way: str = GRAPH) -> tuple[str, ...]:
    """The layouts that a model is run in: its compiler chooses layouts itself, and gives the same kernels from both."""
    return ("", "channels_last") if model in IMAGES and way == GRAPH else ("",)


def programs(wanted: Mapping[tuple[int, str, str], Sequence[str]]) -> list[Program]:
    """What has to be compiled: ours first, then what takes longest.

    `wanted` says in which ways torch compiles each configuration (batch, precision, model).
    """
    found = [
        Program(model, batch, precision, way, layout)
        for (batch, precision, model), compiled in wanted.items()
        if model in zoo.known()
        for way in (*compiled, OURS)
        for layout in layouts(model, way)
    ]
    rank = {model: place for place, model in enumerate(_LONGEST_FIRST)}
    return sorted(found, key=lambda item: (_WAYS.index(item.way), rank.get(item.model, len(rank))))


def prepare_all(wanted: Sequence[Program], processes: int, limit: float) -> dict[Program, str]:
    """Compile programs in processes of their own; those that did not get ready, and why.

    After `limit` seconds, those that still run are stopped and no other is begun.
    """
    started = time.perf_counter()
    waiting, failed = list(wanted), dict[Program, str]()
    running: dict[Program, subprocess.Popen[bytes]] = {}
    # Where there are more cores than programs at a time, torch's compiler may use the others for its trial kernels.
    helpers = max(1, (os.cpu_count() or 1) // max(1, min(processes, len(wanted))))
    with tempfile.TemporaryDirectory() as folder:
        logs = {program: Path(folder) / str(number) for number, program in enumerate(wanted)}
        try:
            while waiting or running:
                if time.perf_counter() - started > limit:
                    failed.update(dict.fromkeys((*waiting, *running), "no time left to compile it"))
                    break
                while waiting and len(running) < processes:
                    program = waiting.pop(0)
                    running[program] = _start(program, logs[program], helpers)
                time.sleep(0.05)
                for program, process in list(running.items()):
                    if process.poll() is None:
                        continue
                    del running[program]
                    if process.returncode:
                        failed[program] = _last_error(logs[program]) or f"exit code {process.returncode}"
                    ready = f"{len(wanted) - len(waiting) - len(running)} of {len(wanted)}"
                    text = f"ahead: {ready} after {time.perf_counter() - started:.0f} s: {program}"
                    parts = (text, failed.get(program), _last_line(logs[program], Trials.HEAD))
                    harness.say(": ".join(part for part in parts if part))
        finally:
            for program, process in running.items():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                harness.say(f"ahead: stopped {program}: {_last_line(logs[program], Trials.HEAD)}")
    return failed


def _start(program: Program, log: Path, helpers: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-m", "bench.gpu_ahead", *map(str, astuple(program))]
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": str(helpers), **os.environ}
    with log.open("wb") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)


def _last_error(log: Path) -> str:
    """The line of a log that says what went wrong: the last one that looks like an exception."""
    return _last_line(log, r"[\w.]*(Error|Exception|Failed|TooLong)\b") or _last_line(log, "")


def _last_line(log: Path, pattern: str) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return next((line[:200] for line in reversed(lines) if re.match(pattern, line)), "")


def prepare(program: Program) -> None:
    """Compile one program, so that what it made is in the caches on disk."""
    from bench import batches, gpu_torch

    half = program.precision == "fp16"
    if program.way == OURS:
        from tilewright.compiler import Compilation

        model = batches.model(program.model, program.batch, False)
        Compilation(model.SerializeToString(), target="cuda", precision=PRECISIONS[program.precision]).artifact()
        return
    _try_kernels_alone()
    model = batches.model(program.model, program.batch, half)
    inputs = batches.inputs(program.model, program.batch, half)
    ready = gpu_torch.TorchModel.of_onnx(model, inputs, bool(program.layout), program.precision == "tf32")
    ready.compiled(gpu_torch.COMPILED[program.way])


def _try_kernels_alone() -> None:
    """Let torch's compiler time kernels only while no other process here does."""
    from torch._inductor.runtime import benchmarking

    kind = type(benchmarking.benchmarker)
    time_kernel = kind.benchmark_gpu
    trials = Trials()

    @functools.wraps(time_kernel)
    def benchmark_gpu(self: Any, kernel: Callable[[], Any], *arguments: Any, **named: Any) -> Any:
        with trials.seconds("loading"):
            kernel()  # The first call compiles it, which takes longer than timing it and needs no GPU.
        with ExitStack() as lock:
            with trials.seconds("waiting"):
                lock.enter_context(alone())
            with trials.seconds("timing"):
                result = time_kernel(self, kernel, *arguments, **named)
        trials.one_more()
        return result

    kind.benchmark_gpu = benchmark_gpu


class Trials:
    """What trying out kernels took so far; says so now and then, for the log of the process."""

    HEAD = "tried "

    def __init__(self) -> None:
        self._kernels = 0
        self._started = time.perf_counter()
        self._spent = Counter[str]()

    @contextmanager
    def seconds(self, what: str) -> Iterator[None]:
        """Count the time of the body as spent on something."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent[what] += time.perf_counter() - start

    def one_more(self) -> None:
        """Count a kernel."""
        self._kernels += 1
        if self._kernels % 5 == 0:
            spent = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self._spent.items())
            print(
                f"{self.HEAD}{self._kernels} kernels in {time.perf_counter() - self._started:.0f} s: {spent}",
                flush=True,
            )


class _Held(threading.local):
    depth = 0


_held = _Held()


@contextmanager
def alone() -> Iterator[None]:
    """Hold the file lock of the GPU; may be entered again by the thread that holds it."""
    with _LOCK.open("w") as file:
        if not _held.depth:
            fcntl.flock(file, fcntl.LOCK_EX)
        _held.depth += 1
        try:
            yield
        finally:
            _held.depth -= 1  # closing the file gives the lock back


def main(arguments: Sequence[str]) -> int:
    """Prepare the program that the arguments name."""
    model, batch, precision, way, *layout = arguments
    prepare(Program(model, int(batch), precision, way, *layout))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
