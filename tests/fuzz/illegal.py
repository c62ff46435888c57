"""Illegal moves mixed in: `python -m tests.fuzz.illegal --count 5000`. Programs, schedules and texts that may be wrong.

Random programs (tensor expressions, reductions that may be over nothing, scripts without blocks) get random calls of
primitives and moves that no primitive makes: reserved notes, loops bound twice, kinds of loops changed by hand. What is
left is either refused with a `UserError` when it is built, or computes what the interpreter says of the program it came
from: interpreted, interpreted with parallel loops backwards, compiled, and as kernels of a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

import tilewright as tw
from tests.fuzz.cases import Array, Failure, helpers, same
from tests.fuzz.generate import ProgramWriter, random_step
from tests.tir.schedule.programs import with_parallel_loops_backwards
from tilewright import te
from tilewright.backends.backend import lower
from tilewright.ir.expr import Var, const_value
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tir.admission import require_right_schedule, right_program
from tilewright.tir.evaluate import evaluate
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.numbers import InterpreterError
from tilewright.tir.schedule import LoopHandle, Schedule
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.script import parse_script
from tilewright.tir.stmt import For, LoopKind, Stmt

BATCH = 25
_AXES = ("threadIdx.x", "threadIdx.y", "blockIdx.x", "blockIdx.y", "vthread")
_NOTES = (
    "zigzag",
    "reduction",
    "software_pipeline",
    "software_pipeline_stage",
    "software_pipeline_woven",
    "software_pipeline_late",
    "software_pipeline_buffers",
    "tensor_intrinsic",
    "free",
)
_KINDS = ("parallel", "vectorized", "unrolled", "serial", "thread", "vthread")


# ---------------------------------------------------------------- programs


def symbolic_program(random: Random) -> list[str]:
    """Reductions whose extent is known only when they run, and may be zero then."""
    rows = random.choice([1, 3, 4])
    reducer = random.choice(["sum", "max", "min", "prod"])
    if random.random() < 0.25:
        return [
            f"A1 = te.placeholder(({rows + 3},), 'int32', name='A1')",
            (
                f"S1 = te.compute(({rows + 3},), lambda i: te.{reducer}(A1[(k1 := te.reduce_axis((0, i), name='k1'))], "
                "axis=k1), name='S1')"
            ),
            f"S2 = te.compute(({rows + 3},), lambda i: S1[i] + 1, name='S2')",
            f"func = te.create_prim_func([A1, {random.choice(['S1', 'S2'])}])",
        ]
    shape = random.choice([("m", "n"), ("m", 2), (2, "m")])
    lines = ["m = te.var('m')", "n = te.var('n')"]
    a, b = shape
    lines.append(f"A1 = te.placeholder(({rows}, {a}, {b}), 'int32', name='A1')")
    lines += [f"k{x} = te.reduce_axis((0, {extent}), name='k{x}')" for x, extent in enumerate(shape)]
    form = random.choice(["both", "first", "second"])
    if form == "both":
        lines.append(f"S1 = te.compute(({rows},), lambda i: te.{reducer}(A1[i, k0, k1], axis=[k0, k1]), name='S1')")
        last = f"S2 = te.compute(({rows},), lambda i: S1[i] * 2 + 1, name='S2')"
    elif form == "first":
        lines.append(f"S1 = te.compute(({rows}, {b}), lambda i, j: te.{reducer}(A1[i, k0, j], axis=k0), name='S1')")
        last = f"S2 = te.compute(({rows}, {b}), lambda i, j: S1[i, j] - 1, name='S2')"
    else:
        lines.append(f"S1 = te.compute(({rows}, {a}), lambda i, j: te.{reducer}(A1[i, j, k1], axis=k1), name='S1')")
        last = f"S2 = te.compute(({rows}, {a}, {b}), lambda i, j, l: A1[i, j, l] - S1[i, j], name='S2')"
    names = "S1"
    if random.random() < 0.6:
        lines.append(last)
        names = random.choice(["S2", "S1, S2"])
    return [*lines, f"func = te.create_prim_func([A1, {names}])"]


def bare_program(random: Random) -> list[str]:
    """A script without blocks, whose loops may run in parallel though they must not, and whose indices may leave."""
    n, m = random.choice([4, 6, 8]), random.choice([3, 5, 8])
    word = random.choice(["range", "range", "parallel", "vectorized", "unroll"])
    inner = random.choice(["range", "range", "parallel", "vectorized"])
    i, j = ("j", "i") if random.random() < 0.2 else ("i", "j")
    shape = f"({n}, {m})" if (i, j) == ("i", "j") else f"({m}, {n})"
    offset = random.choice([0, 0, 0, 1, -1])
    statements = [
        f"B[{i}, {j}] = A[{i}, {j}] * 2",
        f"B[{i}, {j}] = B[{i}, {j}] + A[{i}, {j}]",
        f"C[i] = C[i] + A[{i}, {j}]",
        f"C[{random.choice(['0', 'i', 'i // 2'])}] = A[{i}, {j}]",
        f"B[{i}, {j}] = A[{i}, {j} + {offset}] if {random.choice(['0 < j', f'j < {m - 1}', '0 <= j'])} else 7",
        f"if {j} {random.choice(['<', '<='])} {m - 1}:\n            B[{i}, {j} + 1] = B[{i}, {j}] + 1",
        f"x: int32 = A[{i}, {j}]\n        B[{i}, {j}] = x * x",
    ]
    chosen = random.sample(statements, random.randint(1, 2))
    chosen.sort(key=lambda text: "x: int32" in text)
    body = "\n        ".join(chosen)
    text = (
        f'@script.function\ndef f(A: Buffer[{shape}, "int32"], B: Buffer[{shape}, "int32"], '
        f'C: Buffer[({max(n, m)},), "int32"]):\n'
        f"    for i in {word}({n}):\n      for j in {inner}({m}):\n        {body}\n"
    )
    return [f"func = parse_script({text!r})"]


def program_of(lines: Sequence[str]) -> PrimFunc:
    """The program that lines make."""
    names: dict[str, object] = {"te": te, "parse_script": parse_script}
    exec("\n".join(lines), names)
    func = names["func"]
    assert isinstance(func, PrimFunc)
    return func


# ---------------------------------------------------------------- moves


def random_move(random: Random, blocks: dict[str, int], loops: int) -> str:
    """A line that makes a random move: a primitive, or what no primitive would do."""
    if random.random() < 0.55 or not blocks:
        return random_step(random, blocks, loops)
    name = random.choice(list(blocks))
    place = random.randrange(max(blocks[name], 1))
    loop = f"loops({name!r})[{place}]"
    kind = random.choice(["annotate", "annotate_block", "bind", "scope", "edit_kind", "edit_note"])
    if kind in ("annotate", "annotate_block"):
        value = random.choice([True, 1, 2, 0, "x", [0, 1]])
        target = loop if kind == "annotate" else f"block({name!r})"
        return f"sch.annotate({target}, {random.choice(_NOTES)!r}, {value!r})"
    if kind == "bind":
        return f"sch.bind({loop}, {random.choice(_AXES)!r})"
    if kind == "scope":
        return f"sch.set_scope(block({name!r}), 0, {random.choice(['shared', 'local', 'global', 'warp'])!r})"
    if kind == "edit_kind":
        return f"edit_kind({name!r}, {place}, {random.choice(_KINDS)!r}, {random.choice(_AXES[:4])!r})"
    note, value = random.choice([("zigzag", True), ("software_pipeline", 2), ("reduction", True), ("zigzag", True)])
    if note == "software_pipeline":
        return f"edit_stages({name!r}, {place}, {random.choice([[0, 1], [1, 0], [0, 0, 1], [1, 1, 0], [0, -1]])})"
    return f"edit_note({name!r}, {place}, {note!r}, {value!r})"


class Mover:
    """A schedule with moves made on it; edits by hand begin a new schedule of what they made."""

    def __init__(self, func: PrimFunc) -> None:
        self.schedule = Schedule(func)
        self.edited = False

    def loops(self, name: str) -> list[LoopHandle]:
        """The loops around a block."""
        index = self.schedule._state.index
        return [LoopHandle(loop.var) for loop in index.loops_above(index.blocks[name])] if name in index.blocks else []

    def state(self) -> tuple[dict[str, int], int]:
        """The blocks with their numbers of loops, and the number of loops."""
        index = self.schedule._state.index
        return {b.name: len(index.loops_above(b)) for b in index.blocks.values() if b is not index.root}, len(
            index.loops
        )

    def apply(self, step: str) -> bool:
        """Whether a move was made; a refusal leaves the program as it was."""
        before = self.schedule.func
        names = {
            "sch": self.schedule,
            **helpers(self.schedule),
            "edit_kind": self._edit_kind,
            "edit_note": self._edit_note,
            "edit_stages": self._edit_stages,
        }
        try:
            exec(step, names)
        except (UserError, IndexError, TypeError, KeyError) as error:
            if isinstance(error, (TypeError, KeyError)) and "tile" not in step and "relayout" not in step:
                raise
            if not step.startswith("sch.tile") and self.schedule.func is not before:
                raise Failure(f"refused, but the program changed: {step}: {error}") from error
        return self.schedule.func is not before

    def _replace(self, old: For, new: Stmt) -> None:
        state = ScheduleState(self.schedule.func)
        state.replace(state.index.loops[old.var], new)
        self.edited = True
        self.schedule = Schedule(state.func)

    def _edit_kind(self, name: str, place: int, kind: str, axis: str) -> None:
        loop = self.schedule.loop(self.loops(name)[place])
        thread = axis if kind == "thread" else None
        self._replace(loop, loop.replace(kind=LoopKind(kind), thread=thread))

    def _edit_note(self, name: str, place: int, key: str, value: object) -> None:
        loop = self.schedule.loop(self.loops(name)[place])
        self._replace(loop, loop.replace(annotations={**loop.annotations, key: value}))

    def _edit_stages(self, name: str, place: int, stages: list[int]) -> None:
        """Notes of a software pipeline on a loop and on the loops directly in it."""
        loop = self.schedule.loop(self.loops(name)[place])
        parts = list(getattr(loop.body, "stmts", (loop.body,)))
        if len(parts) != len(stages) or not all(isinstance(part, For) for part in parts):
            raise IndexError
        noted = [p.replace(annotations={"software_pipeline_stage": s}) for p, s in zip(parts, stages, strict=True)]
        body = loop.body.replace(stmts=tuple(noted)) if len(parts) > 1 else noted[0]
        notes = {**loop.annotations, "software_pipeline": max(stages) + 1}
        self._replace(loop, loop.replace(body=body, annotations=notes))


# ---------------------------------------------------------------- cases


@dataclass
class Case:
    """A program and moves, as lines, and what came of them."""

    seed: int
    program: list[str]
    steps: list[str] = field(default_factory=list)

    def script(self, reason: str) -> str:
        """The case as text."""
        return "\n".join([f"# seed {self.seed}: {reason}", *self.program, *self.steps])


def generate(seed: int) -> tuple[Case, PrimFunc, Mover | PrimFunc]:
    """The case of a seed, its program, and the schedule (or the text's program) that is to be built."""
    random = Random(seed)
    family = random.choices(["te", "symbolic", "bare"], weights=[5, 3, 2])[0]
    lines = {
        "te": lambda: ProgramWriter(random).write(),
        "symbolic": lambda: symbolic_program(random),
        "bare": lambda: bare_program(random),
    }[family]()
    case = Case(seed, lines)
    func = program_of(lines)
    if family == "bare" and random.random() < 0.5:
        return case, func, func
    mover = Mover(func)
    for _ in range(random.choice([2, 4, 6, 9])):
        step = random_move(random, *mover.state())
        if mover.apply(step):
            case.steps.append(step)
    return case, func, mover


def arguments(func: PrimFunc, seed: int) -> list[Array]:
    """Small integers for every parameter; symbolic dimensions are small numbers, often zero."""
    random = np.random.default_rng(seed)
    dims: dict[Var, int | float | bool] = {dim: int(random.choice([0, 1, 3, 7])) for dim in func.symbolic_dims()}
    arrays: list[Array] = []
    for buffer in func.buffers:
        shape = [const_value(d) if const_value(d) is not None else int(evaluate(d, dims)) for d in buffer.shape]  # type: ignore[arg-type]
        low, high = -3, 4
        if buffer.name.startswith("I"):
            low, high = 0, int(buffer.name[1:].split("_")[0])
        arrays.append(random.integers(low, high, shape).astype(buffer.dtype.numpy()))
    return arrays


def _interpreted(func: PrimFunc, seed: int) -> list[Array]:
    arrays = arguments(func, seed)
    interpret(func, *arrays)
    return arrays


def _threads(func: PrimFunc) -> bool:
    return "thread_binding" in tw.script.print(func)


def admitted(case: Case, func: PrimFunc, made: Mover | PrimFunc) -> tuple[PrimFunc, list[list[Array]]] | None:
    """The program as it may be built with what it should compute; None if it is refused."""
    try:
        if isinstance(made, Mover):
            right = right_program(made.schedule.func)
            if not made.edited:
                require_right_schedule(made.schedule)
        else:
            right = right_program(made)
    except UserError:
        return None
    seeds = (case.seed, case.seed + 1, case.seed + 2) if func.symbolic_dims() else (case.seed,)
    try:
        expected = [_interpreted(func, seed) for seed in seeds]
    except InterpreterError as error:
        raise Failure(f"built, but the interpreter refuses the program: {error}") from error
    backwards = with_parallel_loops_backwards(right)
    for seed, wanted in zip(seeds, expected, strict=True):
        same(wanted, _interpreted(right, seed), "interpreted")
        same(wanted, _interpreted(backwards, seed), "interpreted with parallel loops backwards")
        if _threads(right):
            try:
                kernels = lower(right, Target("opencl"))
            except UserError:
                continue
            arrays = arguments(func, seed)
            dims = [int(arrays_shape) for arrays_shape in _dims(func, arrays)]
            interpret(kernels, *arrays, *dims)
            same(wanted, arrays, "as kernels")
    return right, expected


def _dims(func: PrimFunc, arrays: Sequence[Array]) -> list[int]:
    found: dict[Var, int] = {}
    for buffer, array in zip(func.buffers, arrays, strict=True):
        for dim, extent in zip(buffer.shape, array.shape, strict=True):
            if isinstance(dim, Var):
                found.setdefault(dim, extent)
    return [found[dim] for dim in func.symbolic_dims()]


Admitted = tuple[Case, PrimFunc, PrimFunc, list[list[Array]]]


def run_batch(seeds: Sequence[int]) -> tuple[Counter[str], list[tuple[Case, str]]]:
    """What came of the cases of seeds, counted, and those that failed with their reasons."""
    counts: Counter[str] = Counter()
    failures: list[tuple[Case, str]] = []
    good: list[Admitted] = []
    for seed in seeds:
        case = Case(seed, ["# the generator itself failed"])
        try:
            case, func, made = generate(seed)
            found = admitted(case, func, made)
        except Exception as error:
            failures.append((case, f"{type(error).__name__}: {error}"))
            continue
        counts["refused" if found is None else "built"] += 1
        if found is not None:
            good.append((case, func, *found))
    for group in _compiled(good):
        for (case, func, _, expected), module_name, module in group:
            try:
                _compare(case, func, expected, module, module_name)
            except Failure as error:
                failures.append((case, str(error)))
    return counts, failures


def _compiled(good: Sequence[Admitted]):  # type: ignore[no-untyped-def]
    """The cases with the modules that hold them: one for all, or each its own where one is refused later on."""
    named = {f"case{n}": right.replace(name=f"case{n}") for n, (_, _, right, _) in enumerate(good)}
    try:
        module = tw.build(IRModule(dict(named)))
        return [[(item, name, module) for item, name in zip(good, named, strict=True)]]
    except UserError:
        groups = []
        for item, (name, right) in zip(good, named.items(), strict=True):
            try:
                groups.append([(item, name, tw.build(right))])
            except UserError:
                continue
        return groups


def _compare(case: Case, func: PrimFunc, expected: list[list[Array]], module, name: str) -> None:  # type: ignore[no-untyped-def]
    for seed, wanted in enumerate(expected, case.seed):
        arrays = arguments(func, seed)
        module[name](*arrays)
        same(wanted, arrays, "compiled")


def main() -> int:
    """Run many random cases; the exit code says whether all were right or refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    failed: list[int] = []
    begin = time.monotonic()
    for start in range(options.seed, options.seed + options.count, BATCH):
        seeds = range(start, min(start + BATCH, options.seed + options.count))
        found, failures = run_batch(seeds)
        counts.update(found)
        for case, reason in failures:
            print(case.script(reason), flush=True)
            failed.append(case.seed)
        done = seeds[-1] + 1 - options.seed
        took = f"{time.monotonic() - begin:.0f} s"
        print(f"{done} programs, {dict(counts)}, {len(failed)} failures, {took}", file=sys.stderr, flush=True)
    print(json.dumps({"programs": options.count, "first_seed": options.seed, **counts, "failures": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
