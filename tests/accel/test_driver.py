"""The driver interface: machines behind the C table and behind registers compute what they do in the open."""

from __future__ import annotations

import ctypes
import runpy
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.accel.configs import CONFIGS
from tests.accel.programs import random_program
from tilewright.accel.c_header import header
from tilewright.accel.config import AccelConfig
from tilewright.accel.driver import DRIVER_HEADER, DriverMachine, DriverTable
from tilewright.accel.encoding import encode, encode_micro_ops
from tilewright.accel.functional import FunctionalMachine
from tilewright.accel.instructions import Finish, Gemm, Load, MicroOp
from tilewright.accel.listing import parse_program
from tilewright.accel.machine import Machine
from tilewright.accel.registers import BoardError, Control, MockBoard, Register, RegisterMachine, Status
from tilewright.support.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
USUAL = CONFIGS["usual"]


def registers(config: AccelConfig, dram_bytes: int) -> Machine:
    return RegisterMachine(MockBoard(FunctionalMachine(config, dram_bytes)))


def through(make: Callable[[AccelConfig, int], Machine], config: AccelConfig, dram_bytes: int) -> DriverMachine:
    table = DriverTable(make)
    return DriverMachine(table.struct, config, dram_bytes, owner=table)


@pytest.mark.parametrize("make", [FunctionalMachine, registers])
@pytest.mark.parametrize("name", ["usual", "tiny", "batch2"])
def test_programs_run_the_same_behind_a_driver(make: Callable[[AccelConfig, int], Machine], name: str) -> None:
    config = CONFIGS[name]
    program = random_program(np.random.default_rng(3), config)
    expected = program.run_on(FunctionalMachine(config, program.dram_bytes))
    assert program.run_on(make(config, program.dram_bytes)) == expected
    machine = through(make, config, program.dram_bytes)
    assert program.run_on(machine) == expected
    machine.close()
    machine.close()
    with pytest.raises(UserError, match="is closed"):
        machine.read(0, 4)


def test_errors_come_through_a_driver_as_they_are() -> None:
    machine = through(FunctionalMachine, USUAL, 4096)
    machine.write(0, encode([Load(pop_next=True), Gemm(), Finish(pop_prev=True)], USUAL))
    with pytest.raises(UserError, match="the program deadlocks\n  load waits for a token compute -> load"):
        machine.run(0, 3)
    assert machine.read(0, 4) == encode([Load(pop_next=True)], USUAL)[:4]
    machine.write(0, encode([Gemm(push_next=True), Finish(pop_prev=True)], USUAL))
    assert machine.run(0, 2).instructions == 2


def test_a_driver_that_opens_nothing_says_why() -> None:
    def fail(config: AccelConfig, dram_bytes: int) -> Machine:
        raise ValueError("no board")

    with pytest.raises(UserError, match="ValueError: no board"):
        through(fail, USUAL, 4096)


def test_a_driver_of_another_version_is_refused() -> None:
    table = DriverTable(FunctionalMachine)
    table.struct.version = 2
    with pytest.raises(UserError, match="version 2 of the interface"):
        DriverMachine(table.struct, USUAL, 4096)


def test_a_board_that_fails_is_explained_by_the_program() -> None:
    machine = registers(USUAL, 4096)
    machine.write(0, encode([Finish(pop_prev=True)], USUAL))
    with pytest.raises(UserError, match="waits for ever: no token compute -> store"):
        machine.run(0, 1)
    machine.write(0, encode([Gemm(push_next=True, uop_end=64, outer=99, inner=99), Finish(pop_prev=True)], USUAL))
    with pytest.raises(UserError, match="error 1"):
        machine.run(0, 2, 100)


def test_the_states_of_a_board() -> None:
    board = MockBoard(FunctionalMachine(USUAL, 4096))
    board.write(0, encode([Finish()], USUAL))
    assert board.read_register(Register.STATUS) == 0
    board.write_register(Register.COUNT, 1)
    board.write_register(Register.CONTROL, Control.START)
    assert board.read_register(Register.STATUS) == Status.BUSY
    assert board.read_register(Register.STATUS) == Status.DONE
    board.write_register(Register.IDENTITY, 1)
    assert Status.ERROR in Status(board.read_register(Register.STATUS))
    assert board.read_register(Register.ERROR) == BoardError.REGISTER
    board.write_register(Register.CONTROL, Control.CLEAR)
    assert board.read_register(Register.STATUS) == 0


def test_a_board_that_stays_busy_is_given_up() -> None:
    class Stuck(MockBoard):
        def _execute(self) -> None:
            pass

    with pytest.raises(UserError, match="still busy after 5 looks"):
        RegisterMachine(Stuck(FunctionalMachine(USUAL, 4096)), most_polls=5).run(0, 1)


def test_the_page_has_the_tables_of_the_instruction_set() -> None:
    generator = runpy.run_path(str(ROOT / "docs" / "generate_accelerator.py"))
    text = (ROOT / "docs" / "accelerator.md").read_text()
    assert text == generator["page"](), "run: python docs/generate_accelerator.py"


def test_the_header_encodes_as_python_does(c_compiler: str, tmp_path: Path) -> None:
    config = CONFIGS["narrow"]
    load = Load(sram=5, dram=0xDEADBEEF, y_size=7, x_size=300, y_stride=999, pad=-2, push_next=True)
    (tmp_path / "accel.h").write_text(header(config, DRIVER_HEADER))
    (tmp_path / "a.c").write_text(
        '#include <stdio.h>\n#include "accel.h"\n'
        "int main(void) {\n"
        "    tw_accel_load load = {.memory = TW_ACCEL_MEMORY_INP, .sram = 5, .dram = 0xdeadbeef, .y_size = 7,\n"
        "        .x_size = 300, .y_stride = 999, .pad = -2, .push_next = 1};\n"
        "    tw_accel_word word = tw_accel_encode_load(&load);\n"
        "    tw_accel_micro_op op = {.acc = 3, .inp = 9, .wgt = 5};\n"
        '    printf("%016llx%016llx %08x %d", (unsigned long long)word.bits[1], (unsigned long long)word.bits[0],\n'
        "        tw_accel_encode_micro_op(&op), (int)sizeof(tw_accel_driver));\n"
        "    return 0;\n}\n"
    )
    command = [c_compiler, "-std=c99", "-Wall", "-Werror", "a.c", "-o", "a"]
    subprocess.run(command, cwd=tmp_path, check=True)
    words = subprocess.run([tmp_path / "a"], capture_output=True, text=True, check=True).stdout.split()
    assert bytes.fromhex(words[0])[::-1] == encode([load], config)
    assert int(words[1], 16) == encode_micro_ops([MicroOp(acc=3, inp=9, wgt=5)], config)[0]
    assert int(words[2]) == ctypes.sizeof(DriverTable(FunctionalMachine).struct)
    assert parse_program("finish").instructions == (Finish(),)
