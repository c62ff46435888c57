"""How many cycles the accelerator takes for a program: its control, cycle by cycle, without any data.

The control is a loop program (`accel_cycle_program.py`), which Tilewright compiles for the host. It reads instructions
as DRAM holds them, and the micro-ops that they load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.accel.accesses import rectangle
from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.encoding import INSTRUCTION_BYTES, check_whole, decode, encode, field_parts
from tilewright.accel.hardware.queues import buffer_depth
from tilewright.accel.hardware.reader import UNDER_WAY
from tilewright.accel.instructions import OPCODE_BITS, Instruction, Load, MicroOp, Opcode, Unit, layout
from tilewright.compiler import build
from tilewright.support.errors import UserError
from tilewright.tir.script import parse_script
from tilewright.tune.accel_cycle_program import (
    FIELDS_AT,
    FINISHED,
    NUMBERS,
    RING_AT,
    TOO_LONG,
    WORDS_AT,
    program_constants,
    program_text,
)
from tilewright.tune.accel_table import FIELDS

Array = npt.NDArray[np.int64]
_AT = {name: at for at, name in enumerate(NUMBERS)}
_RESULTS = slice(_AT["outcome"], len(NUMBERS))


@dataclass(frozen=True, slots=True)
class Cycles:
    """What a program takes: cycles in all, and those in which each unit is busy, as the hardware counts them."""

    total: int
    busy: dict[Unit, int]

    @property
    def utilization(self) -> float:
        """The share of cycles in which compute works."""
        return self.busy[Unit.COMPUTE] / self.total if self.total else 0.0


@cache
def _model() -> Any:
    return build(parse_script(program_text(), constants=program_constants()), target="native")


def cycles(
    program: Sequence[Instruction],
    config: AccelConfig,
    read_dram: Callable[[int, int], bytes],
    *,
    latency: int | None = None,
    most_cycles: int = 1 << 40,
) -> Cycles:
    """The cycles that the hardware takes for a program; `read_dram` gives the DRAM that holds its micro-ops."""
    return cycles_of_code(encode(program, config), config, read_dram, latency=latency, most_cycles=most_cycles)


def cycles_of_code(
    code: bytes,
    config: AccelConfig,
    read_dram: Callable[[int, int], bytes],
    *,
    latency: int | None = None,
    most_cycles: int = 1 << 40,
    one_by_one: bool = False,
) -> Cycles:
    """The same for a program as DRAM holds it. `one_by_one` goes through all cycles, which changes nothing but time."""
    check_whole(code)
    words = np.frombuffer(code, "<i8").reshape(-1, 2)
    sizes = _sizes(config, config.memory_latency if latency is None else latency)
    loaded, micro_ops = _micro_ops(code, words, config, read_dram)
    room = np.zeros(sizes[_AT["latency"]] + micro_ops + 1, np.int64)
    numbers = np.concatenate((sizes, room, *loaded))
    numbers[_AT["most_cycles"]], numbers[_AT["leaps"]] = most_cycles, not one_by_one
    numbers[_AT["micro_ops"]] = micro_ops
    _model()(words, numbers)
    outcome, total, *busy = numbers[_RESULTS].tolist()
    if outcome != FINISHED:
        raise UserError(
            f"accelerator: more than {most_cycles} cycles"
            if outcome == TOO_LONG
            else "accelerator: the program waits for ever",
            hint="tilewright accel check names what a program waits for",
        )
    return Cycles(total, dict(zip(Unit, busy, strict=True)))


def _micro_ops(
    code: bytes, words: Array, config: AccelConfig, read_dram: Callable[[int, int], bytes]
) -> tuple[list[npt.NDArray[np.uint32]], int]:
    """What LOADs of micro-ops read, one after another, and how much of the micro-op memory they fill."""
    low, bits = layout(Load, config)["memory"]
    mask = (1 << OPCODE_BITS) - 1 | ((1 << bits) - 1) << low
    loaded, end = [], 0
    for at in np.flatnonzero(words[:, 0] & mask == Opcode.LOAD | Memory.UOP << low).tolist():
        (item,) = decode(code[at * INSTRUCTION_BYTES : (at + 1) * INSTRUCTION_BYTES], config)
        rows = rectangle(item, config) if isinstance(item, Load) else None
        if rows is not None and isinstance(item, Load):
            loaded += [np.frombuffer(read_dram(first, last - first), np.uint32) for first, last in rows]
            end = max(end, item.sram + item.x_size * item.y_size * config.dma_elements[Memory.UOP])
    return loaded, min(end, config.depth[Memory.UOP])


@lru_cache(maxsize=64)
def _sizes(config: AccelConfig, latency: int) -> Array:
    """The numbers that depend on the configuration alone."""
    micro_op = layout(MicroOp, config)
    (acc_shift, acc_bits), (inp_shift, inp_bits) = micro_op["acc"], micro_op["inp"]
    sizes = {
        "depth": buffer_depth(config.memory_latency),
        "under_way": UNDER_WAY,
        "room": config.command_queue - 1,
        "half": config.depth[Memory.ACC] // 2,
        "per_instruction": max(1, INSTRUCTION_BYTES // config.bus_bytes),
        "per_word": max(1, config.bus_bytes // INSTRUCTION_BYTES),
        "latency": latency,
        "most_still": latency + 64,
        "acc_shift": acc_shift,
        "acc_mask": (1 << acc_bits) - 1,
        "inp_shift": inp_shift,
        "inp_mask": (1 << inp_bits) - 1,
        "uop_elements": config.dma_elements[Memory.UOP],
    }
    numbers = np.zeros(RING_AT, np.int64)
    for name, size in sizes.items():
        numbers[_AT[name]] = size
    numbers[WORDS_AT:FIELDS_AT] = [config.dma_bytes[item] // config.bus_bytes for item in Memory]
    numbers[FIELDS_AT:] = field_parts(FIELDS, config).reshape(-1)
    return numbers
