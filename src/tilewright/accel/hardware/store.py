"""The store unit: EPI, STORE (a word in a cycle) and FINISH."""

from __future__ import annotations

from typing import Any

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.hardware.epilogue import Epilogue
from tilewright.accel.hardware.fields import ADDRESS_BITS, Fields, opcode_of, scaled, words_log2
from tilewright.accel.hardware.hdl import hdl
from tilewright.accel.hardware.memories import Accumulators, OnChip
from tilewright.accel.hardware.port import MemoryPort
from tilewright.accel.hardware.queues import TokenQueue
from tilewright.accel.hardware.watch import Watch
from tilewright.accel.instructions import Opcode, Store

STORED = (Memory.OUT, Memory.ACC)


class Writer:
    """Executes one STORE at a time. Words of OUT come straight from its read port, which nobody else uses meanwhile;
    an accumulator is copied first, for compute may read the next one in any cycle."""

    def __init__(self, config: AccelConfig, word: Any, port: MemoryPort, acc: Accumulators, out: OnChip) -> None:
        self.take = hdl.Signal()
        self.busy = hdl.Signal()
        self.reads_acc = hdl.Signal()
        self.reads_out = hdl.Signal()
        self.index = hdl.Signal(max(config.index_bits[memory] for memory in STORED))
        self.push_prev = hdl.Signal()
        self._memory, self._lane = hdl.Signal(len(Fields(word, Store, config).memory)), hdl.Signal(16)
        self._needs_read, self._copies, self._streams = hdl.Signal(init=0), hdl.Signal(), hdl.Signal()
        self._is_out = self._memory == Memory.OUT
        self._ends, self._element_ends = hdl.Signal(), hdl.Signal()
        self.module = hdl.Module()
        self._walk(config, Fields(word, Store, config), port)
        self._read(config, port, acc, out)

    def _walk(self, config: AccelConfig, head: Fields, port: MemoryPort) -> None:
        m, store, gives = self.module, port.store, hdl.Signal()
        stride, row_start = hdl.Signal(ADDRESS_BITS), hdl.Signal(ADDRESS_BITS)
        rows_left, columns, columns_left = hdl.Signal(len(head.y_size)), hdl.Signal(16), hdl.Signal(16)
        is_empty = hdl.Signal()
        last_lane = scaled(hdl.Const(1), self._memory, STORED, config) - 1
        row_ends = self._element_ends & (columns_left == 1)
        m.d.comb += [
            store.valid.eq(self._streams),
            self._element_ends.eq(store.accepted & (self._lane == last_lane)),
            self._ends.eq(self.busy & (is_empty | (row_ends & (rows_left == 1)))),
            self.push_prev.eq(self._ends & gives),
        ]
        with m.If(store.accepted):
            m.d.sync += [self._lane.eq(self._lane + 1), store.address.eq(store.address + 1)]
        with m.If(self._element_ends):
            m.d.sync += [self._lane.eq(0), columns_left.eq(columns_left - 1)]
        with m.If(row_ends):
            m.d.sync += [
                columns_left.eq(columns),
                rows_left.eq(rows_left - 1),
                row_start.eq(row_start + stride),
                store.address.eq(row_start + stride),
            ]
        with m.If(self._ends):
            m.d.sync += self.busy.eq(0)
        with m.If(self.take):
            m.d.sync += [
                self.busy.eq(1),
                is_empty.eq((head.x_size == 0) | (head.y_size == 0)),
                self._memory.eq(head.memory),
                self._lane.eq(0),
                stride.eq(scaled(head.y_stride, head.memory, STORED, config)),
                rows_left.eq(head.y_size),
                columns.eq(head.x_size),
                columns_left.eq(head.x_size),
                row_start.eq(head.dram),
                store.address.eq(head.dram),
                self.index.eq(head.sram),
                gives.eq(head.push_prev),
            ]
        with m.If(self.take):
            m.d.sync += self._needs_read.eq((head.x_size != 0) & (head.y_size != 0))

    def _read(self, config: AccelConfig, port: MemoryPort, acc: Accumulators, out: OnChip) -> None:
        m, kept = self.module, hdl.Signal(config.element_bits[Memory.ACC])
        following = self._element_ends & ~self._ends
        has_read = hdl.Signal()
        bus_bits = 8 * config.bus_bytes
        m.d.comb += [
            self.reads_out.eq(self._is_out & (self._needs_read | following)),
            self.reads_acc.eq(~self._is_out & self._needs_read),
            has_read.eq(self.reads_out | (self.reads_acc & acc.store.granted)),
            port.store_data.eq(
                hdl.Mux(
                    self._is_out,
                    out.read.data.word_select(self._lane[: words_log2(Memory.OUT, config)], bus_bits),
                    kept.word_select(self._lane[: words_log2(Memory.ACC, config)], bus_bits),
                )
            ),
        ]
        with m.If(self._copies):
            m.d.sync += [kept.eq(acc.store.data), self._copies.eq(0), self._streams.eq(1)]
        with m.If(self._element_ends):
            m.d.sync += [self._streams.eq(0), self._needs_read.eq(following)]
        with m.If(has_read):
            m.d.sync += [
                self._needs_read.eq(0),
                self.index.eq(self.index + 1),
                self._streams.eq(self._is_out),
                self._copies.eq(~self._is_out),
            ]


class StoreUnit:
    """Executes the instructions of its queue in order."""

    def __init__(
        self,
        config: AccelConfig,
        queue: Any,
        port: MemoryPort,
        accumulators: Accumulators,
        out: OnChip,
        par: OnChip,
        pop: TokenQueue,
        push: TokenQueue,
    ) -> None:
        self.watch = Watch()
        self.finished = hdl.Signal()
        self.epilogue = Epilogue(config, queue.r_data, accumulators.store, out, par)
        self._writer = Writer(config, queue.r_data, port, accumulators, out)
        m = self.module = hdl.Module()
        m.submodules.watch = self.watch.module
        m.submodules.epilogue, m.submodules.writer = self.epilogue.module, self._writer.module
        self._take(config, queue, port, pop, push)
        epilogue, writer, reader = self.epilogue, self._writer, accumulators.store
        m.d.comb += [
            reader.enable.eq(epilogue.reads_acc | writer.reads_acc),
            reader.index.eq(hdl.Mux(writer.busy, writer.index, epilogue.acc_index)),
            out.read.en.eq(epilogue.reads_out | writer.reads_out),
            out.read.addr.eq(
                hdl.Mux(
                    writer.busy,
                    hdl.Mux(writer.reads_out, writer.index, 0),
                    epilogue.out_index,
                )
            ),
        ]

    def _take(self, config: AccelConfig, queue: Any, port: MemoryPort, pop: TokenQueue, push: TokenQueue) -> None:
        """Begin the next instruction when it has its token and its turn."""
        m, epilogue, writer = self.module, self.epilogue, self._writer
        head, opcode, take = Fields(queue.r_data, Store, config), opcode_of(queue.r_data), hdl.Signal()
        is_epilogue = opcode == Opcode.EPI
        lacks = head.pop_prev & ~pop.has_token
        # A STORE reads what EPI before it wrote.
        turn = ~writer.busy & hdl.Mux(is_epilogue, epilogue.ready, ~epilogue.is_active & ~epilogue.in_pipeline)
        finishes = take & (opcode == Opcode.FINISH)
        m.d.comb += [
            take.eq(queue.r_rdy & turn & ~lacks),
            queue.r_en.eq(take),
            epilogue.take.eq(take & is_epilogue),
            writer.take.eq(take & (opcode == Opcode.STORE)),
            pop.pop.eq(take & head.pop_prev),
            push.push.eq(epilogue.push_prev | writer.push_prev | (finishes & head.push_prev)),
            self.watch.started.eq(take),
            self.watch.busy.eq(epilogue.is_active | epilogue.in_pipeline | port.store.accepted),
            self.watch.memory.eq(writer.busy),
            self.watch.wants_prev.eq(queue.r_rdy & turn & lacks),
        ]
        with m.If(finishes):
            m.d.sync += self.finished.eq(1)
