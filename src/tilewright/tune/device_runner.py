"""The process that runs candidates on a device: checks each against the default schedule's result, then times both.

A request is a `DeviceTrial`. The process owns the device's context. A kernel that fails may leave a context in which
nothing runs any more: the answer then is a `DeviceLost`, and whoever asked starts another process.

Constants of the model (weights) exist in several copies which launches take in turn: in a model, too, they have been
pushed out of the nearer caches by what ran before, while the other operands have just been written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.structural import structural_key
from tilewright.lower.kernel import CompiledKernel
from tilewright.runtime.core.shapes import evaluate
from tilewright.runtime.device.devices import find_device
from tilewright.runtime.device.program import BoundCall, Device, Scalar
from tilewright.support.errors import CompilerBug, UserError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.index_map import IndexMap
from tilewright.topi.schedule.packing import constant_parameters
from tilewright.tune.runner import Array, Timing, compare, inputs_of, result_numbers

_FEWEST_COPIES, _MOST_COPIES = 4, 16
_MOST_BENCHES = 16
"""Tasks whose arrays are kept: batches of a model's tasks come in turns."""


class DeviceLost(UserError):
    """A kernel failed so that its process cannot use the device any more."""


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """How often candidate and default are timed, and from how many bytes of constants launches take theirs in turn."""

    samples: int = 5
    cold_bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class DeviceTrial:
    """One candidate: the program's name and unscheduled form, its code and that of the default schedule."""

    func: PrimFunc
    target: Target
    code: CompiledKernel
    default: CompiledKernel
    budget: DeviceBudget = DeviceBudget()


class DeviceBench:
    """One task on the device of this process: its arrays, the default kernel, the right results."""

    def __init__(
        self,
        func: PrimFunc,
        target: Target,
        default: CompiledKernel,
        budget: DeviceBudget,
        *,
        inputs: list[Array] | None = None,
        device: Device | None = None,
    ) -> None:
        self.func = func
        self.budget = budget
        self.device = find_device(target.kind) if device is None else device
        self.device.activate()
        self.results = result_numbers(func)
        self.arrays = inputs_of(func) if inputs is None else inputs
        constants = set(constant_parameters(func).values())
        weight = sum(self.arrays[number].nbytes for number in constants)
        self.copies = max(_FEWEST_COPIES, min(_MOST_COPIES, -(-budget.cold_bytes // weight))) if weight else 1
        self._constants = constants
        self._memory = {n: self.device.upload(array) for n, array in enumerate(self.arrays) if n not in constants}
        self._arranged: dict[tuple[int, object], list[Any]] = {}
        self.default_calls = self._calls(default)
        self.right = list(self.arrays)
        for number, array in self._run(self.default_calls).items():
            self.right[number] = array

    def measure(self, code: CompiledKernel) -> Timing:
        """Check a candidate and time it and the default."""
        calls = self._calls(code)
        error = compare(self.func, self._run(calls), self.right)
        reference = self._times(self.default_calls)
        samples = self._times(calls)
        # Threads that do not wait for each other are mostly right: the last of many runs must be, too.
        return Timing(min(samples), min(reference), max(error, compare(self.func, self._results(), self.right)))

    def _run(self, calls: Sequence[Sequence[BoundCall]]) -> dict[int, Any]:
        """Results of one run. What a kernel does not write must not look right because another wrote it."""
        for number in self.results:
            spoiled = np.empty_like(self.arrays[number])
            spoiled.reshape(-1).view(np.uint8).fill(0x5A)
            self.device.write(self._memory[number], spoiled)
        for call in calls[0]:
            self.device.launch(call.kernel, call.grid, call.block, call.args)
        self.device.wait()
        return self._results()

    def _results(self) -> dict[int, Any]:
        """What lies in the memory of results."""
        found = {}
        for number in self.results:
            found[number] = np.empty_like(self.arrays[number])
            self.device.download(self._memory[number], found[number])
        return found

    def _times(self, calls: Sequence[Sequence[BoundCall]]) -> tuple[float, ...]:
        flat = [call for turn in calls for call in turn]
        return tuple(seconds / len(calls) for seconds in self.device.measure(flat, self.budget.samples))

    def _calls(self, code: CompiledKernel) -> list[list[BoundCall]]:
        """The launches of a kernel, once for each copy of the constants."""
        info = code.device
        if info is None or info.workspaces:
            raise CompilerBug(f"the kernel {self.func.name} is not for measuring on a device")
        kernels = self.device.load(code.code, info.launches)
        scratch = [self.device.allocate(size) for size in code.scratch]
        turns = []
        for copy in range(self.copies):
            given = [
                self._constant(number, code.packing.get(number), copy)
                if number in self._constants
                else self._memory[number]
                for number in range(len(self.arrays))
            ]
            turns.append(bound_launches(self.device, kernels, info.launches, [*given, *scratch]))
        return turns

    def _constant(self, number: int, packing: IndexMap | None, copy: int) -> Any:
        key = (number, None if packing is None else structural_key(packing))
        copies = self._arranged.setdefault(key, [])
        if len(copies) <= copy:
            array = self.arrays[number] if packing is None else packing.rearrange(self.arrays[number])
            copies.append(self.device.upload(np.ascontiguousarray(array)))
        return copies[copy]


def bound_launches(device: Device, kernels: Any, launches: Sequence[Any], given: Sequence[Any]) -> list[BoundCall]:
    """The launches of a kernel of known sizes on pieces of memory: those of its parameters, then its scratch memory."""
    made = []
    for launch in launches:
        grid = [evaluate(extent, {}) for extent in launch.grid]
        x, y, z = (0 if extent is None else extent for extent in grid)
        if x > 0 and y > 0 and z > 0:
            steps = [Scalar(value, "int64") for value in launch.values]
            args = [*(given[number] for number in launch.args), *steps]
            made.append(BoundCall(kernels[launch.symbol], (x, y, z), launch.block, args))
    return made


def check_alive(device: Device, error: UserError) -> UserError:
    """The error of a trial; a `DeviceLost` where the device does nothing any more."""
    try:
        device.wait()
    except UserError:
        return DeviceLost(error.message)
    return error


_benches: dict[tuple[str, str], DeviceBench] = {}


def answer(request: object) -> Timing:
    """Measure one trial; the benches of the latest tasks stay for the next."""
    assert isinstance(request, DeviceTrial)
    device = find_device(request.target.kind)
    key = (request.func.name, str(request.target))
    try:
        bench = _benches.pop(key, None)
        if bench is None:
            if len(_benches) >= _MOST_BENCHES:
                del _benches[next(iter(_benches))]
            bench = DeviceBench(request.func, request.target, request.default, request.budget)
        _benches[key] = bench
        return bench.measure(request.code)
    except UserError as error:
        raise check_alive(device, error) from error
