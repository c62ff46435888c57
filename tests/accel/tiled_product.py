"""A tiled matrix product as a program of the accelerator, written by hand: two threads of tiles hide latency."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.encoding import encode_micro_ops
from tilewright.accel.instructions import Epi, Finish, Gemm, Instruction, Load, MicroOp, Overwrite, Store

UOP_AT, INP_AT, WGT_AT, OUT_AT = 0, 1 << 12, 1 << 18, 3 << 18


@dataclass(frozen=True)
class TiledProduct:
    """`tiles` output tiles of `rows` tensors, each a sum of `steps` products; halves of memories alternate."""

    config: AccelConfig
    tiles: int = 4
    steps: int = 2
    rows: int = 4
    threads: int = 2

    @property
    def micro_ops(self) -> list[MicroOp]:
        """One micro-op for each half of the accumulators (by tile) and of inputs and weights (by step)."""
        return [
            MicroOp(acc=self.half(Memory.ACC, tile), inp=self.half(Memory.INP, step), wgt=self.half(Memory.WGT, step))
            for tile in range(self.threads)
            for step in range(self.threads)
        ]

    def half(self, memory: Memory, thread: int) -> int:
        """Where a thread's part of a memory begins."""
        return thread * self.config.depth[memory] // 2

    def dram(self) -> dict[int, bytes]:
        """The contents of DRAM: micro-ops, inputs and weights."""
        rng = np.random.default_rng(0)
        inputs = self.tiles * self.steps * self.rows * self.config.dma_bytes[Memory.INP]
        weights = self.tiles * self.steps * self.config.dma_bytes[Memory.WGT]
        words = encode_micro_ops(self.micro_ops, self.config)
        padded = np.zeros(-(-len(words) // 16) * 16, np.uint32)
        padded[: len(words)] = words
        return {UOP_AT: padded.tobytes(), INP_AT: rng.bytes(inputs), WGT_AT: rng.bytes(weights)}

    def read(self, address: int, size: int) -> bytes:
        """Bytes of DRAM before the program runs."""
        for start, data in self.dram().items():
            if start <= address and address + size <= start + len(data):
                return data[address - start : address - start + size]
        raise AssertionError(f"nothing is at {address}")

    def instructions(self) -> list[Instruction]:
        """The program: loads of the next step run beside the products of this one, results beside the next tile."""
        bus = self.config.bus_bytes
        per_word = self.config.dma_elements[Memory.UOP]
        program: list[Instruction] = [
            Load(memory=Memory.UOP, dram=UOP_AT // bus, y_size=1, x_size=-(-(self.threads**2) // per_word))
        ]
        loads = 0
        for tile in range(self.tiles):
            thread = tile % self.threads
            for step in range(self.steps):
                number = tile * self.steps + step
                half, micro_op = number % self.threads, thread * self.threads + number % self.threads
                is_first, is_last = step == 0, step == self.steps - 1
                program += [
                    Load(
                        memory=Memory.INP, sram=self.half(Memory.INP, half), y_size=1, x_size=self.rows,
                        dram=(INP_AT + number * self.rows * self.config.dma_bytes[Memory.INP]) // bus,
                        pop_next=loads >= self.threads,
                    ),
                    Load(
                        memory=Memory.WGT, sram=self.half(Memory.WGT, half), y_size=1, x_size=1,
                        dram=(WGT_AT + number * self.config.dma_bytes[Memory.WGT]) // bus, push_next=True,
                    ),
                    Gemm(
                        overwrite=Overwrite.ALWAYS if is_first else Overwrite.NEVER,
                        uop_begin=micro_op, uop_end=micro_op + 1, outer=1, inner=self.rows, acc_inner=1, inp_inner=1,
                        pop_prev=True, pop_next=is_first and tile >= self.threads,
                        push_prev=number + self.threads < self.tiles * self.steps, push_next=is_last,
                    ),
                ]  # fmt: skip
                loads += 1
            program += [
                Epi(
                    low=-100, high=100, outer=1, inner=self.rows, acc=self.half(Memory.ACC, thread), acc_inner=1,
                    pop_prev=True, push_prev=tile + self.threads < self.tiles,
                    out=self.half(Memory.OUT, thread), out_inner=1,
                ),
                Store(
                    sram=self.half(Memory.OUT, thread), y_size=1, x_size=self.rows,
                    dram=(OUT_AT + tile * self.rows * self.config.dma_bytes[Memory.OUT]) // bus,
                ),
            ]  # fmt: skip
        return [*program, Finish()]
