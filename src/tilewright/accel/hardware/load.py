"""The load unit: LOADs of INP, WGT, PAR and OUT."""

from __future__ import annotations

from typing import Any

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.hardware.fields import Fields
from tilewright.accel.hardware.hdl import hdl
from tilewright.accel.hardware.port import MemoryPort
from tilewright.accel.hardware.queues import TokenQueue
from tilewright.accel.hardware.reader import Reader
from tilewright.accel.hardware.watch import Watch
from tilewright.accel.instructions import Load, Unit

MEMORIES = tuple(memory for memory in Memory if Load(memory=memory).unit is Unit.LOAD)


class LoadUnit:
    """Takes an instruction's token and hands it to the reader, which may still write those before it."""

    def __init__(self, config: AccelConfig, queue: Any, port: MemoryPort, pop: TokenQueue, push: TokenQueue) -> None:
        self.watch = Watch()
        self.reader = Reader(config, port.load, port.data, MEMORIES)
        m = self.module = hdl.Module()
        m.submodules.watch, m.submodules.reader = self.watch.module, self.reader.module
        head, take = Fields(queue.r_data, Load, config), hdl.Signal()
        lacks = head.pop_next & ~pop.has_token
        m.d.comb += [
            take.eq(queue.r_rdy & self.reader.ready & ~lacks),
            queue.r_en.eq(take),
            self.reader.start.eq(take),
            self.reader.instruction.eq(queue.r_data),
            pop.pop.eq(take & head.pop_next),
            push.push.eq(self.reader.push_next),
            self.watch.started.eq(take),
            self.watch.busy.eq(self.reader.write_valid & self.reader.write_ready),
            self.watch.memory.eq(self.reader.busy),
            self.watch.wants_next.eq(queue.r_rdy & self.reader.ready & lacks),
        ]
