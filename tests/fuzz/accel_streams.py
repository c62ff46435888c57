"""Random programs of the accelerator, bit for bit: `python -m tests.fuzz.accel_streams --count 1000`.

Each program runs on the reference in plain Python (`tests/accel/literal.py`), on the functional simulator and on the
hardware as Verilator simulates it, at a latency of its own. All that DRAM holds afterwards must be the same, the cycle
model must count the hardware's cycles and those in which each unit is busy, and the checker must find nothing.
`--configs tiny,usual` names configurations of `tests/accel/configs.py`; `default` is the accelerator as it is when
nothing is said.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Final

import numpy as np

from tests.accel.configs import CONFIGS
from tests.accel.literal import Literal
from tests.accel.programs import random_program
from tests.fuzz import pieces
from tilewright.accel.checker import find_faults
from tilewright.accel.config import AccelConfig
from tilewright.accel.functional import FunctionalMachine
from tilewright.accel.instructions import Unit
from tilewright.accel.verilated import VerilatedMachine
from tilewright.support.errors import UserError
from tilewright.tune.accel_cycles import cycles

SUBJECTS: Final = {**CONFIGS, "default": AccelConfig()}
DRAM_BYTES: Final = 1 << 20
LATENCIES: Final = (1, 2, 3, 7, 24, 90)
MOST_CYCLES: Final = 2_000_000
SOURCES: Final = ("accel", "tune/accel_cycles.py", "tune/accel_cycle_program.py", "tune/accel_table.py")


def dram_bytes(config: AccelConfig) -> int:
    """A DRAM that has room for random programs: they load and store memories whole."""
    return max(DRAM_BYTES, 4 * config.on_chip_bytes)


def run_program(machine: VerilatedMachine, seed: int, tally: pieces.Tally) -> str | None:
    """Run one random program on all three; what is wrong, or None."""
    config = machine.config
    program = random_program(np.random.default_rng(seed), config)
    machine.latency = (*LATENCIES, config.memory_latency)[seed % (len(LATENCIES) + 1)]
    for fault in find_faults(program.instructions, config, program.read):
        return f"the checker has a false alarm: {fault.message}"
    reference = Literal(config, machine.dram_bytes)
    reference.run(program)
    functional = FunctionalMachine(config, machine.dram_bytes)
    expected, _ = program.run_on(functional)
    machine.write(0, bytes(machine.dram_bytes))
    try:
        counters, _ = program.run_on(machine, MOST_CYCLES)
    except UserError as error:
        return f"latency {machine.latency}: {error}"
    content = machine.read(0, machine.dram_bytes)
    tally.counts.update(programs=1, instructions=len(program.instructions), cycles=counters.cycles or 0)
    if content != functional.read(0, machine.dram_bytes):
        return f"latency {machine.latency}: DRAM differs between hardware and functional simulator"
    # The reference is handed instructions, not their encoding: theirs is the only part of DRAM that it has not.
    if content[: program.entry] != bytes(reference.dram[: program.entry]):
        return "DRAM differs between functional simulator and reference"
    traffic = counters.bytes_read, counters.bytes_written
    if traffic != (expected.bytes_read, expected.bytes_written):
        return f"latency {machine.latency}: {traffic} bytes are read and written"
    model = cycles(program.instructions, config, program.read, latency=machine.latency)
    busy = {unit: counters.units[unit].busy for unit in Unit}
    if (model.total, model.busy) != (counters.cycles, busy):
        return f"latency {machine.latency}: {counters.cycles} cycles, {busy} of them busy, and the model says {model}"
    for unit in Unit:
        if counters.units[unit].instructions != expected.units[unit].instructions:
            return f"{unit.name.lower()} executed {counters.units[unit].instructions} instructions"
    return None


@cache
def _machine(name: str) -> VerilatedMachine:
    return VerilatedMachine(SUBJECTS[name], dram_bytes(SUBJECTS[name]))


def work(piece: pieces.Piece) -> pieces.Tally:
    """Programs of one configuration."""
    tally = pieces.Tally()
    for seed in piece.seeds:
        wrong = run_program(_machine(piece.subject), seed, tally)
        if wrong is not None:
            tally.failures.append(f"seed {seed}: {wrong}")
    return tally


if __name__ == "__main__":
    sys.exit(pieces.run(pieces.parser(__doc__, 1000, list(SUBJECTS), "programs").parse_args(), work, SOURCES))
