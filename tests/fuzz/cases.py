"""Fuzz cases: running them, comparing what they compute, making failing ones small, printing them as scripts."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import numpy.typing as npt

import tilewright as tw
from tests.fuzz.generate import ProgramWriter, random_step
from tilewright import te
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.schedule import BlockHandle, LoopHandle, Schedule, ScheduleError
from tilewright.tir.verify import verify

Array = npt.NDArray[np.generic]

_HEADER = '''"""A failing schedule: run it to see. {reason}"""

import numpy as np

from tests.fuzz.cases import compare_all, helpers
from tilewright import te
from tilewright.tir.schedule import Schedule
'''


class Failure(Exception):
    """A case that does not compute what it should."""


@dataclass
class Case:
    """A program and a schedule, as lines."""

    seed: int
    program: list[str]
    steps: list[str] = field(default_factory=list)

    def script(self, reason: str = "") -> str:
        """The case as a Python script."""
        return "\n".join(
            [
                _HEADER.format(reason=reason.replace("\n", " ")),
                *self.program,
                "sch = Schedule(func)",
                "globals().update(helpers(sch))",
                *self.steps,
                "print(sch)",
                "compare_all(func, sch.func)",
                "",
            ]
        )


def helpers(schedule: Schedule) -> dict[str, Callable[..., object]]:
    """The words that steps use: block(name), loops(name), relayout, roll(name, loop), finish(name)."""

    def block(name: str) -> BlockHandle:
        return BlockHandle(name)

    def loops(name: str) -> list[LoopHandle]:
        index = schedule._state.index
        if name not in index.blocks:
            return []
        return [LoopHandle(loop.var) for loop in index.loops_above(index.blocks[name])]

    def relayout(name: str, number: int, index_map) -> None:  # type: ignore[no-untyped-def]
        """transform_layout, for intermediate buffers: parameters must keep the shape that callers give."""
        node = schedule._state.index.blocks[name]
        buffers = list(dict.fromkeys(region.buffer for region in (*node.reads, *node.writes)))
        if number >= len(buffers) or schedule._state.is_parameter(buffers[number]):
            raise ScheduleError("relayout: only intermediate buffers")
        schedule.transform_layout(BlockHandle(name), buffers[number].name, index_map)

    def roll(name: str, loop: LoopHandle) -> None:
        """compute_at and rolling_buffer, or neither: seldom would they meet by chance."""
        for chosen in (schedule.copy(), schedule):
            chosen.compute_at(BlockHandle(name), loop)
            chosen.rolling_buffer(BlockHandle(name), 0)

    def finish(name: str) -> None:
        """fuse_reduction_epilogue with whatever block reads the result."""
        readers = schedule.copy().get_consumers(BlockHandle(name))
        if not readers:
            raise ScheduleError("finish: nothing reads it")
        schedule.fuse_reduction_epilogue(BlockHandle(name), readers[0])

    return {"block": block, "loops": loops, "relayout": relayout, "roll": roll, "finish": finish}


def build_program(case: Case) -> PrimFunc:
    """The unscheduled program of a case."""
    names: dict[str, object] = {"te": te}
    exec("\n".join(case.program), names)
    func = names["func"]
    assert isinstance(func, PrimFunc)
    return func


class Runner:
    """Applies steps to a schedule; refusals must leave the program alone."""

    def __init__(self, func: PrimFunc) -> None:
        self.schedule = Schedule(func)
        self._names = {"sch": self.schedule, **helpers(self.schedule)}

    def execute(self, step: str) -> None:
        """Run a step; refusals pass through."""
        exec(step, self._names)

    def apply(self, step: str) -> bool:
        """Whether a step applied."""
        before = self.schedule.func
        try:
            self.execute(step)
        except (UserError, IndexError, TypeError) as error:
            if type(error) is TypeError and "tile()" not in str(error):
                raise
            # A tile is three primitives, of which some may have been done.
            if not step.startswith("sch.tile") and self.schedule.func is not before:
                raise Failure(f"refused, but the program changed: {step}: {error}") from error
            return step.startswith("sch.tile") and self.schedule.func is not before
        return True

    def state(self) -> tuple[dict[str, int], int]:
        """The blocks with their numbers of loops, and the number of loops."""
        index = self.schedule._state.index
        blocks = {b.name: len(index.loops_above(b)) for b in index.blocks.values() if b is not index.root}
        return blocks, len(index.loops)


def generate(seed: int) -> Case:
    """The case of a seed: a program, and steps that apply to it."""
    random = Random(seed)
    case = Case(seed, ProgramWriter(random).write())
    runner = Runner(build_program(case))
    wanted = random.choice([1, 2, 3, 4, 6, 8, 10])
    for _ in range(wanted * 3):
        if len(case.steps) == wanted:
            break
        step = random_step(random, *runner.state())
        if runner.apply(step):
            case.steps.append(step)
    return case


def scheduled(case: Case) -> tuple[PrimFunc, PrimFunc]:
    """The program before and after the steps (those that do not apply are left out)."""
    func = build_program(case)
    runner = Runner(func)
    for step in case.steps:
        runner.apply(step)
    return func, runner.schedule.func


def arguments(func: PrimFunc, seed: int = 0) -> list[Array]:
    """Small integers for every parameter: exact in every type. A parameter I<n>_... holds indices below n."""
    random = np.random.default_rng(seed)
    arrays: list[Array] = []
    for buffer in func.buffers:
        shape = buffer.static_shape
        assert shape is not None
        low, high = -3, 4
        if buffer.name.startswith("I"):
            low, high = 0, int(buffer.name[1:].split("_")[0])
        arrays.append(random.integers(low, high, shape).astype(buffer.dtype.numpy()))
    return arrays


def interpreted(func: PrimFunc) -> list[Array]:
    """The arrays of the parameters after interpretation."""
    arrays = arguments(func)
    interpret(func, *arrays)
    return arrays


def same(expected: Sequence[Array], found: Sequence[Array], what: str) -> None:
    """Raise a `Failure` where results differ."""
    for number, (a, b) in enumerate(zip(expected, found, strict=True)):
        if a.tobytes() != b.tobytes() and not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            wrong = np.argwhere(a != b)
            raise Failure(f"{what}: parameter {number} differs at {len(wrong)} places, first {wrong[0].tolist()}")


def compile_all(funcs: Sequence[PrimFunc]) -> list[list[Array]]:
    """The arrays of the parameters after running machine code, all compiled as one module."""
    module = tw.build(IRModule({f"case{n}": func.replace(name=f"case{n}") for n, func in enumerate(funcs)}))
    results: list[list[Array]] = []
    for number, func in enumerate(funcs):
        arrays = arguments(func)
        module[f"case{number}"](*arrays)
        results.append(arrays)
    return results


def compare_all(func: PrimFunc, changed: PrimFunc) -> None:
    """Check a scheduled program: well formed, the same interpreted, the same compiled."""
    verify(changed, "scheduled")
    expected = interpreted(func)
    same(expected, interpreted(changed), "interpreted")
    same(expected, compile_all([changed])[0], "compiled")


def failure_of(case: Case) -> str | None:
    """Why a case fails, if it does."""
    try:
        compare_all(*scheduled(case))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def shrink(case: Case) -> Case:
    """A smaller case that fails in the same way (the same kind of exception)."""
    kind = (failure_of(case) or "").split(":")[0]

    def fails(candidate: Case) -> bool:
        try:
            reason = failure_of(candidate)
        except (NameError, UserError, IndexError):
            return False
        return reason is not None and reason.split(":")[0] == kind

    smaller = True
    while smaller:
        smaller = False
        for place in reversed(range(len(case.steps))):
            candidate = Case(case.seed, case.program, case.steps[:place] + case.steps[place + 1 :])
            if fails(candidate):
                case, smaller = candidate, True
        for place in reversed(range(len(case.program) - 1)):
            for candidate in _without_line(case, place):
                if fails(candidate):
                    case, smaller = candidate, True
                    break
    return case


def _without_line(case: Case, place: int) -> Iterator[Case]:
    """The case without a line of its program; an output that goes is replaced by the last stage left."""
    lines = [line for n, line in enumerate(case.program) if n != place]
    name = case.program[place].split(" = ")[0]
    head, _, listed = lines[-1].partition("([")
    names = [item for item in listed.rstrip("])").split(", ") if item != name]
    computed = [line.split(" = ")[0] for line in lines[:-1] if "te.compute(" in line]
    if not any(item in computed for item in names) and computed:
        names.append(computed[-1])
    yield Case(case.seed, [*lines[:-1], f"{head}([{', '.join(names)}])"], case.steps)


def run_batch(seeds: Sequence[int]) -> list[tuple[Case, str]]:
    """Run the cases of seeds, compiled together; gives the failing ones with their reasons."""
    failures: list[tuple[Case, str]] = []
    good: list[tuple[Case, PrimFunc, list[Array]]] = []
    for seed in seeds:
        case: Case | None = None
        try:
            case = generate(seed)
            func, changed = scheduled(case)
            verify(changed, "scheduled")
            expected = interpreted(func)
            same(expected, interpreted(changed), "interpreted")
            good.append((case, changed, expected))
        except Exception as error:
            failures.append((case or Case(seed, ["# the generator itself failed"]), _reason(error)))
    try:
        results = compile_all([changed for _, changed, _ in good])
    except Exception:
        # One of them does not compile: find out which. If each does alone, the batch itself is the failure.
        alone = [(case, reason) for case, _, _ in good if (reason := failure_of(case)) is not None]
        if not alone:
            raise
        return [*failures, *alone]
    for (case, _, expected), found in zip(good, results, strict=True):
        try:
            same(expected, found, "compiled")
        except Failure as error:
            failures.append((case, str(error)))
    return failures


def _reason(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename.rpartition('/')[2]}:{last.lineno})"


def report(failures: Sequence[tuple[Case, str]], limit: int = 3) -> str:
    """Failing cases as scripts, made small."""
    parts: list[str] = []
    for case, reason in failures[:limit]:
        small = shrink(case) if len(case.program) > 1 else case
        parts.append(f"# seed {case.seed}: {reason}\n{small.script(reason[:200])}")
    if len(failures) > limit:
        parts.append(f"# and {len(failures) - limit} more: seeds {[case.seed for case, _ in failures[limit:]]}")
    return "\n\n".join(parts)
