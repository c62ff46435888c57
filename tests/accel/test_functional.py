"""The functional simulator against the literal loops, and its messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest

from tests.accel.configs import CONFIGS
from tests.accel.literal import Literal
from tests.accel.programs import random_program
from tilewright.accel.checker import find_faults
from tilewright.accel.config import Memory
from tilewright.accel.encoding import encode, encode_micro_ops
from tilewright.accel.functional import FunctionalMachine
from tilewright.accel.instructions import Alu, Epi, Finish, Gemm, Instruction, Load, MicroOp, Overwrite, Store, Unit
from tilewright.accel.machine import Counters
from tilewright.accel.program import Program
from tilewright.support.errors import UserError

USUAL = CONFIGS["usual"]
DRAM = 1 << 14
ENTRY = 1 << 13


@pytest.mark.parametrize("name", CONFIGS)
def test_random_programs_compute_what_the_literal_loops_do(name: str) -> None:
    config = CONFIGS[name]
    for seed in range(4):
        program = random_program(np.random.default_rng([seed, len(name)]), config)
        _, results = program.run_on(FunctionalMachine(config, program.dram_bytes))
        assert results == Literal(config, program.dram_bytes).run(program), (name, seed)
        assert not find_faults(program.instructions, config, program.read), (name, seed)


def test_random_programs_have_every_field_set_and_every_unit_waiting() -> None:
    changed: set[tuple[str, str]] = set()
    for name, config in CONFIGS.items():
        program = random_program(np.random.default_rng(len(name)), config, 60)
        for instruction in program.instructions:
            default = type(instruction)()
            for field in fields(default):
                if getattr(instruction, field.name) != getattr(default, field.name):
                    changed.add((type(instruction).__name__, field.name))
    tokens = {"pop_prev", "pop_next", "push_prev", "push_next"}
    for kind in (Load, Store, Gemm, Alu, Epi):
        missing = {field.name for field in fields(kind) if (kind.__name__, field.name) not in changed} - tokens
        assert not missing, kind
    assert {("Finish", "pop_prev"), ("Load", "pop_next"), ("Gemm", "push_next"), ("Store", "push_prev")} <= changed


def machine(dram_bytes: int = DRAM) -> FunctionalMachine:
    return FunctionalMachine(USUAL, dram_bytes)


def run(
    instructions: Sequence[Instruction], target: FunctionalMachine | None = None, most: int | None = None
) -> Counters:
    runner = machine() if target is None else target
    runner.write(ENTRY, encode(instructions, runner.config))
    return runner.run(ENTRY, len(instructions), most)


def micro_ops(*ops: MicroOp) -> bytes:
    return encode_micro_ops(ops, USUAL).tobytes()


def test_long_sums_wrap_and_products_of_least_numbers_are_exact() -> None:
    target = machine()
    target.write(0, b"\x80" * 16 * 16)
    target.write(4096, micro_ops(MicroOp(), MicroOp(acc=1)))
    program = [
        Load(memory=Memory.UOP, dram=512, y_size=1, x_size=1),
        Load(memory=Memory.INP, y_size=1, x_size=1),
        Load(memory=Memory.WGT, y_size=1, x_size=1, push_next=True),
        Gemm(uop_begin=0, uop_end=2, outer=4095, inner=3, pop_prev=True, push_next=True),
        Store(memory=Memory.ACC, dram=1024 - 128, y_size=1, x_size=2, pop_prev=True),
        Finish(),
    ]
    counters = run(program, target)
    expected = (4095 * 3 * 16 * (1 << 14) + (1 << 31)) % (1 << 32) - (1 << 31)
    assert expected < 0
    assert np.frombuffer(target.read(7168, 128), np.int32).tolist() == [expected] * 32
    assert counters.units[Unit.COMPUTE].busy == 4095 * 3 * 2 + 1
    assert counters.cycles is None and counters.instructions == 6
    assert (counters.bytes_read, counters.bytes_written) == (8 + 16 + 256, 128)


def test_long_instructions_are_executed_in_pieces() -> None:
    # More steps than one plan holds; the first outer step overwrites, and only that of the first piece.
    target = machine()
    target.write(0, b"\x01" * 256)
    target.write(4096, micro_ops(*[MicroOp()] * 64))
    program = [
        Load(memory=Memory.UOP, dram=512, y_size=1, x_size=32),
        Load(memory=Memory.ACC, y_size=1, x_size=1),
        Load(memory=Memory.INP, y_size=1, x_size=1),
        Load(memory=Memory.WGT, y_size=1, x_size=1, push_next=True),
        Gemm(overwrite=Overwrite.OUTER, uop_end=64, outer=3, inner=4095, pop_prev=True, push_next=True),
        Store(memory=Memory.ACC, dram=1024 - 128, y_size=1, x_size=1, pop_prev=True),
        Finish(),
    ]
    for outer in (3, 6):
        run([replace(item, outer=outer) if isinstance(item, Gemm) else item for item in program], target)
        # The whole first step overwrites each time, so its last product alone is left of it.
        steps = (outer - 1) * 4095 * 64 + 1
        assert np.frombuffer(target.read(7168, 64), np.int32).tolist() == [16 * steps] * 16


def test_a_program_runs_again_on_what_the_memories_hold() -> None:
    target = machine()
    target.write(4096, micro_ops(MicroOp(), MicroOp()))
    program = [
        Load(memory=Memory.UOP, dram=512, y_size=1, x_size=1),
        Alu(use_imm=True, imm=3, uop_end=1, outer=1, inner=1, push_next=True),
        Store(memory=Memory.ACC, dram=128, y_size=1, x_size=1, pop_prev=True),
        Finish(),
    ]
    for turn in (1, 2, 3):
        run(program, target)
        assert np.frombuffer(target.read(1024, 64), np.int32).tolist() == [3 * turn] * 16


ILLEGAL = {
    "no unit is before load": Load(pop_prev=True),
    "no unit is after store": Store(push_next=True),
    "WGT cannot be stored": Store(memory=Memory.WGT),
    "PAR cannot be padded": Load(memory=Memory.PAR, y_before=1),
    "not at a word of the bus": Load(memory=Memory.UOP, sram=1, y_size=1, x_size=1),
    r"touches INP\[31\] to \[32\], past its 32": Load(sram=31, y_size=1, x_size=2),
    "past its 16384 bytes": Load(dram=(DRAM - 16) // 8, y_size=1, x_size=2),
    "end at 65, past UOP's 64": Gemm(uop_end=65),
    "before they begin": Alu(uop_begin=2, uop_end=1),
    "is above its greatest": Epi(low=1, high=0),
    r"touches ACC\[32\]": Epi(outer=1, inner=2, acc=31, acc_inner=1),
    r"touches OUT\[33\]": Epi(outer=2, inner=2, out=31, out_outer=1, out_inner=1),
    r"touches PAR\[8\]": Epi(scale=True, outer=2, inner=1, par=7),
}


@pytest.mark.parametrize("message", ILLEGAL)
def test_illegal_instructions_are_refused_by_name(message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        run([Load(), ILLEGAL[message], Finish()])
    assert "where: instruction 1: " + type(ILLEGAL[message]).__name__.lower() in str(caught.value)


def test_indices_of_micro_ops_are_checked_when_they_are_used() -> None:
    target = machine()
    target.write(0, micro_ops(MicroOp(acc=3, inp=31, wgt=15), MicroOp()))
    load = Load(memory=Memory.UOP, y_size=1, x_size=1)
    for gemm, message in (
        (Gemm(uop_end=2, outer=2, inner=1, inp_outer=1), r"INP\[32\]"),
        (Gemm(uop_end=2, outer=1, inner=2, wgt_inner=1), r"WGT\[16\]"),
        (Gemm(uop_end=2, outer=2, inner=2, acc_outer=15, acc_inner=14), r"ACC\[32\]"),
        (Alu(uop_end=2, outer=2, inner=1, src_outer=1), r"ACC\[32\]"),
    ):
        with pytest.raises(UserError, match=message):
            run([load, gemm, Finish(pop_prev=True)], target)
    # What does not read them does not check them.
    run(
        [load, Gemm(reset=True, uop_end=2, outer=2, inner=1, inp_outer=1, push_next=True), Finish(pop_prev=True)],
        target,
    )
    run(
        [load, Alu(use_imm=True, uop_end=2, outer=2, inner=1, src_outer=1, push_next=True), Finish(pop_prev=True)],
        target,
    )


def test_a_shift_that_is_too_great_is_refused() -> None:
    target = machine()
    words = np.zeros((4, 16), np.uint32)
    words[3, 5] = 48
    target.write(0, words.tobytes())
    load = Load(memory=Memory.PAR, y_size=1, x_size=1, push_next=True)
    relay = Gemm(pop_prev=True, push_next=True)
    with pytest.raises(UserError, match=r"shift of channel 5 in PAR\[0\] is 48"):
        run([load, relay, Epi(scale=True, outer=1, inner=1, pop_prev=True), Finish()], target)


def test_a_deadlock_names_all_that_wait() -> None:
    with pytest.raises(UserError) as caught:
        run([Load(y_size=1, x_size=1, pop_next=True), Gemm(pop_prev=True, push_next=True), Finish(pop_prev=True)])
    text = str(caught.value)
    assert "deadlocks" in text
    assert "load waits for a token compute -> load: instruction 0: load inp y_size=1 x_size=1 pop_next" in text
    assert "compute waits for a token load -> compute: instruction 1: gemm pop_prev push_next" in text
    assert "store waits for a token compute -> store: instruction 2: finish pop_prev" in text


def test_a_queue_without_room_is_part_of_a_deadlock() -> None:
    # The load unit waits for a token that compute would give, were its instruction not behind a full queue.
    loads = [Load(pop_next=True)] * (USUAL.command_queue + 1)
    with pytest.raises(UserError, match="fetch waits for room in the queue of load: instruction 64"):
        run([*loads, *[Gemm(push_prev=True)] * len(loads), Finish()])
    run([*loads[1:], *[Gemm(push_prev=True)] * (len(loads) - 2), Gemm(push_prev=True, push_next=True), *_ends()])


def _ends() -> list[Instruction]:
    """What orders FINISH behind the load unit."""
    return [Load(push_next=True), Gemm(pop_prev=True, push_next=True), Store(pop_prev=True), Finish(pop_prev=True)]


def test_tokens_too_many_and_tokens_left_are_errors() -> None:
    with pytest.raises(UserError, match="a token compute -> store too many: the queue holds 64"):
        run([*[Gemm(push_next=True)] * 65, Finish()])
    with pytest.raises(UserError, match="1 tokens compute -> load are left"):
        run([Gemm(push_prev=True), Gemm(push_next=True), Finish(pop_prev=True)])


def test_finish_must_come_last() -> None:
    with pytest.raises(UserError, match=r"1 instructions are not executed when FINISH is, the first .* instruction 0"):
        run([Gemm(), Finish()])
    with pytest.raises(UserError, match="has no FINISH"):
        run([Gemm()])


def test_a_run_is_bounded() -> None:
    target = machine()
    endless = Gemm(uop_end=64, outer=4095, inner=4095, push_next=True)
    with pytest.raises(UserError, match="more than 1000 steps"):
        run([endless, Finish(pop_prev=True)], target, 1000)
    with pytest.raises(UserError, match="more than 1000000000 steps"):
        run([endless, Finish(pop_prev=True)], target)


def test_addresses_outside_of_dram_are_refused() -> None:
    target = machine()
    for address, size in ((-1, 4), (DRAM - 3, 4), (0, -1)):
        with pytest.raises(UserError, match="are not in the DRAM"):
            target.read(address, size)
    with pytest.raises(UserError, match="are not in the DRAM"):
        target.write(DRAM, b"1")
    with pytest.raises(UserError, match="are not in the DRAM"):
        target.run(DRAM - 16, 2)
    with pytest.raises(UserError, match="begin at a word of the bus"):
        target.run(4, 1)
    with pytest.raises(UserError, match="program of 0 instructions"):
        target.run(0, 0)
    target.write(0, b"\xff" * 16)
    with pytest.raises(UserError, match="unknown opcode 7"):
        target.run(0, 1)
    for size in (0, -8, 12, 1 << 40):
        with pytest.raises(UserError, match="a DRAM of"):
            machine(size)


def test_a_trace_orders_instructions_by_tokens() -> None:
    target = FunctionalMachine(USUAL, DRAM, is_traced=True)
    run([Load(y_size=1, x_size=4, push_next=True), Gemm(pop_prev=True, push_next=True), Finish(pop_prev=True)], target)
    assert [(event.index, event.unit, event.start, event.end, event.ready) for event in target.events] == [
        (0, Unit.LOAD, 0, 8, 0),
        (1, Unit.COMPUTE, 8, 9, 0),
        (2, Unit.STORE, 9, 10, 0),
    ]


def test_a_program_lies_behind_its_data() -> None:
    program = Program(USUAL, (Finish(),), {0: b"12", 8192: b"3"}, ((16384, 1),))
    assert program.entry == 5 * 4096 and program.dram_bytes == 6 * 4096
    counters, results = program.run_on(FunctionalMachine(USUAL, program.dram_bytes))
    assert results == [b"\0"] and counters.instructions == 1
