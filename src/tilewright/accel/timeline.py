"""What a run did, instruction by instruction: a listing, and a timeline that trace viewers (Perfetto) open."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence

from tilewright.accel.assembler import instruction_text
from tilewright.accel.checker import LINKS, Link, pops, pushes
from tilewright.accel.instructions import Instruction, Unit
from tilewright.accel.machine import Event
from tilewright.support.text import table


def listing(program: Sequence[Instruction], events: Sequence[Event]) -> str:
    """One line for each instruction, in the order they began: when, by which unit, how long it waited for tokens."""
    rows = [
        (
            str(event.start),
            str(event.end),
            event.unit.name.lower(),
            str(event.start - event.ready) if event.start > event.ready else "",
            str(event.index),
            instruction_text(program[event.index]),
        )
        for event in sorted(events, key=lambda event: (event.start, event.unit))
    ]
    return table(("start", "end", "unit", "waited", "number", "instruction"), rows)


def chrome_trace(program: Sequence[Instruction], events: Sequence[Event]) -> str:
    """The run in Chrome's trace format: a row for each unit, arrows for tokens; a cycle (or step) is a microsecond."""
    entries: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": int(unit), "args": {"name": unit.name.lower()}}
        for unit in Unit
    ]
    by_index = {event.index: event for event in events}
    for event in events:
        instruction = program[event.index]
        entries.append(
            {
                "ph": "X",
                "name": instruction.opcode.name,
                "pid": 0,
                "tid": int(event.unit),
                "ts": event.start,
                "dur": event.end - event.start,
                "args": {
                    "number": event.index,
                    "instruction": instruction_text(instruction),
                    "waited": event.start - event.ready,
                },
            }
        )
    for number, (link, giver, taker) in enumerate(_tokens(program)):
        if giver in by_index and taker in by_index:
            common = {"cat": "token", "name": str(link), "pid": 0, "id": number}
            source, target = by_index[giver], by_index[taker]
            # An arrow begins inside of what gives the token: viewers bind its ends to what runs at that time.
            entries.append({"ph": "s", "tid": int(source.unit), "ts": max(source.end - 1, source.start), **common})
            entries.append({"ph": "f", "bp": "e", "tid": int(target.unit), "ts": target.start, **common})
    return json.dumps({"traceEvents": entries, "displayTimeUnit": "ns"})


def _tokens(program: Sequence[Instruction]) -> list[tuple[Link, int, int]]:
    """Which instruction's token each one takes: of a queue, the k-th that is taken is the k-th that is given."""
    given: dict[Link, deque[int]] = {link: deque() for link in LINKS}
    for index, instruction in enumerate(program):
        for link in pushes(instruction):
            given[link].append(index)
    return [
        (link, given[link].popleft(), index)
        for index, instruction in enumerate(program)
        for link in pops(instruction)
        if given[link]
    ]
