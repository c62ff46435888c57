"""The on-chip memories: one write and one read in a cycle; words of an element can be written alone."""

from __future__ import annotations

from typing import Any

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.hardware.hdl import hdl
from tilewright.accel.hardware.reader import Reader


class OnChip:
    """One memory. Data of a read comes in the cycle after its address and stays until the next read."""

    def __init__(self, width: int, depth: int, lane: int, *, transparent: bool = False) -> None:
        # A memory of one row would have an address of no bits.
        rows = hdl.Memory(shape=width, depth=max(2, depth), init=[])
        self.write = rows.write_port(granularity=lane)
        self.read = rows.read_port(transparent_for=(self.write,) if transparent else ())
        self.module = rows
        self._copies = width // lane

    def write_words(self, m: Any, reader: Reader, enable: Any) -> None:
        """Write what a reader has for this memory."""
        m.d.comb += [
            self.write.addr.eq(reader.write_index),
            self.write.data.eq(reader.write_data.replicate(self._copies)),
        ]
        with m.If(enable):
            m.d.comb += self.write.en.eq(reader.write_lanes)


def plain_memory(memory: Memory, config: AccelConfig) -> OnChip:
    """INP, WGT, OUT or PAR."""
    return OnChip(config.element_bits[memory], config.depth[memory], 8 * config.bus_bytes)


class MicroOpMemory(OnChip):
    """UOP: its rows hold as many micro-ops as the bus carries in a cycle."""

    def __init__(self, config: AccelConfig) -> None:
        per_row = config.dma_elements[Memory.UOP]
        super().__init__(8 * config.bus_bytes, config.depth[Memory.UOP] // per_row, 8 * config.bus_bytes)
        self._per_row_log2 = per_row.bit_length() - 1

    def read_micro_op(self, m: Any, index: Any, enable: Any) -> Any:
        """The micro-op at an index, in the next cycle."""
        lane = hdl.Signal(max(1, self._per_row_log2))
        m.d.comb += [self.read.addr.eq(index >> self._per_row_log2), self.read.en.eq(enable)]
        if not self._per_row_log2:
            return self.read.data
        with m.If(enable):
            m.d.sync += lane.eq(index[: self._per_row_log2])
        return self.read.data.word_select(lane, len(self.read.data) >> self._per_row_log2)


class AccumulatorReader:
    """One of the two that read accumulators: data comes in the cycle after `granted`."""

    def __init__(self, name: str, config: AccelConfig) -> None:
        self.enable = hdl.Signal(name=f"{name}_enable")
        self.index = hdl.Signal(config.index_bits[Memory.ACC], name=f"{name}_index")
        self.granted = hdl.Signal(name=f"{name}_granted")
        self.data = hdl.Signal(config.element_bits[Memory.ACC], name=f"{name}_data")


class Accumulators:
    """ACC in two banks, each with one read in a cycle: compute's goes first. A read sees a write of the same cycle."""

    def __init__(self, config: AccelConfig) -> None:
        self.compute = AccumulatorReader("compute", config)
        self.store = AccumulatorReader("store", config)
        self.write_lanes = hdl.Signal(config.dma_bytes[Memory.ACC] // config.bus_bytes)
        self.write_index = hdl.Signal(config.index_bits[Memory.ACC])
        self.write_data = hdl.Signal(config.element_bits[Memory.ACC])
        self.module = hdl.Module()
        m = self.module
        banks = []
        for number in (0, 1):
            bank = OnChip(
                config.element_bits[Memory.ACC],
                config.depth[Memory.ACC] // 2,
                8 * config.bus_bytes,
                transparent=True,
            )
            m.submodules[f"bank{number}"] = bank.module
            banks.append(bank)
            self._connect(bank, number)
        m.d.comb += [
            self.compute.granted.eq(self.compute.enable),
            self.store.granted.eq(
                self.store.enable & ~(self.compute.enable & (self.compute.index[-1] == self.store.index[-1]))
            ),
        ]
        for reader in (self.compute, self.store):
            upper = hdl.Signal()
            with m.If(reader.granted):
                m.d.sync += upper.eq(reader.index[-1])
            m.d.comb += reader.data.eq(hdl.Mux(upper, banks[1].read.data, banks[0].read.data))

    def _connect(self, bank: OnChip, number: int) -> None:
        m = self.module
        is_computes = self.compute.enable & (self.compute.index[-1] == number)
        is_stores = self.store.enable & (self.store.index[-1] == number)
        m.d.comb += [
            bank.read.en.eq(is_computes | is_stores),
            bank.read.addr.eq(hdl.Mux(is_computes, self.compute.index[:-1], self.store.index[:-1])),
            bank.write.addr.eq(self.write_index[:-1]),
            bank.write.data.eq(self.write_data),
        ]
        with m.If(self.write_index[-1] == number):
            m.d.comb += bank.write.en.eq(self.write_lanes)
