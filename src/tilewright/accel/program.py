"""A program with all that a machine needs to run it: instructions, what DRAM holds before, where the results are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.accel.config import AccelConfig
from tilewright.accel.encoding import INSTRUCTION_BYTES, encode
from tilewright.accel.instructions import Instruction
from tilewright.accel.machine import Counters, Machine
from tilewright.support.errors import UserError

_PAGE = 4096


def check_segments(segments: Mapping[int, bytes], where: str) -> None:
    """Refuse parts of DRAM that overlap."""
    end = 0
    for address, data in sorted(segments.items()):
        if address < end:
            raise UserError(f"accelerator: two parts of DRAM overlap at byte {address:#x}", where=where)
        end = max(end, address + len(data))


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions for a configuration, and the DRAM around them."""

    config: AccelConfig
    instructions: tuple[Instruction, ...]
    segments: Mapping[int, bytes] = field(default_factory=dict)
    """What DRAM holds before the run, by the address of its first byte; the rest is zero."""
    results: tuple[tuple[int, int], ...] = ()
    """Where the results lie: address and size."""

    @property
    def entry(self) -> int:
        """Where the instructions are put: behind the data, at a page."""
        ends = [address + len(data) for address, data in self.segments.items()]
        ends += [address + size for address, size in self.results]
        return -(-max(ends, default=0) // _PAGE) * _PAGE

    @property
    def dram_bytes(self) -> int:
        """A size of DRAM that has room for it, a whole number of pages."""
        return -(-(self.entry + max(len(self.instructions), 1) * INSTRUCTION_BYTES) // _PAGE) * _PAGE

    def read(self, address: int, size: int) -> bytes:
        """Bytes of DRAM before the run."""
        content = bytearray(size)
        for start, data in self.segments.items():
            begin, end = max(start, address), min(start + len(data), address + size)
            if begin < end:
                content[begin - address : end - address] = data[begin - start : end - start]
        return bytes(content)

    def write_to(self, machine: Machine) -> None:
        """Put data and instructions in a machine's DRAM."""
        for address, data in self.segments.items():
            machine.write(address, data)
        machine.write(self.entry, encode(self.instructions, self.config))

    def run_on(self, machine: Machine, most_cycles: int | None = None) -> tuple[Counters, list[bytes]]:
        """Write it to a machine, run it, and read its results."""
        self.write_to(machine)
        counters = machine.run(self.entry, len(self.instructions), most_cycles)
        return counters, [machine.read(address, size) for address, size in self.results]
