"""The process that counts the cycles of candidates for the accelerator: by its cycle model, or on its hardware.

A candidate runs on the functional simulator, and its integers are compared with the default schedule's. Its time is
the cycles that the cycle model counts, at the clock of the driver: the same each time, so it is counted once. To
confirm a winner it runs on the hardware as Verilator simulates it, and so does the default schedule beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.accel.config import AccelConfig
from tilewright.accel.verilated import VerilatedMachine
from tilewright.backends.accel.driver import CLOCK_HZ, AccelDevice, LoadedKernel
from tilewright.lower.kernel import CompiledKernel
from tilewright.runtime.core.convert import Array
from tilewright.runtime.device.program import BoundCall, Device
from tilewright.support.errors import CompilerBug
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tune.accel_cycles import cycles_of_code
from tilewright.tune.device_runner import DeviceBench, DeviceBudget
from tilewright.tune.runner import Timing, compare, inputs_of

_BUDGET = DeviceBudget(samples=1, cold_bytes=0)
_MOST_BENCHES = 16


@dataclass(frozen=True, slots=True)
class CycleTrial:
    """One candidate: the program's unscheduled form, its code and that of the default schedule."""

    func: PrimFunc
    target: Target
    code: CompiledKernel
    default: CompiledKernel
    on_hardware: bool = False


def small_inputs(func: PrimFunc) -> list[Array]:
    """Arrays whose sums stay small: results that are clipped would look right however wrong the sums are."""
    random = np.random.default_rng(0)
    arrays = inputs_of(func)
    for array in arrays:
        if array.dtype.itemsize == 1:
            np.copyto(array, random.integers(-1, 2, array.shape), casting="unsafe")
        else:
            array.fill(1)
    return arrays


class CycleBench(DeviceBench):
    """One task: its arrays on the functional simulator, the right results, and the cycles of its default schedule."""

    def __init__(self, func: PrimFunc, target: Target, default: CompiledKernel, device: Device | None = None) -> None:
        super().__init__(func, target, default, _BUDGET, inputs=small_inputs(func), device=device)
        self.reference = self._seconds(self.default_calls[0])

    def measure(self, code: CompiledKernel) -> Timing:
        """Check a candidate and count its cycles."""
        calls = self._calls(code)
        error = compare(self.func, self._run(calls), self.right)
        return Timing(self._seconds(calls[0]), self.reference, error)

    def _seconds(self, calls: Sequence[BoundCall]) -> float:
        return sum(_cycles(call) for call in calls) / CLOCK_HZ


def _cycles(call: BoundCall) -> int:
    """What a launch takes, by the cycle model."""
    loaded = call.kernel
    assert isinstance(loaded, LoadedKernel)
    kernel, begin = loaded.kernel, loaded.micro_ops.address
    micro_ops = kernel.micro_op_bytes()

    def read(address: int, size: int) -> bytes:
        return micro_ops[address - begin : address - begin + size].ljust(size, b"\0")

    code = kernel.encoded([arg.address for arg in call.args], begin)
    return cycles_of_code(code, kernel.config, read).total


class HardwareBench(CycleBench):
    """The same on the simulated hardware, which counts its cycles itself."""

    def __init__(self, func: PrimFunc, target: Target, default: CompiledKernel) -> None:
        config = AccelConfig.from_text(target.arch)
        device = AccelDevice("hardware", lambda _, dram_bytes: VerilatedMachine(config, dram_bytes))
        super().__init__(func, target, default, device)

    def _seconds(self, calls: Sequence[BoundCall]) -> float:
        assert isinstance(self.device, AccelDevice)
        total = 0
        for call in calls:
            self.device.launch(call.kernel, call.grid, call.block, call.args)
            if self.device.counters is None or self.device.counters.cycles is None:
                raise CompilerBug("the simulated hardware counts no cycles")
            total += self.device.counters.cycles
        return total / CLOCK_HZ


_benches: dict[tuple[str, str, bool], CycleBench] = {}


def answer(request: object) -> Timing:
    """Count the cycles of one trial; the benches of the latest tasks stay for the next."""
    assert isinstance(request, CycleTrial)
    key = (request.func.name, str(request.target), request.on_hardware)
    bench = _benches.pop(key, None)
    if bench is None:
        if len(_benches) >= _MOST_BENCHES:
            del _benches[next(iter(_benches))]
        make = HardwareBench if request.on_hardware else CycleBench
        bench = make(request.func, request.target, request.default)
    _benches[key] = bench
    return bench.measure(request.code)
