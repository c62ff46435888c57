"""The hardware, simulated by Verilator: bit for bit the functional simulator, its cycles and its errors."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.accel.configs import CONFIGS
from tests.accel.tiled_product import OUT_AT, TiledProduct
from tests.fuzz.accel_streams import DRAM_BYTES, run_program
from tests.fuzz.pieces import Tally
from tests.requirements import need
from tilewright.accel.config import Memory
from tilewright.accel.encoding import encode, encode_micro_ops
from tilewright.accel.hardware import build, hdl
from tilewright.accel.hardware.verilog import verilog
from tilewright.accel.instructions import Alu, Epi, Finish, Gemm, Instruction, Load, MicroOp, Overwrite, Store, Unit
from tilewright.accel.machine import Counters
from tilewright.accel.verilated import VerilatedMachine
from tilewright.cli.main import main
from tilewright.support.errors import MissingDependencyError, UserError
from tilewright.tune import accel_cycles

SMALL = CONFIGS["small"]
ENTRY = 1 << 16
PROGRAM_AT = OUT_AT + (1 << 16)


@pytest.fixture(scope="module")
def machine() -> Iterator[VerilatedMachine]:
    """One build for all tests of this file."""
    need("verilator", "amaranth", "c++-compiler")
    target = VerilatedMachine(SMALL, DRAM_BYTES)
    yield target
    target.close()


def run(target: VerilatedMachine, instructions: Sequence[Instruction], most: int = 100_000) -> Counters:
    target.write(ENTRY, encode(instructions, target.config))
    return target.run(ENTRY, len(instructions), most)


def cycles(target: VerilatedMachine, instructions: Sequence[Instruction]) -> int:
    count = run(target, instructions).cycles
    assert count is not None
    return count


@pytest.mark.slow
def test_random_programs_compute_what_the_simulator_and_the_reference_do(machine: VerilatedMachine) -> None:
    """More of them on more configurations: `make fuzz-accel`."""
    tally = Tally()
    wrong = [(seed, text) for seed in range(60) if (text := run_program(machine, seed, tally)) is not None]
    assert not wrong
    assert tally.counts["programs"] == 60
    machine.latency = SMALL.memory_latency


def test_a_product_takes_a_cycle_and_instructions_follow_without_a_gap(machine: VerilatedMachine) -> None:
    micro_ops = encode_micro_ops([MicroOp(acc=0, inp=i, wgt=i) for i in range(8)], SMALL)
    machine.write(0, micro_ops.tobytes())
    begin = Load(memory=Memory.UOP, y_size=1, x_size=8)
    gemm = Gemm(uop_end=8, outer=3, inner=4, overwrite=Overwrite.OUTER)
    immediate = Alu(uop_end=8, outer=2, inner=4, use_imm=True, imm=3)
    tensor = Alu(uop_end=8, outer=2, inner=4)
    for instruction, steps in ((gemm, 96), (immediate, 64), (tensor, 128)):
        last = type(instruction)(push_next=True)
        one, five = ([begin, *[instruction] * count, last, Finish(pop_prev=True)] for count in (1, 5))
        assert cycles(machine, five) - cycles(machine, one) == 4 * steps


def test_tensors_of_epi_take_a_cycle(machine: VerilatedMachine) -> None:
    epi = Epi(scale=True, outer=2, inner=16, acc_outer=16, acc_inner=1, out_outer=16, out_inner=1, high=127)
    # Nothing may be between the last result and FINISH but the pipeline.
    one, five = ([*[epi] * count, Finish()] for count in (1, 5))
    assert cycles(machine, five) - cycles(machine, one) == 4 * 32


def test_words_of_loads_and_stores_take_a_cycle(machine: VerilatedMachine) -> None:
    load = Load(memory=Memory.INP, y_size=4, x_size=8, y_stride=9)
    wait = Load(memory=Memory.INP, push_next=True), Gemm(pop_prev=True, push_next=True), Finish(pop_prev=True)
    fetched = 16 // SMALL.bus_bytes
    for machine.latency in (1, 8, 16):
        one, nine = (cycles(machine, [*[load] * count, *wait]) for count in (1, 9))
        # The instructions are read through the same port.
        assert 8 * 32 <= nine - one <= 8 * (32 + fetched), machine.latency
    store = Store(memory=Memory.OUT, dram=64, y_size=4, x_size=8, y_stride=9)
    one, five = (cycles(machine, [*[store] * count, Finish()]) for count in (1, 5))
    # Two cycles for the instruction and for its first element.
    assert five - one == 4 * (32 + 2)
    machine.latency = SMALL.memory_latency


@pytest.mark.grid
@pytest.mark.parametrize("latency", [1, 16, 90])
@pytest.mark.parametrize(("tiles", "steps", "rows", "threads"), [(4, 2, 4, 2), (6, 3, 8, 2), (3, 4, 16, 1)])
def test_the_cycle_model_is_exact(
    machine: VerilatedMachine, tiles: int, steps: int, rows: int, threads: int, latency: int
) -> None:
    product = TiledProduct(SMALL, tiles, steps, rows, threads)
    for address, data in product.dram().items():
        machine.write(address, data)
    program = product.instructions()
    machine.write(PROGRAM_AT, encode(program, SMALL))
    machine.latency = latency
    counters = machine.run(PROGRAM_AT, len(program))
    machine.latency = SMALL.memory_latency
    assert accel_cycles.cycles(program, SMALL, product.read, latency=latency).total == counters.cycles


def test_counters_say_what_units_waited_for(machine: VerilatedMachine) -> None:
    program = [
        Load(memory=Memory.INP, y_size=1, x_size=16, push_next=True),
        Gemm(uop_end=8, outer=2, inner=8, pop_prev=True, push_next=True),
        Store(memory=Memory.OUT, y_size=1, x_size=8, dram=4096, pop_prev=True),
        Finish(),
    ]
    counters = run(machine, program)
    load, compute, store = (counters.units[unit] for unit in Unit)
    assert load.busy == 16
    assert load.memory_wait is not None and load.memory_wait >= machine.latency
    # One cycle for each step, four until the last one's result is written.
    assert compute.busy == 128 + 4
    assert store.busy == 8
    assert compute.token_wait and store.token_wait and store.token_wait >= compute.busy
    assert (counters.bytes_read, counters.bytes_written) == (64, 32)


def test_a_deadlock_names_what_each_unit_waits_for(machine: VerilatedMachine) -> None:
    program = [
        Load(memory=Memory.INP, pop_next=True),
        Gemm(uop_end=1, outer=1, inner=1),
        Gemm(pop_next=True),
        Finish(),
    ]
    with pytest.raises(UserError, match="deadlocks") as raised:
        run(machine, [*program[:-1], Finish(pop_prev=True)])
    text = str(raised.value)
    assert "load waits for a token of compute (pop_next): instruction 0" in text
    assert "compute waits for a token of store (pop_next): instruction 2" in text
    assert "store waits for a token of compute (pop_prev): instruction 3" in text
    # The machine works afterwards, and its tokens and queues are as new.
    run(machine, [Finish()])


def test_errors_of_programs_are_reported(machine: VerilatedMachine) -> None:
    give, take = Gemm(push_next=True), Store(pop_prev=True)
    overflow = [*[give] * (SMALL.token_queue + 1), Store(memory=Memory.OUT, y_size=4000, x_size=16), Finish()]
    cases = [
        (overflow, "a token too many in a queue of"),
        ([give, Finish()], "tokens from compute to store are left|instructions are not executed"),
        ([Gemm(uop_end=8, outer=9, inner=9), Finish()], "instructions are not executed when FINISH is"),
        ([Finish(), take], "instructions are not executed when FINISH is"),
        ([Store(dram=1 << 30, y_size=1, x_size=1), Finish()], "reads or writes byte"),
        ([Load(push_prev=True), Finish()], "a unit that is not there"),
        ([Store(memory=Memory.INP), Finish()], "stores what cannot be"),
        ([Store(memory=Memory.OUT, y_size=4000, x_size=16), Finish()], "takes more than .* cycles"),
    ]
    for program, message in cases:
        with pytest.raises(UserError, match=message):
            run(machine, program, 20_000)
        run(machine, [Finish()])


def test_an_instruction_that_means_nothing_is_named(machine: VerilatedMachine) -> None:
    machine.write(ENTRY, encode([Finish(), Finish()], SMALL))
    machine.write(ENTRY, b"\x07")
    with pytest.raises(UserError, match="instruction 0 has the unknown opcode 7"):
        machine.run(ENTRY, 2)


def test_memories_keep_what_they_hold_between_runs(machine: VerilatedMachine) -> None:
    data = bytes(range(64))
    machine.write(256, data)
    machine.write(1024, bytes(64))
    wait = Gemm(pop_prev=True, push_next=True), Finish(pop_prev=True)
    run(machine, [Load(memory=Memory.OUT, dram=64, y_size=1, x_size=16, push_next=True), *wait])
    run(machine, [Store(memory=Memory.OUT, dram=256, y_size=1, x_size=16), Finish()])
    assert machine.read(1024, 64) == data


def test_what_is_not_in_dram_is_refused(machine: VerilatedMachine) -> None:
    with pytest.raises(UserError, match="are not in the DRAM"):
        machine.write(DRAM_BYTES - 1, b"ab")
    with pytest.raises(UserError, match="are not in the DRAM"):
        machine.run(DRAM_BYTES - 16, 2)
    machine.latency = 0
    with pytest.raises(UserError, match="a memory latency of 0 cycles"):
        run(machine, [Finish()])
    machine.latency = SMALL.memory_latency


def test_verilog_is_one_text_without_a_line_for_each_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need("amaranth")
    config, output = tmp_path / "tiny.json", tmp_path / "core.v"
    config.write_text(CONFIGS["tiny"].to_json())
    assert main(["accel", "rtl", "--config", str(config), "-o", str(output)]) == 0
    assert "16 multipliers" in capsys.readouterr().out
    text = output.read_text()
    assert "module tilewright_core(" in text
    for port in ("clk", "rst", "start_address", "request_valid", "request_ready", "response_data", "done"):
        assert f" {port};" in text
    assert "] = 32'd0;" not in text


def test_verilog_of_an_illegal_configuration_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, output = tmp_path / "bad.json", tmp_path / "core.v"
    config.write_text('{"block_in": 12}')
    assert main(["accel", "rtl", "--config", str(config), "-o", str(output)]) == 1
    assert "block_in is 12, which is no power of two" in capsys.readouterr().err
    assert not output.exists()


def test_a_missing_amaranth_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    hdl._load.cache_clear()
    monkeypatch.setitem(sys.modules, "amaranth", None)
    with pytest.raises(MissingDependencyError, match="amaranth") as raised:
        verilog(SMALL)
    assert "tilewright[accel]" in (raised.value.hint or "")


def test_a_missing_verilator_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingDependencyError, match="Verilator") as raised, build.simulator_library(SMALL):
        pass
    assert "apt-get install verilator" in (raised.value.hint or "")


def test_a_simulator_is_built_once(machine: VerilatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("it is in the cache")

    monkeypatch.setattr(build, "_build", refuse)
    with build.simulator_library(SMALL) as path:
        assert path.exists() and isinstance(path, Path)
