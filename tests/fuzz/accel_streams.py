"""Random programs of the accelerator on its hardware, bit for bit: `python -m tests.fuzz.accel_streams --count 1000`.

Each program runs on the functional simulator and on the hardware as Verilator simulates it, at a latency of its own.
All that DRAM holds afterwards must be the same. `--configs tiny,usual` names configurations of
`tests/accel/configs.py`; `default` is the accelerator as it is when nothing is said.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from tests.accel.configs import CONFIGS
from tests.accel.programs import random_program
from tilewright.accel.config import AccelConfig
from tilewright.accel.functional import FunctionalMachine
from tilewright.accel.instructions import Unit
from tilewright.accel.verilated import VerilatedMachine
from tilewright.support.errors import UserError

DRAM_BYTES: Final = 1 << 20
LATENCIES: Final = (1, 2, 3, 7, 24, 90)
MOST_CYCLES: Final = 2_000_000


@dataclass
class Outcome:
    """What became of the programs of one configuration."""

    programs: int = 0
    instructions: int = 0
    cycles: int = 0
    seconds: float = 0.0
    """What the hardware's simulation took, of the processor's time."""
    failures: int = 0


def run_program(config: AccelConfig, machine: VerilatedMachine, seed: int, outcome: Outcome) -> str | None:
    """Run one random program on both; what is wrong, or None."""
    program = random_program(np.random.default_rng(seed), config)
    machine.latency = (*LATENCIES, config.memory_latency)[seed % (len(LATENCIES) + 1)]
    reference = FunctionalMachine(config, DRAM_BYTES)
    expected, _ = program.run_on(reference)
    machine.write(0, bytes(DRAM_BYTES))
    begin = time.process_time()
    try:
        counters, _ = program.run_on(machine, MOST_CYCLES)
    except UserError as error:
        return f"latency {machine.latency}: {error}"
    outcome.seconds += time.process_time() - begin
    outcome.programs += 1
    outcome.instructions += len(program.instructions)
    outcome.cycles += counters.cycles or 0
    if machine.read(0, DRAM_BYTES) != reference.read(0, DRAM_BYTES):
        return f"latency {machine.latency}: DRAM differs"
    traffic = counters.bytes_read, counters.bytes_written
    if traffic != (expected.bytes_read, expected.bytes_written):
        return f"latency {machine.latency}: {traffic} bytes are read and written"
    for unit in Unit:
        if counters.units[unit].instructions != expected.units[unit].instructions:
            return f"{unit.name.lower()} executed {counters.units[unit].instructions} instructions"
    return None


def run_config(name: str, count: int, seed: int) -> Outcome:
    """Programs of one configuration; failures are printed."""
    config, outcome = AccelConfig() if name == "default" else CONFIGS[name], Outcome()
    machine = VerilatedMachine(config, DRAM_BYTES)
    for number in range(seed, seed + count):
        wrong = run_program(config, machine, number, outcome)
        if wrong is not None:
            outcome.failures += 1
            print(f"{name}, seed {number}: {wrong}", flush=True)
    machine.close()
    print(
        f"{name:10} {outcome.programs} programs, {outcome.instructions} instructions, {outcome.cycles} cycles "
        f"({outcome.cycles / max(outcome.seconds, 1e-9) / 1000:.0f} thousand a second), {outcome.failures} failures",
        flush=True,
    )
    return outcome


def main() -> int:
    """Run them; 1 if any program went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs of each configuration")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--configs", default=",".join(CONFIGS))
    arguments = parser.parse_args()
    outcomes = [run_config(name, arguments.count, arguments.seed) for name in arguments.configs.split(",")]
    print(f"{sum(item.programs for item in outcomes)} programs on {len(outcomes)} configurations")
    return int(any(item.failures for item in outcomes))


if __name__ == "__main__":
    sys.exit(main())
