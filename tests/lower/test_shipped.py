"""Records that come with Tilewright: found by processor and number of cores; the user's own database goes before."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from bench import zoo
from bench.gpu_layers import LAYERS, function_of
from bench.gpu_records import shape_of
from tests.integration.small_models import classifier
from tests.lower.test_tuned import _last
from tests.topi.scheduling import schedule_cpu, schedule_gpu
from tilewright.compiler import Compilation
from tilewright.graph.choices import stored_answer
from tilewright.lower import shipped
from tilewright.lower.database import Database
from tilewright.lower.records import Record, Selection
from tilewright.lower.shipped import add_shipped, shipped_answers
from tilewright.support.errors import CompilerBug, UserError
from tilewright.target import Target
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.gpu.register_tiles import Tile
from tilewright.topi.schedule.gpu.tensor_core import WarpTile
from tilewright.topi.schedule.gpu.tile_choice import ranked_tiles
from tilewright.topi.schedule.gpu.warp_groups import GroupTile
from tilewright.tune.model import tune_model

SOME = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512 -num-cores=2")
ANSWERS = {"tw_b": {"tile": (4, 16), "unroll": True}, "tw_a": {"rows": 7}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "tuned")
    shipped._read.cache_clear()
    return tmp_path / "tuned"


def test_answers_are_found_by_processor_and_cores(folder: Path) -> None:
    assert shipped_answers(SOME) == {}
    shipped._read.cache_clear()
    path = add_shipped(SOME, ANSWERS)
    assert path.name == "x86_64-skylake-avx512-512.json"
    assert shipped_answers(SOME) == ANSWERS
    # Another machine with the same processor, but neither another processor nor another number of cores.
    assert shipped_answers(SOME.replace(l3_bytes=1 << 20)) == ANSWERS
    assert shipped_answers(SOME.replace(cores=1)) == {}
    assert shipped_answers(Target("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4 -num-cores=2")) == {}
    assert shipped_answers(Target("cuda -arch=sm_90")) == {}
    add_shipped(SOME.replace(cores=1), {"tw_a": {"rows": 2}})
    assert shipped_answers(SOME) == ANSWERS
    assert shipped_answers(SOME.replace(cores=1)) == {"tw_a": {"rows": 2}}


def test_answers_of_a_gpu(folder: Path) -> None:
    hopper = Target("cuda -arch=sm_90a -num-cores=132")
    assert add_shipped(hopper, ANSWERS).name == "cuda-sm_90a.json"
    assert shipped_answers(hopper) == ANSWERS
    assert shipped_answers(hopper.replace(cores=114)) == shipped_answers(Target("cuda -arch=sm_80")) == {}


def test_what_is_shipped_for_hopper() -> None:
    """A measured tile is taken though the model would not have proposed it among its options."""
    target = Target("cuda -arch=sm_90a -num-cores=132")
    answers = shipped_answers(target)
    assert len(answers) > 5
    for found in answers.values():
        for name, tile in found.items():
            # Tiles that a template would not know any more are of no use.
            kind: Any = {"tile": Tile, "warp_tile": WarpTile, "group_tile": GroupTile}.get(name)
            assert kind is None or (isinstance(tile, tuple) and min(tile, default=1) > 0)
            # The last numbers are left out where they are the usual ones.
            assert kind is None or not tile or tile == astuple(kind(*tile))[: len(tile)]
    layer = function_of(next(layer for layer in LAYERS if layer.name == "resnet18/3x3s1_256-256@14"))
    plain = Choices()
    schedule_gpu(layer, target, plain)
    (shape,) = {shape_of(layer, target)}
    assert shape is not None
    unusual = ranked_tiles(shape, target)[-1].answer
    assert unusual not in plain.asked["tile"].options
    given = Choices(given={"tile": unusual})
    schedule_gpu(layer, target, given)
    assert given.answers["tile"] == unusual


def test_what_is_shipped_for_emerald_rapids_is_used() -> None:
    """Each record is of what one of the ten models has today; of a kernel, it is taken whole and is not the default."""
    target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=emeraldrapids -num-cores=1")
    left = dict(shipped_answers(target))
    assert left
    for name in ("resnet18", "mobilenet_v2", "dcgan", *zoo.names()):
        if not left:
            break
        compilation = Compilation(zoo.path(name), target, threads=1, database="shipped")
        for question in compilation.questions:
            left.pop(question.key, None)
        for kernel in compilation.kernels:
            if (wanted := left.pop(kernel.symbol, None)) is None:
                continue
            given, plain = Choices(given=wanted), Choices()
            schedule_cpu(kernel.func, target, given)
            schedule_cpu(kernel.func, target, plain)
            assert {name: given.answers.get(name) for name in wanted} == wanted, kernel.symbol
            assert given.answers != plain.answers, kernel.symbol
    assert not left, "records of what no model has"


def test_a_broken_file_is_told(folder: Path) -> None:
    path = add_shipped(SOME, ANSWERS)
    path.write_text('{"2": 3}', encoding="utf-8")
    shipped._read.cache_clear()
    with pytest.raises(CompilerBug, match="cannot be read"):
        shipped_answers(SOME)


def test_compilation_asks_the_user_first(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bytes(classifier().SerializeToString())
    plain = Compilation(model, threads=1)
    found = {}
    for kernel in plain.kernels:
        asked = Choices(answer=_last)
        schedule_cpu(kernel.func, plain.target, asked)
        if any(len(question.options) > 1 for question in asked.asked.values()):
            found[kernel.symbol] = dict(asked.answers)
    add_shipped(plain.target, found)

    def answers(database: str | None = None) -> dict[str, object]:
        kernels = Compilation(model, threads=1, database=database).kernels
        return {kernel.symbol: dict(kernel.answers) for kernel in kernels if kernel.answers}

    own = tmp_path / "own.db"
    monkeypatch.setenv("TILEWRIGHT_DATABASE", str(own))
    assert answers() == answers("shipped") == found
    first = next(iter(found))
    with Database(own) as database:
        database.add([Record(first, str(plain.target), {"vector": 1}, 1.0, None, 2.0)])
    assert answers() == {**found, first: {"vector": 1}}
    assert answers("shipped") == found
    assert answers(str(own)) == {first: {"vector": 1}}
    monkeypatch.setenv("TILEWRIGHT_DATABASE", "none")
    assert answers() == {}


def test_algorithms_are_shipped_like_schedules(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bytes(classifier().SerializeToString())
    plain = Compilation(model, threads=1)
    (question,) = plain.questions
    add_shipped(plain.target, {question.key: stored_answer("apart")})

    def count() -> int:
        return len(Compilation(model, threads=1).kernels)

    own = tmp_path / "own.db"
    monkeypatch.setenv("TILEWRIGHT_DATABASE", str(own))
    assert count() == len(plain.kernels) + 1
    # Measured by the user, and as estimated.
    with Database(own) as database:
        database.select([Selection(question.key, str(plain.target), {})])
    assert count() == len(plain.kernels)


def test_shipped_records_are_not_tuned_into(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="read only"):
        tune_model(bytes(classifier().SerializeToString()), threads=1, database="shipped")
