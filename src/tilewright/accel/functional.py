"""The functional simulator: what a program computes, exactly, without cycles.

The three units take turns: each executes instructions until its next one waits for a token. Fetch fills their queues
as the machine does, so a program that deadlocks for want of room in a queue does so here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.accel import lanewise
from tilewright.accel.assembler import place
from tilewright.accel.checker import LINKS, Link, pops, pushes
from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.encoding import INSTRUCTION_BYTES, decode, decode_micro_ops
from tilewright.accel.instructions import Alu, Epi, Finish, Gemm, Instruction, Load, Store, Unit, check_formats
from tilewright.accel.machine import Counters, Event, UnitCounters, check_dram, check_program, check_range
from tilewright.accel.products import Indices, Products, loop_index, outer_pieces
from tilewright.accel.rules import dram_rows, problem, steps
from tilewright.accel.transfers import OnChip
from tilewright.support.errors import UserError

MOST_STEPS = 10**9
"""Steps after which a run is given up where nothing else was said."""
_TURNS = (Unit.STORE, Unit.COMPUTE, Unit.LOAD)
"""FINISH as early as tokens let it: what they do not order before it is found."""


class FunctionalMachine:
    """The accelerator in numpy (a `Machine`). A run has no cycles; `most_cycles` bounds its steps."""

    def __init__(self, config: AccelConfig, dram_bytes: int, *, is_traced: bool = False) -> None:
        check_formats(config)
        check_dram(config, dram_bytes)
        self.config = config
        self.dram_bytes = dram_bytes
        self.events: list[Event] = []
        """What the last run did, in the order it was done, where the machine is traced."""
        self.is_traced = is_traced
        self._dram = np.zeros(dram_bytes, np.uint8)
        self._chip = OnChip(config)
        self._products = Products(config, self._chip.inp, self._chip.wgt)
        self._decoded: tuple[bytes, list[Instruction]] = b"", []

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes to DRAM."""
        values = np.frombuffer(data, np.uint8)
        check_range(self, address, len(values))
        self._dram[address : address + len(values)] = values

    def read(self, address: int, size: int) -> bytes:
        """Copy bytes from DRAM."""
        check_range(self, address, size)
        return self._dram[address : address + size].tobytes()

    def run(self, address: int, count: int, most_cycles: int | None = None) -> Counters:
        """Execute a program."""
        check_program(self, address, count)
        program = self._program(self.read(address, count * INSTRUCTION_BYTES))
        execution = _Execution(self, program, MOST_STEPS if most_cycles is None else most_cycles)
        self.events = execution.events
        execution.run()
        return execution.counters()

    def close(self) -> None:
        """Nothing is to be freed."""

    def execute(self, instruction: Instruction) -> None:
        """The effects of one legal instruction, without its tokens."""
        if isinstance(instruction, Load):
            self._chip.load(instruction, self._dram)
        elif isinstance(instruction, Store):
            self._chip.store(instruction, self._dram)
        elif isinstance(instruction, Gemm):
            self._gemm(instruction)
        elif isinstance(instruction, Alu):
            self._alu(instruction)
        elif isinstance(instruction, Epi):
            lanewise.epilogue(instruction, self._chip.acc, self._chip.out, self._chip.par, self.config)

    def _program(self, data: bytes) -> list[Instruction]:
        """The instructions, decoded and checked; a program that is run again is decoded once."""
        if self._decoded[0] != data:
            program = decode(data, self.config)
            for index, instruction in enumerate(program):
                wrong = problem(instruction, self.config, self.dram_bytes)
                if wrong is not None:
                    raise UserError(f"accelerator: {wrong}", where=place(index, instruction))
            if not any(isinstance(instruction, Finish) for instruction in program):
                raise UserError("accelerator: the program has no FINISH")
            self._decoded = data, program
        return self._decoded[1]

    def _micro_ops(self, instruction: Gemm | Alu) -> Mapping[str, Indices]:
        return decode_micro_ops(self._chip.uop[instruction.uop_begin : instruction.uop_end], self.config)

    def _gemm(self, gemm: Gemm) -> None:
        micro_ops = self._micro_ops(gemm)
        if not gemm.outer or not gemm.inner or gemm.uop_begin == gemm.uop_end:
            return
        outer, inner = gemm.outer - 1, gemm.inner - 1
        self._check_index(Memory.ACC, micro_ops["acc"], outer * gemm.acc_outer + inner * gemm.acc_inner)
        if gemm.reset:
            for piece in outer_pieces(gemm.outer, gemm.inner, gemm.uop_end - gemm.uop_begin):
                self._chip.acc[loop_index(micro_ops["acc"], piece, gemm.inner, gemm.acc_outer, gemm.acc_inner)] = 0
            return
        self._check_index(Memory.INP, micro_ops["inp"], outer * gemm.inp_outer + inner * gemm.inp_inner)
        self._check_index(Memory.WGT, micro_ops["wgt"], outer * gemm.wgt_outer + inner * gemm.wgt_inner)
        self._products.execute(gemm, micro_ops, self._chip.acc)

    def _alu(self, alu: Alu) -> None:
        micro_ops = self._micro_ops(alu)
        if not alu.outer or not alu.inner or alu.uop_begin == alu.uop_end:
            return
        outer, inner = alu.outer - 1, alu.inner - 1
        self._check_index(Memory.ACC, micro_ops["acc"], outer * alu.dst_outer + inner * alu.dst_inner)
        if not alu.use_imm:
            self._check_index(Memory.ACC, micro_ops["inp"], outer * alu.src_outer + inner * alu.src_inner)
        lanewise.alu(alu, micro_ops, self._chip.acc, self.config)

    def _check_index(self, memory: Memory, base: Indices, added: int) -> None:
        """Refuse micro-ops of which the loops' last step leaves the memory."""
        greatest = int(base.max()) + added
        if greatest >= self.config.depth[memory]:
            raise UserError(
                f"accelerator: micro-op {int(base.argmax())} of its range touches {memory.name}[{greatest}], "
                f"past its {self.config.depth[memory]} elements"
            )


class _Execution:
    """One run: the instructions that wait, and the tokens on their way."""

    def __init__(self, machine: FunctionalMachine, program: Sequence[Instruction], most_steps: int) -> None:
        self.events: list[Event] = []
        self._machine = machine
        self._program = program
        self._units = [instruction.unit for instruction in program]
        self._fetched = 0
        self._waiting: dict[Unit, deque[int]] = {unit: deque() for unit in Unit}
        # When each token was given.
        self._tokens: dict[Link, deque[int]] = {link: deque() for link in LINKS}
        self._most_steps = most_steps
        self._steps = dict.fromkeys(Unit, 0)
        self._clock = dict.fromkeys(Unit, 0)
        self._done = dict.fromkeys(Unit, 0)
        self._read = self._written = 0

    def run(self) -> None:
        """To FINISH; a `UserError` where it cannot be reached."""
        while True:
            done = sum(self._done.values())
            self._fetch()
            for unit in _TURNS:
                queue = self._waiting[unit]
                while queue and self._missing(unit) is None:
                    index = queue.popleft()
                    self._execute(index)
                    if isinstance(self._program[index], Finish):
                        self._check_end(index)
                        return
                    self._fetch()
            if sum(self._done.values()) == done:
                raise UserError(f"accelerator: the program deadlocks\n{self._report()}")

    def counters(self) -> Counters:
        """What was done."""
        units = {unit: UnitCounters(self._done[unit], self._steps[unit]) for unit in Unit}
        return Counters(None, units, self._read, self._written)

    def _fetch(self) -> None:
        most = self._machine.config.command_queue
        while self._fetched < len(self._program):
            queue = self._waiting[self._units[self._fetched]]
            if len(queue) >= most:
                return
            queue.append(self._fetched)
            self._fetched += 1

    def _missing(self, unit: Unit) -> Link | None:
        """The token that the next instruction of a unit waits for."""
        return next((link for link in pops(self._program[self._waiting[unit][0]]) if not self._tokens[link]), None)

    def _execute(self, index: int) -> None:
        instruction, unit = self._program[index], self._units[index]
        config = self._machine.config
        count = steps(instruction, config)
        if sum(self._steps.values()) + count > self._most_steps:
            raise UserError(
                f"accelerator: the program takes more than {self._most_steps} steps",
                where=place(index, instruction),
                hint="give most_cycles if it is meant to",
            )
        ready = self._clock[unit]
        start = max([ready, *(self._tokens[link].popleft() for link in pops(instruction))])
        try:
            self._machine.execute(instruction)
        except UserError as error:
            raise UserError(error.message, where=place(index, instruction), hint=error.hint) from None
        self._clock[unit] = start + count
        self._steps[unit] += count
        self._done[unit] += 1
        if isinstance(instruction, Load | Store):
            _, rows, size, _ = dram_rows(instruction, config)
            self._read += rows * size if isinstance(instruction, Load) else 0
            self._written += rows * size if isinstance(instruction, Store) else 0
        self._give(index, instruction, unit)
        if self._machine.is_traced:
            self.events.append(Event(index, unit, start, start + count, ready))

    def _give(self, index: int, instruction: Instruction, unit: Unit) -> None:
        for link in pushes(instruction):
            queue = self._tokens[link]
            if len(queue) >= self._machine.config.token_queue:
                raise UserError(
                    f"accelerator: a token {link} too many: the queue holds {len(queue)}",
                    where=place(index, instruction),
                )
            queue.append(self._clock[unit])

    def _check_end(self, index: int) -> None:
        """Nothing may be left when FINISH is executed."""
        where = place(index, self._program[index])
        left = sorted(
            {i for queue in self._waiting.values() for i in queue} | {*range(self._fetched, len(self._program))}
        )
        if left:
            first = place(left[0], self._program[left[0]])
            raise UserError(
                f"accelerator: {len(left)} instructions are not executed when FINISH is, the first of them {first}",
                where=where,
                hint="FINISH must wait for tokens that order them before it, and be the last instruction",
            )
        for link, queue in self._tokens.items():
            if queue:
                raise UserError(
                    f"accelerator: {len(queue)} tokens {link} are left",
                    where=where,
                    hint="each token that is given must be taken",
                )

    def _report(self) -> str:
        """What each unit and fetch wait for."""
        lines = []
        for unit, queue in self._waiting.items():
            missing = self._missing(unit) if queue else None
            if missing is None:
                lines.append(f"  {unit.name.lower()} has no instruction")
            else:
                at = place(queue[0], self._program[queue[0]])
                lines.append(f"  {unit.name.lower()} waits for a token {missing}: {at}")
        if self._fetched < len(self._program):
            at = place(self._fetched, self._program[self._fetched])
            unit = self._units[self._fetched]
            lines.append(f"  fetch waits for room in the queue of {unit.name.lower()}: {at}")
        return "\n".join(lines)
