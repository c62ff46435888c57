"""`tilewright accel explore`: configurations and schedules searched together, within a budget."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tilewright.accel.config import AccelConfig
from tilewright.cli.options import natural_int, positive_int
from tilewright.support.errors import UserError
from tilewright.support.files import replacing
from tilewright.support.progress import Progress
from tilewright.support.text import human_count
from tilewright.tune.accel_explore import Budget, Effort, Exploration, Point, explore
from tilewright.tune.accel_page import exploration_html, exploration_json, exploration_plot, exploration_table
from tilewright.tune.accel_workload import Workload

_EFFORT = Effort()


def add_action(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the action and its arguments."""
    parser = actions.add_parser("explore", help="search configurations and schedules together, within a budget")
    parser.add_argument("model", type=Path, nargs="?", metavar="MODEL", help="a quantised model in fixed point")
    parser.add_argument(
        "--layers",
        metavar="56x56x64-128x3/2*4,...",
        help="layers instead: height x width x channels - channels of results x kernel / stride * uses",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="where to begin, as JSON (default: the default)")
    parser.add_argument(
        "--multipliers", type=positive_int, metavar="N", help="at most (default: those of the beginning)"
    )
    parser.add_argument("--memory", type=positive_int, metavar="BYTES", help="bytes on chip at most (likewise)")
    parser.add_argument("--bus", type=positive_int, metavar="BYTES", help="bytes of the bus at most (likewise)")
    parser.add_argument(
        "--estimates",
        type=positive_int,
        default=_EFFORT.estimates,
        metavar="N",
        help=f"configurations for the analytic model (default: {_EFFORT.estimates})",
    )
    parser.add_argument(
        "--configurations",
        type=positive_int,
        default=_EFFORT.configurations,
        metavar="N",
        help=f"configurations to compile for (default: {_EFFORT.configurations})",
    )
    parser.add_argument(
        "--schedules",
        type=positive_int,
        default=_EFFORT.schedules,
        metavar="N",
        help=f"schedules of a layer to compile for each (default: {_EFFORT.schedules})",
    )
    parser.add_argument("--seed", type=natural_int, default=0, metavar="N", help="seed of the search (default: 0)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="a page (.html), a plot (.svg) or data (.json)")


def execute(options: argparse.Namespace) -> None:
    """Run the action."""
    if (options.model is None) == (options.layers is None):
        raise UserError("say what the accelerator is to run: a model, or --layers")
    workload = Workload.of_layers(options.layers) if options.model is None else Workload.of_model(options.model)
    start = AccelConfig() if options.config is None else AccelConfig.read(options.config)
    usual = Budget.of(start)
    budget = Budget(
        options.multipliers or usual.multipliers, options.memory or usual.on_chip_bytes, options.bus or usual.bus_bytes
    )
    effort = Effort(options.estimates, options.configurations, options.schedules, options.seed)
    if options.report is not None:
        _check_report(options.report)
    line = Progress("exploring", options.configurations + 1)

    def watch(point: Point) -> None:
        line.step(f"{human_count(point.cycles)} cycles, {point.config.on_chip_bytes >> 10} KB on chip")

    found = explore(workload, start, budget, effort, watch)
    line.finish()
    print(exploration_table(found))
    print(_summary(found))
    if options.report is not None:
        _write(options.report, found, f"Accelerators for {options.model.name if options.model else options.layers}")
        print(f"report: {options.report}")


def _check_report(path: Path) -> None:
    if path.suffix not in (".html", ".svg", ".json"):
        raise UserError(f"a report is .html, .svg or .json, not {path.name}", where="--report")
    if not path.absolute().parent.is_dir():
        raise UserError(f"the folder of {path} does not exist", where="--report", hint="make it first")


def _summary(found: Exploration) -> str:
    if not found.dominating:
        return "nothing found dominates the beginning"
    best = found.dominating[0]
    cycles = best.cycles / found.start.cycles - 1
    memory = best.config.on_chip_bytes / found.start.config.on_chip_bytes - 1
    return f"{best.config.to_text()} dominates the beginning: {cycles:+.1%} cycles, {memory:+.1%} bytes on chip"


def _write(path: Path, found: Exploration, title: str) -> None:
    texts = {
        ".html": lambda: exploration_html(found, title),
        ".svg": lambda: exploration_plot(found, title),
        ".json": lambda: json.dumps(exploration_json(found), indent=1) + "\n",
    }
    with replacing(path) as temporary:
        temporary.write_text(texts[path.suffix](), encoding="utf-8")
