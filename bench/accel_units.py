"""How fast the accelerator's units are, on its hardware simulation: `python -m bench.accel_units`.

    python -m bench.accel_units                              # the default configuration
    python -m bench.accel_units --config mine.json           # another one
    python -m bench.accel_units --save                       # keep the figures in bench/results/accel_units.json

Each row is an instruction, executed once and nine times: an eighth of the difference in cycles is what one costs, and
`bound` is what its steps, tensors or words take at one in a cycle. Instructions themselves are read through the
memory port too. The last lines are the speed of the simulation itself.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bench import harness
from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.encoding import encode, encode_micro_ops
from tilewright.accel.instructions import Alu, Epi, Finish, Gemm, Instruction, Load, MicroOp, Overwrite, Store
from tilewright.accel.machine import Counters
from tilewright.accel.rules import steps
from tilewright.accel.verilated import VerilatedMachine
from tilewright.support.text import table

RESULTS: Final = harness.RESULTS_FOLDER / "accel_units.json"
DRAM_BYTES: Final = 1 << 22
ENTRY: Final = 1 << 21
MORE: Final = 8
MICRO_OPS: Final = 16


@dataclass(frozen=True)
class Case:
    """An instruction that is repeated, at a latency, and the instructions that end the program."""

    name: str
    instruction: Instruction
    latency: int
    after: tuple[Instruction, ...]


def cases(config: AccelConfig) -> Iterator[Case]:
    """What is measured."""
    compute = (Gemm(push_next=True), Finish(pop_prev=True))
    load = (Load(memory=Memory.INP, push_next=True), Gemm(pop_prev=True, push_next=True), Finish(pop_prev=True))
    loops = {"uop_end": MICRO_OPS, "outer": 16, "inner": 8}
    tensors = min(64, config.depth[Memory.OUT], config.depth[Memory.ACC] // 2)
    usual = config.memory_latency
    yield Case("GEMM", Gemm(**loops, overwrite=Overwrite.OUTER), usual, compute)
    yield Case("ALU, immediate", Alu(**loops, use_imm=True), usual, compute)
    yield Case("ALU, accumulator", Alu(**loops), usual, compute)
    yield Case(
        "EPI", Epi(scale=True, residual=True, outer=1, inner=tensors, acc_inner=1, out_inner=1), usual, (Finish(),)
    )
    yield Case("STORE of OUT", Store(memory=Memory.OUT, y_size=1, x_size=tensors), usual, (Finish(),))
    yield Case("STORE of ACC", Store(memory=Memory.ACC, y_size=1, x_size=tensors), usual, (Finish(),))
    for memory in (Memory.INP, Memory.WGT):
        rows = Load(memory=memory, y_size=4, x_size=min(32, config.depth[memory] // 4), y_stride=64)
        for latency in sorted({1, 32, usual, 2 * usual}):
            yield Case(f"LOAD of {memory.name}, latency {latency}", rows, latency, load)
    padded = Load(memory=Memory.INP, y_size=2, x_size=16, y_stride=64, y_before=1, x_before=1, x_after=1)
    yield Case(f"LOAD of INP, padded, latency {usual}", padded, usual, load)
    yield Case(f"LOAD of UOP, latency {usual}", Load(memory=Memory.UOP, y_size=1, x_size=8), usual, compute)


def run(machine: VerilatedMachine, program: Sequence[Instruction]) -> Counters:
    """Run a program."""
    machine.write(ENTRY, encode(program, machine.config))
    return machine.run(ENTRY, len(program))


def cost(machine: VerilatedMachine, case: Case) -> float:
    """Cycles that one more instruction takes."""
    begin = Load(memory=Memory.UOP, y_size=1, x_size=MICRO_OPS // machine.config.dma_elements[Memory.UOP])
    machine.latency = case.latency
    counts = []
    for count in (1, 1 + MORE):
        before = [begin] if isinstance(case.instruction, Gemm | Alu) else []
        cycles = run(machine, [*before, *[case.instruction] * count, *case.after]).cycles
        assert cycles is not None
        counts.append(cycles)
    return (counts[1] - counts[0]) / MORE


def speeds(machine: VerilatedMachine) -> dict[str, float]:
    """Simulated cycles in a second of the processor: while GEMM runs, and while nothing but a LOAD does."""
    machine.latency = machine.config.memory_latency
    busy = Gemm(uop_end=MICRO_OPS, outer=256, inner=8, overwrite=Overwrite.OUTER)
    idle = Load(memory=Memory.INP, y_size=1024, x_size=min(32, machine.config.depth[Memory.INP]))
    wait = Gemm(pop_prev=True, push_next=True), Finish(pop_prev=True)
    programs = {
        "GEMM": [*[busy] * 8, replace(busy, push_next=True), wait[1]],
        "LOAD": [*[idle] * 4, replace(idle, push_next=True), *wait],
    }
    found = {}
    for name, program in programs.items():
        begin = time.process_time()
        cycles = run(machine, program).cycles
        assert cycles is not None
        found[name] = cycles / (time.process_time() - begin)
    return found


def main() -> int:
    """Print the table; with --save keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="a file with a configuration")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    arguments = parser.parse_args()
    config = AccelConfig.read(arguments.config) if arguments.config else AccelConfig()
    machine = VerilatedMachine(config, DRAM_BYTES)
    machine.write(
        0, encode_micro_ops([MicroOp(acc=i % 4, inp=i % 4, wgt=i % 2) for i in range(MICRO_OPS)], config).tobytes()
    )
    found = {case.name: (steps(case.instruction, config), cost(machine, case)) for case in cases(config)}
    rows = [
        [name, str(bound), f"{cycles:.2f}", f"{100 * bound / cycles:.1f}"] for name, (bound, cycles) in found.items()
    ]
    print(table(["instruction", "bound", "cycles", "%"], rows))
    simulated = speeds(machine)
    for name, speed in simulated.items():
        print(f"simulation of {name}: {speed / 1000:.0f} thousand cycles a second")
    if arguments.save:
        data = {"machine": harness.machine(), "config": config.to_json(), "cycles": found, "cycles_a_second": simulated}
        harness.write_json(RESULTS, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
