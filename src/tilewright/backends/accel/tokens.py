"""Tokens: the fewest pushes and pops that order all dependences between units.

Steps are in the order of a program that runs one after the other. A step needs those earlier ones of other units done
that write what it reads or writes, or read what it writes. What a unit knows to be done is a vector clock: it has all
that the steps knew whose tokens it took. Only where a step needs more than its unit knows is there a token, from the
last step that it needs. The k-th pop of a queue is of the k-th push, because later steps need later ones.

Load and store have no queue between them: what one needs of the other, a step of compute takes a token for. That is
one that has to do with neither only where there is no other: an instruction that moves nothing.

Where queues are small, units that run far ahead of each other would give more tokens than a queue holds: they wait
for each other after some steps then, at the worst after each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.instructions import Finish, Instruction, Load, Unit
from tilewright.backends.accel.steps import Argument, Indices, Space, Step
from tilewright.support.errors import CompilerBug

Clock = list[int]
"""By unit, the last step that is known to be done; -1: none."""


def with_tokens(steps: Sequence[Step], config: AccelConfig, together: int = 0) -> list[Step]:
    """The steps with tokens, and FINISH behind them; units wait for each other after every `together` steps (0: no)."""
    tokens = _Tokens(steps, config)
    for number, step in enumerate(steps):
        if together and number % together == 0:
            tokens.meet()
        tokens.add(step)
    tokens.finish()
    return tokens.steps()


@dataclass(slots=True)
class _Entry:
    """A step with its tokens, and what is known to be done when it begins."""

    step: Step
    clock: Clock
    pops: dict[Unit, int] = field(default_factory=dict)
    """The steps whose tokens it takes, by their units."""
    pushes: set[Unit] = field(default_factory=set)


class _Tokens:
    def __init__(self, steps: Sequence[Step], config: AccelConfig) -> None:
        self._entries: list[_Entry] = []
        self._clocks: dict[Unit, Clock] = {unit: [-1, -1, -1] for unit in Unit}
        self._compute: list[int] = []
        """The steps of compute, in order."""
        self._met: Clock = [-1, -1, -1]
        """What every unit waits for."""
        self._last: dict[Space, dict[str, Indices]] = {}
        shared = _shared_arguments(steps)
        sizes: dict[Space, int] = {memory: config.depth[memory] for memory in Memory}
        for step in steps:
            for item in (*step.reads, *step.writes):
                if item.space in shared and item.places.size:
                    sizes[item.space] = max(sizes.get(item.space, 0), int(item.places[-1]) + 1)
        for space, size in sizes.items():
            self._last[space] = {kind: np.full((len(Unit), size), -1, np.int64) for kind in ("read", "write")}

    def steps(self) -> list[Step]:
        """The steps, their instructions with tokens."""
        return [replace(entry.step, instruction=_marked(entry)) for entry in self._entries]

    def add(self, step: Step) -> None:
        """Give the next step the tokens that it needs."""
        need = self._needed(step)
        _merge(need, self._met)
        self._order(step, need)

    def meet(self) -> None:
        """Let what follows, of every unit, wait for all that was before."""
        self._met = self._latest()

    def finish(self) -> None:
        """End the program: when all that was done is done."""
        self._order(Step(Finish()), self._latest())

    def _latest(self) -> Clock:
        return [clock[unit] for unit, clock in self._clocks.items()]

    def _needed(self, step: Step) -> Clock:
        """The last step of each unit that must be done before."""
        need = np.full(len(Unit), -1, np.int64)
        for item in step.reads:
            if item.space in self._last:
                need = np.maximum(need, self._last[item.space]["write"][:, item.places].max(axis=1, initial=-1))
        for item in step.writes:
            for table in self._last.get(item.space, {}).values():
                need = np.maximum(need, table[:, item.places].max(axis=1, initial=-1))
        return [int(number) for number in need]

    def _order(self, step: Step, need: Clock) -> None:
        unit = step.unit
        if unit is not Unit.COMPUTE:
            other = Unit.STORE if unit is Unit.LOAD else Unit.LOAD
            if need[other] > self._clocks[unit][other]:
                need[Unit.COMPUTE] = max(need[Unit.COMPUTE], self._relay(unit, other, need))
        entry = _Entry(step, list(self._clocks[unit]))
        number = len(self._entries)
        for giver in (Unit.COMPUTE, Unit.LOAD, Unit.STORE):
            if giver is not unit and need[giver] > entry.clock[giver]:
                self._take(entry, giver, need[giver])
        self._entries.append(entry)
        if unit is Unit.COMPUTE:
            self._compute.append(number)
        self._clocks[unit] = list(entry.clock)
        self._clocks[unit][unit] = number
        self._note(step, number)

    def _note(self, step: Step, number: int) -> None:
        for kind, items in (("read", step.reads), ("write", step.writes)):
            for item in items:
                if item.space in self._last:
                    self._last[item.space][kind][step.unit, item.places] = number

    def _take(self, entry: _Entry, giver: Unit, number: int) -> None:
        """Let a step wait for a token of another."""
        if abs(int(giver) - int(entry.step.unit)) != 1:
            raise CompilerBug("there is no queue of tokens between load and store")
        source = self._entries[number]
        source.pushes.add(entry.step.unit)
        entry.pops[giver] = number
        _merge(entry.clock, source.clock)
        entry.clock[giver] = max(entry.clock[giver], number)

    def _relay(self, unit: Unit, other: Unit, need: Clock) -> int:
        """A step of compute that knows what a unit needs of the one beyond it, and that can give it a token."""
        needed = need[other]
        knows = bisect_left(self._compute, needed, key=lambda number: self._entries[number].clock[other])
        place = max(knows, bisect_left(self._compute, need[Unit.COMPUTE]))
        if place < len(self._compute):
            return self._compute[place]
        last = self._compute[-1] if self._compute else -1
        # A step that somebody waits for already may wait for more only if nothing of that waits for it in turn.
        able = last >= 0 and self._entries[needed].clock[Unit.COMPUTE] < last
        if able and unit not in self._entries[last].pushes and last > self._clocks[unit][Unit.COMPUTE]:
            self._wait_more(last, other, needed)
            return last
        # Something that moves nothing, and only takes and gives tokens.
        clock = [-1, -1, -1]
        clock[other] = needed
        self._order(Step(Load(memory=Memory.UOP)), clock)
        return len(self._entries) - 1

    def _wait_more(self, number: int, other: Unit, needed: int) -> None:
        """Let the last step of compute wait for a later step than it does."""
        entry = self._entries[number]
        before = entry.pops.pop(other, None)
        if before is not None:
            self._entries[before].pushes.discard(Unit.COMPUTE)
        self._take(entry, other, needed)
        _merge(self._clocks[Unit.COMPUTE], entry.clock)


def _merge(clock: Clock, other: Iterable[int]) -> None:
    for unit, value in enumerate(other):
        clock[unit] = max(clock[unit], value)


def _shared_arguments(steps: Sequence[Step]) -> set[Space]:
    """Arguments that are read and written: of others no order matters that a unit does not keep by itself."""
    read = {item.space for step in steps for item in step.reads if isinstance(item.space, Argument)}
    return {item.space for step in steps for item in step.writes if item.space in read}


def _marked(entry: _Entry) -> Instruction:
    unit = entry.step.unit
    return replace(
        entry.step.instruction,
        pop_prev=any(giver < unit for giver in entry.pops),
        pop_next=any(giver > unit for giver in entry.pops),
        push_prev=any(taker < unit for taker in entry.pushes),
        push_next=any(taker > unit for taker in entry.pushes),
    )
