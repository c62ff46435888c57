"""The runtime that serves a board: functions of C called there, and candidates of the tuner measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.micro_models import tiny
from tests.requirements import need
from tilewright.backends.micro.agent import BoardAgent, build_agent
from tilewright.backends.micro.board import board_of
from tilewright.backends.micro.program import read_program
from tilewright.compiler import Compilation
from tilewright.support.errors import UserError
from tilewright.target.target import Target
from tilewright.tune.board_measure import BoardMeasurer
from tilewright.tune.task import extract_tasks

BOARDS = {"cortex-m4": "arm-none-eabi", "rv32imac": "riscv-none-elf"}
ADD = """
#include <stdint.h>
#include <string.h>
static int32_t calls;
int32_t add(const int32_t* a, const int32_t* b, int32_t* sum) {
  for (int n = 0; n < 100; ++n) sum[n] = a[n] + b[n];
  return calls++;
}
"""


@pytest.mark.parametrize("name", BOARDS)
def test_functions_are_called_on_a_board(name: str) -> None:
    need(BOARDS[name])
    target = Target(name)
    a, b = np.arange(100, dtype=np.int32), np.full(100, 7, np.int32)
    with BoardAgent.start(board_of(target.triple, target.cpu)) as agent:
        done = agent.call(ADD, "add", [a, b, np.zeros(100, np.int32)])
        np.testing.assert_array_equal(done.arrays[2], a + b)
        np.testing.assert_array_equal(done.arrays[0], a)
        assert 100 < done.count < 2000
        assert agent.call(ADD, "add", [a, b, np.zeros(100, np.int32)]).count == pytest.approx(done.count, abs=100)
        with pytest.raises(UserError, match="the kernel returned 5"):
            agent.call("#include <stdint.h>\nint32_t five(void) { return 5; }", "five", [])
        with pytest.raises(UserError, match=r"takes 6\d\d\d\d bytes, and the board has 61440"):
            agent.call(ADD, "add", [a, b, np.zeros(16000, np.int32)])
        with pytest.raises(UserError, match=r"undefined reference to .nowhere"):
            agent.call(ADD, "nowhere", [])


def test_the_runtime_is_small(tmp_path: Path) -> None:
    """8 KB of code at most, and all of it fits 64 KB of memory."""
    need("arm-none-eabi")
    program = read_program(build_agent(tmp_path, board_of("thumbv7em-none-eabi", "cortex-m4"), 60 << 10))
    assert program.flash_bytes <= 8 << 10
    assert program.ram_bytes <= 62 << 10


def test_candidates_are_measured_on_a_board() -> None:
    """Another tile of a product takes another number of instructions, and the same bits come out."""
    need("arm-none-eabi")
    compilation = Compilation(tiny().proto.SerializeToString(), target="cortex-m4")
    task = next(task for task in extract_tasks(compilation.lowered) if "depthwise" not in task.label)
    default = task.space().default
    assert {"rows", "columns"} <= default.keys()
    with BoardMeasurer(task.target) as measurer:
        first, other = measurer.measure(task, [default, {**default, "columns": 1, "rows": 1}])
    assert first.error is None and first.seconds == first.reference
    assert other.error is None and other.seconds is not None and first.seconds is not None
    assert other.seconds > first.seconds


def test_only_microcontrollers_are_measured_so() -> None:
    with pytest.raises(UserError, match="is for microcontrollers"):
        BoardMeasurer(Target("llvm -mtriple=aarch64-linux-gnu"))
