"""Illegal moves mixed in: what is left is refused, or computes what the program did; and the campaign has teeth."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz import illegal
from tests.fuzz.illegal import generate, run_batch
from tilewright.tir import admission
from tilewright.tir.function import PrimFunc

BATCHES = 4


@pytest.mark.parametrize("batch", range(BATCHES))
def test_illegal_moves_are_refused_or_right(batch: int) -> None:
    counts, failures = run_batch(range(batch * 20, (batch + 1) * 20))
    assert not failures, "\n\n".join(case.script(reason) for case, reason in failures)
    assert counts["built"] and counts["refused"]


def test_cases_are_repeatable_and_various() -> None:
    cases = [generate(seed)[0] for seed in range(80)]
    assert cases[7] == generate(7)[0]
    text = "\n".join(line for case in cases for line in (*case.program, *case.steps))
    for word in ("edit_kind", "edit_note", "parse_script", "te.var('m')", "sch.bind", "sch.set_scope", "sch.annotate"):
        assert word in text, word


def test_without_the_proof_programs_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were programs not proven when they are built, the same campaign would find wrong answers."""

    def trusting(func: PrimFunc) -> None:
        return None

    monkeypatch.setattr(admission, "require_legal", trusting)
    monkeypatch.setattr(illegal, "require_right_schedule", lambda schedule: None)
    found: Counter[str] = Counter()
    for start in (20, 60):
        _, failures = run_batch(range(start, start + 20))
        found.update(reason.split(":")[0] for _, reason in failures)
    assert sum(found.values()) >= 2, found
