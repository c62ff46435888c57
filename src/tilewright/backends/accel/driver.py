"""Tensor processors: simulated machines with a DRAM of their own, whose memory this driver divides."""

from __future__ import annotations

import functools
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

import numpy as np

from tilewright.accel.config import AccelConfig
from tilewright.accel.encoding import INSTRUCTION_BYTES
from tilewright.accel.functional import FunctionalMachine
from tilewright.accel.instructions import Store
from tilewright.accel.kernel import AccelKernel, from_text
from tilewright.accel.machine import Counters, Machine
from tilewright.accel.registers import MockBoard, RegisterMachine
from tilewright.accel.verilated import VerilatedMachine
from tilewright.runtime.core.artifact import LaunchInfo
from tilewright.runtime.core.convert import Array
from tilewright.runtime.device.command_queue import CommandQueue, Range
from tilewright.runtime.device.devices import Driver
from tilewright.runtime.device.program import BoundCall, Device, Span, pick
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

    @property
    def range(self) -> Range:
        """Its bytes."""
        return self.address, self.address + self.size


@dataclass(slots=True, eq=False)
class LoadedKernel:
    """A kernel with its micro-ops in DRAM, and its program there for the arguments that it was launched with last."""

    kernel: AccelKernel
    micro_ops: Memory
    code: Memory
    written: frozenset[int]
    """The arguments that it stores to."""
    arguments: tuple[int, ...] | None = None


@dataclass(slots=True)
class _Places:
    """Which parts of DRAM are free: begin and end, in order."""

    free: list[Range] = field(default_factory=list)
    returned: deque[tuple[int, int]] = field(default_factory=deque)
    """Begin and size of parts whose memory is gone, which any thread may find out at any time."""

    def take(self, size: int) -> int | None:
        """The address of a free part; None where no part is large enough."""
        while self.returned:
            self.give(*self.returned.popleft())
        for number, (begin, end) in enumerate(self.free):
            if end - begin >= size:
                self.free[number : number + 1] = [(begin + size, end)] if begin + size < end else []
                return begin
        return None

    def used(self, dram_bytes: int) -> int:
        """Bytes from the beginning in which all lies that is not free; all, where another thread is at it just now."""
        begin, end = (self.free or [(dram_bytes, dram_bytes)])[-1]
        return begin if end == dram_bytes else dram_bytes

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
    """One machine. Kernels of another configuration than the last one's get a machine of theirs, with the same DRAM.

    Launches and writes are commands of a queue: whoever gives them goes on, and waits only where it reads what a
    command under way writes.
    """

    tells_spans = True

    def __init__(self, name: str, make: MakeMachine) -> None:
        super().__init__()
        self.name = name
        self._make = make
        self._places = _Places([(0, _LEAST_DRAM)])
        self._machine = make(AccelConfig(), _LEAST_DRAM)
        self._queue = CommandQueue()
        self._allocating, self._exchanging = Lock(), Lock()
        self.counters: Counters | None = None
        """What the last launch that is done cost."""

    # ---------------------------------------------------------------- memory

    def allocate(self, size: int) -> Memory:
        """A part of DRAM, which is larger afterwards where it was full."""
        room = -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
        with self._allocating:
            address = self._places.take(room)
            if address is None:
                old = self._machine.dram_bytes
                new = max(2 * old, old + -(-room // _LEAST_DRAM) * _LEAST_DRAM)
                self._queue.put(lambda: self._exchange(self._machine.config, new))
                self._queue.wait()
                self._places.give(old, self._machine.dram_bytes - old)
                address = self._places.take(room)
            if address is None:
                raise CompilerBug("the accelerator's DRAM has no room after it grew")
        memory = Memory(address, size)
        weakref.finalize(memory, self._places.returned.append, (address, room))
        return memory

    def _exchange(self, config: AccelConfig, dram_bytes: int) -> None:
        """Go on with another machine, whose DRAM holds what this one's does: a command, so that none is under way."""
        machine = self._make(config, dram_bytes)
        with self._exchanging:
            machine.write(0, self._machine.read(0, self._places.used(self._machine.dram_bytes)))
            self._machine.close()
            self._machine = machine

    def view(self, memory: Memory, offset: int, size: int) -> Memory | None:
        """A part of memory, where instructions can address it."""
        if offset % _ALIGNMENT:
            return None
        return Memory(memory.address + offset, size, memory)

    def write(self, memory: Memory, array: Array) -> None:
        """Copy an array to DRAM, when all commands before are done."""
        data = np.ascontiguousarray(array).tobytes()
        if self._queue.is_idle:
            with self._exchanging:
                self._machine.write(memory.address, data)
        else:
            self._queue.put(lambda: self._machine.write(memory.address, data), [memory.range])

    def copy(self, source: Memory, source_offset: int, target: Memory, target_offset: int, size: int) -> None:
        """Copy inside DRAM."""

        def copy() -> None:
            data = self._machine.read(source.address + source_offset, size)
            self._machine.write(target.address + target_offset, data)

        begin = target.address + target_offset
        self._queue.put(copy, [(begin, begin + size)])

    def download(self, memory: Memory, array: Array) -> None:
        """Copy DRAM into an array, when the commands that write it are done; others may be under way."""
        self._queue.wait_for(memory.address, memory.address + array.nbytes)
        with self._exchanging:
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
        code = self.allocate(len(kernel.instructions) * INSTRUCTION_BYTES)
        stored = {number for number, item in enumerate(kernel.instructions) if isinstance(item, Store)}
        written = frozenset(argument for number, argument in kernel.relocations if number in stored)
        return LoadedKernel(kernel, micro_ops, code, written)

    def launch(
        self, kernel: LoadedKernel, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Memory]
    ) -> None:
        """Start a kernel when all commands before are done."""
        given, spans = tuple(args), self.spans
        self._queue.put(lambda: self._execute(kernel, given, spans), [given[n].range for n in kernel.written])

    def _execute(self, kernel: LoadedKernel, args: tuple[Memory, ...], spans: list[Span] | None) -> None:
        """Run a kernel, to its end."""
        begin = time.perf_counter()
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
        if spans is not None:
            spans.append(Span(self.name, kernel.kernel.name, begin, time.perf_counter(), self.counters.cycles))

    def measure(self, calls: Sequence[BoundCall], repeat: int) -> list[float]:
        """Seconds of the machine's cycles at a clock of 100 MHz; of a machine without cycles, those of this process."""
        total = 0
        for call in calls:
            self.launch(call.kernel, call.grid, call.block, call.args)
            self.wait()
            if self.counters is None or self.counters.cycles is None:
                return super().measure(calls, repeat)
            total += self.counters.cycles
        return [total / CLOCK_HZ] * repeat

    def wait(self) -> None:
        """Wait for all commands."""
        self._queue.wait()


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
