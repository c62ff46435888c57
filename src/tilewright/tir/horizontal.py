"""Launches that do the work of several kernels: their blocks are divided among the kernels, one after the other.

    blocks 0 to 11: the first use of kernel a      blocks 12 to 23: its second use      blocks 24 and 25: kernel b

Kernels that share a launch read nothing that another one of it writes. Those whose threads meet (at barriers, in shared
memory, in the shuffles of a warp) share it with others of the same block, or where threads must not meet in branches
with uses of the same kernel alone; the others may have fewer threads than it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from tilewright.ir.expr import const_value
from tilewright.target.target import Target
from tilewright.tir.passes.split_host_device import DeviceKernel
from tilewright.tir.rewrite.statements import all_statements
from tilewright.tir.stmt import Evaluate

_MOST_PADDING: Final = 4
"""How many times more threads than its own a block may have."""


@dataclass(frozen=True, slots=True)
class Run:
    """A kernel with what it is given: numbers of arguments, in the order of its parameters."""

    kernel: DeviceKernel
    arguments: tuple[int, ...]
    values: tuple[int, ...] = ()
    """Where the host is in its own loops, of which the kernel is a step."""


@dataclass(frozen=True, slots=True)
class HorizontalLaunch:
    """Runs that share a launch, those of one kernel next to each other."""

    name: str
    runs: tuple[Run, ...]

    @property
    def block(self) -> tuple[int, int, int]:
        """The threads of each block."""
        return max((run.kernel.block for run in self.runs), key=prod)

    @property
    def blocks(self) -> int:
        """How many blocks there are in all."""
        return sum(block_count(run.kernel) for run in self.runs)

    @property
    def arguments(self) -> tuple[int, ...]:
        """What the launch is given, each argument once."""
        return tuple(dict.fromkeys(number for run in self.runs for number in run.arguments))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return sum(kernel.shared_bytes for kernel in self.kernels)

    @property
    def kernels(self) -> tuple[DeviceKernel, ...]:
        """The different kernels."""
        return tuple({id(run.kernel): run.kernel for run in self.runs}.values())


def block_count(kernel: DeviceKernel) -> int:
    """The blocks of a kernel of constant extents."""
    return prod(const_value(extent) or 0 for extent in kernel.grid)


def share_launches(name: str, runs: Sequence[Run], target: Target) -> list[Run | HorizontalLaunch]:
    """Runs that do not depend on each other, in as few launches as may be; what stays alone gets a name too."""
    groups: dict[object, list[Run]] = {}
    for run in runs:
        groups.setdefault(_kind(run, target), []).append(run)
    made: list[Run | HorizontalLaunch] = []
    for group in groups.values():
        for part in _divided(group, target):
            own = f"{name}_{len(made)}"
            if len(part) == 1:
                func = part[0].kernel.func.replace(name=own)
                made.append(replace(part[0], kernel=replace(part[0].kernel, func=func)))
            else:
                made.append(HorizontalLaunch(own, tuple(part)))
    return made


def _kind(run: Run, target: Target) -> object:
    """What runs that share a launch have in common; the run itself where it must be alone."""
    kernel = run.kernel
    known = all(const_value(extent) is not None for extent in kernel.grid)
    if kernel.cluster > 1 or kernel.is_dynamic or kernel.steps or not known:
        return id(run)
    meets = kernel.shared or kernel.warp or any(isinstance(item, Evaluate) for item in all_statements(kernel.func.body))
    if meets and not target.capabilities.barriers_in_branches:
        return id(kernel)
    return kernel.block if meets or kernel.block[1:] != (1, 1) else None


def _divided(runs: Sequence[Run], target: Target) -> Iterator[list[Run]]:
    """Parts of runs of one kind, as far as a launch takes their arguments, shared memory and threads."""
    most = target.capabilities.horizontal_buffers or 0
    static = target.capabilities.static_shared_bytes
    room = target.shared_bytes if static is None else min(static, target.shared_bytes)
    ordered = sorted(runs, key=lambda run: prod(run.kernel.block))
    kinds = {id(run.kernel): number for number, run in reversed([*enumerate(ordered)])}
    part: list[Run] = []
    for run in sorted(ordered, key=lambda run: kinds[id(run.kernel)]):
        now = HorizontalLaunch("", (*part, run))
        padded = prod(run.kernel.block) > _MOST_PADDING * prod(now.runs[0].kernel.block)
        if part and (len(now.arguments) > most or now.shared_bytes > room or padded):
            yield part
            part = []
        part.append(run)
    if part:
        yield part
