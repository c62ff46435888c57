"""A program of the accelerator as the cycle model reads it: a row of numbers for each instruction.

The tuner asks for the cycles of thousands of programs: the numbers of all instructions are taken from their bits at
once, and only what depends on micro-ops is looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from tilewright.accel.accesses import MicroOpMemory, looped
from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.encoding import FieldTable
from tilewright.accel.instructions import Load, Opcode, Overwrite, Unit

Array = npt.NDArray[np.int64]
LOAD, STEPS, EPI, STORE, FINISH = range(5)
"""Kinds of instructions, by the part of the hardware that executes them."""
COLUMNS: Final = (
    "unit", "kind", "pop_prev", "pop_next", "push_prev", "push_next", "words",
    "lead", "row_words", "gap", "rows", "tail", "is_out",
    "steps", "period", "skip", "lower",
    "inner", "acc", "acc_outer", "acc_inner", "bank", "element_words", "is_acc",
    "order", "order_of_compute", "order_of_store", "loads", "loads_of_compute",
)  # fmt: skip
"""What the model knows of an instruction, a row each; the last ones are its own."""
_WORDS, _STEPS, _INNER, _ELEMENT = (COLUMNS.index(name) for name in ("words", "steps", "inner", "element_words"))
_TOKENS: Final = ("pop_prev", "pop_next", "push_prev", "push_next")
_LOOPS: Final = (*_TOKENS, "uop_begin", "uop_end", "outer", "inner")
_FIELDS: Final = {
    Opcode.LOAD: (
        *(*_TOKENS, "memory", "x_size", "y_size", "x_before", "x_after", "y_before", "y_after"),
        *("sram", "dram", "y_stride"),
    ),
    Opcode.STORE: (*_TOKENS, "memory", "x_size", "y_size", "sram"),
    Opcode.GEMM: (*_LOOPS, "acc_outer", "acc_inner", "reset", "overwrite"),
    Opcode.ALU: (*_LOOPS, "dst_outer", "dst_inner", "use_imm"),
    Opcode.EPI: (*_TOKENS, "outer", "inner", "acc", "acc_outer", "acc_inner"),
    Opcode.FINISH: _TOKENS,
}
_OWN: Final = len(_TOKENS)
# Looked up once: a member of an enumeration takes a microsecond.
_IS_LOAD, _IS_STORE, _IS_GEMM, _IS_ALU, _IS_EPI = (
    int(opcode) for opcode in (Opcode.LOAD, Opcode.STORE, Opcode.GEMM, Opcode.ALU, Opcode.EPI)
)
_NEVER, _ALWAYS, _AT_OUTER, _AT_INNER, _AT_FIRST = (int(when) for when in Overwrite)
_UOP, _ACC, _OUT = int(Memory.UOP), int(Memory.ACC), int(Memory.OUT)
_BY_LOAD, _BY_COMPUTE, _BY_STORE = (int(unit) for unit in (Unit.LOAD, Unit.COMPUTE, Unit.STORE))
_PARTS: Final = np.array([[_BY_STORE, FINISH]] * (1 + max(Opcode)), np.int64)
"""The unit and the kind of an opcode's instructions."""
_PARTS[[_IS_LOAD, _IS_GEMM, _IS_ALU]] = [[_BY_LOAD, LOAD], [_BY_COMPUTE, STEPS], [_BY_COMPUTE, STEPS]]
_PARTS[[_IS_STORE, _IS_EPI]] = [[_BY_STORE, STORE], [_BY_STORE, EPI]]


class _Machine:
    """What the table needs of a configuration."""

    def __init__(self, config: AccelConfig) -> None:
        self.config = config
        self.fields = FieldTable(_FIELDS, config)
        self.words = np.array([config.dma_bytes[item] // config.bus_bytes for item in Memory], np.int64)
        """Words of the bus in what a copy counts, by memory."""
        self.half = config.depth[Memory.ACC] // 2


_machine = lru_cache(maxsize=16)(_Machine)


def instruction_table(code: bytes, config: AccelConfig, read_dram: Callable[[int, int], bytes]) -> Array:
    """A row for each instruction of a program; `read_dram` gives the DRAM that holds its micro-ops."""
    machine = _machine(config)
    opcode, fields = machine.fields(code)
    table = np.zeros((len(opcode), len(COLUMNS)), np.int64)
    table[:, :2] = _PARTS[opcode]
    table[:, 2 : 2 + _OWN] = fields[:, :_OWN]
    own = fields[:, _OWN:]
    _add_loads(table, np.flatnonzero(opcode == _IS_LOAD), own, machine)
    _add_stores(table, np.flatnonzero(opcode == _IS_STORE), own, machine)
    _add_epis(table, np.flatnonzero(opcode == _IS_EPI), own, machine)
    _add_steps(table, opcode, own, machine, MicroOpMemory(config, read_dram))
    return table


def _add_loads(table: Array, places: Array, fields: Array, machine: _Machine) -> None:
    memory, x_size, y_size, x_before, x_after, y_before, y_after, *_ = fields[places].T
    words = machine.words[memory]
    table[places, _WORDS] = total = x_size * y_size * words
    has_data = total > 0
    if not fields[places, 3:7].any():
        # Rows without padding between them are one.
        table[places, _WORDS + 2], table[places, _WORDS + 4] = total, has_data
    else:
        beside = x_before + x_after
        row, is_one = beside + x_size, beside == 0
        lead = np.where(has_data, y_before * row + x_before, row * (y_before + y_size + y_after))
        row_words = np.where(is_one, total, x_size * words) * has_data
        rows = np.where(is_one, 1, y_size) * has_data
        columns = (lead, row_words, beside * has_data, rows, (x_after + y_after * row) * has_data)
        table[places, _WORDS + 1 : _WORDS + 1 + len(columns)] = np.array(columns).T
    table[places, _WORDS + 6] = memory == _OUT
    table[places, 0] = np.where((memory == _UOP) | (memory == _ACC), _BY_COMPUTE, _BY_LOAD)


def _add_stores(table: Array, places: Array, fields: Array, machine: _Machine) -> None:
    memory, x_size, y_size, sram = fields[places, :4].T
    element = machine.words[memory]
    table[places, _WORDS] = x_size * y_size * element
    table[places, _ELEMENT], table[places, _ELEMENT + 1] = element, memory == _ACC
    table[places, _INNER + 1] = sram


def _add_epis(table: Array, places: Array, fields: Array, machine: _Machine) -> None:
    own = fields[places, :5]
    outer, inner, acc, acc_outer, acc_inner = own.T
    last = acc + (outer - 1) * acc_outer + (inner - 1) * acc_inner
    table[places, _STEPS] = outer * inner
    table[places, _INNER : _INNER + 4] = own[:, 1:]
    # The bank that all of them lie in: the lower, the upper, or both.
    table[places, _INNER + 4] = np.where(last < machine.half, 0, np.where(acc >= machine.half, 1, 2))


def _add_steps(table: Array, opcode: Array, fields: Array, machine: _Machine, memory: MicroOpMemory) -> None:
    """The columns of GEMM and ALU, by the micro-ops that were loaded before them."""
    places = np.flatnonzero(
        (opcode == _IS_GEMM) | (opcode == _IS_ALU) | ((opcode == _IS_LOAD) & (fields[:, 0] == _UOP))
    )
    known: dict[tuple[int, ...], tuple[int, int, int, int]] = {}
    rows: list[tuple[int, int, int, int]] = []
    # The accumulators of the micro-ops in the memory, as plain numbers: instructions have few of them each.
    accumulators: list[int] = []
    for kind, own in zip(opcode[places].tolist(), fields[places].tolist(), strict=True):
        if kind == _IS_LOAD:
            _, x_size, y_size, *_, sram, dram, y_stride = own
            copy = Load(memory=Memory.UOP, sram=sram, dram=dram, y_size=y_size, x_size=x_size, y_stride=y_stride)
            memory.follow(copy)
            end = sram + x_size * y_size * machine.config.dma_elements[Memory.UOP]
            accumulators += [0] * (end - len(accumulators))
            accumulators[sram:end] = memory.accumulators(sram, end).tolist()
            known.clear()
            rows.append((0, 0, 0, 0))
            continue
        key = (kind, *own)
        if key not in known:
            known[key] = _steps(kind, own, machine, accumulators)
        rows.append(known[key])
    if rows:
        table[places, _STEPS : _STEPS + 4] = rows


def _steps(kind: int, fields: list[int], machine: _Machine, accumulators: list[int]) -> tuple[int, int, int, int]:
    """Steps, those of a period and the first of these that read no accumulator, and steps in the lower bank."""
    begin, end, outer, inner, outer_step, inner_step, *flags = fields
    count = max(0, end - begin)
    phases = 2 if kind == _IS_ALU and not flags[0] else 1
    steps = outer * inner * count * phases
    lower = steps
    if steps:
        starts = accumulators[begin:end] or [0]
        # Indices only rise: most instructions are in one bank.
        if min(starts) >= machine.half:
            lower = 0
        elif max(starts) + (outer - 1) * outer_step + (inner - 1) * inner_step >= machine.half:
            places = looped(np.array(starts, np.int64), outer, inner, outer_step, inner_step)
            lower = int((places < machine.half).sum()) * phases
    if kind == _IS_ALU:
        return steps, steps, 0, lower
    reset, overwrite = flags[:2]
    if reset or overwrite == _ALWAYS:
        return steps, steps, steps, lower
    patterns = {
        _NEVER: (steps, 0),
        _AT_OUTER: (steps, inner * count),
        _AT_INNER: (inner * count, count),
        _AT_FIRST: (count, 1),
    }
    return steps, *patterns[overwrite], lower
