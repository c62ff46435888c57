"""Compiling with a database: tuned answers reach the kernels and every cache key, and never change results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.integration.small_models import classifier
from tests.topi.scheduling import schedule_cpu
from tilewright.compiler import Compilation
from tilewright.graph.choices import stored_answer
from tilewright.ir.structural import structural_key
from tilewright.lower.database import Database
from tilewright.lower.records import Record, Selection
from tilewright.support import extensions
from tilewright.support.errors import UserError
from tilewright.topi.schedule.choices import Answer, Choices, Question

IMAGE = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)


def _last(question: Question) -> Answer:
    return next(
        option for option in reversed(question.options) if option != question.default or len(question.options) == 1
    )


@pytest.fixture
def model() -> bytes:
    return bytes(classifier().SerializeToString())


@pytest.fixture
def database(model: bytes, tmp_path: Path) -> Path:
    """Other answers than the analytic ones for every kernel that asks anything."""
    plain = Compilation(model, threads=1)
    path = tmp_path / "tuned.db"
    with Database(path) as made:
        for kernel in plain.kernels:
            asked = Choices(answer=_last)
            schedule_cpu(kernel.func, plain.target, asked)
            if any(len(question.options) > 1 for question in asked.asked.values()):
                made.add([Record(kernel.symbol, str(plain.target), asked.answers, 1.0, None, 2.0)])
        assert made.count() > 1
    return path


def test_answers_reach_the_kernels_and_results_stay(model: bytes, database: Path) -> None:
    plain, tuned = Compilation(model, threads=1), Compilation(model, threads=1, database=database)
    changed = [
        kernel.symbol
        for before, kernel in zip(plain.kernels, tuned.kernels, strict=True)
        if structural_key(plain.scheduled(before)) != structural_key(tuned.scheduled(kernel))
    ]
    with Database(database) as opened:
        assert set(changed) == {record.task for record in opened.records()}
    expected, got = plain.executable()(IMAGE), tuned.executable()(IMAGE)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_every_way_to_name_a_database(model: bytes, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(place: Database | str | Path | None = None) -> set[str]:
        found = Compilation(model, threads=1, database=place).kernels
        return {kernel.symbol for kernel in found if kernel.answers}

    named = answers(str(database))
    assert named and not answers()
    with Database(database) as opened:
        assert answers(opened) == named
    monkeypatch.setenv("TILEWRIGHT_DATABASE", str(database))
    assert answers() == named
    monkeypatch.setenv("TILEWRIGHT_DATABASE", str(database.with_name("nothing.db")))
    assert not answers()
    with pytest.raises(UserError, match="no such database"):
        answers(database.with_name("nothing.db"))
    with pytest.raises(UserError, match="a database is a path"):
        tw.compile(model, database=3)  # type: ignore[arg-type]


def test_the_key_of_a_model_knows_its_answers(
    model: bytes, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_VERIFY", "0")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    # Other tests register operators of their own in this process, which would keep all models out of the cache.
    monkeypatch.setattr(extensions, "_foreign", [])
    plain = Compilation(model, threads=1).request.key
    tuned = Compilation(model, threads=1, database=database).request.key
    # Measured for one core: another number of them knows nothing.
    assert Compilation(model, threads=3).request.key == Compilation(model, threads=3, database=database).request.key
    with Database(database) as opened:
        record = next(iter(opened.records()))
        opened.add([Record(record.task, record.target, {"vector": 16}, 0.5, None, 2.0)])
    again = Compilation(model, threads=1, database=database).request.key
    assert len({plain, tuned, again}) == 3 and None not in {plain, tuned, again}


def test_the_key_of_a_model_knows_its_algorithms(model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_VERIFY", "0")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(extensions, "_foreign", [])
    plain = Compilation(model, threads=1)
    (question,) = plain.questions
    assert question.default == "together"
    with Database(tmp_path / "tuned.db") as database:
        database.select([Selection(question.key, str(plain.target), {})])
        expected = tw.compile(model, threads=1, database=database)
        database.select([Selection(question.key, str(plain.target), stored_answer("apart"))])
        got = tw.compile(model, threads=1, database=database)
        keys = {item.request.key for item in (plain, Compilation(model, threads=1, database=database))}
    assert len(keys) == 2 and None not in keys
    assert len(got.model.steps) == len(expected.model.steps) + 1, "not what the cache holds of other algorithms"
    np.testing.assert_allclose(got(IMAGE), expected(IMAGE), rtol=1e-5, atol=1e-6)


def test_what_hardly_gains_is_left_to_the_template(tmp_path: Path) -> None:
    with Database(tmp_path / "tuned.db") as database:
        database.add(
            [
                Record("even", "llvm", {"tile_rows": 4}, 0.99, None, 1.0),
                Record("quick", "llvm", {"tile_rows": 4}, 0.9, None, 1.0),
                Record("quick", "llvm", {"tile_rows": 8}, 0.5, None, 1.0),
                Record("quick", "llvm", {"tile_rows": 2}, None, "crash", 1.0),
                Record("quick", "other", {"tile_rows": 3}, 0.1, None, 1.0),
            ]
        )
        assert database.answers("llvm") == {"quick": {"tile_rows": 8}}
