"""Hardware and schedules searched together: which configuration of the accelerator does a workload best in a budget.

A configuration is judged by three numbers: cycles of the workload, bytes on chip, multipliers. Sizes of blocks and
memories are powers of two. They are searched by evolution on the analytic model of tiles, which takes a fraction of a
second for all layers of a network (`topi/schedule/accel/tiles.py`). For the configurations that nothing dominates
there, the best schedules of each layer are compiled, and their cycles counted by the cycle model. What nothing
dominates then is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf, log2
from random import Random
from typing import Final

from tilewright.accel.config import AccelConfig
from tilewright.accel.instructions import check_formats
from tilewright.support.errors import UserError
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.schedule import Schedule
from tilewright.topi.schedule.accel.product import BlockedProduct, find_product, tiling_question
from tilewright.topi.schedule.accel.tiles import Problem, best_tilings, estimate
from tilewright.topi.schedule.choices import Answer, Choices
from tilewright.topi.schedule.context import ScheduleContext
from tilewright.tune.accel_workload import Part, Workload, compiled, counted, target_of

FIELDS: Final = (
    "block_in",
    "block_out",
    "uop_bytes",
    "inp_bytes",
    "wgt_bytes",
    "acc_bytes",
    "out_bytes",
    "par_entries",
    "bus_bytes",
)
"""What is searched: powers of two, doubled or halved."""
_LEAST_MICRO_OPS: Final = 4096
"""Bytes of the micro-op memory: the longest instruction of a schedule has 1,024 of them."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a configuration may have at most."""

    multipliers: int
    on_chip_bytes: int
    bus_bytes: int

    @classmethod
    def of(cls, config: AccelConfig) -> Budget:
        """What a configuration has."""
        return cls(config.multipliers, config.on_chip_bytes, config.bus_bytes)

    def excess(self, config: AccelConfig) -> float:
        """By how many doublings a configuration is beyond it; 0 within it."""
        pairs = (
            (config.multipliers, self.multipliers),
            (config.on_chip_bytes, self.on_chip_bytes),
            (config.bus_bytes, self.bus_bytes),
        )
        return sum(max(0.0, log2(has / most)) for has, most in pairs)

    def allows(self, config: AccelConfig) -> bool:
        """Whether a configuration is within it."""
        return self.excess(config) == 0


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to search."""

    estimates: int = 160
    """Configurations that the analytic model judges."""
    configurations: int = 12
    """Of these, how many are compiled for."""
    schedules: int = 3
    """Schedules of a layer that are compiled for one configuration."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """A configuration, what it costs and what it takes."""

    config: AccelConfig
    cycles: float
    schedules: dict[str, dict[str, Answer]] = field(default_factory=dict, compare=False)
    """The answers of each program's best schedule."""

    @property
    def costs(self) -> tuple[float, int, int]:
        """Cycles, bytes on chip, multipliers: less of each is better."""
        return self.cycles, self.config.on_chip_bytes, self.config.multipliers

    def dominates(self, other: Point) -> bool:
        """Whether it has no more of anything, and less of something."""
        return self.costs != other.costs and all(a <= b for a, b in zip(self.costs, other.costs, strict=True))


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other dominates, by bytes on chip; one of those that cost the same."""
    unique = list({point.costs: point for point in reversed(points)}.values())
    kept = [point for point in unique if not any(other.dominates(point) for other in unique)]
    return sorted(kept, key=lambda point: (point.config.on_chip_bytes, point.cycles, point.config.multipliers))


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a search found: what it began with, all that was compiled for, and what of it nothing dominates."""

    start: Point
    points: tuple[Point, ...]
    front: tuple[Point, ...]
    estimated: int
    """Configurations that the analytic model judged."""

    @property
    def dominating(self) -> list[Point]:
        """What is better than the beginning in one number, and in none worse: those with fewest cycles first."""
        return sorted((point for point in self.front if point.dominates(self.start)), key=lambda point: point.costs)


OnPoint = Callable[[Point], None]


def explore(
    workload: Workload,
    start: AccelConfig,
    budget: Budget | None = None,
    effort: Effort | None = None,
    on_point: OnPoint = lambda point: None,
) -> Exploration:
    """Search configurations from one on, within a budget (None: what the first one has)."""
    budget, effort = budget or Budget.of(start), effort or Effort()
    begun = exact(workload, start, effort.schedules)
    if begun is None:
        raise UserError(f"the workload does not run on the configuration {start.to_text()}")
    on_point(begun)
    judged = _evolve(workload, start, budget, effort)
    points = [begun]
    for config in _promising(judged, effort.configurations):
        point = exact(workload, config, effort.schedules) if config != start else None
        if point is not None:
            on_point(point)
            points.append(point)
    within = [point for point in points if budget.allows(point.config)]
    return Exploration(begun, tuple(points), tuple(front(within)), len(judged))


def _promising(judged: Sequence[Point], most: int) -> list[AccelConfig]:
    """Configurations that nothing dominates by the analytic model; where they are too many, spread over their sizes."""
    kept = front(judged)
    if len(kept) <= most:
        return [point.config for point in kept]
    quickest = sorted(kept, key=lambda point: point.costs)[: max(1, most // 2)]
    rest = [point for point in kept if point not in quickest]
    step = max(1.0, len(rest) / (most - len(quickest)))
    spread = [rest[int(number * step)] for number in range(most - len(quickest)) if int(number * step) < len(rest)]
    return [point.config for point in (*quickest, *spread)]


def _evolve(workload: Workload, start: AccelConfig, budget: Budget, effort: Effort) -> list[Point]:
    """Configurations judged by the analytic model: neighbours of those that nothing dominates."""
    random = Random(effort.seed)
    judged: dict[AccelConfig, Point] = {}
    if budget.allows(start):
        judged[start] = Point(start, estimated(workload, start))
    vain = 0
    while len(judged) < effort.estimates and vain < 50 * effort.estimates:
        parents = front([point for point in judged.values() if point.cycles < inf]) or [Point(start, inf)]
        # Half of the time from one of the quickest.
        quick = sorted(parents, key=lambda point: point.costs)[: max(1, len(parents) // 4)]
        parent = random.choice(quick if random.random() < 0.5 else parents)
        config = neighbour(parent.config, random)
        if config is None or config in judged or not budget.allows(config):
            vain += 1
            # From a beginning beyond the budget it takes several steps to come into it.
            if config is not None and not judged and budget.excess(config) < budget.excess(start):
                start = config
            continue
        judged[config] = Point(config, estimated(workload, config))
    return [point for point in judged.values() if point.cycles < inf]


def neighbour(config: AccelConfig, random: Random) -> AccelConfig | None:
    """A configuration with one to three sizes doubled or halved; None where that is none."""
    changes: dict[str, int] = {}
    for name in random.sample(FIELDS, random.choice((1, 1, 2, 2, 3))):
        value = getattr(config, name)
        changes[name] = value * 2 if random.random() < 0.5 else value // 2
    if changes.get("uop_bytes", config.uop_bytes) < _LEAST_MICRO_OPS:
        return None
    try:
        changed = replace(config, **changes)
        check_formats(changed)
    except UserError:
        # Elements that are no whole words of the bus, or indices that instructions have no bits for.
        return None
    return changed


@lru_cache(maxsize=4096)
def _best(problem: Problem, config: AccelConfig) -> float:
    return min((estimate(problem, tiling, config) for tiling in best_tilings(problem, config, most=1)), default=inf)


def estimated(workload: Workload, config: AccelConfig) -> float:
    """Cycles of a workload by the analytic model; without end where a layer does not fit."""
    problems = [(_problem(part, config), part.uses) for part in workload.programs(config)]
    return sum(_best(problem, config) * uses for problem, uses in problems if problem is not None)


def _problem(part: Part, config: AccelConfig) -> Problem | None:
    context = ScheduleContext(Schedule(part.func), target_of(config), choices=Choices())
    found = find_product(context, config)
    return found.problem if isinstance(found, BlockedProduct) else None


def exact(workload: Workload, config: AccelConfig, schedules: int) -> Point | None:
    """Cycles of a workload with the best of some schedules of each program; None where one does not run."""
    total, answers = 0, {}
    for part in workload.programs(config):
        best = best_schedule(part, config, schedules)
        if best is None:
            return None
        total += best[0] * part.uses
        answers[part.name] = best[1]
    return Point(config, total, answers)


def best_schedule(
    part: Part, config: AccelConfig, schedules: int, threads: int = 2
) -> tuple[int, dict[str, Answer]] | None:
    """The fewest cycles of some schedules of a program, and the answers of that one; None where none fits."""
    problem = _problem(part, config)
    options: list[dict[str, Answer]] = [{}]
    if problem is not None:
        best = best_tilings(problem, config, threads=threads, most=schedules)
        options = [{"threads": threads, tiling_question(threads): tiling.numbers} for tiling in best]
    found: tuple[int, dict[str, Answer]] | None = None
    for answers in options:
        try:
            total = counted(compiled(part.func, config, answers)).total
        except (ScheduleError, UserError):
            # An instruction that needs more micro-ops than there is room for, say: another schedule may do.
            continue
        if found is None or total < found[0]:
            found = total, answers
    return found
