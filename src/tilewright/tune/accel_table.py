"""The accelerator's instructions as the cycle model reads them: the part of its program that makes a row of each.

Columns are what the control of the hardware knows of an instruction: the words of a LOAD, the steps of a GEMM. Fields
are taken from the bits of instructions by numbers that depend on the configuration (`encoding.field_parts`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Final

from tilewright.accel.config import Memory
from tilewright.accel.instructions import INSTRUCTIONS, OPCODE_BITS, Opcode, Overwrite, Unit, field_specs

LOAD, STEPS, EPI, STORE, FINISH = range(5)
"""Kinds of instructions, by the part of the hardware that executes them."""
_COMMON: Final = ("unit", "kind", "pop_prev", "pop_next", "push_prev", "push_next")
_OWN: Final = (
    ("words", "sram", "lead", "row_words", "gap", "rows", "tail", "is_out", "micro_ops"),
    ("words", "sram", "element_words", "is_acc"),
    (
        *("steps", "inner", "acc_outer", "acc_inner", "period", "skip", "phases"),
        *("uop_begin", "uop_count", "src_outer", "src_inner", "acc_last", "src_last"),
    ),
    (
        *("steps", "inner", "acc_outer", "acc_inner", "acc", "bank"),
        *("residual", "rises", "out", "out_outer", "out_inner"),
    ),
)
"""What the program knows of a LOAD, a STORE, a GEMM or ALU, and an EPI: columns that kinds share."""
_ORDER: Final = len(_COMMON) + max(map(len, _OWN))
"""Columns from here on: the instructions of each unit, then the LOADs of load and of compute."""
_ORDERS: Final = len(Unit) + 2
BOTH: Final = 2
"""Accumulators of both banks."""
FIELDS: Final = {opcode: tuple(spec.name for spec in field_specs(kind)) for opcode, kind in INSTRUCTIONS.items()}
OPCODES: Final = 1 << OPCODE_BITS
FIELD_COUNT: Final = max(map(len, FIELDS.values()))
FIELD_PARTS: Final = 5
"""Numbers that say where a field lies (`encoding.field_parts`)."""
_TABLE: Final = """
    # Each instruction's fields, then its row of the table.
    table = allocate((n + 1, COLUMNS), "int64", "global")
    V = allocate((FIELD_COUNT,), "int64", "local")
    Q = allocate((ORDERS,), "int64", "local")
    for j in range(ORDERS):
        Q[j] = int64(0)
    for i in range(n + 1):
        table[i, unit_] = int64(0)
        for j in range(ORDERS):
            table[i, ORDER + j] = int64(0)
    for i in range(n):
        low = code[i, 0]
        high = code[i, 1]
        opcode = low & OPCODE_MASK
        for j in range(FIELD_COUNT):
            at = FIELDS_AT + (opcode * FIELD_COUNT + j) * FIELD_PARTS
            lower = (low >> numbers[at]) & numbers[at + 1]
            V[j] = lower | (high >> numbers[at + 2] << numbers[at + 3]) & numbers[at + 4]
        for j in range(4):
            table[i, pop_prev_ + j] = V[j]
        if opcode == LOAD_OPCODE:
            LOAD_ROW
        elif opcode == STORE_OPCODE:
            STORE_ROW
        elif opcode == EPI_OPCODE:
            EPI_ROW
        elif opcode == FINISH_OPCODE:
            table[i, unit_] = STORE_UNIT
            table[i, kind_] = FINISH
        else:
            STEPS_ROW
        its = table[i, unit_]
        table[Q[its], ORDER + its] = i
        Q[its] = Q[its] + 1
        if table[i, kind_] == LOAD:
            table[Q[3 + its], ORDER + 3 + its] = i
            Q[3 + its] = Q[3 + its] + 1
"""

_LOAD_ROW: Final = """
of_compute = V[load_memory] == UOP_MEMORY or V[load_memory] == ACC_MEMORY
words = V[load_x_size] * V[load_y_size] * numbers[WORDS_AT + V[load_memory]]
beside = V[load_x_before] + V[load_x_after]
row = beside + V[load_x_size]
table[i, unit_] = COMPUTE_UNIT if of_compute else LOAD_UNIT
table[i, kind_] = LOAD
table[i, words_] = words
table[i, sram_] = V[load_sram]
table[i, is_out_] = int64(1) if V[load_memory] == OUT_MEMORY else int64(0)
table[i, micro_ops_] = V[load_x_size] * V[load_y_size] * uop_elements if V[load_memory] == UOP_MEMORY else int64(0)
if words == 0:
    table[i, lead_] = row * (V[load_y_before] + V[load_y_size] + V[load_y_after])
    table[i, row_words_] = int64(0)
    table[i, gap_] = int64(0)
    table[i, rows_] = int64(0)
    table[i, tail_] = int64(0)
else:
    # Rows without padding between them are one.
    table[i, lead_] = V[load_y_before] * row + V[load_x_before]
    table[i, row_words_] = words if beside == 0 else V[load_x_size] * numbers[WORDS_AT + V[load_memory]]
    table[i, gap_] = beside
    table[i, rows_] = int64(1) if beside == 0 else V[load_y_size]
    table[i, tail_] = V[load_x_after] + V[load_y_after] * row
"""

_STORE_ROW: Final = """
table[i, unit_] = STORE_UNIT
table[i, kind_] = STORE
table[i, words_] = V[store_x_size] * V[store_y_size] * numbers[WORDS_AT + V[store_memory]]
table[i, sram_] = V[store_sram]
table[i, element_words_] = numbers[WORDS_AT + V[store_memory]]
table[i, is_acc_] = int64(1) if V[store_memory] == ACC_MEMORY else int64(0)
"""

_EPI_ROW: Final = """
last = V[epi_acc] + (V[epi_outer] - 1) * V[epi_acc_outer] + (V[epi_inner] - 1) * V[epi_acc_inner]
columns_rise = V[epi_inner] == 1 or V[epi_out_inner] > 0
rows_rise = V[epi_outer] == 1 or V[epi_out_outer] > (V[epi_inner] - 1) * V[epi_out_inner]
table[i, unit_] = STORE_UNIT
table[i, kind_] = EPI
table[i, steps_] = V[epi_outer] * V[epi_inner]
table[i, inner_] = V[epi_inner]
table[i, acc_] = V[epi_acc]
table[i, acc_outer_] = V[epi_acc_outer]
table[i, acc_inner_] = V[epi_acc_inner]
table[i, bank_] = int64(0) if last < half else (int64(1) if V[epi_acc] >= half else BOTH)
table[i, residual_] = V[epi_residual]
table[i, rises_] = int64(1) if columns_rise and rows_rise else int64(0)
table[i, out_] = V[epi_out]
table[i, out_outer_] = V[epi_out_outer]
table[i, out_inner_] = V[epi_out_inner]
"""

_STEPS_ROW: Final = """
is_alu = opcode == ALU_OPCODE
count = max((V[alu_uop_end] - V[alu_uop_begin]) if is_alu else (V[gemm_uop_end] - V[gemm_uop_begin]), int64(0))
outer = V[alu_outer] if is_alu else V[gemm_outer]
inner = V[alu_inner] if is_alu else V[gemm_inner]
acc_outer = V[alu_dst_outer] if is_alu else V[gemm_acc_outer]
acc_inner = V[alu_dst_inner] if is_alu else V[gemm_acc_inner]
phases = int64(2) if is_alu and V[alu_use_imm] == 0 else int64(1)
steps = outer * inner * count * phases
when = int64(OVERWRITE_NEVER) if is_alu else (int64(OVERWRITE_ALWAYS) if V[gemm_reset] != 0 else V[gemm_overwrite])
table[i, unit_] = COMPUTE_UNIT
table[i, kind_] = STEPS
table[i, steps_] = steps
table[i, inner_] = inner
table[i, acc_outer_] = acc_outer
table[i, acc_inner_] = acc_inner
# The first `skip` of each `period` steps read no accumulator.
table[i, period_] = steps
table[i, skip_] = int64(0)
if when == OVERWRITE_ALWAYS:
    table[i, skip_] = steps
elif when == OVERWRITE_OUTER:
    table[i, skip_] = min(inner * count, steps)
elif when == OVERWRITE_INNER and steps != 0:
    table[i, period_] = inner * count
    table[i, skip_] = count
elif when == OVERWRITE_UOP and steps != 0:
    table[i, period_] = count
    table[i, skip_] = int64(1)
table[i, phases_] = phases
table[i, uop_begin_] = V[alu_uop_begin] if is_alu else V[gemm_uop_begin]
table[i, uop_count_] = count
table[i, src_outer_] = V[alu_src_outer] if is_alu else int64(0)
table[i, src_inner_] = V[alu_src_inner] if is_alu else int64(0)
table[i, acc_last_] = (outer - 1) * acc_outer + (inner - 1) * acc_inner
table[i, src_last_] = (outer - 1) * V[alu_src_outer] + (inner - 1) * V[alu_src_inner] if is_alu else int64(0)
"""


def with_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """A text in which each line that is the name of a block has become the block, as far to the right."""
    return "\n".join(_block(line, blocks) for line in text.splitlines())


def _block(line: str, blocks: Mapping[str, str]) -> str:
    block = blocks.get(line.strip())
    return line if block is None else textwrap.indent(block.strip(), line[: -len(line.lstrip())])


def table_text() -> str:
    """The part of the program that makes the table, for the body of a function."""
    rows = {"LOAD_ROW": _LOAD_ROW, "STORE_ROW": _STORE_ROW, "EPI_ROW": _EPI_ROW, "STEPS_ROW": _STEPS_ROW}
    return with_blocks(_TABLE, rows) + "\n"


def table_constants() -> dict[str, int]:
    """What names of columns, fields, kinds, units and memories stand for."""
    names = {f"{name}_": at for at, name in enumerate(_COMMON)}
    for own in _OWN:
        names |= {f"{name}_": at for at, name in enumerate(own, len(_COMMON))}
    for opcode, fields in FIELDS.items():
        names |= {f"{opcode.name.lower()}_{name}": at for at, name in enumerate(fields)}
    names |= {"LOAD": LOAD, "STEPS": STEPS, "EPI": EPI, "STORE": STORE, "FINISH": FINISH, "BOTH": BOTH}
    names |= {f"{unit.name}_UNIT": int(unit) for unit in Unit}
    names |= {f"{opcode.name}_OPCODE": int(opcode) for opcode in Opcode}
    names |= {f"{memory.name}_MEMORY": int(memory) for memory in Memory}
    names |= {f"OVERWRITE_{when.name}": int(when) for when in Overwrite}
    names |= {"COLUMNS": _ORDER + _ORDERS, "ORDER": _ORDER, "ORDERS": _ORDERS}
    return names | {"OPCODE_MASK": OPCODES - 1, "FIELD_COUNT": FIELD_COUNT, "FIELD_PARTS": FIELD_PARTS}
