"""What a unit says of itself: counters of its cycles, and what it waits for."""

from __future__ import annotations

from typing import Any

from tilewright.accel.hardware.hdl import hdl

COUNTER_BITS = 48


class Watch:
    """Counters of one unit. A cycle is busy, else spent waiting for memory, else for a token, else idle."""

    def __init__(self) -> None:
        self.started = hdl.Signal()
        """An instruction begins in this cycle."""
        self.busy = hdl.Signal()
        """The unit does something in this cycle."""
        self.memory = hdl.Signal()
        """An instruction is under way that waits for the memory port or its data, if the unit is not busy."""
        self.wants_prev, self.wants_next = hdl.Signal(), hdl.Signal()
        """The next instruction waits for a token of the unit before, or after."""
        self.working = hdl.Signal()
        """An instruction is under way."""
        self.counts: dict[str, Any] = {
            name: hdl.Signal(COUNTER_BITS, name=name) for name in ("instructions", "busy_cycles", "memory", "token")
        }
        self.module = hdl.Module()
        self.module.d.comb += self.working.eq(self.busy | self.memory)
        wants = self.wants_prev | self.wants_next
        events = {
            "instructions": self.started,
            "busy_cycles": self.busy,
            "memory": ~self.busy & self.memory,
            "token": ~self.busy & ~self.memory & wants,
        }
        for name, event in events.items():
            with self.module.If(event):
                self.module.d.sync += self.counts[name].eq(self.counts[name] + 1)
