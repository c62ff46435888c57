"""A proof about a program before it runs: it ends, its token queues do not overflow or run dry, no two units race.

Units execute their queues in order, and only tokens order one unit with another: the k-th pop of a token queue takes
the token of the k-th push, whatever the timing. So the order that every execution keeps is known before any execution:

    S(i) starts and E(i) ends an instruction;   S(i) -> E(i)
    of one unit, S(i) -> S(i+1) and E(i) -> E(i+1)         (it may start one before the last has ended)
    E(i) -> S(j) where j pops the token that i pushes

`Clock` is this order as vector clocks. Two accesses of different units to one place, one of them a write, must be
ordered: the first's end before the second's start. A program that passes gives the same results under every latency
of memory and every speed of the units; one that does not is refused with the two instructions.

Deadlock needs no search: an execution that always runs what can run (in any order) gets furthest, with the command
queues as deep as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tilewright.accel.accesses import Accesses, MicroOpMemory, Rows, accesses
from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.instructions import Finish, Instruction, Load, Unit
from tilewright.support.errors import UserError

_UNITS = len(Unit)
_MOST_REPORTED = 8


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and the instructions (by their places in the program) that it is wrong with."""

    message: str
    instructions: tuple[int, ...]
    by_room: bool = False
    """Whether it would be right with deeper queues."""


@dataclass(frozen=True, slots=True)
class Link:
    """A queue of tokens: from one unit to another."""

    source: Unit
    target: Unit

    def __str__(self) -> str:
        return f"{self.source.name.lower()} -> {self.target.name.lower()}"


LINKS = tuple(Link(source, target) for source in Unit for target in Unit if abs(source - target) == 1)


def pushes(item: Instruction) -> Iterator[Link]:
    """The token queues that an instruction gives a token to."""
    if item.push_prev:
        yield Link(item.unit, Unit(item.unit - 1))
    if item.push_next:
        yield Link(item.unit, Unit(item.unit + 1))


def pops(item: Instruction) -> Iterator[Link]:
    """The token queues that an instruction takes a token from."""
    if item.pop_prev:
        yield Link(Unit(item.unit - 1), item.unit)
    if item.pop_next:
        yield Link(Unit(item.unit + 1), item.unit)


def check(
    program: Sequence[Instruction],
    config: AccelConfig,
    read_dram: Callable[[int, int], bytes],
    labels: Sequence[str] = (),
) -> None:
    """Refuse a program that could hang, overflow a queue or race; `labels` say where its instructions come from."""
    faults = find_faults(program, config, read_dram)
    if faults:
        raise UserError(described(faults, program, labels))


def described(faults: Sequence[Fault], program: Sequence[Instruction], labels: Sequence[str] = ()) -> str:
    """What is wrong with a program, in words."""
    lines = []
    for fault in faults[:_MOST_REPORTED]:
        lines.append(fault.message)
        lines += [f"    {_described(index, program, labels)}" for index in fault.instructions]
    if len(faults) > _MOST_REPORTED:
        lines.append(f"... and {len(faults) - _MOST_REPORTED} more")
    return "accelerator: the program is not safe to run\n  " + "\n  ".join(lines)


def _described(index: int, program: Sequence[Instruction], labels: Sequence[str]) -> str:
    label = f"  ({labels[index]})" if index < len(labels) and labels[index] else ""
    return f"{index}: {program[index]}{label}"


def find_faults(
    program: Sequence[Instruction], config: AccelConfig, read_dram: Callable[[int, int], bytes]
) -> list[Fault]:
    """Everything that is wrong with a program. `read_dram` gives the DRAM that holds its micro-ops."""
    faults = list(_impossible_tokens(program))
    if faults:
        return faults
    faults = list(_unequal_tokens(program)) or list(_deadlock(program, config))
    if faults:
        return faults
    clock = Clock(program)
    return [
        *_overflows(program, config, clock),
        *_early_finish(program, clock),
        *_races(program, config, clock, read_dram),
    ]


def _impossible_tokens(program: Sequence[Instruction]) -> Iterator[Fault]:
    for index, item in enumerate(program):
        if item.unit is Unit.LOAD and (item.pop_prev or item.push_prev):
            yield Fault("the load unit has no unit before it", (index,))
        if item.unit is Unit.STORE and (item.pop_next or item.push_next):
            yield Fault("the store unit has no unit after it", (index,))


def _unequal_tokens(program: Sequence[Instruction]) -> Iterator[Fault]:
    given: dict[Link, list[int]] = {link: [] for link in LINKS}
    taken: dict[Link, list[int]] = {link: [] for link in LINKS}
    for index, item in enumerate(program):
        for link in pushes(item):
            given[link].append(index)
        for link in pops(item):
            taken[link].append(index)
    for link in LINKS:
        few = min(len(given[link]), len(taken[link]))
        if len(taken[link]) > few:
            yield Fault(f"waits for ever: no token {link} is left for it", (taken[link][few],))
        if len(given[link]) > few:
            yield Fault(f"a token {link} is never taken", (given[link][few],))
    ends = [index for index, item in enumerate(program) if isinstance(item, Finish)]
    if len(ends) != 1:
        yield Fault(f"a program has one FINISH, this one {len(ends)}", tuple(ends[:2]))


def _deadlock(program: Sequence[Instruction], config: AccelConfig) -> Iterator[Fault]:
    """Run without time: fetch as far as command queues have room, and start whatever has its tokens."""
    waiting: dict[Unit, deque[int]] = {unit: deque() for unit in Unit}
    tokens = dict.fromkeys(LINKS, 0)
    fetched = 0
    while True:
        began = fetched
        while fetched < len(program) and len(waiting[program[fetched].unit]) < config.command_queue:
            waiting[program[fetched].unit].append(fetched)
            fetched += 1
        moved = fetched > began
        for queue in waiting.values():
            while queue and all(tokens[link] for link in pops(program[queue[0]])):
                item = program[queue.popleft()]
                for link in pops(item):
                    tokens[link] -= 1
                for link in pushes(item):
                    tokens[link] += 1
                moved = True
        if fetched == len(program) and not any(waiting.values()):
            return
        if not moved:
            break
    heads = tuple(queue[0] for queue in waiting.values() if queue)
    wanted = [
        f"{unit.name.lower()} waits for a token {link}"
        for unit, queue in waiting.items()
        if queue
        for link in pops(program[queue[0]])
        if not tokens[link]
    ]
    full = (
        "" if fetched == len(program) else f"; fetch stands before instruction {fetched}, whose command queue is full"
    )
    yield Fault("deadlock: " + ", ".join(wanted) + full, heads, by_room=bool(full))


@dataclass(frozen=True, slots=True)
class Clock:
    """The order that tokens give: of each instruction, how many instructions of each unit come before it.

    `ended_at_start[i, u]` instructions of unit `u` have ended in every execution when instruction `i` starts, and
    `started_at_end[i, u]` have started when it ends. `place[i]` is an instruction's number in its own unit.
    """

    program: Sequence[Instruction]
    place: npt.NDArray[np.int64] = field(init=False)
    order: list[int] = field(init=False)
    """The instructions in an order that all executions could keep."""
    ended_at_start: npt.NDArray[np.int64] = field(init=False)
    started_at_end: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.program)
        place, by_unit = np.zeros(count, np.int64), [0] * _UNITS
        for index, item in enumerate(self.program):
            place[index] = by_unit[item.unit]
            by_unit[item.unit] += 1
        order, givers = _matched(self.program)
        ended_at_start, started_at_end = (np.zeros((count, _UNITS), np.int64) for _ in range(2))
        started_at_start, ended_at_end = (np.zeros((count, _UNITS), np.int64) for _ in range(2))
        last: list[int | None] = [None] * _UNITS
        for index in order:
            unit, before = self.program[index].unit, last[self.program[index].unit]
            for giver in givers[index]:
                np.maximum(ended_at_start[index], ended_at_end[giver], out=ended_at_start[index])
                np.maximum(started_at_start[index], started_at_end[giver], out=started_at_start[index])
            if before is not None:
                np.maximum(ended_at_start[index], ended_at_start[before], out=ended_at_start[index])
                np.maximum(started_at_start[index], started_at_start[before], out=started_at_start[index])
            started_at_start[index, unit] = place[index] + 1
            ended_at_end[index], started_at_end[index] = ended_at_start[index], started_at_start[index]
            if before is not None:
                np.maximum(ended_at_end[index], ended_at_end[before], out=ended_at_end[index])
                np.maximum(started_at_end[index], started_at_end[before], out=started_at_end[index])
            ended_at_end[index, unit] = place[index] + 1
            last[unit] = index
        for name, value in (("place", place), ("order", order), ("ended_at_start", ended_at_start)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "started_at_end", started_at_end)

    def is_before(self, first: int, second: int) -> bool:
        """Whether an instruction has ended, in every execution, when another one (of another unit) starts."""
        return bool(self.place[first] < self.ended_at_start[second, self.program[first].unit])


def _matched(program: Sequence[Instruction]) -> tuple[list[int], list[list[int]]]:
    """An order of execution, and of each instruction the ones whose tokens it takes."""
    queues: dict[Unit, deque[int]] = {unit: deque() for unit in Unit}
    for index, item in enumerate(program):
        queues[item.unit].append(index)
    given: dict[Link, deque[int]] = {link: deque() for link in LINKS}
    order: list[int] = []
    givers: list[list[int]] = [[] for _ in program]
    while any(queues.values()):
        for queue in queues.values():
            while queue and all(given[link] for link in pops(program[queue[0]])):
                index = queue.popleft()
                givers[index] = [given[link].popleft() for link in pops(program[index])]
                for link in pushes(program[index]):
                    given[link].append(index)
                order.append(index)
    return order, givers


def _overflows(program: Sequence[Instruction], config: AccelConfig, clock: Clock) -> Iterator[Fault]:
    """A push may find the queue full where too few pops are sure to have been before it."""
    taken: dict[Link, list[int]] = {link: [] for link in LINKS}
    for index, item in enumerate(program):
        for link in pops(item):
            taken[link].append(int(clock.place[index]))
    given = dict.fromkeys(LINKS, 0)
    full: set[Link] = set()
    for index, item in enumerate(program):
        for link in pushes(item):
            given[link] += 1
            started = clock.started_at_end[index, link.target]
            sure = int(np.searchsorted(taken[link], started))
            if given[link] - sure > config.token_queue and link not in full:
                full.add(link)
                message = f"there can be {given[link] - sure} tokens {link}; the queue holds {config.token_queue}"
                yield Fault(message, (index,), by_room=True)


def _early_finish(program: Sequence[Instruction], clock: Clock) -> Iterator[Fault]:
    [end] = [index for index, item in enumerate(program) if isinstance(item, Finish)]
    for unit in Unit:
        own = [index for index, item in enumerate(program) if item.unit is unit]
        late = own[-1] > end if unit is Unit.STORE else own and not clock.is_before(own[-1], end)
        if late:
            yield Fault("the program may finish before this instruction is done", (end, own[-1]))


# ------------------------------------------------------------------------ races


class _Shadow:
    """Of every place of a memory: the last write, and each unit's last read."""

    def __init__(self, size: int) -> None:
        self.writer = np.full(size, -1, np.int64)
        self.readers = np.full((_UNITS, size), -1, np.int64)

    def conflicts(self, index: int, unit: Unit, places: npt.NDArray[np.int64], *, is_write: bool) -> Iterator[int]:
        """Earlier instructions of other units that touched the places in a way that must be ordered with this one."""
        yield from np.unique(self.writer[places])
        if is_write:
            for other in Unit:
                if other is not unit:
                    yield from np.unique(self.readers[other][places])

    def note(self, index: int, unit: Unit, places: npt.NDArray[np.int64], *, is_write: bool) -> None:
        """Remember an access."""
        if is_write:
            self.writer[places] = index
        else:
            self.readers[unit][places] = index


class _Dram:
    """The part of DRAM that a program writes, cut where its rows begin and end; places are the pieces."""

    def __init__(self, touched: Sequence[Accesses]) -> None:
        cuts = {
            edge
            for item in touched
            for rows in (item.dram_reads, item.dram_writes)
            if rows
            for row in rows
            for edge in row
        }
        self._cuts = np.array(sorted(cuts), np.int64)
        self.shadow = _Shadow(len(cuts))

    def places(self, rows: Rows) -> npt.NDArray[np.int64]:
        """The pieces that a rectangle covers."""
        firsts = np.arange(rows.count, dtype=np.int64) * rows.stride + rows.start
        low, high = np.searchsorted(self._cuts, firsts), np.searchsorted(self._cuts, firsts + rows.size)
        return np.unique(np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)]))


def _races(
    program: Sequence[Instruction], config: AccelConfig, clock: Clock, read_dram: Callable[[int, int], bytes]
) -> Iterator[Fault]:
    touched: list[Accesses] = []
    for index, item in enumerate(_with_micro_ops(program, config, read_dram)):
        touched.append(item)
        yield from _past_the_end(index, item, config)
    yield from _rewritten_micro_ops(program, touched)
    chip = {memory: _Shadow(config.depth[memory]) for memory in Memory}
    dram = _Dram(touched)
    seen: set[tuple[int, int]] = set()
    for index in clock.order:
        unit, item = program[index].unit, touched[index]
        uses = [
            *(
                (memory.name, chip[memory], _inside(places, config.depth[memory]), is_write)
                for is_write, group in ((False, item.reads), (True, item.writes))
                for memory, places in group.items()
            ),
            *(
                ("DRAM", dram.shadow, dram.places(rows), is_write)
                for is_write, rows in ((False, item.dram_reads), (True, item.dram_writes))
                if rows
            ),
        ]
        for name, shadow, places, is_write in uses:
            for earlier in shadow.conflicts(index, unit, places, is_write=is_write):
                is_ordered = earlier < 0 or program[earlier].unit is unit or clock.is_before(int(earlier), index)
                if not is_ordered and (int(earlier), index) not in seen:
                    seen.add((int(earlier), index))
                    yield Fault(f"two units race for {name}", tuple(sorted((int(earlier), index))))
        for _, shadow, places, is_write in uses:
            shadow.note(index, unit, places, is_write=is_write)


def _inside(places: npt.NDArray[np.int64], depth: int) -> npt.NDArray[np.int64]:
    return np.unique(places[places < depth])


def _with_micro_ops(
    program: Sequence[Instruction], config: AccelConfig, read_dram: Callable[[int, int], bytes]
) -> Iterator[Accesses]:
    """What each instruction touches; micro-ops are those that the loads before it in its unit brought."""
    memory = MicroOpMemory(config, read_dram)
    for item in program:
        yield accesses(item, config, memory.fields)
        memory.follow(item)


def _past_the_end(index: int, item: Accesses, config: AccelConfig) -> Iterator[Fault]:
    for memory, places in (*item.reads.items(), *item.writes.items()):
        if places.size and places.max() >= config.depth[memory]:
            yield Fault(f"{memory.name} has {config.depth[memory]} elements; element {places.max()} is used", (index,))
            return


def _rewritten_micro_ops(program: Sequence[Instruction], touched: Sequence[Accesses]) -> Iterator[Fault]:
    """Micro-ops that the program itself writes are not known before it runs."""
    written = sorted(row for item in touched if item.dram_writes for row in item.dram_writes)
    if not written:
        return
    starts, ends = np.array(written, np.int64).T
    reach = np.maximum.accumulate(ends)
    for index, (item, use) in enumerate(zip(program, touched, strict=True)):
        if not (isinstance(item, Load) and item.memory is Memory.UOP and use.dram_reads):
            continue
        for first, end in use.dram_reads:
            before = int(np.searchsorted(starts, end))
            if before and reach[before - 1] > first:
                yield Fault("loads micro-ops from where the program stores", (index,))
                break
