"""Fetch: reads instructions ahead and hands each to the queue of its unit."""

from __future__ import annotations

from typing import Any

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.hardware.fields import ADDRESS_BITS, Fields, belongs_to, is_one_of, opcode_of, unknown
from tilewright.accel.hardware.hdl import hdl
from tilewright.accel.hardware.port import MemoryPort
from tilewright.accel.hardware.queues import buffer_depth
from tilewright.accel.instructions import (
    INSTRUCTION_BITS,
    Alu,
    AluOp,
    Gemm,
    Load,
    Opcode,
    Overwrite,
    Store,
    Unit,
)

COUNT_BITS = 32


class Fetch:
    """Reads `count` instructions from `address` on (a word of the bus) when `start` is set for a cycle."""

    def __init__(self, config: AccelConfig, port: MemoryPort) -> None:
        self.start = hdl.Signal()
        self.address = hdl.Signal(ADDRESS_BITS)
        self.count = hdl.Signal(COUNT_BITS)
        self.illegal = hdl.Signal()
        """Set by an instruction that means nothing; fetch goes no further."""
        self.is_active = hdl.Signal()
        """Whether an instruction is handed out in this cycle."""
        self.queues = {unit: hdl.SyncFIFOBuffered(width=INSTRUCTION_BITS, depth=config.command_queue) for unit in Unit}
        self._word = hdl.Signal(INSTRUCTION_BITS, name="instruction")
        self._word_valid = hdl.Signal()
        self._word_taken = hdl.Signal()
        self.module = hdl.Module()
        for unit, queue in self.queues.items():
            self.module.submodules[f"{unit.name.lower()}_queue"] = queue
        self._read_ahead(config, port)
        self._dispatch(config)

    def _read_ahead(self, config: AccelConfig, port: MemoryPort) -> None:
        """Words of the program, asked for while the buffer has room, and the instructions they make."""
        m, bus_bits = self.module, 8 * config.bus_bytes
        per_instruction = max(1, INSTRUCTION_BITS // bus_bits)
        per_word = max(1, bus_bits // INSTRUCTION_BITS)
        depth = buffer_depth(config.memory_latency)
        words = m.submodules.words = hdl.SyncFIFOBuffered(width=bus_bits, depth=depth)
        left, reserved = hdl.Signal(COUNT_BITS + 2), hdl.Signal(range(depth + 1))
        m.d.comb += [
            port.fetch.valid.eq((left != 0) & (reserved != depth)),
            words.w_data.eq(port.data),
            words.w_en.eq(port.fetch.answered),
        ]
        m.d.sync += reserved.eq(reserved + port.fetch.accepted - (words.r_en & words.r_rdy))
        with m.If(self.start):
            needed = self.count * per_instruction if per_word == 1 else (self.count + (per_word - 1)) // per_word
            m.d.sync += [port.fetch.address.eq(self.address), left.eq(needed)]
        with m.Elif(port.fetch.accepted):
            m.d.sync += [port.fetch.address.eq(port.fetch.address + 1), left.eq(left - 1)]
        if per_word > 1:
            lane = hdl.Signal(range(per_word))
            m.d.comb += [
                self._word.eq(words.r_data.word_select(lane, INSTRUCTION_BITS)),
                self._word_valid.eq(words.r_rdy),
                words.r_en.eq(self._word_taken & (lane == per_word - 1)),
            ]
            with m.If(self._word_taken):
                m.d.sync += lane.eq(lane + 1)
            return
        kept = hdl.Signal(INSTRUCTION_BITS - bus_bits)
        have = hdl.Signal(range(per_instruction))
        is_whole = have == per_instruction - 1
        m.d.comb += [
            self._word.eq(hdl.Cat(kept, words.r_data)),
            self._word_valid.eq(words.r_rdy & is_whole),
            words.r_en.eq(hdl.Mux(is_whole, self._word_taken, 1)),
        ]
        with m.If(words.r_en & words.r_rdy):
            m.d.sync += [have.eq(hdl.Mux(is_whole, 0, have + 1)), kept.eq(self._word[bus_bits:])]

    def _dispatch(self, config: AccelConfig) -> None:
        """Hand an instruction to the queue of its unit, one in a cycle."""
        m, left = self.module, hdl.Signal(COUNT_BITS)
        is_legal = ~self._is_illegal(config)
        has_room = hdl.Const(0)
        for unit, queue in self.queues.items():
            is_its = belongs_to(self._word, unit, config)
            has_room = has_room | (is_its & queue.w_rdy)
            m.d.comb += [
                queue.w_data.eq(self._word),
                queue.w_en.eq(self._word_taken & is_its),
            ]
        is_ready = self._word_valid & (left != 0) & ~self.illegal
        m.d.comb += [self._word_taken.eq(is_ready & is_legal & has_room), self.is_active.eq(self._word_taken)]
        with m.If(self.start):
            m.d.sync += left.eq(self.count)
        with m.Elif(self._word_taken):
            m.d.sync += left.eq(left - 1)
        with m.If(is_ready & ~is_legal):
            m.d.sync += self.illegal.eq(1)

    def _is_illegal(self, config: AccelConfig) -> Any:
        word, opcode = self._word, opcode_of(self._word)
        alu, gemm = Fields(word, Alu, config), Fields(word, Gemm, config)
        load, store = Fields(word, Load, config), Fields(word, Store, config)
        tokens = load
        return (
            unknown(opcode, Opcode)
            | ((opcode == Opcode.LOAD) & unknown(load.memory, Memory))
            | ((opcode == Opcode.STORE) & ~is_one_of(store.memory, (Memory.OUT, Memory.ACC)))
            | ((opcode == Opcode.ALU) & unknown(alu.op, AluOp))
            | ((opcode == Opcode.GEMM) & unknown(gemm.overwrite, Overwrite))
            | (belongs_to(word, Unit.LOAD, config) & (tokens.pop_prev | tokens.push_prev))
            | (belongs_to(word, Unit.STORE, config) & (tokens.pop_next | tokens.push_next))
        )
