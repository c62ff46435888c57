"""Templates of one's own: a schedule with knobs, over the same choices that the operator library asks.

    @tw.tune.template
    def matmul(cfg, n, m, k):
        A, B = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
        ...
        s = te.create_schedule(C.op)
        cfg.define_split("tile_y", C.op.axis[0], parts=2)
        yo, yi = cfg["tile_y"].apply(s, C, C.op.axis[0])
        return s, [A, B, C]

    tw.tune.tune([matmul.task(512, 512, 512)], database, options)
    f = matmul.build(512, 512, 512, database=database)

`cfg` is told what may be chosen and gives what is chosen; the first option that is told is the default, unless
another one is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TypeVar

from tilewright.compiler import build
from tilewright.ir.expr import Var, const_value
from tilewright.lower.database import Database
from tilewright.lower.kernel import make_kernel
from tilewright.request import model_targets
from tilewright.runtime.core.module import Module
from tilewright.runtime.device.program import DeviceModule
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.te.schedule import Schedule
from tilewright.te.tensor import Axis, Tensor
from tilewright.tir.function import PrimFunc
from tilewright.topi.schedule.choices import Answer, Choices
from tilewright.tune.builder import BuildRequest
from tilewright.tune.space import Point, Space
from tilewright.tune.task import Task

_MOST_ORDERS = 5040

Kind = TypeVar("Kind")

Made = tuple[Schedule, Sequence[Tensor | Var]]


@dataclass(frozen=True, slots=True)
class Split:
    """A chosen division of an axis: the extents of its parts, outermost first."""

    sizes: tuple[int, ...]

    def apply(self, schedule: Schedule, tensor: Tensor, axis: Axis) -> list[Axis]:
        """Split the axis of a tensor's stage so; gives the parts, outermost first."""
        parts: list[Axis] = []
        rest = axis
        for size in reversed(self.sizes[1:]):
            rest, inner = schedule[tensor].split(rest, factor=size)
            parts.append(inner)
        return [rest, *reversed(parts)]


@dataclass(frozen=True, slots=True)
class Order:
    """A chosen order of some axes."""

    places: tuple[int, ...]

    def apply(self, schedule: Schedule, tensor: Tensor, axes: Sequence[Axis]) -> list[Axis]:
        """Reorder the axes of a tensor's stage so; gives them in their new order."""
        if len(axes) != len(self.places):
            raise UserError(f"the order is of {len(self.places)} axes, not of {len(axes)}")
        ordered = [axes[place] for place in self.places]
        schedule[tensor].reorder(*ordered)
        return ordered


class Config:
    """What a template may choose (`define_*`) and what is chosen (`cfg[name]`)."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._chosen: dict[str, Split | Order | Answer] = {}

    def define_split(
        self,
        name: str,
        axis: Axis | int,
        parts: int,
        *,
        most: int | None = None,
        keep: Callable[[tuple[int, ...]], bool] = lambda sizes: True,
    ) -> None:
        """An axis (or an extent) divided into parts without remainder, the innermost at most `most` long."""
        extent = axis if isinstance(axis, int) else const_value(axis.domain.extent)
        if extent is None or extent < 1 or parts < 1:
            raise UserError(f"the split '{name}' needs a constant extent and at least one part")
        options = [
            sizes for sizes in factorizations(extent, parts) if (most is None or sizes[-1] <= most) and keep(sizes)
        ]
        if not options:
            raise UserError(f"the split '{name}' of {extent} in {parts} parts has no option left", hint="filter less")
        self._define(name, Split(self._choices.choose(name, options, options[-1])))

    def define_knob(self, name: str, options: Sequence[Answer], default: Answer | None = None) -> None:
        """One of some values (numbers, words, truth values, tuples of numbers)."""
        if not options:
            raise UserError(f"the knob '{name}' has no options")
        first: Answer = options[0] if default is None else default
        self._define(name, self._choices.choose(name, list(options), first))  # type: ignore[type-var]

    def define_reorder(
        self, name: str, count: int, keep: Callable[[tuple[int, ...]], bool] = lambda order: True
    ) -> None:
        """An order of some axes; the default leaves them as they are, if `keep` allows that."""
        options = []
        for order in permutations(range(count)):
            if keep(order):
                options.append(order)
            if len(options) > _MOST_ORDERS:
                raise UserError(f"the order '{name}' of {count} axes has too many options", hint="keep fewer")
        if not options:
            raise UserError(f"the order '{name}' has no option left", hint="filter less")
        self._define(name, Order(self._choices.choose(name, options, options[0])))

    def _define(self, name: str, chosen: Split | Order | Answer) -> None:
        self._chosen[name] = chosen

    def __getitem__(self, name: str) -> Split | Order | Answer:
        if name not in self._chosen:
            raise UserError(f"the template has defined no '{name}'", hint=f"defined are: {', '.join(self._chosen)}")
        return self._chosen[name]

    def split(self, name: str) -> Split:
        """The split of a name."""
        return self._typed(name, Split)

    def order(self, name: str) -> Order:
        """The order of a name."""
        return self._typed(name, Order)

    def _typed(self, name: str, kind: type[Kind]) -> Kind:
        found = self[name]
        if not isinstance(found, kind):
            raise UserError(f"'{name}' is no {kind.__name__.lower()}")
        return found


def factorizations(extent: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write an extent as a product of so many factors; the first factor falls, so neighbours are alike."""
    if parts == 1:
        yield (extent,)
        return
    for first in range(extent, 0, -1):
        if extent % first == 0:
            for rest in factorizations(extent // first, parts - 1):
                yield (first, *rest)


class Template:
    """A schedule with knobs, made by `template`."""

    def __init__(self, make: Callable[..., Made]) -> None:
        self.make = make
        self.name = make.__name__

    def program(self, arguments: Sequence[object], choices: Choices) -> PrimFunc:
        """The scheduled program for some arguments and choices."""
        schedule, params = self.make(Config(choices), *arguments)
        return schedule.func(params, self.name)

    def task(self, *arguments: object, target: Target | str = "native") -> Task:
        """The task of tuning the template for some arguments."""
        resolved, _ = model_targets(target)
        return program_task(lambda choices: self.program(arguments, choices), self.name, resolved)

    def build(
        self,
        *arguments: object,
        target: Target | str = "native",
        database: Database | None = None,
        answers: Point | None = None,
    ) -> Module | DeviceModule:
        """The compiled function, with the answers given, else the best ones that a database knows, else the default."""
        if answers is None and database is not None:
            task = self.task(*arguments, target=target)
            answers = database.answers(str(task.target)).get(task.key)
        resolved, _ = model_targets(target)
        return build(self.program(arguments, Choices(answers or {})), target=resolved)


def template(make: Callable[..., Made]) -> Template:
    """Turn a function of a `Config` and arguments, which gives a schedule and its parameters, into a template."""
    return Template(make)


class ProgramSpace(Space):
    """The programs that a function makes of choices."""

    has_plainer = False

    def __init__(self, func: PrimFunc, target: Target, program: Callable[[Choices], PrimFunc]) -> None:
        self._program = program
        super().__init__(func, target)

    def schedule(self, choices: Choices) -> PrimFunc:
        """Run the function."""
        return self._program(choices).replace(name=self.func.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTask(Task):
    """A task whose candidates are made by a function of this process, not by the operator library's templates."""

    program: Callable[[Choices], PrimFunc]

    def space(self) -> Space:
        """The programs to search."""
        return ProgramSpace(self.kernel.func, self.target, self.program)

    def request(self, point: Point) -> BuildRequest:
        """The candidate's program goes to the building process as it is: the function is known only here."""
        return BuildRequest(self.kernel, self.target, self.space().schedule(Choices(point)))


def program_task(program: Callable[[Choices], PrimFunc], label: str, target: Target) -> Task:
    """A task of tuning the choices that a function asks."""
    return ProgramTask(make_kernel(program(Choices()), label), target, program=program)
