"""Programs executed in random orders: every order that tokens allow, and no other, some hardware could show."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.accel.checker import LINKS, Link, pops, pushes
from tilewright.accel.config import AccelConfig
from tilewright.accel.functional import FunctionalMachine
from tilewright.accel.instructions import Finish, Instruction, Unit
from tilewright.accel.rules import problem
from tilewright.support.errors import UserError

DRAM_BYTES = 1 << 22


def outcome(
    program: Sequence[Instruction],
    config: AccelConfig,
    segments: Mapping[int, bytes],
    results: Sequence[tuple[int, int]],
    rng: np.random.Generator,
) -> str | bytes:
    """What an execution in a random order leaves in DRAM, or how it fails."""
    machine = FunctionalMachine(config, DRAM_BYTES)
    for address, data in segments.items():
        machine.write(address, data)
    if any(problem(item, config) for item in program):
        return "is illegal"
    queues: dict[Unit, deque[Instruction]] = {unit: deque() for unit in Unit}
    for item in program:
        queues[item.unit].append(item)
    tokens: dict[Link, int] = dict.fromkeys(LINKS, 0)
    # Some units are quicker than others, for the whole of a run.
    speeds = rng.permutation(3)
    while True:
        ready = [unit for unit, queue in queues.items() if queue and all(tokens[link] for link in pops(queue[0]))]
        if not ready:
            return "hangs"
        chosen = min(ready, key=lambda unit: speeds[unit]) if rng.random() < 0.8 else ready[rng.integers(len(ready))]
        item = queues[chosen].popleft()
        for link in pops(item):
            tokens[link] -= 1
        if isinstance(item, Finish):
            if any(queues.values()) or any(tokens.values()):
                return "ends early"
            return b"".join(machine.read(address, size) for address, size in results)
        try:
            machine.execute(item)
        except UserError:
            return "fails"
        for link in pushes(item):
            tokens[link] += 1
            if tokens[link] > config.token_queue:
                return "overflows"
