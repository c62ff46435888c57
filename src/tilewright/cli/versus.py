"""Tilewright against peers in pairs of runs: how many times as quick it is, and between which bounds that lies.

A shared machine gets quicker and slower by a quarter, for seconds at a time. So a peer is compared with nothing but the
runs of ours right before or after its own (`tune/turns.py`), pair by pair: the ratio is the middle of all pairs. In
each round every peer has its pairs, and ours is moved in memory several times, since where it lies makes it quicker or
slower by half a percent for as long as it lives. Peers stay where they are: that much of a ratio is luck.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.cli.measure import Sampler
from tilewright.tune.turns import PLACES, SAMPLE_SECONDS, Comparison, compared

_ROUND_SECONDS = 0.6
"""How long a peer and ours run against each other in a round; one pair at least."""
_CLOSE = 1.2
"""A peer that takes more than so many times as long as the quickest one has one pair a round: nobody asks how much."""
_LEAST_ALONE = 20
"""Undisturbed pairs that a peer must have for the disturbed ones to be left out."""
_SETTLE_SECONDS = 0.02
"""Threads of a pool spin for a moment after a call, which the next one must not pay for."""

Place = Callable[[int], Sampler]
"""Ours at a place in memory, by its number."""


class Watch(Protocol):
    """Somebody who notices when the machine is not ours alone."""

    def look(self) -> float:
        """How things are just now."""

    def was_alone(self, *looks: float) -> bool:
        """Whether all was well at these looks."""


@dataclass(slots=True)
class Pairs:
    """Pairs of times in milliseconds (the peer's, ours), by the place of ours; those under disturbance are apart."""

    alone: list[list[tuple[float, float]]] = field(default_factory=lambda: [[] for _ in range(PLACES)])
    disturbed: list[list[tuple[float, float]]] = field(default_factory=lambda: [[] for _ in range(PLACES)])

    @property
    def count_alone(self) -> int:
        """How many were not disturbed."""
        return sum(map(len, self.alone))

    @property
    def count(self) -> int:
        """How many there are."""
        return self.count_alone + sum(map(len, self.disturbed))

    @property
    def ratio(self) -> float:
        """How many times as long the peer takes, as far as is known."""
        return self.compared(only_alone=False).ratio if self.count else 1.0

    def compared(self, *, only_alone: bool) -> Comparison:
        """What they say: `ratio` is how many times as quick as the peer ours is."""
        places = self.alone if only_alone else [*map(list.__add__, self.alone, self.disturbed)]
        return compared([place for place in places if place])


@dataclass(frozen=True, slots=True)
class Standing:
    """Where ours stands: milliseconds of its runs, a comparison and the quickest run of each peer."""

    ours: tuple[float, ...]
    peers: dict[str, Comparison]
    least: dict[str, float]
    alone: float
    """The part of pairs in which nobody disturbed."""

    @property
    def median_ms(self) -> float:
        """The middle of our runs."""
        return statistics.median(self.ours)

    def peer_ms(self, name: str) -> float:
        """The same of a peer: ours by the ratio of pairs, since what each took by itself depends on when it ran."""
        return self.median_ms * self.peers[name].ratio

    def times(self, ours: str) -> dict[str, tuple[float, float]]:
        """The middle and the least milliseconds of all, ours by the name given."""
        peers = {name: (self.peer_ms(name), self.least[name]) for name in self.peers}
        return {ours: (self.median_ms, min(self.ours)), **peers}


def against(
    ours: Place,
    peers: Mapping[str, Sampler],
    rounds: int,
    *,
    threads: int = 1,
    watch: Watch | None = None,
    round_done: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Standing:
    """Time ours against each peer, in so many rounds (as many places as there are rounds, where these are few).

    `round_done` is called after each round. `clock` says when a round is over.
    """
    own, others = _Runs(ours(0), threads), {name: _Runs(peer, threads) for name, peer in peers.items()}
    pairs = {name: Pairs() for name in peers}
    place, order = 0, list(peers)
    for number in range(rounds):
        if (wanted := number * PLACES // rounds) != place:
            place = wanted
            own.sampler = ours(place)
        quickest = min((known.ratio for known in pairs.values()), default=1.0)
        turn = number % len(order) if order else 0
        for name in order[turn:] + order[:turn]:
            known, began = pairs[name], clock()
            longest = _ROUND_SECONDS if known.ratio <= _CLOSE * quickest else 0.0
            while True:
                before = watch.look() if watch is not None else 0.0
                # Always in this order: each then finds the caches as another left them, and never as it did itself.
                pair = others[name](), own()
                alone = watch is None or watch.was_alone(before, watch.look())
                (known.alone if alone else known.disturbed)[place].append(pair)
                if clock() - began >= longest:
                    break
        if not order:
            own()
        round_done()
    total = sum(known.count for known in pairs.values())
    return Standing(
        tuple(own.seen),
        {name: known.compared(only_alone=known.count_alone >= _LEAST_ALONE) for name, known in pairs.items()},
        {name: min(runs.seen) for name, runs in others.items()},
        sum(known.count_alone for known in pairs.values()) / total if total else 1.0,
    )


class _Runs:
    """Takes samples of one competitor, and keeps all of its runs."""

    def __init__(self, sampler: Sampler, threads: int) -> None:
        self.sampler = sampler
        self.seen: list[float] = []
        self._settle = _SETTLE_SECONDS if threads > 1 else 0.0
        # The first run may have met a busy machine, and some runtimes still learn in it.
        quickest = min(sampler.sample(3))
        self._count = 1 + int(1e3 * SAMPLE_SECONDS / max(quickest, 1e-3))

    def __call__(self) -> float:
        """Milliseconds of a run: the middle of a few."""
        if self._settle:
            time.sleep(self._settle)
        runs = self.sampler.sample(self._count)
        self.seen += runs
        return statistics.median(runs)
