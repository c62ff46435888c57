"""The memory port: one word of the bus in a cycle, read or written, for four clients; data comes back in order."""

from __future__ import annotations

from typing import Any

from tilewright.accel.config import AccelConfig
from tilewright.accel.hardware.fields import ADDRESS_BITS
from tilewright.accel.hardware.hdl import hdl
from tilewright.accel.hardware.queues import buffer_depth


class PortClient:
    """What a unit has of the port: a request, whether it is accepted in this cycle, and whether data is for it."""

    def __init__(self, name: str) -> None:
        self.valid = hdl.Signal(name=f"{name}_valid")
        self.address = hdl.Signal(ADDRESS_BITS, name=f"{name}_address")
        self.accepted = hdl.Signal(name=f"{name}_accepted")
        self.answered = hdl.Signal(name=f"{name}_answered")


class MemoryPort:
    """Arbiter and answers' tags. Store goes first, then compute, then in turn load and fetch."""

    def __init__(self, config: AccelConfig) -> None:
        width = 8 * config.bus_bytes
        self.fetch, self.load = PortClient("fetch"), PortClient("load")
        self.compute, self.store = PortClient("compute"), PortClient("store")
        self.store_data = hdl.Signal(width)
        self.data = hdl.Signal(width)
        """The word that comes back in this cycle, for whichever client is `answered`."""
        self.request_valid = hdl.Signal()
        self.request_ready = hdl.Signal()
        self.request_write = hdl.Signal()
        self.request_fetch = hdl.Signal()
        """Whether it is an instruction that is read."""
        self.request_address = hdl.Signal(ADDRESS_BITS)
        self.response_valid = hdl.Signal()
        self.outstanding = hdl.Signal()
        """Whether a read is on its way."""
        self.module = self._module(config)

    def _module(self, config: AccelConfig) -> Any:
        m = hdl.Module()
        readers = (self.compute, self.load, self.fetch)
        tags = m.submodules.tags = hdl.SyncFIFO(width=2, depth=buffer_depth(config.memory_latency))
        fetch_next = hdl.Signal()
        may_read = self.request_ready & tags.w_rdy
        fetch_first = self.fetch.valid & (fetch_next | ~self.load.valid)
        below = ~self.store.valid & ~self.compute.valid & may_read
        m.d.comb += [
            self.store.accepted.eq(self.store.valid & self.request_ready),
            self.compute.accepted.eq(self.compute.valid & ~self.store.valid & may_read),
            self.fetch.accepted.eq(fetch_first & below),
            self.load.accepted.eq(self.load.valid & ~fetch_first & below),
            self.request_write.eq(self.store.valid),
            self.request_fetch.eq(self.fetch.accepted),
            self.request_valid.eq(
                self.store.valid | (tags.w_rdy & (self.compute.valid | self.load.valid | self.fetch.valid))
            ),
            tags.w_en.eq(self.compute.accepted | self.load.accepted | self.fetch.accepted),
            tags.r_en.eq(self.response_valid),
            self.outstanding.eq(tags.r_rdy),
        ]
        with m.If(self.fetch.accepted):
            m.d.sync += fetch_next.eq(0)
        with m.Elif(self.load.accepted):
            m.d.sync += fetch_next.eq(1)
        with m.If(self.store.valid):
            m.d.comb += self.request_address.eq(self.store.address)
        with m.Elif(self.compute.valid):
            m.d.comb += [self.request_address.eq(self.compute.address), tags.w_data.eq(0)]
        with m.Elif(fetch_first):
            m.d.comb += [self.request_address.eq(self.fetch.address), tags.w_data.eq(2)]
        with m.Else():
            m.d.comb += [self.request_address.eq(self.load.address), tags.w_data.eq(1)]
        for number, client in enumerate(readers):
            m.d.comb += client.answered.eq(self.response_valid & (tags.r_data == number))
        return m
