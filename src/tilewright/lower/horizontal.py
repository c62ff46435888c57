"""Kernels that share launches: each is scheduled by itself, as one that has a launch of its own; then they are joined.

Kernels of several launches are joined launch by launch: the first ones of all, then the second ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.backends.device import compiled_source, device_kernels, device_source, horizontal_source, shown_text
from tilewright.codegen.c.program import launch_of, launches_of
from tilewright.ir.stage_files import StageFileError
from tilewright.lower.cost import Work
from tilewright.lower.device_kernel import DeviceKernelCode, kernel_sizes, written_buffers
from tilewright.lower.schedules import require_legal_schedule, use_schedule
from tilewright.lower.symbols import SymbolTable
from tilewright.runtime.core.artifact import DeviceKernelInfo, LaunchInfo
from tilewright.support import trace
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.target import Target
from tilewright.tir.analysis.in_place import Pair, in_place_pairs
from tilewright.tir.function import PrimFunc
from tilewright.tir.horizontal import HorizontalLaunch, Run, share_launches
from tilewright.tir.index_map import IndexMap
from tilewright.tir.passes.split_host_device import SplitFunction, buffer_bytes
from tilewright.tir.verify_bounds import refuse_outside
from tilewright.topi.schedule.choices import Answer
from tilewright.topi.schedule.packing import packing_of


@dataclass(frozen=True, slots=True)
class KernelPart:
    """A kernel among others that share launches; `numbers` say which parameter of all each of its own is."""

    symbol: str
    func: PrimFunc
    work: Work
    numbers: tuple[int, ...]
    answers: Mapping[str, Answer] = field(default_factory=dict)

    def pairs(self, own: Sequence[Pair]) -> tuple[Pair, ...]:
        """Pairs of its parameters as pairs of parameters of all."""
        return tuple((self.numbers[source], self.numbers[result]) for source, result in own)


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """One kernel as it would be launched by itself."""

    split: SplitFunction
    launches: tuple[LaunchInfo, ...]
    packing: dict[int, IndexMap]
    failure: str

    scratch: tuple[int, ...]
    """The bytes of each of its workspaces."""


def compile_horizontal(func: PrimFunc, parts: Sequence[KernelPart], target: Target) -> DeviceKernelCode:
    """Compile kernels with shared launches; `func` is the program of all, whose parameters are what steps pass."""
    try:
        scheduled = _schedules(parts, target)
        launches, scratch = _launches(func, parts, scheduled, target)
        source = horizontal_source(launches, target)
    except StageFileError:
        raise
    except (UnsupportedError, UserError) as error:
        # What the device cannot do, or has no room for; the host computes all of it instead.
        return DeviceKernelCode(refused=str(error))
    packing = {part.numbers[n]: found for part in parts for n, found in scheduled[part.symbol].packing.items()}
    in_place = [pair for part in parts for pair in part.pairs(in_place_pairs(scheduled[part.symbol].split.func))]
    infos = tuple(_info(launch, target) for launch in launches)
    sizes = kernel_sizes(func, packing, scratch, SymbolTable())
    info = DeviceKernelInfo(func.name, infos, sizes, written_buffers(func))
    code = compiled_source(func.name, source, target)
    failures = "; ".join(item.failure for item in scheduled.values() if item.failure)
    return DeviceKernelCode(code, info, scratch, tuple(in_place), packing=packing, failed_template=failures)


def source_of(func: PrimFunc, parts: Sequence[KernelPart], target: Target) -> str:
    """The text of kernels with shared launches, as it goes on to the compiler."""
    launches, _ = _launches(func, parts, _schedules(parts, target), target)
    return shown_text(func.name, horizontal_source(launches, target), target)


def _schedules(parts: Sequence[KernelPart], target: Target) -> dict[str, _Scheduled]:
    return {symbol: _scheduled(part, target) for symbol, part in {part.symbol: part for part in parts}.items()}


def _launches(
    func: PrimFunc, parts: Sequence[KernelPart], scheduled: Mapping[str, _Scheduled], target: Target
) -> tuple[list[Run | HorizontalLaunch], tuple[int, ...]]:
    """The launches in order, and the bytes of scratch memory, which is behind the parameters."""
    rounds, scratch = _rounds(parts, scheduled, len(func.params))
    shared = [share_launches(f"{func.name}_kernel{n}", runs, target) for n, runs in enumerate(rounds)]
    return [launch for launches in shared for launch in launches], scratch


def _scheduled(part: KernelPart, target: Target) -> _Scheduled:
    def use(scheduled: PrimFunc) -> tuple[SplitFunction, dict[int, IndexMap]]:
        require_legal_schedule(scheduled)
        split = device_kernels(scheduled, target)
        # A schedule whose kernels have no text is none.
        device_source(split.kernels, target)
        return split, packing_of(scheduled)

    with trace.span("verify"):
        refuse_outside(part.func)
    used = use_schedule(part.func, target, part.answers, use)
    split, packing = used.result
    scratch = tuple(buffer_bytes(buffer) or 0 for buffer in split.workspaces)
    return _Scheduled(split, launches_of(split, SymbolTable().extent), packing, used.failure, scratch)


def _rounds(
    parts: Sequence[KernelPart], scheduled: Mapping[str, _Scheduled], count: int
) -> tuple[list[list[Run]], tuple[int, ...]]:
    """The first launches of all kernels, the second ones, ...; and the scratch memory, behind `count` parameters."""
    rounds: list[list[Run]] = []
    scratch: list[int] = []
    for part in parts:
        found = scheduled[part.symbol]
        own = range(count + len(scratch), count + len(scratch) + len(found.scratch))
        numbers = (*part.numbers, *own)
        scratch += found.scratch
        for number, ((kernel, values), launch) in enumerate(zip(found.split.order, found.launches, strict=True)):
            if number == len(rounds):
                rounds.append([])
            given = tuple(numbers[argument] for argument in launch.args)
            rounds[number].append(Run(found.split.kernels[kernel], given, values))
    return rounds, tuple(scratch)


def _info(launch: Run | HorizontalLaunch, target: Target) -> LaunchInfo:
    if isinstance(launch, Run):
        alone = launch_of(launch.kernel, launch.arguments, SymbolTable().extent)
        return replace(alone, dependent=target.has_dependent_launch, values=launch.values)
    sizes = [kernel.shared_bytes for kernel in launch.kernels]
    shared = max(sizes) if target.capabilities.shared_reuse else sum(sizes)
    given = (launch.name, (launch.blocks, 1, 1), launch.block, launch.arguments, shared)
    return LaunchInfo(*given, dependent=target.has_dependent_launch)
