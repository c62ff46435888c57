"""What makes an instruction legal by itself, and how much it does. Micro-ops' indices are known only when it runs."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.instructions import Alu, Epi, Gemm, Instruction, Load, Store, Unit

UNPADDED = (Memory.UOP, Memory.PAR)
STORED = (Memory.OUT, Memory.ACC)


def load_rows(load: Load) -> int:
    """Rows that a LOAD writes on chip, padding among them."""
    return load.y_before + load.y_size + load.y_after


def load_columns(load: Load) -> int:
    """Elements (of UOP: words of the bus) that a LOAD writes for each row, padding among them."""
    return load.x_before + load.x_size + load.x_after


def sram_count(transfer: Load | Store, config: AccelConfig) -> int:
    """Elements of the on-chip memory that a LOAD or STORE touches, from `sram` on."""
    if isinstance(transfer, Load):
        return load_rows(transfer) * load_columns(transfer) * config.dma_elements[transfer.memory]
    return transfer.y_size * transfer.x_size


def dram_rows(transfer: Load | Store, config: AccelConfig) -> tuple[int, int, int, int]:
    """What a LOAD or STORE touches of DRAM: first byte, rows, bytes of a row, bytes from row to row."""
    unit = config.dma_bytes[transfer.memory]
    rows = transfer.y_size if transfer.x_size else 0
    return transfer.dram * config.bus_bytes, rows, transfer.x_size * unit, transfer.y_stride * unit


def steps(instruction: Instruction, config: AccelConfig) -> int:
    """Cycles that an instruction takes at least: words of the bus, elements of padding, micro-ops, tensors; or one."""
    count = 0
    if isinstance(instruction, Load | Store):
        _, rows, size, _ = dram_rows(instruction, config)
        count = rows * size // config.bus_bytes
        if isinstance(instruction, Load):
            count += load_rows(instruction) * load_columns(instruction) - instruction.y_size * instruction.x_size
    elif isinstance(instruction, Gemm | Alu):
        count = instruction.outer * instruction.inner * (instruction.uop_end - instruction.uop_begin)
        if isinstance(instruction, Alu) and not instruction.use_imm:
            count *= 2
    elif isinstance(instruction, Epi):
        count = instruction.outer * instruction.inner
    return max(count, 1)


def problem(instruction: Instruction, config: AccelConfig, dram_bytes: int | None = None) -> str | None:
    """Why an instruction is illegal, whatever the memories hold; None for a legal one."""
    return next(_problems(instruction, config, dram_bytes), None)


def _problems(instruction: Instruction, config: AccelConfig, dram_bytes: int | None) -> Iterator[str]:
    yield from _token_problems(instruction)
    if isinstance(instruction, Load | Store):
        yield from _transfer_problems(instruction, config, dram_bytes)
    elif isinstance(instruction, Gemm | Alu):
        depth = config.depth[Memory.UOP]
        if instruction.uop_end > depth:
            yield f"its micro-ops end at {instruction.uop_end}, past UOP's {depth}"
        if instruction.uop_end < instruction.uop_begin:
            yield f"its micro-ops end at {instruction.uop_end}, before they begin at {instruction.uop_begin}"
    elif isinstance(instruction, Epi):
        if instruction.low > instruction.high:
            yield f"its least result {instruction.low} is above its greatest, {instruction.high}"
        if instruction.outer and instruction.inner:
            yield from _epilogue_problems(instruction, config)


def _token_problems(instruction: Instruction) -> Iterator[str]:
    if instruction.unit is Unit.LOAD and (instruction.pop_prev or instruction.push_prev):
        yield "no unit is before load: pop_prev and push_prev must be zero"
    if instruction.unit is Unit.STORE and (instruction.pop_next or instruction.push_next):
        yield "no unit is after store: pop_next and push_next must be zero"


def _transfer_problems(transfer: Load | Store, config: AccelConfig, dram_bytes: int | None) -> Iterator[str]:
    name, depth = transfer.memory.name, config.depth[transfer.memory]
    if isinstance(transfer, Store) and transfer.memory not in STORED:
        yield f"{name} cannot be stored, only OUT and ACC"
    if isinstance(transfer, Load):
        if transfer.memory in UNPADDED and (
            transfer.y_before or transfer.y_after or transfer.x_before or transfer.x_after
        ):
            yield f"{name} cannot be padded"
        if transfer.sram % config.dma_elements[transfer.memory]:
            yield f"index {transfer.sram} of {name} is not at a word of the bus"
    count = sram_count(transfer, config)
    if count and transfer.sram + count > depth:
        yield f"it touches {name}[{transfer.sram}] to [{transfer.sram + count - 1}], past its {depth} elements"
    first, rows, size, stride = dram_rows(transfer, config)
    end = first + (rows - 1) * stride + size
    if rows and dram_bytes is not None and end > dram_bytes:
        yield f"it touches DRAM from byte {first} to {end - 1}, past its {dram_bytes} bytes"


def _epilogue_problems(epi: Epi, config: AccelConfig) -> Iterator[str]:
    outer, inner = epi.outer - 1, epi.inner - 1
    last = {
        Memory.ACC: epi.acc + outer * epi.acc_outer + inner * epi.acc_inner,
        Memory.OUT: epi.out + outer * epi.out_outer + inner * epi.out_inner,
    }
    if epi.scale:
        last[Memory.PAR] = epi.par + outer
    for memory, index in last.items():
        if index >= config.depth[memory]:
            yield f"it touches {memory.name}[{index}], past its {config.depth[memory]} elements"
