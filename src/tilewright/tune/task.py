"""Tasks: the kernels of a model that are worth tuning, each with how often the model runs it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.lower.kernel import Kernel
from tilewright.lower.model import LoweredModel
from tilewright.target import Target
from tilewright.tir.buffer import Buffer
from tilewright.topi.schedule.context import TYPICAL_SIZE
from tilewright.tune.builder import BuildRequest
from tilewright.tune.space import Point, Space


@dataclass(frozen=True, slots=True)
class Task:
    """One kernel to be tuned for a target. `uses` is how often one run of the model calls it."""

    kernel: Kernel
    target: Target
    uses: int = 1
    ready: list[Space] = field(default_factory=list, compare=False, repr=False)
    """A space that was made to see whether there is a choice: the first search gets it."""

    @property
    def key(self) -> str:
        """The name under which the database knows it: the kernel's symbol, which holds its structural key."""
        return self.kernel.symbol

    @property
    def label(self) -> str:
        """A name for people."""
        return self.kernel.symbol.removeprefix("tw_").rpartition("_")[0]

    @property
    def sizes(self) -> str:
        """The shapes of its first input and of its result: kernels of one name differ in these."""
        shapes = [param.static_shape for param in self.kernel.func.params if isinstance(param, Buffer)]
        known = [shape for shape in (*shapes[:1], *shapes[-1:]) if shape is not None]
        return " -> ".join("x".join(map(str, shape)) or "scalar" for shape in known)

    @property
    def flops(self) -> int:
        """Arithmetic of one call."""
        return self.kernel.work.at(TYPICAL_SIZE)[0]

    def space(self) -> Space:
        """The schedules to search. Spaces grow as they are searched: each search gets one of its own."""
        return self.ready.pop() if self.ready else Space(self.kernel.func, self.target)

    def request(self, point: Point) -> BuildRequest:
        """What a building process needs to make a candidate."""
        return BuildRequest(replace(self.kernel, answers=dict(point)), self.target)


def extract_tasks(model: LoweredModel) -> list[Task]:
    """The kernels of a model whose schedule has a choice to make, those with most arithmetic first."""
    uses = model.uses_by_symbol()
    # What was tuned before is known to the database; here the template's own schedule is what others are measured by.
    kernels = [replace(kernel, answers={}) for kernel in model.kernels if _has_static_shapes(kernel)]
    tasks = [Task(kernel, model.target, uses[kernel.symbol]) for kernel in kernels]
    open_ones = [task for task in tasks if _has_choice(task)]
    return sorted(open_ones, key=lambda task: (-task.flops * task.uses, task.key))


def _has_static_shapes(kernel: Kernel) -> bool:
    """Whether a kernel can be measured by itself: it is one, and all its parameters are arrays of known shapes."""
    return not kernel.parts and all(
        isinstance(item, Buffer) and item.static_shape is not None for item in kernel.func.params
    )


def _has_choice(task: Task) -> bool:
    space = task.space()
    task.ready.append(space)
    return bool(space.open_questions)
