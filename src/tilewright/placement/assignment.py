"""Which part of a computation runs where: the places that take least, copies included.

Parts have a time at each place, places are numbered, and the first is the host. A value that is computed at one place
and read at another is copied through the host: down from a device once, up to each device that reads it once.

The least sum of all that is a minimum cut where there are two places. With more it is found by *expansions* (Boykov,
Veksler and Zabih): of all the ways to move any parts to one place, the best is a minimum cut; places take turns until
no move helps. `schedule` then says when everything runs if places work at once, and `shortened` moves parts so that
the whole is done sooner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tilewright.placement.network import Network

HOST: Final = "the host"
"""The writer of inputs and a reader of outputs."""
_UNIT: Final = 1e-9
"""Costs of a cut are whole nanoseconds: sums of them are exact."""
_NEVER: Final = 1 << 60
_KEEPS, _MOVES = "stays where it is", "moves"
_ROUNDS: Final = 4
"""How often all parts are looked at for moves that shorten the whole."""
_WORTH: Final = 0.98
"""What part of the time must be left by a move to be made: less is within what measuring is wrong by."""

Seconds = tuple[float | None, ...]
"""What a part takes at each place; None where it cannot run."""


@dataclass(frozen=True, slots=True)
class Link:
    """Copies between host and device: what each takes, and what a byte of it takes."""

    latency: float
    seconds_per_byte: float

    def seconds(self, size: int) -> float:
        """What a copy of some bytes takes."""
        return self.latency + size * self.seconds_per_byte


@dataclass(frozen=True, slots=True)
class Value:
    """What one part writes and others read."""

    writer: str
    readers: frozenset[str]
    size: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Parts in an order in which they can run, the values between them, and a link for each place but the host."""

    parts: Mapping[str, Seconds]
    values: Sequence[Value]
    links: Sequence[Link]

    def copies(self, value: Value, places: Mapping[str, int]) -> tuple[int | None, list[int]]:
        """The copies of a value: the device it is copied down from, and the devices it is copied up to."""
        writer = places[value.writer]
        read_at = {places[reader] for reader in value.readers} - {writer}
        return (writer if writer and read_at else None), sorted(read_at - {0})

    def copy_seconds(self, place: int, size: int) -> float:
        """What a copy between the host and a device takes."""
        return self.links[place - 1].seconds(size)

    def total(self, places: Mapping[str, int]) -> float:
        """What a run takes if nothing is done at once."""
        placed = {**places, HOST: 0}
        seconds = [times[placed[name]] for name, times in self.parts.items()]
        total = sum(_NEVER if item is None else item for item in seconds)
        for value in self.values:
            down, ups = self.copies(value, placed)
            for place in ([] if down is None else [down]) + ups:
                total += self.copy_seconds(place, value.size)
        return total


def cheapest(problem: Problem) -> dict[str, int]:
    """The places of all parts for which a run takes least: exact for two places, no expansion helps for more."""
    on_host = dict.fromkeys(problem.parts, 0)
    each_best = {name: _quickest(times) for name, times in problem.parts.items()}
    found = [_expanded(problem, start) for start in (on_host, each_best)]
    return min(found, key=problem.total)


def _quickest(times: Seconds) -> int:
    known = [(seconds, place) for place, seconds in enumerate(times) if seconds is not None]
    return min(known)[1]


def _expanded(problem: Problem, places: dict[str, int]) -> dict[str, int]:
    """Expand each place in turn until none of them makes the run cheaper."""
    count = len(problem.links) + 1
    cost, idle, place = problem.total(places), 0, count - 1
    while idle < count:
        moved = _expansion(problem, places, place)
        moved_cost = problem.total(moved)
        idle = 0 if moved_cost < cost - _UNIT else idle + 1
        if not idle:
            places, cost = moved, moved_cost
        place = (place + 1) % count
    return places


def _expansion(problem: Problem, places: Mapping[str, int], target: int) -> dict[str, int]:
    """The best of all the ways to move any parts to a place: those that stay are a side of a minimum cut."""
    moves = _Moves(problem, places, target)
    for name, times in problem.parts.items():
        if places[name] != target:
            moves.network.add(_KEEPS, name, _whole(times[target]))
            moves.network.add(name, _MOVES, _whole(times[places[name]]))
    for number, value in enumerate(problem.values):
        moves.add(value, number)
    kept = moves.network.minimum_cut(_KEEPS, _MOVES)
    return {name: place if place == target or name in kept else target for name, place in places.items()}


class _Moves:
    """The network of an expansion: an edge is cut, and paid for, where its beginning stays and its end moves."""

    def __init__(self, problem: Problem, places: Mapping[str, int], target: int) -> None:
        self.network = Network()
        self._problem = problem
        self._target = target
        self._label = {**places, HOST: 0}

    def _node(self, name: str) -> str:
        """What stands for a part: what is at the target already counts as moved."""
        if self._label[name] == self._target:
            return _MOVES
        return _KEEPS if name == HOST else name

    def add(self, value: Value, number: int) -> None:
        """The copies of a value."""
        add, target = self.network.add, self._target
        writer, home = self._node(value.writer), self._label[value.writer]
        readers = [(self._node(reader), self._label[reader]) for reader in sorted(value.readers)]

        def cost(place: int) -> int:
            return _whole(self._problem.copy_seconds(place, value.size))

        for place in sorted({where for _, where in readers} - {0, target}):
            # Up to another device than the target: if a reader stays there, and the writer is not there or leaves it.
            waypoint = f"up {place} of {number}"
            for reader, where in readers:
                if where == place:
                    add(reader, waypoint, _NEVER)
            add(waypoint, writer if home == place else _MOVES, cost(place))
        if target:
            # Up to the target: if the writer stays and a reader is or comes there; down from it: the other way round.
            for reader, _ in readers:
                add(f"up {target} of {number}", reader, _NEVER)
                add(reader, f"down {target} of {number}", _NEVER)
            add(writer, f"up {target} of {number}", cost(target))
            add(f"down {target} of {number}", writer, cost(target))
        if home not in (0, target):
            # Down from where it is now: if the writer stays, and a reader is elsewhere or moves.
            waypoint = f"down {home} of {number}"
            for reader, where in readers:
                add(waypoint, reader if where == home else _MOVES, _NEVER)
            add(writer, waypoint, cost(home))


def _whole(seconds: float | None) -> int:
    return _NEVER if seconds is None else round(seconds / _UNIT)


@dataclass(frozen=True, slots=True)
class Occupied:
    """What keeps a place or a link busy, from when to when. Links are negative places: -1 is that of place 1."""

    place: int
    name: str
    begin: float
    end: float


@dataclass(slots=True)
class Schedule:
    """When everything runs if places and links work at once, each on one thing at a time, in order."""

    spans: list[Occupied] = field(default_factory=list)
    _free: dict[int, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """When the last is done."""
        return max((span.end for span in self.spans), default=0.0)

    def put(self, place: int, name: str, ready: float, seconds: float) -> float:
        """Occupy a place as soon as it is free; returns the end."""
        begin = max(ready, self._free.get(place, 0.0))
        self._free[place] = begin + seconds
        self.spans.append(Occupied(place, name, begin, begin + seconds))
        return begin + seconds


def schedule(problem: Problem, places: Mapping[str, int]) -> Schedule:
    """What a run looks like: a part begins when its place is free and all that it reads is there."""
    made = Schedule()
    placed = {**places, HOST: 0}
    by_writer: dict[str, list[tuple[int, Value]]] = {}
    for number, value in enumerate(problem.values):
        by_writer.setdefault(value.writer, []).append((number, value))
    arrived: dict[tuple[str, int], float] = {}

    def send(writer: str, ready: float) -> None:
        for number, value in by_writer.get(writer, ()):
            down, ups = problem.copies(value, placed)
            on_host = ready
            if down is not None:
                seconds = problem.copy_seconds(down, value.size)
                on_host = made.put(-down, f"{number} down", ready, seconds)
            there = {placed[writer]: ready, 0: ready if placed[writer] == 0 else on_host}
            for place in ups:
                seconds = problem.copy_seconds(place, value.size)
                there[place] = made.put(-place, f"{number} up", on_host, seconds)
            for reader in value.readers:
                moment = there[placed[reader]]
                arrived[reader, number] = moment

    send(HOST, 0.0)
    reads: dict[str, list[int]] = {}
    for number, value in enumerate(problem.values):
        for reader in value.readers:
            reads.setdefault(reader, []).append(number)
    for name, times in problem.parts.items():
        ready = max((arrived[name, number] for number in reads.get(name, ())), default=0.0)
        seconds = times[placed[name]]
        send(name, made.put(placed[name], name, ready, float(_NEVER) if seconds is None else seconds))
    return made


def shortened(problem: Problem, places: Mapping[str, int]) -> dict[str, int]:
    """Places with which a run is done sooner when they work at once: parts, and chains of them, move while it helps."""
    best, least = dict(places), schedule(problem, places).seconds
    groups = [*_chains(problem), *([name] for name in problem.parts)]
    for _ in range(_ROUNDS):
        before = least
        for group in groups:
            for place in range(len(problem.links) + 1):
                if any(problem.parts[name][place] is None for name in group):
                    continue
                moved = {**best, **dict.fromkeys(group, place)}
                seconds = schedule(problem, moved).seconds if moved != best else least
                if seconds < _WORTH * least:
                    best, least = moved, seconds
        if least >= before:
            break
    return best


def _chains(problem: Problem) -> Iterable[list[str]]:
    """Runs of parts each of which has one reader, which reads nothing else of other parts: branches, for the most."""
    after: dict[str, set[str]] = {name: set() for name in problem.parts}
    before: dict[str, set[str]] = {name: set() for name in problem.parts}
    for value in problem.values:
        for reader in value.readers - {HOST}:
            if value.writer != HOST:
                after[value.writer].add(reader)
                before[reader].add(value.writer)
    for name in problem.parts:
        is_inside = len(before[name]) == 1 and len(after[next(iter(before[name]))]) == 1
        if is_inside:
            continue
        chain = [name]
        while len(after[chain[-1]]) == 1 and len(before[following := next(iter(after[chain[-1]]))]) == 1:
            chain.append(following)
        if len(chain) > 1:
            yield chain
