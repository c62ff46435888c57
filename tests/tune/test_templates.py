"""Templates of one's own and the space by rule: their programs are right, tunable, and found in a database."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.tune import toy
from tilewright import te
from tilewright.ir.expr import Var
from tilewright.lower.database import Database
from tilewright.lower.records import Record
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.te.schedule import Schedule
from tilewright.te.tensor import Tensor
from tilewright.tir.interpreter import interpret
from tilewright.topi.schedule.choices import Choices
from tilewright.tune.builder import build_candidate
from tilewright.tune.cost import RandomModel
from tilewright.tune.measure import LocalMeasurer
from tilewright.tune.rules import tile_by_rule, tiled_contraction
from tilewright.tune.runner import Budget
from tilewright.tune.templates import Config, factorizations, template
from tilewright.tune.tuner import TuneOptions, tune

HOST = Target("native").replace(cores=1)


@template
def matmul(cfg: Config, size: int) -> tuple[Schedule, Sequence[Tensor | Var]]:
    a, b = te.placeholder((size, size), name="a"), te.placeholder((size, size), name="b")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    s = te.create_schedule(c.op)
    y, x = c.op.axis
    (reduced,) = c.op.reduce_axis
    cfg.define_split("y", y, parts=2, most=8)
    cfg.define_split("x", x, parts=2, keep=lambda sizes: sizes[1] >= 4)
    cfg.define_reorder("order", 2)
    cfg.define_knob("vectors", [True, False])
    yo, yi = cfg.split("y").apply(s, c, y)
    xo, xi = cfg.split("x").apply(s, c, x)
    cfg.order("order").apply(s, c, [yo, xo])
    s[c].reorder(reduced, yi, xi)
    if cfg["vectors"]:
        s[c].vectorize(xi)
    return s, [a, b, c]


def test_factorizations() -> None:
    assert list(factorizations(4, 2)) == [(4, 1), (2, 2), (1, 4)]
    assert len(list(factorizations(512, 4))) == 220
    assert list(factorizations(7, 1)) == [(7,)]


def test_the_knobs_are_the_space() -> None:
    space = matmul.task(16, target=HOST).space()
    options = {question.name: question.options for question in space.open_questions}
    assert options["y"] == ((16, 1), (8, 2), (4, 4), (2, 8))
    assert options["x"] == ((4, 4), (2, 8), (1, 16))
    assert options["order"] == ((0, 1), (1, 0))
    assert options["vectors"] == (True, False)
    assert space.default["y"] == (2, 8) and space.default["order"] == (0, 1)


def test_every_point_computes_the_product() -> None:
    space, random = matmul.task(8, target=HOST).space(), Random(0)
    a, b = np.random.default_rng(0).standard_normal((2, 8, 8)).astype(np.float32)
    for _ in range(8):
        out = np.zeros((8, 8), np.float32)
        interpret(space.schedule(Choices(space.random(random))), a, b, out)
        np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_template_is_tuned_and_built_from_the_database(tmp_path: Path) -> None:
    task = matmul.task(32, target=HOST)
    options = TuneOptions(trials=8, batch=4, model=RandomModel)
    budget = Budget(sample_seconds=1e-4, samples=2)
    with Database(tmp_path / "t.db") as database, LocalMeasurer(1, budget=budget) as measurer:
        report = tune([task], database, options, measurer=measurer)
        assert report.trials == 8 and not report.tasks[0].failures
        database.add([Record(task.key, str(task.target), {"y": (4, 8), "vectors": True}, 1e-9, None, 1.0)])
        f = matmul.build(32, target=HOST, database=database)
    a, b = np.random.default_rng(0).standard_normal((2, 32, 32)).astype(np.float32)
    out = np.zeros((32, 32), np.float32)
    f(a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda cfg: cfg.define_knob("a", []), "no options"),
        (lambda cfg: cfg.define_split("a", 0, 2), "constant extent"),
        (lambda cfg: cfg.define_split("a", 8, 2, keep=lambda sizes: False), "no option left"),
        (lambda cfg: cfg.define_reorder("a", 3, keep=lambda order: False), "no option left"),
        (lambda cfg: cfg.define_reorder("a", 8), "too many options"),
        (lambda cfg: cfg["missing"], "defined no 'missing'"),
        (lambda cfg: (cfg.define_knob("a", [1]), cfg.split("a")), "is no split"),
    ],
)
def test_messages(define: object, message: str) -> None:
    assert callable(define)
    with pytest.raises(UserError, match=message):
        define(Config(Choices()))


def test_the_rule_tiles_any_contraction() -> None:
    func, random = toy.matmul(), Random(1)
    target = toy.TARGET.replace(cores=4)
    task = tiled_contraction(func, target)
    space = task.space()
    assert {question.name for question in space.open_questions} == {
        *("spatial0", "spatial1", "reduce0", "unroll", "parallel")
    }
    a, b = np.random.default_rng(0).standard_normal((2, toy.SIZE, toy.SIZE)).astype(np.float32)
    for point in (space.default, space.random(random)):
        out = np.zeros_like(a)
        interpret(tile_by_rule(func, target, Choices(point)), a, b, out)
        np.testing.assert_allclose(out, a @ b, rtol=1e-3, atol=1e-4)
    assert build_candidate(tiled_contraction(func, HOST).request({})).code


def test_the_rule_wants_one_reduction() -> None:
    a = te.placeholder((8, 8), "float32", "a")
    plain = te.compute((8, 8), lambda i, j: a[i, j] + 1.0, "b")
    func = te.create_schedule(plain.op).func([a, plain])
    with pytest.raises(UserError, match="one reduction"):
        tiled_contraction(func, HOST)


@pytest.mark.slow
def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "tuning.md"
    (code,) = [
        part for part in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if "@tw.tune.temp" in part
    ]
    names: dict[str, object] = {}
    exec(compile(code.replace("128", "32").replace("trials=16", "trials=4"), str(page), "exec"), names)
    f = names["f"]
    assert callable(f)
    a, b = np.random.default_rng(0).standard_normal((2, 32, 32)).astype(np.float32)
    out = np.zeros((32, 32), np.float32)
    f(a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)
