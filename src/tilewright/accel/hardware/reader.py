"""Reading rectangles of DRAM to on-chip memories, with padding: what the load and the compute unit share.

Asking and writing are apart: a walker asks for words, one in a cycle, instruction after instruction; another takes
the words as they come and writes them, with the padding between. So several LOADs are under way at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.hardware.fields import ADDRESS_BITS, Fields, scaled, words_log2
from tilewright.accel.hardware.hdl import hdl
from tilewright.accel.hardware.port import PortClient
from tilewright.accel.hardware.queues import buffer_depth
from tilewright.accel.instructions import INSTRUCTION_BITS, Load, layout

UNDER_WAY = 8
"""LOADs whose words were asked for and are not all written."""


class Reader:
    """Executes LOADs. `start` hands it one, where `ready` is set; its tokens were taken before."""

    def __init__(self, config: AccelConfig, port: PortClient, data: Any, memories: Sequence[Memory]) -> None:
        self.instruction = hdl.Signal(INSTRUCTION_BITS)
        self.start = hdl.Signal()
        self.ready = hdl.Signal()
        self.busy = hdl.Signal()
        """Whether a LOAD is under way."""
        self.push_prev = hdl.Signal()
        self.push_next = hdl.Signal()
        self.write_memory = hdl.Signal(max(memories).bit_length())
        self.write_valid = hdl.Signal()
        """Whether a word or an element of padding is to be written in this cycle."""
        self.write_ready = hdl.Signal(init=1)
        """Whether it is: the memory may be busy with another write."""
        self.write_index = hdl.Signal(layout(Load, config)["sram"][1])
        self.write_lanes = hdl.Signal(1 << max(words_log2(memory, config) for memory in memories))
        """Which words of the element are written: one, or of padding all."""
        self.write_data = hdl.Signal(8 * config.bus_bytes)
        self._config, self._port, self._data, self._memories = config, port, data, memories
        self.module = hdl.Module()
        self._under_way = self.module.submodules.under_way = hdl.SyncFIFOBuffered(
            width=INSTRUCTION_BITS, depth=UNDER_WAY
        )
        depth = buffer_depth(config.memory_latency)
        self._words = self.module.submodules.words = hdl.SyncFIFOBuffered(width=8 * config.bus_bytes, depth=depth)
        self._ask(depth)
        self._write()

    def _ask(self, depth: int) -> None:
        m, config, port, words = self.module, self._config, self._port, self._words
        load = Fields(self.instruction, Load, config)
        row_words, stride = hdl.Signal(24), hdl.Signal(ADDRESS_BITS)
        rows_left, words_left = hdl.Signal(len(load.y_size)), hdl.Signal(24)
        row_start, address = hdl.Signal(ADDRESS_BITS), hdl.Signal(ADDRESS_BITS)
        asking, reserved = hdl.Signal(), hdl.Signal(range(depth + 1))
        row_ends = words_left == 1
        ends = port.accepted & row_ends & (rows_left == 1)
        length = scaled(load.x_size, load.memory, self._memories, config)
        m.d.comb += [
            port.valid.eq(asking & (reserved != depth)),
            port.address.eq(address),
            words.w_data.eq(self._data),
            words.w_en.eq(port.answered),
            self.ready.eq((~asking | ends) & self._under_way.w_rdy),
            self._under_way.w_en.eq(self.start),
            self._under_way.w_data.eq(self.instruction),
        ]
        m.d.sync += reserved.eq(reserved + port.accepted - (words.r_en & words.r_rdy))
        with m.If(port.accepted):
            m.d.sync += [words_left.eq(words_left - 1), address.eq(address + 1)]
            with m.If(row_ends):
                m.d.sync += [
                    words_left.eq(row_words),
                    rows_left.eq(rows_left - 1),
                    row_start.eq(row_start + stride),
                    address.eq(row_start + stride),
                ]
        with m.If(ends):
            m.d.sync += asking.eq(0)
        with m.If(self.start):
            m.d.sync += [
                asking.eq((load.x_size != 0) & (load.y_size != 0)),
                row_words.eq(length),
                words_left.eq(length),
                stride.eq(scaled(load.y_stride, load.memory, self._memories, config)),
                rows_left.eq(load.y_size),
                row_start.eq(load.dram),
                address.eq(load.dram),
            ]

    def _write(self) -> None:
        m, config, queue, words = self.module, self._config, self._under_way, self._words
        word = hdl.Signal(INSTRUCTION_BITS, name="current")
        load, following = Fields(word, Load, config), Fields(queue.r_data, Load, config)
        writing, row, column = hdl.Signal(), hdl.Signal(range(1 << 13)), hdl.Signal(range(1 << 17))
        lane = hdl.Signal(range(len(self.write_lanes)))
        rows, columns = hdl.Signal.like(row), hdl.Signal.like(column)
        is_data, is_empty, lane_ends = hdl.Signal(), hdl.Signal(), hdl.Signal()
        last_lane = scaled(hdl.Const(1), load.memory, self._memories, config) - 1
        written, ends = hdl.Signal(), hdl.Signal()
        column_ends = column + 1 == columns
        m.d.comb += [
            is_empty.eq((rows == 0) | (columns == 0)),
            is_data.eq(
                (row >= load.y_before)
                & (row < load.y_before + load.y_size)
                & (column >= load.x_before)
                & (column < load.x_before + load.x_size)
            ),
            self.write_valid.eq(writing & ~is_empty & (~is_data | words.r_rdy)),
            written.eq(self.write_valid & self.write_ready),
            words.r_en.eq(written & is_data),
            lane_ends.eq(~is_data | (lane == last_lane)),
            ends.eq(writing & (is_empty | (written & lane_ends & column_ends & (row + 1 == rows)))),
            self.write_memory.eq(load.memory),
            self.write_lanes.eq(hdl.Mux(is_data, hdl.Const(1, len(self.write_lanes)) << lane, ~0)),
            self.write_data.eq(hdl.Mux(is_data, words.r_data, self._padding(load))),
            self.push_prev.eq(ends & load.push_prev),
            self.push_next.eq(ends & load.push_next),
            queue.r_en.eq(~writing | ends),
            self.busy.eq(writing | (queue.level != 0)),
        ]
        with m.If(written):
            m.d.sync += lane.eq(lane + 1)
            with m.If(lane_ends):
                m.d.sync += [lane.eq(0), column.eq(column + 1), self.write_index.eq(self.write_index + 1)]
                with m.If(column_ends):
                    m.d.sync += [column.eq(0), row.eq(row + 1)]
        with m.If(queue.r_en):
            m.d.sync += [
                writing.eq(queue.r_rdy),
                word.eq(queue.r_data),
                row.eq(0),
                column.eq(0),
                lane.eq(0),
                rows.eq(following.y_before + following.y_size + following.y_after),
                columns.eq(following.x_before + following.x_size + following.x_after),
                self.write_index.eq(self._first_index(following)),
            ]

    def _first_index(self, load: Fields) -> Any:
        """Where writing begins; of micro-ops, rows of as many as the bus carries are counted."""
        per_row = self._config.dma_elements[Memory.UOP]
        return hdl.Mux(load.memory == Memory.UOP, load.sram >> (per_row.bit_length() - 1), load.sram)

    def _padding(self, load: Fields) -> Any:
        """A word of lanes that hold the padding's value."""
        config, result = self._config, hdl.Const(0)
        lane_bits = {
            Memory.INP: config.inp_bits,
            Memory.WGT: config.wgt_bits,
            Memory.ACC: config.acc_bits,
            Memory.OUT: config.out_bits,
        }
        for memory in self._memories:
            if memory in lane_bits:
                bits = lane_bits[memory]
                lane = hdl.Signal(hdl.signed(max(bits, len(load.pad))), name=f"pad_{memory.name.lower()}")
                self.module.d.comb += lane.eq(load.pad)
                pattern = lane[:bits].replicate(8 * config.bus_bytes // bits)
                result = hdl.Mux(load.memory == memory, pattern, result)
        return result
