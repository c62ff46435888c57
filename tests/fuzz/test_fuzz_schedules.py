"""Random programs under random schedules compute the same, interpreted and compiled; failing cases become small."""

from __future__ import annotations

import pytest

from tests.fuzz import cases
from tests.fuzz.cases import Case, failure_of, generate, report, run_batch, shrink
from tests.grids import rare
from tilewright.tir.function import PrimFunc

PROGRAMS = 300
BATCHES = 12


@pytest.mark.parametrize("batch", [*range(4), *rare(*range(4, BATCHES))])
def test_random_schedules_compute_the_same(batch: int) -> None:
    size = PROGRAMS // BATCHES
    failures = run_batch(range(batch * size, (batch + 1) * size))
    assert not failures, report(failures)


def test_cases_are_repeatable_and_various() -> None:
    assert generate(7) == generate(7)
    text = "\n".join(line for seed in range(150) for case in [generate(seed)] for line in (*case.program, *case.steps))
    for word in (
        "te.sum",
        "te.max",
        "te.argmax",
        "te.select",
        "compute_at",
        "rfactor",
        "vectorize",
        "parallel",
        "read_at",
    ):
        assert word in text


def test_failing_cases_shrink_and_print_as_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pretended bug in vectorize: the case shrinks to the one step that shows it."""
    plain = cases.compile_all

    def broken(funcs: list[PrimFunc]) -> list[list[cases.Array]]:
        results = plain(funcs)
        for func, arrays in zip(funcs, results, strict=True):
            if "vectorized" in str(func.body):
                arrays[-1].flat[0] += 1
        return results

    monkeypatch.setattr(cases, "compile_all", broken)
    program = [
        "A1 = te.placeholder((6, 8), 'int32', name='A1')",
        "S1 = te.compute((6, 8), lambda i, j: A1[i, j] + 1, name='S1')",
        "S2 = te.compute((6, 8), lambda i, j: S1[i, j] * 2, name='S2')",
        "func = te.create_prim_func([A1, S2])",
    ]
    steps = ["sch.split(loops('S2')[0], [None, 2])", "sch.parallel(loops('S1')[0])", "sch.vectorize(loops('S2')[-1])"]
    case = Case(0, program, [*steps, "sch.unroll(loops('S2')[0])"])
    assert "compiled: parameter 1 differs" in str(failure_of(case))
    small = shrink(case)
    assert small.steps == ["sch.vectorize(loops('S2')[-1])"]
    text = report([(case, "pretended")])
    assert "sch.vectorize(loops('S2')[-1])" in text and "split" not in text and "te.placeholder" in text
    monkeypatch.undo()
    names: dict[str, object] = {}
    exec(text, names)
    assert "sch" in names
