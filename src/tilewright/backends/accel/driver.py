"""Tensor processors: simulated machines with a DRAM of their own, whose memory this driver divides."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tilewright.accel.config import AccelConfig
from tilewright.accel.encoding import INSTRUCTION_BYTES
from tilewright.accel.functional import FunctionalMachine
from tilewright.accel.kernel import AccelKernel, from_text
from tilewright.accel.machine import Counters, Machine
from tilewright.accel.registers import MockBoard, RegisterMachine
from tilewright.accel.verilated import VerilatedMachine
from tilewright.runtime.core.artifact import LaunchInfo
from tilewright.runtime.core.convert import Array
from tilewright.runtime.device.devices import Driver
from tilewright.runtime.device.program import BoundCall, Device, pick
from tilewright.support.errors import CompilerBug, UserError

_ALIGNMENT = 64
_LEAST_DRAM = 64 << 20
CLOCK_HZ = 100e6
"""The clock that times are given at: cycles are what the machines count."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Memory:
    """A part of DRAM. A part of a part keeps the whole alive."""

    address: int
    size: int
    whole: Memory | None = None


@dataclass(slots=True, eq=False)
class LoadedKernel:
    """A kernel with its micro-ops in DRAM, and its program there for the arguments that it was launched with last."""

    kernel: AccelKernel
    micro_ops: Memory
    code: Memory
    arguments: tuple[int, ...] | None = None


@dataclass(slots=True)
class _Places:
    """Which parts of DRAM are free: begin and end, in order."""

    free: list[tuple[int, int]] = field(default_factory=list)

    def take(self, size: int) -> int | None:
        """The address of a free part; None where no part is large enough."""
        for number, (begin, end) in enumerate(self.free):
            if end - begin >= size:
                self.free[number : number + 1] = [(begin + size, end)] if begin + size < end else []
                return begin
        return None

    def give(self, begin: int, size: int) -> None:
        """Make a part free again."""
        parts = sorted([*self.free, (begin, begin + size)])
        self.free = parts[:1]
        for low, high in parts[1:]:
            last_low, last_high = self.free[-1]
            if low == last_high:
                self.free[-1] = last_low, high
            else:
                self.free.append((low, high))


MakeMachine = Callable[[AccelConfig, int], Machine]


class AccelDevice(Device):
    """One machine. Kernels of another configuration than the last one's get a machine of theirs, with the same DRAM."""

    def __init__(self, name: str, make: MakeMachine) -> None:
        super().__init__()
        self.name = name
        self._make = make
        self._places = _Places([(0, _LEAST_DRAM)])
        self._machine = make(AccelConfig(), _LEAST_DRAM)
        self._live: weakref.WeakSet[Memory] = weakref.WeakSet()
        self.counters: Counters | None = None
        """What the last launch cost."""

    # ---------------------------------------------------------------- memory

    def allocate(self, size: int) -> Memory:
        """A part of DRAM, which is larger afterwards where it was full."""
        room = -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
        address = self._places.take(room)
        if address is None:
            old = self._machine.dram_bytes
            self._exchange(self._machine.config, max(2 * old, old + -(-room // _LEAST_DRAM) * _LEAST_DRAM))
            self._places.give(old, self._machine.dram_bytes - old)
            address = self._places.take(room)
            if address is None:
                raise CompilerBug("the accelerator's DRAM has no room after it grew")
        memory = Memory(address, size)
        self._live.add(memory)
        weakref.finalize(memory, self._places.give, address, room)
        return memory

    def _exchange(self, config: AccelConfig, dram_bytes: int) -> None:
        """Go on with another machine, whose DRAM holds what this one's does."""
        machine = self._make(config, dram_bytes)
        for memory in list(self._live):
            machine.write(memory.address, self._machine.read(memory.address, memory.size))
        self._machine.close()
        self._machine = machine

    def view(self, memory: Memory, offset: int, size: int) -> Memory | None:
        """A part of memory, where instructions can address it."""
        if offset % _ALIGNMENT:
            return None
        return Memory(memory.address + offset, size, memory)

    def write(self, memory: Memory, array: Array) -> None:
        """Copy an array to DRAM."""
        self._machine.write(memory.address, np.ascontiguousarray(array).tobytes())

    def copy(self, source: Memory, source_offset: int, target: Memory, target_offset: int, size: int) -> None:
        """Copy inside DRAM."""
        self._machine.write(target.address + target_offset, self._machine.read(source.address + source_offset, size))

    def download(self, memory: Memory, array: Array) -> None:
        """Copy DRAM into an array."""
        data = np.frombuffer(self._machine.read(memory.address, array.nbytes), np.uint8)
        array.reshape(-1).view(np.uint8)[:] = data

    # ---------------------------------------------------------------- kernels

    def load(self, code: bytes, launches: Sequence[LaunchInfo]) -> dict[str, LoadedKernel]:
        """The kernels of a text, with their micro-ops in DRAM."""
        return {kernel.name: self._loaded(kernel) for kernel in from_text(code.decode())}

    def _loaded(self, kernel: AccelKernel) -> LoadedKernel:
        data = np.frombuffer(kernel.micro_op_bytes(), np.uint8)
        micro_ops = self.allocate(data.nbytes)
        self.write(micro_ops, data)
        return LoadedKernel(kernel, micro_ops, self.allocate(len(kernel.instructions) * INSTRUCTION_BYTES))

    def launch(
        self, kernel: LoadedKernel, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Memory]
    ) -> None:
        """Run a kernel, to its end."""
        if self._machine.config != kernel.kernel.config:
            self._exchange(kernel.kernel.config, self._machine.dram_bytes)
        addresses = tuple(arg.address for arg in args)
        if kernel.arguments != addresses:
            program = kernel.kernel.encoded(addresses, kernel.micro_ops.address)
            self._machine.write(kernel.code.address, program)
            kernel.arguments = addresses
        try:
            self.counters = self._machine.run(kernel.code.address, len(kernel.kernel.instructions))
        except UserError as error:
            # Programs were proved right when they were made, so it is one of ours that is wrong.
            raise CompilerBug(f"the accelerator stopped at {kernel.kernel.name}: {error}") from error

    def measure(self, calls: Sequence[BoundCall], repeat: int) -> list[float]:
        """Seconds of the machine's cycles at a clock of 100 MHz; of a machine without cycles, those of this process."""
        total = 0
        for call in calls:
            self.launch(call.kernel, call.grid, call.block, call.args)
            if self.counters is None or self.counters.cycles is None:
                return super().measure(calls, repeat)
            total += self.counters.cycles
        return [total / CLOCK_HZ] * repeat

    def wait(self) -> None:
        """Launches are done when they return."""


def _board(config: AccelConfig, dram_bytes: int) -> Machine:
    """A board that is driven through its registers alone, as a real one would be."""
    return RegisterMachine(MockBoard(FunctionalMachine(config, dram_bytes)))


MACHINES: Final[tuple[tuple[str, MakeMachine], ...]] = (
    ("functional simulator", FunctionalMachine),
    ("board of registers, simulated", _board),
    ("hardware, simulated cycle by cycle", VerilatedMachine),
)
"""The machines that are here, by the numbers of devices: `accel` is the first."""


@functools.cache
def accel_device(index: int = 0) -> AccelDevice:
    """The machine of a number."""
    name, make = pick(MACHINES, index, "accelerator")
    return AccelDevice(name, make)


DRIVER: Final = Driver(accel_device)
