"""The process that runs candidates: checks each against the default schedule's result, then times both in turns.

A request is a `Trial`. The process keeps the arrays, the default kernel and the right results of the task at hand, so
that a further candidate of the same task costs one load, one check and the timing. Parameters that are constants in
the model (weights) exist in several copies which calls take in turn: in a model, too, they come from beyond the caches.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.codegen.llvm.jit import JitLibrary
from tilewright.codegen.llvm.pool import runtime_imports
from tilewright.ir.visit import find_all
from tilewright.lower.kernel import CompiledKernel
from tilewright.runtime.convert import address_of, aligned_empty
from tilewright.runtime.dtypes import storage_dtype
from tilewright.runtime.library import bind, check_code, thread_setter
from tilewright.support.errors import CompilerBug, UserError
from tilewright.target import Target
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.index_map import IndexMap
from tilewright.tir.stmt import BufferStore
from tilewright.topi.schedule.packing import constant_parameters

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to measure: the least time of one sample, and how many samples of the candidate and the default.

    More than `samples` are taken, up to `most`, while the machine is disturbed: see `Bench.measure`.
    """

    sample_seconds: float = 0.001
    samples: int = 8
    most: int = 40
    cold_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate: the program's name and unscheduled form, its code and that of the default schedule."""

    func: PrimFunc
    target: Target
    code: CompiledKernel
    default: CompiledKernel
    budget: Budget = Budget()


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: the candidate's samples and the default's, taken in turns."""

    samples: tuple[float, ...]
    reference: tuple[float, ...]
    error: float

    @property
    def seconds(self) -> float:
        """The candidate's time: whatever else a machine does only makes samples longer."""
        return min(self.samples)


_TOLERANCE = {"float64": 1e-9, "float32": 2e-4, "float16": 5e-2, "bfloat16": 1e-1}
"""Differences from the default schedule's result that another order of summation explains, relative to its largest."""
_MOST_COPIES = 16
_AGREEING, _CLOSE, _CLEARLY_SLOWER = 3, 1.03, 1.5
"""How many of the quickest samples must lie how close together; when a candidate is not worth more samples."""


class Bench:
    """One task in this process: its arrays, the default kernel, the right results."""

    def __init__(self, func: PrimFunc, target: Target, default: CompiledKernel, budget: Budget) -> None:
        self.func = func
        self.target = target
        self.budget = budget
        self.results = result_numbers(func)
        self.constants = set(constant_parameters(func).values())
        self.arrays = inputs_of(func)
        self.default_call = self._call(default)
        self.default_call.run()
        self.right = [array.copy() for array in self.arrays]
        self._quickest_default = float("inf")

    def measure(self, code: CompiledKernel) -> Timing:
        """Check a candidate and time it against the default, in turns."""
        call = self._call(code)
        # Results that a candidate does not write must not look right because the default wrote them.
        self._spoil_results()
        call.run()
        error = compare(self.func, {number: self.arrays[number] for number in self.results}, self.right)
        # A kernel of one thread is timed by the time it has the processor: what else runs there does not count.
        clock = time.thread_time if self.target.cores == 1 else time.perf_counter
        number = _number(call, self.budget.sample_seconds, clock)
        default_number = _number(self.default_call, self.budget.sample_seconds, clock)
        mine: list[float] = []
        theirs: list[float] = []
        while len(mine) < self.budget.samples or (len(mine) < self.budget.most and not self._settled(mine, theirs)):
            theirs.append(_sample(self.default_call, default_number, clock))
            mine.append(_sample(call, number, clock))
        self._quickest_default = min(self._quickest_default, *theirs)
        return Timing(tuple(mine), tuple(theirs), error)

    def _settled(self, mine: Sequence[float], theirs: Sequence[float]) -> bool:
        """Whether the quickest samples say what they should: some agree, and the default is as quick as it ever was.

        Where neighbours disturb a machine for a while, kernels do not all get slower by the same factor. Of a candidate
        that is much slower than the default nobody wants to know more.
        """
        if min(mine) > _CLEARLY_SLOWER * min(theirs):
            return True
        agree = all(sorted(samples)[:_AGREEING][-1] < min(samples) * _CLOSE for samples in (mine, theirs))
        return agree and min(theirs) < self._quickest_default * _CLOSE

    def _spoil_results(self) -> None:
        for number in self.results:
            self.arrays[number].reshape(-1).view(np.uint8).fill(0x5A)

    def _call(self, code: CompiledKernel) -> _Call:
        library = JitLibrary([code.code], runtime_imports())
        thread_setter(library, self.func.name)(self.target.cores)
        packed = bind(library, f"{self.func.name}__packed", ctypes.c_int32, ctypes.c_void_p)
        return _Call(packed, self._slots(code.packing), self.func.name)

    def _slots(self, packing: Mapping[int, IndexMap]) -> list[tuple[ctypes.Array[ctypes.c_int64], list[Array]]]:
        """Arguments of a call, once for each copy of the constants."""
        arranged = [
            packing[number].rearrange(array) if number in packing else array for number, array in enumerate(self.arrays)
        ]
        weight = sum(array.nbytes for number, array in enumerate(arranged) if number in self.constants)
        copies = 1 if not weight else max(1, min(_MOST_COPIES, -(-self.budget.cold_bytes // weight)))
        sets = []
        for copy in range(copies):
            kept: list[Array] = []
            for number, array in enumerate(arranged):
                own = number in self.constants and (copy > 0 or number in packing)
                kept.append(_aligned(array) if own else self.arrays[number])
            slots = (ctypes.c_int64 * len(kept))(*(address_of(array) for array in kept))
            sets.append((slots, kept))
        return sets


class _Call:
    """A compiled kernel with its arguments; constants rotate from call to call."""

    def __init__(
        self,
        function: Callable[[ctypes.Array[ctypes.c_int64]], int],
        sets: list[tuple[ctypes.Array[ctypes.c_int64], list[Array]]],
        name: str,
    ) -> None:
        self.function = function
        self.sets = sets
        self.name = name
        self._next = 0

    def run(self, number: int = 1) -> None:
        """Call the kernel a number of times."""
        function, sets, count = self.function, self.sets, len(self.sets)
        code = 0
        for turn in range(self._next, self._next + number):
            code |= function(sets[turn % count][0])
        self._next = (self._next + number) % count
        check_code(code, f"the kernel {self.name}")


def _number(call: _Call, seconds: float, clock: Callable[[], float]) -> int:
    """How many calls make a sample of at least so many seconds."""
    number = 1
    while (taken := _sample(call, number, clock) * number) < seconds:
        number = max(number + 1, min(number * 10, int(number * 1.2 * seconds / max(taken, 1e-9))))
    return number


def _sample(call: _Call, number: int, clock: Callable[[], float]) -> float:
    start = clock()
    call.run(number)
    return (clock() - start) / number


def _buffers(func: PrimFunc) -> list[Buffer]:
    found = [param for param in func.params if isinstance(param, Buffer)]
    if len(found) != len(func.params):
        raise CompilerBug(f"the kernel {func.name} has scalar parameters: it is not for tuning")
    return found


def result_numbers(func: PrimFunc) -> list[int]:
    """The numbers of the parameters that a kernel writes."""
    stored = {id(item.buffer) for item in find_all(func.body, BufferStore)}
    return [number for number, buffer in enumerate(_buffers(func)) if id(buffer) in stored]


def inputs_of(func: PrimFunc) -> list[Array]:
    """Arrays for a kernel's parameters, the same in every process."""
    random = np.random.default_rng(0)
    return [_fill(buffer, random) for buffer in _buffers(func)]


def compare(func: PrimFunc, got: Mapping[int, Array], right: Sequence[Array]) -> float:
    """The largest difference of results from the right ones, relative to the largest of them; an error if too large."""
    worst = 0.0
    for number, found in got.items():
        name = str(_buffers(func)[number].dtype)
        if name not in _TOLERANCE:
            if not np.array_equal(found, right[number]):
                raise UserError("wrong result: integers differ from the default schedule's")
            continue
        exact = _as_float(right[number], name)
        scale = max(float(np.max(np.abs(exact), initial=0.0)), 1e-30)
        error = float(np.max(np.abs(_as_float(found, name) - exact), initial=0.0)) / scale
        if not error <= _TOLERANCE[name]:
            raise UserError(f"wrong result: differs from the default schedule's by {error:.2g} of its largest value")
        worst = max(worst, error)
    return worst


def _fill(buffer: Buffer, random: np.random.Generator) -> Array:
    """An input of plausible values: floats around zero, integers that are valid indices of small tables."""
    shape = buffer.static_shape
    if shape is None:
        raise CompilerBug(f"the parameter {buffer.name} has a symbolic shape: its kernel is not for tuning")
    array = aligned_empty(shape, storage_dtype(str(buffer.dtype)))
    if buffer.dtype.name == "bfloat16":
        bits = random.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16
        np.copyto(array, bits.astype(np.uint16))
    elif buffer.dtype.is_float:
        np.copyto(array, random.standard_normal(shape), casting="unsafe")
    else:
        np.copyto(array, random.integers(0, 2, shape), casting="unsafe")
    return array


def _aligned(array: Array) -> Array:
    copy = aligned_empty(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def _as_float(array: Array, name: str) -> npt.NDArray[np.float64]:
    if name == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


_benches: dict[tuple[str, str], Bench] = {}


def answer(request: object) -> Timing:
    """Measure one trial; the task's bench stays for the next."""
    assert isinstance(request, Trial)
    key = (request.func.name, str(request.target))
    bench = _benches.get(key)
    if bench is None:
        # One task at a time: arrays of all tasks of a model would not fit in memory.
        _benches.clear()
        bench = _benches[key] = Bench(request.func, request.target, request.default, request.budget)
    return bench.measure(request.code)
