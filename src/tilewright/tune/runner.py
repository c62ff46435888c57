"""The process that runs candidates: checks each against the default schedule's result, then times both in pairs.

Neighbours on a shared machine slow a core down by a third or more, for milliseconds to seconds, and few moments are
free of them. Two calls that follow each other mostly meet the same, so the time of a candidate is the default
schedule's by the middle of the ratios of many short pairs. Where weights lie in memory makes a kernel quicker or slower
by some percent, too: after half of the pairs both exchange their places.

A request is a `Trial`. The process keeps the arrays, the default kernel and the right results of the task at hand, so
that a further candidate of the same task costs one load, one check and the timing. Parameters that are constants in
the model (weights) exist in several copies which calls take in turn: in a model, too, they come from beyond the caches.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from tilewright.backends.llvm.jit import JitLibrary
from tilewright.backends.llvm.pool import runtime_imports
from tilewright.ir.visit import find_all
from tilewright.lower.kernel import CompiledKernel
from tilewright.runtime.core.convert import ALIGNMENT, address_of, lasting_empty, together_empty
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.core.library import bind, check_code, thread_setter
from tilewright.support.errors import CompilerBug, UserError
from tilewright.target import Target
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import BufferStore
from tilewright.topi.schedule.packing import constant_parameters
from tilewright.tune.medians import CLEARLY, lower_quartile, median_bound

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to measure: the least time of one sample, the least pairs at each place, about how long all may take.

    More pairs than `samples` are taken while they do not tell how quick a candidate is: see `Bench.measure`.
    """

    sample_seconds: float = 1e-4
    samples: int = 8
    seconds: float = 0.4
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
    """Seconds of one call, the candidate's and the default schedule's beside it; how far apart their results are."""

    seconds: float
    reference: float
    error: float


_TOLERANCE = {"float64": 1e-9, "float32": 2e-4, "float16": 5e-2, "bfloat16": 1e-1}
"""Differences from the default schedule's result that another order of summation explains, relative to its largest."""
_MOST_COPIES = 16
_CLOSE, _SLOWER = 1.005, 1.1
"""When pairs tell enough: the bounds of the ratio are so close together, or even the lower one is above that."""


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
        self._places = [lasting_empty(0) for _ in range(2)]
        self._make_room(self.default_call.constant_bytes)
        self.default_call.move_to(self._places[0])
        self.default_call.run()
        self.right = [array.copy() for array in self.arrays]

    def measure(self, code: CompiledKernel) -> Timing:
        """Check a candidate and time it against the default, in turns."""
        default, call = self.default_call, self._call(code)
        self._make_room(call.constant_bytes)
        call.move_to(self._places[0])
        # Results that a candidate does not write must not look right because the default wrote them.
        self._spoil_results()
        call.run()
        error = compare(self.func, {number: self.arrays[number] for number in self.results}, self.right)
        # A kernel of one thread is timed by the time it has the processor: what else runs there does not count.
        clock = time.thread_time if self.target.cores == 1 else time.perf_counter
        medians: list[float] = []
        theirs: list[float] = []
        for place, other in (self._places, self._places[::-1]):
            default.move_to(place)
            call.move_to(other)
            pairs = self._pairs(self._sampler(default, clock), self._sampler(call, clock))
            theirs += [reference for reference, _ in pairs]
            medians.append(float(np.median(_ratios(pairs))))
            if median_bound(_ratios(pairs), -CLEARLY) > _SLOWER:
                # Of a candidate that is slower nobody wants to know more.
                break
        reference = lower_quartile(theirs)
        return Timing(reference * float(np.exp(np.mean(np.log(medians)))), reference, error)

    def _sampler(self, call: _Call, clock: Callable[[], float]) -> Callable[[], float]:
        """Takes a sample of a call: seconds of one."""
        return partial(_sample, call, _number(call, self.budget.sample_seconds, clock), clock)

    def _pairs(self, default: Callable[[], float], candidate: Callable[[], float]) -> list[tuple[float, float]]:
        """Seconds of both, one after the other at one place, until more would tell nothing new."""
        pairs: list[tuple[float, float]] = []
        began = time.monotonic()
        while not self._is_enough(pairs, time.monotonic() - began):
            # Each is the first as often as the other.
            if len(pairs) % 2:
                mine = candidate()
                pairs.append((default(), mine))
            else:
                theirs = default()
                pairs.append((theirs, candidate()))
        return pairs

    def _is_enough(self, pairs: Sequence[tuple[float, float]], spent: float) -> bool:
        if len(pairs) < self.budget.samples or len(pairs) % self.budget.samples:
            return False
        ratios = _ratios(pairs)
        low, high = (median_bound(ratios, deviations) for deviations in (-CLEARLY, CLEARLY))
        return low > _SLOWER or high < low * _CLOSE or spent >= self.budget.seconds / 2

    def _spoil_results(self) -> None:
        for number in self.results:
            self.arrays[number].reshape(-1).view(np.uint8).fill(0x5A)

    def _call(self, code: CompiledKernel) -> _Call:
        library = JitLibrary([code.code], runtime_imports())
        thread_setter(library, self.func.name)(self.target.cores)
        packed = bind(library, f"{self.func.name}__packed", ctypes.c_int32, ctypes.c_void_p)
        packing = code.packing
        arranged = [
            packing[number].rearrange(array) if number in packing else array for number, array in enumerate(self.arrays)
        ]
        return _Call(packed, self.func.name, arranged, self.constants, self.budget.cold_bytes)

    def _make_room(self, size: int) -> None:
        """Places of at least so many bytes each; they stay the same from candidate to candidate where they can."""
        if self._places[0].nbytes < size:
            self._places = [lasting_empty(size) for _ in self._places]


class _Call:
    """A compiled kernel with its arguments; constants come in copies that rotate from call to call."""

    def __init__(
        self,
        function: Callable[[ctypes.Array[ctypes.c_int64]], int],
        name: str,
        arranged: Sequence[Array],
        constants: set[int],
        cold_bytes: int,
    ) -> None:
        self.function = function
        self.name = name
        self.arranged = arranged
        self.constants = constants
        weight = sum(_padded(arranged[number].nbytes) for number in constants)
        self._copies = 1 if not weight else max(1, min(_MOST_COPIES, -(-cold_bytes // weight)))
        self.constant_bytes = self._copies * weight
        self._sets: list[tuple[ctypes.Array[ctypes.c_int64], list[Array]]] = []
        self._next = 0

    def move_to(self, place: Array) -> None:
        """Put all copies of the constants, one after the other, where so much memory is."""
        self._sets, offset = [], 0
        for _ in range(self._copies):
            kept: list[Array] = []
            for number, array in enumerate(self.arranged):
                if number in self.constants:
                    copy: Array = np.ndarray(array.shape, array.dtype, place, offset)
                    np.copyto(copy, array)
                    offset += _padded(array.nbytes)
                    kept.append(copy)
                else:
                    kept.append(array)
            slots = (ctypes.c_int64 * len(kept))(*(address_of(array) for array in kept))
            self._sets.append((slots, kept))

    def run(self, number: int = 1) -> None:
        """Call the kernel a number of times."""
        function, sets, count = self.function, self._sets, len(self._sets)
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


def _ratios(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """The candidate's time over the default's of each pair."""
    return [mine / max(theirs, 1e-12) for theirs, mine in pairs]


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
    buffers = _buffers(func)
    arrays = together_empty([(_shape(buffer), storage_dtype(str(buffer.dtype))) for buffer in buffers])
    for array, buffer in zip(arrays, buffers, strict=True):
        _fill(array, buffer, random)
    return arrays


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


def _shape(buffer: Buffer) -> tuple[int, ...]:
    if buffer.static_shape is None:
        raise CompilerBug(f"the parameter {buffer.name} has a symbolic shape: its kernel is not for tuning")
    return buffer.static_shape


def _fill(array: Array, buffer: Buffer, random: np.random.Generator) -> None:
    """Make an input of plausible values: floats around zero, integers that are valid indices of small tables."""
    shape = array.shape
    if buffer.dtype.name == "bfloat16":
        bits = random.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16
        np.copyto(array, bits.astype(np.uint16))
    elif buffer.dtype.is_float:
        np.copyto(array, random.standard_normal(shape), casting="unsafe")
    else:
        np.copyto(array, random.integers(0, 2, shape), casting="unsafe")


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


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
