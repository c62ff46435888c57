"""Which kernels of a model for one device run there and which on the CPU beside it, decided by measured costs.

Every kernel is timed on both sides, and so are copies between them. Where each runs is then a minimum cut
(`assignment.py`): a kernel costs its time where it is, and a value that one side computes and the other reads costs a
copy, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

import numpy as np

from tilewright.front import compile as compile_model
from tilewright.options import CompileOptions
from tilewright.placement.assignment import HOST, Link, Problem, Value, cheapest
from tilewright.request import ModelLike, TargetLike
from tilewright.runtime.core.artifact import ArgKind, DeviceKernelInfo, ModelInfo
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.device.program import Device
from tilewright.support.errors import UserError
from tilewright.support.text import human_seconds, table

_REPEAT: Final = 5
_SMALL_BYTES, _LARGE_BYTES = 1 << 12, 1 << 22


@dataclass(frozen=True, slots=True)
class PlacedKernel:
    """A kernel of a model, and where it runs."""

    symbol: str
    nodes: tuple[str, ...]
    calls: int
    host_seconds: float
    """What all its calls of a run take on the host."""
    device_seconds: float | None
    """What they take on the device; None where it refuses the kernel."""
    on_host: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each kernel of a model runs, and what that takes by the measured costs."""

    model: ModelLike
    target: TargetLike
    options: CompileOptions
    kernels: tuple[PlacedKernel, ...]
    values: tuple[Value, ...]
    link: Link

    @property
    def on_host(self) -> tuple[str, ...]:
        """The kernels that the host computes though the device could: the option `on_host` of a compilation."""
        return tuple(item.symbol for item in self.kernels if item.on_host and item.device_seconds is not None)

    @property
    def problem(self) -> Problem:
        """What is to be placed, and the costs."""
        parts = {item.symbol: (item.host_seconds, item.device_seconds) for item in self.kernels}
        return Problem(parts, self.values, [self.link])

    def seconds(self, on_host: frozenset[str] | None = None) -> float:
        """What a run takes with these kernels on the host (None: as it is placed), copies included, nothing at once."""
        chosen = frozenset(item.symbol for item in self.kernels if item.on_host) if on_host is None else on_host
        refused = {item.symbol for item in self.kernels if item.device_seconds is None}
        return self.problem.total({item.symbol: int(item.symbol not in chosen | refused) for item in self.kernels})

    def compile(self) -> Executable:
        """The model with its kernels so placed."""
        return compile_model(self.model, self.target, options=replace(self.options, on_host=self.on_host))

    def __str__(self) -> str:
        rows = [
            (
                "host" if item.on_host else "device",
                human_seconds(item.host_seconds),
                "refused" if item.device_seconds is None else human_seconds(item.device_seconds),
                str(item.calls),
                item.symbol,
                ", ".join(item.nodes),
            )
            for item in self.kernels
        ]
        whole = frozenset(item.symbol for item in self.kernels)
        times = {"so placed": None, "all on the device": frozenset[str](), "all on the host": whole}
        said = ", ".join(f"{name} {human_seconds(self.seconds(where))}" for name, where in times.items())
        copies = f"{human_seconds(self.link.latency)} a copy and {1e-9 / self.link.seconds_per_byte:.1f} GB/s"
        return f"{table(('where', 'host', 'device', 'calls', 'kernel', 'nodes'), rows)}\n{said}; {copies}"


def place_kernels(
    model: ModelLike, inputs: Sequence[object], target: TargetLike, options: CompileOptions | None
) -> Placement:
    """Measure a model's kernels on a device and on the CPU beside it, and find where each should run."""
    options = replace(options or CompileOptions(), on_host=())
    on_device = compile_model(model, target, options=options)
    info, device = _checked(on_device)
    refused = {kernel.symbol for kernel in device.values() if kernel.on_host}
    both = tuple(symbol for symbol in device if symbol not in refused)
    on_host = compile_model(model, target, options=replace(options, on_host=both))
    device_seconds = _by_symbol(on_device, inputs)
    host_seconds = _by_symbol(on_host, inputs)
    assert on_device.device is not None
    link = measure_link(on_device.device)
    calls = dict.fromkeys(device, 0)
    nodes: dict[str, tuple[str, ...]] = {}
    for step in info.steps:
        kernel = info.kernels[step.kernel]
        calls[kernel.symbol] += 1
        nodes.setdefault(kernel.symbol, kernel.nodes)
    kernels = [
        PlacedKernel(
            symbol,
            nodes.get(symbol, ()),
            calls[symbol],
            host_seconds.get(symbol, 0.0),
            None if symbol in refused else device_seconds.get(symbol, 0.0),
            symbol in refused,
        )
        for symbol in device
    ]
    placement = Placement(model, target, options, tuple(kernels), tuple(_values(info, device)), link)
    places = cheapest(placement.problem)
    return replace(placement, kernels=tuple(replace(item, on_host=places[item.symbol] == 0) for item in kernels))


def _checked(executable: Executable) -> tuple[ModelInfo, Mapping[str, DeviceKernelInfo]]:
    artifact = executable.artifact
    if artifact.device is None or artifact.model is None:
        raise UserError("a model is placed on a device and the CPU beside it", hint="target='opencl', say")
    if artifact.model.symbols or artifact.model.program:
        raise UserError(
            f"kernels of the model '{artifact.model.name}' are placed for fixed sizes, and a call decides its sizes",
            hint="give the shapes of its inputs, and leave control flow out",
        )
    return artifact.model, {kernel.symbol: kernel for kernel in artifact.device.kernels}


def _by_symbol(executable: Executable, inputs: Sequence[object]) -> dict[str, float]:
    """What all calls of each kernel take together."""
    seconds: dict[str, float] = {}
    for row in executable.profile(*inputs, repeat=_REPEAT).rows:
        seconds[row.kernel.symbol] = seconds.get(row.kernel.symbol, 0.0) + row.seconds
    return seconds


def measure_link(device: Device) -> Link:
    """What copies there and back take, by a small one and a large one."""
    times = {}
    for size in (_SMALL_BYTES, _LARGE_BYTES):
        array = np.zeros(size, np.uint8)
        memory = device.upload(array)
        turns = []
        for _ in range(_REPEAT):
            start = perf_counter()
            device.write(memory, array)
            device.read(memory, 0, array)
            device.wait()
            turns.append((perf_counter() - start) / 2)
        # What else the machine does only adds to it.
        times[size] = min(turns)
    slope = max(times[_LARGE_BYTES] - times[_SMALL_BYTES], 1e-12) / (_LARGE_BYTES - _SMALL_BYTES)
    return Link(max(times[_SMALL_BYTES] - _SMALL_BYTES * slope, 0.0), slope)


def _values(info: ModelInfo, device: Mapping[str, DeviceKernelInfo]) -> Iterator[Value]:
    """The values of a run: who writes each, who reads it, and its bytes. Constants are on both sides from the start."""
    # Places that hold a value now: kind, index, first and last byte, writer, readers.
    held: list[tuple[ArgKind, int, int, int, str, set[str]]] = []
    done: list[Value] = []

    def finish(entry: tuple[ArgKind, int, int, int, str, set[str]]) -> None:
        kind, _, begin, end, writer, readers = entry
        given_out = {HOST} if kind is ArgKind.OUTPUT else set()
        done.append(Value(writer, frozenset(readers | given_out), end - begin))

    for step in info.steps:
        symbol = info.kernels[step.kernel].symbol
        kernel = device[symbol]
        sizes = iter(kernel.sizes)
        buffers = [arg for arg in step.args if arg.kind not in (ArgKind.SCALAR, ArgKind.SYMBOL)]
        places = [(arg, arg.offset, arg.offset + int(size)) for arg, size in zip(buffers, sizes, strict=False)]
        last = max(kernel.written, default=-1)
        for number, (arg, begin, end) in enumerate(places):
            if number in kernel.written or number > last or arg.kind is ArgKind.CONSTANT:
                continue
            found = [
                entry for entry in held if entry[:2] == (arg.kind, arg.index) and entry[2] < end and begin < entry[3]
            ]
            if not found and arg.kind is ArgKind.INPUT:
                found = [(arg.kind, arg.index, begin, end, HOST, set[str]())]
                held += found
            for entry in found:
                entry[5].add(symbol)
        for number, (arg, begin, end) in enumerate(places):
            if number in kernel.written:
                over = [e for e in held if e[:2] == (arg.kind, arg.index) and e[2] < end and begin < e[3]]
                for entry in over:
                    finish(entry)
                held = [entry for entry in held if entry not in over]
                held.append((arg.kind, arg.index, begin, end, symbol, set[str]()))
    for entry in held:
        finish(entry)
    yield from (value for value in done if value.readers)
