"""Hardware and schedules searched together: what is within a budget, what dominates what, and that cycles are real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.integration.test_accel_models import SMALL, _network
from tilewright.accel.config import AccelConfig
from tilewright.cli.main import main
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tune.accel_explore import Budget, Effort, Exploration, Point, exact, explore, front, neighbour
from tilewright.tune.accel_page import exploration_html, exploration_plot, exploration_table
from tilewright.tune.accel_workload import LayerShape, Workload, compiled, counted

START = AccelConfig.from_text(Target(SMALL).arch)
LAYERS = "8x8x16-32x3*2,8x8x32-16x1/2"
EFFORT = Effort(estimates=12, configurations=3, schedules=1)


@pytest.fixture(scope="module")
def found() -> Exploration:
    return explore(Workload.of_layers(LAYERS), START, effort=EFFORT)


def test_a_layer_is_read_and_written() -> None:
    layer = LayerShape.parse(" 56x56x64-128x3/2*4 ")
    assert layer == LayerShape(56, 56, 64, 128, 3, 2, 4) and LayerShape.parse(str(layer)) == layer
    assert LayerShape.parse("7x9x8-16x1") == LayerShape(7, 9, 8, 16, 1)


@pytest.mark.parametrize("text", ["", "56x56x64", "0x8x16-16x3", "8x8x16-16x3/0", "8x8x16-16x3 4"])
def test_what_is_no_layer_is_an_error(text: str) -> None:
    with pytest.raises(UserError, match="no layer"):
        LayerShape.parse(text)


def test_something_smaller_or_quicker_is_found_within_the_budget(found: Exploration) -> None:
    budget = Budget.of(START)
    assert found.dominating, "the configuration has memory that these layers do not need"
    assert all(budget.allows(point.config) for point in found.front)
    best = found.dominating[0]
    assert best.cycles <= found.start.cycles and best.config.on_chip_bytes <= START.on_chip_bytes
    assert not any(other.dominates(point) for other in found.front for point in found.front)


def test_the_cycles_are_those_of_the_schedules_that_it_names(found: Exploration) -> None:
    best = found.dominating[0]
    workload = Workload.of_layers(LAYERS)
    total = 0
    for part in workload.programs(best.config):
        total += counted(compiled(part.func, best.config, best.schedules[part.name])).total * part.uses
    assert total == best.cycles


def test_a_budget_below_the_beginning_is_kept() -> None:
    budget = Budget(START.multipliers, START.on_chip_bytes // 2, START.bus_bytes)
    found = explore(Workload.of_layers(LAYERS), START, budget, EFFORT)
    assert found.front and all(point.config.on_chip_bytes <= START.on_chip_bytes // 2 for point in found.front)
    assert found.start.config == START


def test_only_what_costs_nothing_more_dominates() -> None:
    small = replace(START, wgt_bytes=START.wgt_bytes // 2)
    equal, quicker, slower = Point(START, 100), Point(START, 90), Point(small, 110)
    assert quicker.dominates(equal) and not equal.dominates(equal)
    assert not slower.dominates(equal) and not equal.dominates(slower)
    assert Point(small, 100).dominates(equal)
    assert front([equal, quicker, slower, Point(START, 90)]) == [slower, quicker]


def test_neighbours_are_configurations_or_none() -> None:
    random = Random(1)
    made = [neighbour(START, random) for _ in range(60)]
    assert None in made and len({config for config in made if config is not None}) > 10


def test_a_workload_that_does_not_fit_is_an_error_or_no_point() -> None:
    tiny = replace(START, acc_bytes=64, out_bytes=16, inp_bytes=16, wgt_bytes=128)
    workload = Workload.of_layers("64x64x64-64x3")
    assert exact(workload, tiny, 1) is None
    with pytest.raises(UserError, match="does not run"):
        explore(workload, tiny, effort=EFFORT)


def test_the_layers_of_a_model_are_a_workload() -> None:
    parts = Workload.of_model(_network()).programs(START)
    assert len(parts) >= 5 and all(part.uses == 1 for part in parts)
    assert exact(Workload.of_model(_network()), START, 1) is not None
    other = replace(START, wgt_bytes=START.wgt_bytes // 2)
    workload = Workload.of_model(_network())
    assert workload.programs(START) is workload.programs(other), "sizes of memories change no program"


def test_the_page_has_table_and_plot(found: Exploration) -> None:
    text, page, drawing = exploration_table(found), exploration_html(found, "a < b"), exploration_plot(found, "a < b")
    assert text.count("\n") == 1 + len({*found.front, found.start}) and "<" in text
    assert "a &lt; b" in page and "<svg" in page and found.dominating[0].config.to_text() in page
    assert drawing.count("<circle") >= len(found.points) and drawing.startswith("<svg")


def test_the_command_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "start.json"
    config.write_text(START.to_json())
    report = tmp_path / "found.json"
    effort = ["--estimates", "6", "--configurations", "2", "--schedules", "1"]
    layers = ["--layers", "8x8x16-16x1"]
    assert main(["accel", "explore", *layers, "--config", str(config), *effort, "--report", str(report)]) == 0
    data = json.loads(report.read_text())
    assert data["start"]["config"] == START.to_text() and data["front"]
    assert "cycles" in capsys.readouterr().out
    assert main(["accel", "explore"]) != 0
    assert main(["accel", "explore", *layers, "--report", str(tmp_path / "found.pdf")]) != 0
    assert main(["accel", "explore", "--layers", "8x8"]) != 0
