"""Queues of the hardware: of tokens, and of instructions and data."""

from __future__ import annotations

from typing import Any

from tilewright.accel.hardware.hdl import hdl


class TokenQueue:
    """A queue of tokens between two units: a counter. A token too many sets `overflow`."""

    def __init__(self, most: int) -> None:
        self.push = hdl.Signal(name="push")
        self.pop = hdl.Signal(name="pop")
        self.count = hdl.Signal(range(most + 1), name="count")
        self.overflow = hdl.Signal(name="overflow")
        self.module = hdl.Module()
        m = self.module
        with m.If(self.push & ~self.pop):
            with m.If(self.count == most):
                m.d.sync += self.overflow.eq(1)
            with m.Else():
                m.d.sync += self.count.eq(self.count + 1)
        with m.Elif(self.pop & ~self.push):
            m.d.sync += self.count.eq(self.count - 1)

    @property
    def has_token(self) -> Any:
        """Whether a token can be popped in this cycle."""
        return self.count != 0


def buffer_depth(latency: int) -> int:
    """Words that a reader of DRAM can have asked for and not yet used: enough to cover the latency, a power of two."""
    return 1 << (latency + 15).bit_length()
