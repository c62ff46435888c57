"""How much room a model leaves to schedules: its time against what its kernels could take at best on this machine.

    python -m bench.room                                            # the ten models, untuned, on one thread
    python -m bench.room --threads 2 --models dcgan --kernels 20    # more of the kernels that lose most

Each kernel does some arithmetic, reads some weights and moves some other data. It takes no less than the arithmetic at
the peak of multiply-adds, than its weights from where all weights of the model fit, and than its other data from where
these alone fit: the largest of the three, summed over the kernels, is the bound. Rates are those that threads reach
together, in loops of nothing else (`tune/peak.py`). A kernel that is quicker than its bound (one that reads a few rows
of a large table) counts as it is. A machine's clock goes up and down by a tenth: peaks and model take turns, and each
turn has a ratio of its own.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, prod
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import tilewright as tw
from bench import harness, zoo
from bench.models import parse_models, parse_threads
from tilewright.lower.database import Database
from tilewright.runtime.core.artifact import ArgKind, ModelInfo
from tilewright.runtime.core.convert import Array
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.core.profiler import Profile, ProfileRow
from tilewright.support.errors import UserError
from tilewright.support.text import table
from tilewright.target import Target
from tilewright.tune.peak import Peak, arithmetic_peak, read_peak

_TURNS, _SECONDS = 12, 3.0
"""Turns of peaks and model: at least, and for about so long."""
_ROUND_SECONDS = 0.02
_ROUNDS = 5
_LEAST_BYTES, _MOST_BYTES = 1 << 14, 1 << 28
_CALL_BYTES = 1 << 26
"""What one call reads at least, over and over where the data are less: so that the call itself does not count."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine does just now: operations of float32 a second, and bytes a second of a model's weights."""

    operations: float
    weights: float


class Limits:
    """What so many threads reach together."""

    def __init__(self, target: Target, threads: int) -> None:
        self.target, self.threads = target, threads
        self._arithmetic: list[Peak] = []
        self._reading: dict[int, list[Peak]] = {}
        self._bytes: dict[int, float] = {}

    def now(self, weights: int) -> Rates:
        """The rates of this moment, of so many bytes of weights."""
        if not self._arithmetic:
            peaks = [arithmetic_peak(self.target, "float32") for _ in range(self.threads)]
            self._arithmetic = [peak for peak in peaks if peak is not None]
        return Rates(together(self._arithmetic), together(self._read(self._place(weights))))

    def bytes(self, size: int) -> float:
        """Bytes a second of so many that are read again and again, by the next power of two below: at its best."""
        place = self._place(size)
        if place not in self._bytes:
            self._bytes[place] = max(together(self._read(place)) for _ in range(_ROUNDS))
        return self._bytes[place]

    def _place(self, size: int) -> int:
        return 1 << int(log2(max(_LEAST_BYTES, min(_MOST_BYTES, size)) / self.threads))

    def _read(self, place: int) -> list[Peak]:
        if place not in self._reading:
            passes = ceil(_CALL_BYTES / place)
            self._reading[place] = [read_peak(self.target, place, passes) for _ in range(self.threads)]
        return self._reading[place]


@dataclass(frozen=True, slots=True)
class Loss:
    """A kernel call of a model: its time when hardly anybody disturbed it, its bound, and what that is a bound of."""

    kernel: str
    seconds: float
    bound: float
    limit: str


@dataclass(frozen=True, slots=True)
class Room:
    """How many times as quick a model could be with the same algorithms, at most; its time, and that of each kernel."""

    ratio: float
    seconds: float
    losses: tuple[Loss, ...]


def room(model: Executable, inputs: Sequence[Array], limits: Limits) -> Room:
    """The room of a model.

    Of all turns about the least: neighbours on a core make a model longer, and hardly the peak of arithmetic.
    """
    clock = time.thread_time if model.threads == 1 else time.perf_counter
    weights, total = step_weights(model.model), model.artifact.constants.nbytes
    ratios: list[float] = []
    profiles: list[Profile] = []
    best = Rates(0.0, 0.0)
    began = time.monotonic()
    while len(ratios) < _TURNS or time.monotonic() - began < _SECONDS:
        rates = limits.now(total)
        profiles.append(model.profile_by(clock, inputs, 1))
        ratios.append(profiles[-1].whole_seconds / bound(profiles[-1], weights, rates, limits))
        best = Rates(max(best.operations, rates.operations), max(best.weights, rates.weights))
    losses = []
    for number, row in enumerate(profiles[0].rows):
        seconds = _about_least([profile.rows[number].seconds for profile in profiles])
        least, limit = _least(row, weights[row.step], best, limits)
        losses.append(Loss(row.kernel.symbol, seconds, min(least, seconds), limit))
    whole = _about_least([profile.whole_seconds for profile in profiles])
    return Room(_about_least(ratios), whole, tuple(losses))


def _about_least(samples: Sequence[float]) -> float:
    return float(np.quantile(samples, 0.1))


def step_weights(model: ModelInfo) -> list[int]:
    """The bytes of constants that each kernel call is given."""
    sizes = {item.offset: prod(item.shape) * storage_dtype(item.dtype).itemsize for item in model.constants}
    return [sum(sizes.get(ref.offset, 0) for ref in step.args if ref.kind is ArgKind.CONSTANT) for step in model.steps]


def bound(profile: Profile, weights: Sequence[int], rates: Rates, limits: Limits) -> float:
    """Seconds that a model's kernels take at least; `weights` are the bytes of constants of each."""
    return sum(min(_least(row, weights[row.step], rates, limits)[0], row.seconds) for row in profile.rows)


def _least(row: ProfileRow, weights: int, rates: Rates, limits: Limits) -> tuple[float, str]:
    """Seconds that a kernel takes at least, and for what."""
    # Rearranged weights may be padded.
    own = min(weights, row.bytes)
    others = row.bytes - own
    return max(
        (row.flops / rates.operations, "arithmetic"),
        (own / rates.weights, "weights"),
        (others / limits.bytes(others), "data"),
    )


def together(peaks: Sequence[Peak]) -> float:
    """Work a second of loops that run at the same time, one a thread.

    Each counts over the time that it had a processor: what else runs here is no limit of the machine.
    """
    rates = [0.0] * len(peaks)
    ready = threading.Barrier(len(peaks))

    def work(number: int) -> None:
        peak = peaks[number]
        peak.call()
        ready.wait()
        began, count = time.thread_time(), 0
        while (spent := time.thread_time() - began) < _ROUND_SECONDS:
            peak.call()
            count += 1
        rates[number] = peak.work * count / spent

    workers = [threading.Thread(target=work, args=(number,)) for number in range(1, len(peaks))]
    for worker in workers:
        worker.start()
    work(0)
    for worker in workers:
        worker.join()
    return sum(rates)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        threads, names = parse_threads(options.threads), parse_models(options.models)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    harness.say(harness.machine_line())
    limits = Limits(Target("native").replace(cores=threads), threads)
    found: dict[str, Room | None] = {}
    with TemporaryDirectory() as folder:
        untuned = Path(folder) / "none.db"
        Database(untuned).close()
        for name in names:
            found[name] = of_model(name, threads, untuned, limits)
    print(render(found, options.kernels))
    return 0


def of_model(name: str, threads: int, database: Path, limits: Limits) -> Room | None:
    """The room of a model of the zoo; None where the virtual machine calls kernels: nobody knows their weights."""
    harness.say(f"{name}: compiling")
    model = tw.compile(str(zoo.path(name)), threads=threads, database=database)
    if model.model.program:
        return None
    inputs = zoo.inputs(name)
    with harness.pinned(threads):
        return room(model, [inputs[info.name] for info in model.input_info], limits)


def render(found: dict[str, Room | None], kernels: int) -> str:
    """The tables for people: models, and of each the kernels that lose most."""
    known = {name: item for name, item in found.items() if item is not None}
    models = [[name, f"{1e3 * item.seconds:.3f}", f"{item.ratio:.3f}"] for name, item in known.items()]
    models += [[name, "-", "-"] for name in found if name not in known]
    rows = []
    for name, item in known.items():
        for loss in sorted(item.losses, key=lambda loss: loss.bound - loss.seconds)[:kernels]:
            times = [f"{1e6 * seconds:.1f}" for seconds in (loss.seconds - loss.bound, loss.seconds, loss.bound)]
            rows.append([name, loss.kernel, *times, loss.limit])
    lost = table(["model", "kernel", "lost us", "time us", "bound us", "of"], rows)
    return f"{table(['model', 'ms', 'room'], models)}\n\n{lost}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.room", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", default="1", help="threads to run on: a number, or 'all' (default: 1)")
    parser.add_argument("--models", default="all", help="comma-separated, or 'all'")
    parser.add_argument("--kernels", type=int, default=5, help="kernels of each model to show (default: 5)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
