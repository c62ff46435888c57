"""The instructions as docs/accelerator.md writes them, one step after another: what the simulators are held to.

Tokens are not looked at: a program whose tokens are right computes what its instructions do in the program's order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.instructions import Alu, AluOp, Epi, Gemm, Instruction, Load, MicroOp, Overwrite, Store, layout
from tilewright.accel.program import Program


def wrapped(value: int, bits: int) -> int:
    """A number modulo 2^bits, signed."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


class Literal:
    """The memories as arrays of Python's numbers."""

    def __init__(self, config: AccelConfig, dram_bytes: int) -> None:
        self.config = config
        self.dram = bytearray(dram_bytes)
        lanes = (config.batch, config.block_out)
        self.shapes: dict[Memory, tuple[tuple[int, ...], int]] = {
            Memory.UOP: ((), 32),
            Memory.INP: ((config.batch, config.block_in), config.inp_bits),
            Memory.WGT: ((config.block_out, config.block_in), config.wgt_bits),
            Memory.ACC: (lanes, config.acc_bits),
            Memory.OUT: (lanes, config.out_bits),
            Memory.PAR: ((4, config.block_out), 32),
        }
        self.memories: dict[Memory, list[Any]] = {
            memory: [np.zeros(shape, object) for _ in range(config.depth[memory])]
            for memory, (shape, _) in self.shapes.items()
        }

    def run(self, program: Program) -> list[bytes]:
        """The program's results."""
        for address, data in program.segments.items():
            self.dram[address : address + len(data)] = data
        for instruction in program.instructions:
            self.execute(instruction)
        return [bytes(self.dram[address : address + size]) for address, size in program.results]

    def execute(self, instruction: Instruction) -> None:
        """One instruction."""
        if isinstance(instruction, Load):
            self.load(instruction)
        elif isinstance(instruction, Store):
            self.store(instruction)
        elif isinstance(instruction, Gemm):
            self.gemm(instruction)
        elif isinstance(instruction, Alu):
            self.alu(instruction)
        elif isinstance(instruction, Epi):
            self.epi(instruction)

    def element(self, memory: Memory, data: bytes) -> Any:
        """An element of its bytes."""
        shape, bits = self.shapes[memory]
        word = int.from_bytes(data, "little")
        count = int(np.prod(shape, dtype=int))
        lanes = np.empty(count, object)
        for lane in range(count):
            lanes[lane] = wrapped(word >> (lane * bits), bits)
        return lanes.reshape(shape)

    def data(self, memory: Memory, element: Any) -> bytes:
        """The bytes of an element."""
        _, bits = self.shapes[memory]
        word = 0
        for lane, value in enumerate(element.reshape(-1)):
            word |= (int(value) & ((1 << bits) - 1)) << (lane * bits)
        return word.to_bytes(self.config.element_bits[memory] // 8, "little")

    def load(self, load: Load) -> None:
        """LOAD."""
        shape, bits = self.shapes[load.memory]
        step = self.config.dma_bytes[load.memory]
        size = self.config.element_bits[load.memory] // 8
        at = load.sram
        for y in range(-load.y_before, load.y_size + load.y_after):
            for x in range(-load.x_before, load.x_size + load.x_after):
                if 0 <= y < load.y_size and 0 <= x < load.x_size:
                    first = load.dram * self.config.bus_bytes + (y * load.y_stride + x) * step
                    for begin in range(first, first + step, size):
                        self.memories[load.memory][at] = self.element(
                            load.memory, bytes(self.dram[begin : begin + size])
                        )
                        at += 1
                else:
                    self.memories[load.memory][at] = np.full(shape, wrapped(load.pad, min(8, bits)), object)
                    at += 1

    def store(self, store: Store) -> None:
        """STORE."""
        size = self.config.element_bits[store.memory] // 8
        at = store.sram
        for y in range(store.y_size):
            for x in range(store.x_size):
                first = store.dram * self.config.bus_bytes + (y * store.y_stride + x) * size
                self.dram[first : first + size] = self.data(store.memory, self.memories[store.memory][at])
                at += 1

    def micro_op(self, index: int) -> MicroOp:
        """A micro-op of UOP."""
        word = int(self.memories[Memory.UOP][index]) & 0xFFFFFFFF
        values = {name: (word >> low) & ((1 << bits) - 1) for name, (low, bits) in layout(MicroOp, self.config).items()}
        return MicroOp(**values)

    def gemm(self, gemm: Gemm) -> None:
        """GEMM."""
        acc = self.memories[Memory.ACC]
        for o in range(gemm.outer):
            for i in range(gemm.inner):
                for u in range(gemm.uop_begin, gemm.uop_end):
                    micro_op = self.micro_op(u)
                    a = micro_op.acc + o * gemm.acc_outer + i * gemm.acc_inner
                    if gemm.reset:
                        acc[a] = acc[a] * 0
                        continue
                    x = self.memories[Memory.INP][micro_op.inp + o * gemm.inp_outer + i * gemm.inp_inner]
                    w = self.memories[Memory.WGT][micro_op.wgt + o * gemm.wgt_outer + i * gemm.wgt_inner]
                    product = x.astype(np.int64) @ w.astype(np.int64).T
                    fresh = {
                        Overwrite.NEVER: False,
                        Overwrite.ALWAYS: True,
                        Overwrite.OUTER: o == 0,
                        Overwrite.INNER: i == 0,
                        Overwrite.UOP: u == gemm.uop_begin,
                    }[gemm.overwrite]
                    acc[a] = self.lanes(product.astype(object) if fresh else acc[a] + product.astype(object))

    def lanes(self, values: Any) -> Any:
        """Accumulators, wrapped."""
        return np.vectorize(lambda value: wrapped(int(value), self.config.acc_bits), otypes=[object])(values)

    def alu(self, alu: Alu) -> None:
        """ALU."""
        acc, bits = self.memories[Memory.ACC], self.config.acc_bits
        functions: dict[AluOp, Any] = {
            AluOp.MIN: min,
            AluOp.MAX: max,
            AluOp.ADD: lambda a, b: a + b,
            AluOp.MUL: lambda a, b: a * b,
            AluOp.SHR: lambda a, b: a >> (b & (bits - 1)),
            AluOp.SHL: lambda a, b: a << (b & (bits - 1)),
        }
        function = np.vectorize(lambda a, b: wrapped(functions[alu.op](int(a), int(b)), bits), otypes=[object])
        for o in range(alu.outer):
            for i in range(alu.inner):
                for u in range(alu.uop_begin, alu.uop_end):
                    micro_op = self.micro_op(u)
                    d = micro_op.acc + o * alu.dst_outer + i * alu.dst_inner
                    s = micro_op.inp + o * alu.src_outer + i * alu.src_inner
                    acc[d] = function(acc[d], alu.imm if alu.use_imm else acc[s])

    def epi(self, epi: Epi) -> None:
        """EPI."""
        for o in range(epi.outer):
            for i in range(epi.inner):
                par = self.memories[Memory.PAR][epi.par + o] if epi.scale else None
                acc = self.memories[Memory.ACC][epi.acc + o * epi.acc_outer + i * epi.acc_inner]
                at = epi.out + o * epi.out_outer + i * epi.out_inner
                before = self.memories[Memory.OUT][at]
                result = np.empty_like(before)
                for row in range(self.config.batch):
                    for c in range(self.config.block_out):
                        r = int(before[row, c]) if epi.residual else 0
                        y = int(acc[row, c]) + r
                        if par is not None:
                            t = wrapped(int(acc[row, c]) + int(par[0, c]), self.config.acc_bits)
                            shift = int(par[3, c]) & 63
                            half = 1 << (shift - 1) if shift else 0
                            places = int(par[3, c]) >> 8 & 31
                            y = t * wrapped(int(par[1, c]), 16) + (r * wrapped(int(par[2, c]), 16) << places)
                            y = (y + half) >> shift
                        result[row, c] = min(max(y + epi.offset, epi.low), epi.high)
                self.memories[Memory.OUT][at] = result
