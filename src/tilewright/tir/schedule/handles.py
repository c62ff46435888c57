"""What a user of a schedule holds: handles of loops and blocks, and sampled integers."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import Var


@dataclass(frozen=True, slots=True)
class LoopHandle:
    """A loop, by its variable: valid until a primitive consumes the loop (splits it, fuses it, moves its block)."""

    var: Var

    def __repr__(self) -> str:
        return f"loop {self.var.name}"


@dataclass(frozen=True, slots=True)
class BlockHandle:
    """A block, by its name."""

    name: str

    def __repr__(self) -> str:
        return f"block {self.name}"


Handle = LoopHandle | BlockHandle


class SampledInt(int):
    """An integer that a sampling instruction chose: an ordinary int that the trace recognises.

    Passed as it is to a primitive, it is recorded as "the result of that instruction", so that a replay with another
    decision uses the other value. Arithmetic on it gives plain integers: those are recorded as they are.
    """

    __slots__ = ()
