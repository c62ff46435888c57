"""Compiled forms of one model run in turns: how long each takes, whole and kernel by kernel, and which is quicker.

A machine gets quicker and slower while it measures, by a quarter and for seconds at a time; runs that follow each other
meet the same weather. So nothing is compared but runs of one turn: what counts is the ratio of two times that were
taken one after the other, over many turns, and how much the turns agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.backends.llvm.deploy import executable
from tilewright.lower.model import LoweredModel
from tilewright.runtime.core.artifact import TensorInfo
from tilewright.runtime.core.convert import Array, lasting_empty
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.core.profiler import ProfileRow
from tilewright.support.errors import UnsupportedError
from tilewright.tune.medians import CLEARLY, SURELY, lower_quartile, median_bound

TURNS, MOST_TURNS, SECONDS = 8, 60, 8.0
"""Turns of profiles: at least, at most, and for about so long, if nothing else is said."""
PLACES, PAIRS, MOST_PAIRS = 4, 6, 400
"""Places in memory for a comparison of plain runs, and the pairs of runs at each: at least, at most."""
_LEAST_PLACES = 3
"""What two places agree about may be luck."""
WORTH = 1.01
"""How many times as quick a model must be for another form of it to be taken: less cannot be told from nothing."""
SAMPLE_SECONDS = 0.02
"""What is shorter runs several times a turn, after one run that finds the caches as the other model left them: weights
of 50 MB are back in the third cache level after three runs."""
_CLOCK_STEP = 1e-9
"""The clock of a thread may stand still during a run of microseconds: no time at all could not be divided by."""
_MEMORY = 2 << 30
"""Bytes for the constants of all models that are tried."""

Parts = Callable[[ProfileRow], Iterable[str]]
"""The names under which the time of a kernel call counts."""
Maker = Callable[[], Executable]


@dataclass(frozen=True, slots=True)
class Times:
    """For each model the seconds of its parts in one run, and of a run as a whole; and how many profiles that took.

    `surely` are the seconds that its parts take at most, when chance is allowed for: of the first model the same as
    `parts`, which the others are measured by.
    """

    parts: tuple[dict[str, float], ...]
    surely: tuple[dict[str, float], ...]
    whole: tuple[float, ...]
    profiles: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Plain runs of two models in pairs: typical seconds of each, and the first's time over the second's of each pair.

    The pairs are by places: at each, code and data of both models lay somewhere else in memory.
    """

    first: float
    second: float
    places: tuple[tuple[float, ...], ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """Of all pairs."""
        return tuple(ratio for place in self.places for ratio in place)

    @property
    def ratio(self) -> float:
        """How many times as quick the second model is."""
        return float(np.median(self.ratios))

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which that lies: as far as chance goes, and wherever the models lay."""
        medians = [float(np.median(place)) for place in self.places]
        ratios = self.ratios
        return min(median_bound(ratios, -CLEARLY), *medians), max(median_bound(ratios, CLEARLY), *medians)

    @property
    def is_quicker(self) -> bool:
        """Whether the second model is quicker: worth the change, in a clear majority of pairs, and at every place."""
        return self.bounds[0] > 1.0 and self.ratio >= WORTH

    @property
    def is_clear(self) -> bool:
        """Whether one of them is the quicker one."""
        return self.is_quicker or self.bounds[1] < 1.0


def time_in_turns(models: Sequence[Executable], parts: Parts = lambda row: (), seconds: float | None = None) -> Times:
    """Profile models in turns, on one plausible input; `seconds` is how long at most, about.

    All but the first are timed by it: their seconds are the first one's typical ones by the ratios of all turns.
    """
    longest = SECONDS if seconds is None else seconds
    inputs = _inputs(models[0])
    clock = _clock(models[0])
    samples: list[list[dict[str, float]]] = [[] for _ in models]
    wholes: list[list[float]] = [[] for _ in models]
    turns, began = 0, time.monotonic()
    while turns < TURNS or (turns < MOST_TURNS and time.monotonic() - began < longest):
        # No model always follows the same other, or comes when the machine was idle.
        for number in _turned(range(len(models)), turns):
            profile = models[number].profile_by(clock, inputs, 1)
            wholes[number].append(profile.whole_seconds)
            seen: dict[str, float] = {}
            for row in profile.rows:
                for name in parts(row):
                    seen[name] = seen.get(name, 0.0) + row.seconds
            samples[number].append(seen)
        turns += 1
    typical, surely = [], []
    for known in samples:
        both = {name: _by_first(name, samples[0], known) for name in known[0]}
        typical.append({name: found[0] for name, found in both.items()})
        surely.append({name: found[1] for name, found in both.items()})
    whole = [lower_quartile(wholes[0]) * _middle(found, wholes[0]) for found in wholes]
    return Times(tuple(typical), tuple(surely), tuple(whole), turns * len(models))


def time_in_chunks(
    first: Executable, others: Sequence[Maker], most: int, parts: Parts, seconds: float | None = None
) -> Times:
    """The same for more models than fit the memory: at most so many at a time, each time with the first one again.

    The seconds of a chunk are brought to those of the first chunk by the first model's times in both.
    """
    size = max(1, most - 1)
    starts = range(0, max(1, len(others)), size)
    chunks = [
        time_in_turns([first, *(make() for make in others[start : start + size])], parts, seconds) for start in starts
    ]
    base = chunks[0]

    def scaled(chunk: Times, known: Sequence[dict[str, float]]) -> list[dict[str, float]]:
        return [
            {name: found * _scale(base.parts[0], chunk.parts[0], name) for name, found in item.items()}
            for item in known[1:]
        ]

    return Times(
        (base.parts[0], *(item for chunk in chunks for item in scaled(chunk, chunk.parts))),
        (base.surely[0], *(item for chunk in chunks for item in scaled(chunk, chunk.surely))),
        (base.whole[0], *(item * base.whole[0] / chunk.whole[0] for chunk in chunks for item in chunk.whole[1:])),
        sum(chunk.profiles for chunk in chunks),
    )


def compare_in_turns(
    first: Executable,
    second: Executable,
    *,
    seconds: float | None = None,
    inputs: Sequence[Array] | None = None,
    until_clear: bool = False,
) -> Comparison:
    """Run two models in turns, as they are used and with nothing measured inside, for about so many seconds.

    Where code, constants and workspace lie in memory makes a model quicker or slower by a percent, whatever its form:
    so both are placed anew several times. `until_clear` ends the comparison when more pairs would change nothing.
    """
    longest = SECONDS if seconds is None else seconds
    given = _inputs(first) if inputs is None else list(inputs)
    samples = [_pairs(first, second, given, longest / PLACES)]
    found = compared(samples)
    while len(samples) < PLACES and not (until_clear and len(samples) >= _LEAST_PLACES and found.is_clear):
        first, second = elsewhere(first), elsewhere(second)
        samples.append(_pairs(first, second, given, longest / PLACES))
        found = compared(samples)
    return found


def most_models(lowered: LoweredModel) -> int:
    """How many compiled forms of a model may be in memory, by the size of its constants."""
    constants = sum(constant.data.nbytes for part in lowered.segments for constant in part.plan.constants)
    return max(1, _MEMORY // max(1, constants))


def _pairs(first: Executable, second: Executable, inputs: Sequence[Array], longest: float) -> list[tuple[float, float]]:
    """Seconds of both models, run one after the other."""
    clock = _clock(first)
    counts = []
    for model in (first, second):
        _sample(model, inputs, clock, 1)
        shortest = min(_sample(model, inputs, clock, 1) for _ in range(2))
        counts.append(1 + int(SAMPLE_SECONDS / max(shortest, 1e-6)))
    count = max(counts)
    found: list[tuple[float, float]] = []
    began = time.monotonic()
    while len(found) < PAIRS or (len(found) < MOST_PAIRS and time.monotonic() - began < longest):
        # Always in this order: each then finds the caches as the other left them, and never as it did itself.
        found.append((_sample(first, inputs, clock, count), _sample(second, inputs, clock, count)))
    return found


def _sample(model: Executable, inputs: Sequence[Array], clock: Callable[[], float], count: int) -> float:
    """The middle of so many runs; where there are several, one more comes before them."""
    if count > 1:
        model(*inputs)
    samples = []
    for _ in range(count):
        began = clock()
        model(*inputs)
        samples.append(clock() - began)
    return max(float(np.median(samples)), _CLOCK_STEP)


def compared(samples: Sequence[Sequence[tuple[float, float]]]) -> Comparison:
    """What pairs of times say, those of each place together."""
    first, second = zip(*(pair for place in samples for pair in place), strict=True)
    places = tuple(tuple(one / other for one, other in place) for place in samples)
    return Comparison(lower_quartile(first), lower_quartile(second), places)


def elsewhere(model: Executable) -> Executable:
    """The same model at another place in memory; constants that are large stay where they are."""
    artifact = model.artifact
    if artifact.constants.nbytes <= _MEMORY // 4:
        moved = lasting_empty(artifact.constants.nbytes)
        moved[...] = artifact.constants
        artifact = replace(artifact, constants=moved)
    return executable(artifact, model.threads)


def _turned(numbers: Sequence[int], turn: int) -> list[int]:
    start = turn % len(numbers)
    return [*numbers[start:], *numbers[:start]]


def _by_first(name: str, first: Sequence[dict[str, float]], known: Sequence[dict[str, float]]) -> tuple[float, float]:
    """Typical seconds of a part, and at most: by the first model's, where that has such a part."""
    own = [item[name] for item in known]
    if first is known or name not in first[0]:
        return lower_quartile(own), lower_quartile(own)
    base = [item[name] for item in first]
    ratios = [one / max(other, 1e-12) for one, other in zip(own, base, strict=True)]
    typical = lower_quartile(base)
    return typical * float(np.median(ratios)), typical * median_bound(ratios, SURELY)


def _middle(own: Sequence[float], first: Sequence[float]) -> float:
    return float(np.median([one / other for one, other in zip(own, first, strict=True)]))


def _scale(base: dict[str, float], own: dict[str, float], name: str) -> float:
    return base[name] / own[name] if name in base and name in own else 1.0


def _inputs(model: Executable) -> list[Array]:
    return [_input(info) for info in model.input_info]


def _input(info: TensorInfo) -> Array:
    """A plausible input: floats around zero; integers of zeros, which are valid places of any table."""
    shape = tuple(extent for extent in info.shape if isinstance(extent, int))
    if len(shape) != len(info.shape):
        raise UnsupportedError(f"the size of the input {info.name} is not known")
    kind = storage_dtype(info.dtype)
    if not np.issubdtype(kind, np.floating):
        return np.zeros(shape, kind)
    return np.random.default_rng(0).standard_normal(shape).astype(kind)


def _clock(model: Executable) -> Callable[[], float]:
    """A model on one thread is timed by the time that it has the processor, as candidates are."""
    return time.thread_time if model.threads == 1 else time.perf_counter
