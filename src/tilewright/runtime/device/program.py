"""Programs for devices with kernels: the source, and how the host launches the kernels of each function."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import RLock
from typing import Any, Protocol, TypeVar

from tilewright.runtime.core.artifact import Extent, FunctionInfo, LaunchInfo
from tilewright.runtime.core.convert import Array
from tilewright.runtime.core.function_table import FunctionTable, check_repeats
from tilewright.runtime.core.module import FunctionSignature, TimingResult, timed
from tilewright.runtime.core.shapes import evaluate
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.support.text import plural

T = TypeVar("T")
TensorReader = Callable[[Sequence[Any]], tuple[int, ...] | None]
"""Gives the addresses of values, if all are tensors of torch's that can be read as they are."""
TensorMaker = Callable[[], tuple[list[Any], tuple[int, ...]]]
"""Gives new tensors of torch's, and their addresses."""


@dataclass(frozen=True, slots=True)
class DeviceFunctionInfo:
    """A function as the host runs it: launches in order, and the sizes in bytes of the workspaces they need."""

    info: FunctionInfo
    launches: tuple[LaunchInfo, ...]
    workspaces: tuple[Extent, ...] = ()

    def __str__(self) -> str:
        return str(self.info)


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """The text of kernels for one kind of device, and the functions that launch them."""

    kind: str
    source: str
    functions: tuple[DeviceFunctionInfo, ...]


@dataclass(frozen=True, slots=True)
class ImportedArray:
    """An array in memory of the device that another package owns; `memory` keeps it alive."""

    memory: Any
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Span:
    """What a device or the host did in a run, and when, in seconds of `time.perf_counter`."""

    place: str
    name: str
    begin: float
    end: float
    cycles: int | None = None
    """Of the device's clock, where it counts them."""


@dataclass(slots=True)
class BoundCall:
    """A launch with everything that it takes."""

    kernel: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: list[Any]


class Recording:
    """Launches that run in order, as often as one likes; arguments may be exchanged between runs."""

    def __init__(self, device: Device, calls: Sequence[BoundCall]) -> None:
        self._device = device
        self.calls = list(calls)
        self.tried: int | None = None
        """How many calls, from the first, `bound` may run to see how they are started best; None: all of them."""
        self.before_trial: Callable[[], None] = lambda: None
        """What `bound` calls before each such run: memory is then as it was before the first."""

    def replace(self, number: int, args: list[Any]) -> None:
        """Give a call other arguments."""
        self.calls[number].args = args

    def run(self) -> None:
        """Start all calls."""
        self.bound()()

    @property
    def will_try(self) -> bool:
        """Whether `bound` runs the calls, to see how they are started best."""
        return False

    def bound(self) -> Callable[[], None]:
        """What starts all calls with their present arguments, whatever arguments they are given later."""
        calls = [(call.kernel, call.grid, call.block, call.args) for call in self.calls]
        launch = self._device.launch

        def start() -> None:
            for call in calls:
                launch(*call)

        return start


class HostMemory(Protocol):
    """Memory of the host's that kernels take like any other: the host sees what they write while they run."""

    @property
    def address(self) -> int:
        """Where it is for kernels."""

    @property
    def words(self) -> Any:
        """Its 64-bit numbers, to be read and written by their index."""


class Device(ABC):
    """A device that runs kernels of compiled programs. Memory and kernels are its own objects.

    What is abstract is needed for functions; models also want `view` (or copies made instead), and devices that have
    better ways override the rest. `lock` is held while one model's kernels are started.
    """

    name: str = ""
    flat_memory: bool = False
    """Whether `view` gives any part of memory."""
    index: int = 0
    """Which of the devices of its kind it is."""
    tells_spans: bool = False
    """Whether it says when each kernel ran."""
    spans: list[Span] | None = None
    """Where what it does is noted, while somebody wants to know."""
    dlpack: tuple[int, int] | None = None
    """The device as DLPack writes it (type, index), if it shares memory that way."""

    def __init__(self) -> None:
        self.lock = RLock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @abstractmethod
    def load(self, code: bytes, launches: Sequence[LaunchInfo]) -> dict[str, Any]:
        """The kernels of a program by their symbols; its code is text where the device's driver compiles."""

    def numbers(self) -> dict[str, str | int]:
        """What a target for this very device has, by the names of its fields; what is not here has its default."""
        return {}

    @property
    def capturing(self) -> bool:
        """Whether what this thread starts is being recorded by another package, and runs later."""
        return False

    def joined(self) -> AbstractContextManager[None]:
        """A context in which work goes where another package wants it: into the graph that it captures, if it does."""
        return nullcontext()

    def activate(self) -> None:  # noqa: B027  (most devices have nothing to do)
        """Make ready for calls from this thread."""

    def view(self, memory: Any, offset: int, size: int) -> Any | None:
        """A part of memory, as kernels take memory; None where the device cannot start memory there."""
        return None

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, size: int) -> None:
        """Copy bytes from memory to memory, in order with launches."""
        raise UnsupportedError(f"{type(self).__name__} does not copy parts of memory")

    def write(self, memory: Any, array: Array) -> None:
        """Overwrite memory with an array, in order with launches."""
        raise UnsupportedError(f"{type(self).__name__} does not write to memory that is there already")

    def upload(self, array: Array) -> Any:
        """Memory with the contents of an array."""
        memory = self.allocate(array.nbytes)
        self.write(memory, array)
        return memory

    def read(self, memory: Any, offset: int, array: Array) -> None:
        """Copy a part of memory into an array; waits until it is there."""
        part = memory if not offset else self.view(memory, offset, array.nbytes)
        if part is None:
            part = self.allocate(array.nbytes)
            self.copy(memory, offset, part, 0, array.nbytes)
        self.download(part, array)

    def record(self, calls: Sequence[BoundCall]) -> Recording:
        """Launches to be run again and again."""
        return Recording(self, calls)

    def import_array(self, value: Any) -> ImportedArray | None:
        """An array of another package that is in this device's memory already; None if it is none."""
        return None

    def tensor_reader(self, dtypes: Sequence[str]) -> TensorReader | None:
        """What reads torch's tensors of these types where they are; None where that cannot be, or torch is not here."""
        return None

    def tensor_maker(self, types: Sequence[tuple[tuple[int, ...], str]]) -> TensorMaker | None:
        """What makes tensors of torch's for results of these shapes and types; None where torch has no such tensors."""
        return None

    def at(self, addresses: Sequence[int]) -> list[Any]:
        """The pieces of memory at addresses, which somebody else keeps alive."""
        raise UnsupportedError(f"{self.name} does not take memory by its address")

    def host_memory(self, size: int) -> HostMemory | None:
        """Memory of the host's that kernels write; None where there is none."""
        return None

    def is_done(self) -> bool:
        """Whether everything that was started is done, if the device tells; what failed shows here as in `wait`."""
        self.wait()
        return True

    def describe(self, call: BoundCall) -> str:
        """How a launch fills the device, for profiles: blocks and threads, and what else the device tells."""
        return f"{math.prod(call.grid)} x {math.prod(call.block)}"

    def order_after(self, stream: int) -> None:
        """Let a stream of another package, as DLPack writes it, wait for everything that was started here."""
        raise UnsupportedError(f"{self.name} knows no streams of other packages")

    def measure(self, calls: Sequence[BoundCall], repeat: int) -> list[float]:
        """Seconds of a run of these calls, `repeat` times over; by the device's own clock where it has one."""
        results = []
        for _ in range(repeat):
            self.wait()
            start = time.perf_counter()
            for call in calls:
                self.launch(call.kernel, call.grid, call.block, call.args)
            self.wait()
            results.append(time.perf_counter() - start)
        return results

    @abstractmethod
    def allocate(self, size: int) -> Any:
        """Memory of so many bytes."""

    @abstractmethod
    def download(self, memory: Any, array: Array) -> None:
        """Copy memory into an array; waits until it is there."""

    @abstractmethod
    def launch(self, kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any]) -> None:
        """Start a kernel. Numbers among the arguments are packed as bytes."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until everything that was started is done."""


def pick(devices: Sequence[T], index: int, what: str) -> T:
    """The device of a number among those that are here."""
    if index >= len(devices):
        raise UserError(f"there is no {what} device {index}: this machine has {plural(len(devices), 'such device')}")
    return devices[index]


class DeviceFunction(FunctionSignature):
    """One function of a device program: call it with arrays, outputs included."""

    def __init__(self, function: DeviceFunctionInfo, module: DeviceModule) -> None:
        super().__init__(function.info)
        self._function = function
        self._module = module

    def __call__(self, *args: object) -> None:
        """Copy the arrays to the device, run, and copy what was written back."""
        arrays, memory, run = self._bind(*args)
        run()
        self._module.device.wait()
        for param, array, place in zip(self._buffers, arrays, memory, strict=True):
            if param.is_output and array.size:
                self._module.device.download(place, array)

    @property
    def _buffers(self) -> list[Any]:
        return [param for param in self.info.params if param.shape is not None]

    def _bind(self, *args: object) -> tuple[list[Array], list[Any], Callable[[], None]]:
        """Arrays, their memory on the device, and a function that starts the kernels on it."""
        device = self._module.device
        slots, arrays = self.prepare(*args)
        params = self.info.params
        values = {name: int(slots[len(params) + n]) for n, name in enumerate(self.symbols)}
        given: list[Any] = []
        memory: list[Any] = []
        for index, param in enumerate(params):
            if param.shape is not None:
                memory.append(device.upload(arrays[len(memory)]))
                given.append(memory[-1])
            else:
                values[param.name] = int(slots[index])
                given.append(Scalar(int(slots[index]), param.dtype))
        given += [Scalar(values[name], "int64") for name in self.symbols]
        given += [device.allocate(max(1, self._number(size, values))) for size in self._function.workspaces]
        calls: list[tuple[Any, tuple[int, int, int], tuple[int, int, int], list[Any]]] = []
        for launch in self._function.launches:
            x, y, z = (self._number(extent, values) for extent in launch.grid)
            if x > 0 and y > 0 and z > 0:
                kernel = self._module.kernels[launch.symbol]
                steps = [Scalar(value, "int64") for value in launch.values]
                calls.append((kernel, (x, y, z), launch.block, [given[number] for number in launch.args] + steps))

        def run() -> None:
            for call in calls:
                device.launch(*call)

        return arrays, memory, run

    def _number(self, extent: Extent, values: dict[str, int]) -> int:
        number = evaluate(extent, values)
        if number is None:
            raise CompilerBug(f"no parameter of '{self.name}' gives the extent '{extent}' a value")
        return number

    def time(self, number: int, repeat: int, *args: object) -> TimingResult:
        """Seconds a call, the arrays on the device already."""
        _arrays, _memory, run = self._bind(*args)
        return timed(run, number, repeat, self._module.device.wait)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number for a kernel: 64 bits as they are in a slot, of which a data type takes the lowest."""

    bits: int
    dtype: str


class DeviceModule(FunctionTable[DeviceFunction]):
    """Functions by name, on one device; calling the module itself calls the only one."""

    def __init__(self, program: DeviceProgram, device: Device, code: bytes) -> None:
        self.program = program
        self.device = device
        launches = [launch for function in program.functions for launch in function.launches]
        self.kernels = device.load(code, launches) if code else {}
        self._functions = {item.info.symbol: item for item in program.functions}
        super().__init__(self._functions)

    def _bind_function(self, name: str) -> DeviceFunction:
        return DeviceFunction(self._functions[name], self)

    @property
    def source(self) -> str:
        """The text that the device's compiler was given."""
        return self.program.source

    def time_evaluator(self, name: str, number: int = 10, repeat: int = 3) -> Callable[..., TimingResult]:
        """A function that times `name`: `repeat` figures, each the average of `number` calls, after one to warm up."""
        check_repeats(number, repeat)
        function = self[name]
        return lambda *args: function.time(number, repeat, *args)
