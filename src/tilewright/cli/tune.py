"""`tilewright tune`: search for quicker schedules of a model's kernels, and keep what was measured."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path

from tilewright.cli.models import is_library
from tilewright.cli.options import add_model, compile_options, compile_target, natural_int, positive_int
from tilewright.cli.serial_line import add_serial
from tilewright.lower.database import default_database
from tilewright.rpc.pool import connect_tracker
from tilewright.rpc.security import given_token
from tilewright.rpc.tracker_link import DEFAULT_TRACKER_PORT, split_address
from tilewright.support.errors import UserError
from tilewright.support.progress import Progress as Line
from tilewright.support.text import human_rate, human_seconds, plural, shorten, table
from tilewright.target import Target
from tilewright.tune.algorithms import Algorithms
from tilewright.tune.board_measure import BoardMeasurer
from tilewright.tune.cluster import ClusterMeasurer
from tilewright.tune.measure import Measurer
from tilewright.tune.model import COST_MODELS, tune_model
from tilewright.tune.remote import RemoteMeasurer
from tilewright.tune.report import write_report
from tilewright.tune.task import Task
from tilewright.tune.tuner import SEARCHES, Progress, Report, totals

DESCRIPTION = """\
Measure schedules of a model's kernels on this machine (its GPU, a cluster, devices) and remember the quickest.

  tilewright tune resnet18.onnx --time 20m --threads 1
  tilewright tune resnet18.onnx --trials 1000 --report tuning.html
  tilewright tune resnet18.onnx --target cuda --precision float16 --time 3m
  tilewright tune resnet18-int8.onnx --target accel --trials 200
  tilewright tune resnet18.onnx --cluster head:6379
  tilewright tune resnet18.onnx --tracker farm:9190 --key rpi5 --devices 4 --target 'llvm -mcpu=cortex-a76'

What is measured goes to a database, which every later compilation of the same kernels asks. Ctrl-C ends tuning and
keeps everything; the same command goes on from there.
"""

_INTERRUPTED = 130
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model(parser)
    parser.add_argument(
        "--trials", type=natural_int, metavar="N", help="candidates to measure (default: 500, or no limit with --time)"
    )
    parser.add_argument("--time", type=duration, metavar="20m", help="stop after so long: 90, 90s, 20m or 1.5h")
    parser.add_argument(
        "--search", choices=SEARCHES, help="how to look for candidates (default: evolution, on GPUs bayesian)"
    )
    parser.add_argument(
        "--cost-model", choices=COST_MODELS, default="trees", help="what guides the search (default: trees)"
    )
    parser.add_argument("--seed", type=natural_int, default=0, metavar="N", help="seed of the search (default: 0)")
    parser.add_argument(
        "--no-in-graph",
        dest="in_graph",
        action="store_false",
        help="choose neither algorithms nor, at the end, schedules in the whole model",
    )
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="write a page with curves and gains")
    parser.add_argument(
        "--cluster", metavar="ADDRESS", help="measure on a Ray cluster; `local` is one of this machine's own"
    )
    parser.add_argument("--tracker", metavar="HOST:PORT", help="measure on devices that this tracker lends")
    parser.add_argument("--key", metavar="KEY", help="the kind of device to ask the tracker for")
    parser.add_argument("--token", help="the tracker's secret (default: the setting TILEWRIGHT_RPC_TOKEN)")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="a file that holds it, readable by you alone")
    add_serial(parser)
    parser.add_argument("--devices", type=positive_int, default=1, metavar="N", help="devices at once (default: 1)")


def duration(text: str) -> float:
    """Seconds of a text such as 90s, 20m or 1.5h, as an argument."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if found is None or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90s, 20m or 1.5h")
    return float(found[1]) * _UNITS[found[2]]


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if is_library(options.model):
        raise UserError(f"{options.model} is a compiled library: tuning needs the model it was made from")
    if (options.tracker is None) != (options.key is None):
        raise UserError("--tracker and --key go together", hint="--tracker HOST:PORT --key KEY")
    if sum(place is not None for place in (options.tracker, options.cluster, options.serial)) > 1:
        raise UserError("--tracker, --cluster and --serial are places to measure: say one")
    if options.report is not None and not options.report.absolute().parent.is_dir():
        raise UserError(f"the folder of {options.report} does not exist", where="--report", hint="make it first")
    seconds = options.time or 0.0
    trials = options.trials if options.trials is not None else 0 if seconds else 500
    database = options.database or default_database()
    watch = _Watch(trials, seconds)
    with _measurer(options) as measurer:
        report = tune_model(
            options.model,
            compile_target(options),
            options=compile_options(options),
            trials=trials,
            seconds=seconds,
            search=options.search,
            cost_model=options.cost_model,
            seed=options.seed,
            in_graph=options.in_graph,
            measurer=measurer,
            on_algorithms=watch.algorithms,
            on_tasks=watch.start,
            on_batch=watch.batch,
            on_exchange=watch.exchange,
        )
    watch.finish()
    print(summary(report))
    print(f"records are in {database}")
    if options.report is not None:
        write_report(options.report, f"Tuning of {options.model.name}", report)
        print(f"report: {options.report}")
    return _INTERRUPTED if report.stopped else 0


@contextmanager
def _measurer(options: argparse.Namespace) -> Iterator[Measurer | None]:
    if options.cluster is not None:
        with ClusterMeasurer(options.cluster) as on_cluster:
            yield on_cluster
        return
    if options.serial is not None:
        with BoardMeasurer(Target(compile_target(options)), serial=options.serial, baud=options.baud) as on_board:
            yield on_board
        return
    if options.tracker is None:
        yield None
        return
    host, port = split_address(options.tracker, DEFAULT_TRACKER_PORT)
    tracker = connect_tracker(host, port, token=given_token(options.token, options.token_file, "token"))
    with RemoteMeasurer(tracker, options.key, devices=options.devices) as made:
        yield made


class _Watch:
    """The live line: which task, what it has gained, what the model has gained, how long it will take."""

    def __init__(self, trials: int, seconds: float) -> None:
        self._trials = trials
        self._seconds = seconds
        self._begun = time.monotonic()
        self._done = 0
        self._line: Line | None = None

    def algorithms(self, step: str) -> None:
        """Show how algorithms are chosen."""
        if self._line is None:
            print("choosing algorithms in the whole model", flush=True)
            self._line = Line("choosing algorithms")
        self._line.step(step, count=0)

    def start(self, tasks: Sequence[Task]) -> None:
        """Say what will be tuned."""
        self.finish()
        if not tasks:
            raise UserError(
                "no kernel of this model has a choice to make", hint="where dimensions are open, fix them by --shape"
            )
        print(
            f"tuning {plural(len(tasks), 'kernel')} of {plural(sum(task.uses for task in tasks), 'step')}", flush=True
        )
        self._line = Line("tuning", self._trials or None)

    def batch(self, tasks: Sequence[Progress], item: Progress, trials: int) -> None:
        """Show what a batch brought."""
        assert self._line is not None
        self._line.step(self._detail(tasks, item, trials), count=trials - self._done)
        self._done = trials

    def exchange(self, task: Task, before: float, now: float) -> None:
        """Show what trying a kernel in the model brought."""
        assert self._line is not None
        times = f"{human_seconds(before)} -> {human_seconds(now)}"
        self._line.step(f"in the model: {times}  {shorten(task.label, 24)}", count=0)

    def _detail(self, tasks: Sequence[Progress], item: Progress, trials: int) -> str:
        before, after = totals(tasks)
        rate = human_rate(item.task.flops / item.best_seconds, "FLOP/s") if item.best_seconds < inf else "-"
        overall = f"model {before / after:.2f}x" if after else "model -"
        tried = sum(1 for other in tasks if other.trials)
        name = shorten(item.task.label, 24)
        return f"{overall}, {self._left(trials)} left, {tried}/{len(tasks)} tasks  {name} {item.gain:.2f}x {rate}"

    def _left(self, trials: int) -> str:
        spent = time.monotonic() - self._begun
        limits = []
        if self._trials and trials:
            limits.append(spent / trials * (self._trials - trials))
        if self._seconds:
            limits.append(self._seconds - spent)
        return human_seconds(max(0.0, min(limits))) if limits else "-"

    def finish(self) -> None:
        """Close the line."""
        if self._line is not None:
            self._line.finish()


def summary(report: Report) -> str:
    """What tuning brought: a line for each kernel, those that save most first, and the sum."""
    tried = [item for item in report.tasks if item.trials and item.default_seconds < inf]
    rows = []
    for item in sorted(tried, key=lambda item: (item.best_seconds - item.default_seconds) * item.task.uses):
        best = min(item.best_seconds, item.default_seconds)
        times = (human_seconds(item.default_seconds), human_seconds(best), f"{item.default_seconds / best:.2f}x")
        rate = human_rate(item.task.flops / best, "FLOP/s")
        name = [shorten(item.task.label, 40), item.task.sizes]
        rows.append([*name, str(item.task.uses), str(item.trials), *times, rate])
    header = ["kernel", "sizes", "uses", "trials", "before", "after", "speed-up", "rate"]
    lines = _algorithm_lines(report.algorithms) if report.algorithms is not None else []
    if rows:
        lines.append(table(header, rows))
    outside = max(0.0, report.seconds - report.measuring_seconds)
    spent = (
        f"{plural(report.trials, 'trial')} in {human_seconds(report.seconds)}, {human_seconds(outside)} of it searching"
    )
    if report.after:
        gain = f"{report.before / report.after:.2f}x"
        lines.append(f"tuned kernels: {human_seconds(report.before)} -> {human_seconds(report.after)} a run, {gain}")
    chosen = report.in_graph
    if chosen is not None:
        whole = " -> ".join(human_seconds(seconds) for seconds in (chosen.default, chosen.alone, chosen.together))
        lines.append(
            f"whole model: {whole} (default schedules, best kernels alone, chosen in the model: "
            f"{plural(chosen.exchanged, 'kernel')} exchanged, {plural(chosen.trials, 'trial')} in "
            f"{human_seconds(chosen.seconds)})"
        )
    elif report.not_in_graph:
        lines.append(f"not tried in the whole model: {report.not_in_graph}")
    if any(item.task.target.capabilities.counted_cycles for item in report.tasks):
        confirmed = sum(item.on_hardware for item in report.tasks)
        lines.append(
            "times are cycles of the accelerator at 100 MHz, counted by its cycle model; "
            f"{plural(confirmed, 'winner')} confirmed on the simulated hardware"
        )
    lines.append(spent + ("; stopped, the same command goes on from here" if report.stopped else ""))
    return "\n".join(lines)


def _algorithm_lines(chosen: Algorithms) -> list[str]:
    """What measuring algorithms changed: a line for each, and the whole model."""
    rows = []
    for item in chosen.changed:
        before, after = item.seconds[item.question.default], item.seconds[item.answer]
        times = (human_seconds(before), human_seconds(after), f"{before / after:.2f}x")
        rows.append([item.question.label, f"{item.question.default} -> {item.answer}", *times])
    lines = [table(["computation", "algorithm", "before", "after", "speed-up"], rows)] if rows else []
    whole = f"{human_seconds(chosen.estimated)} -> {human_seconds(chosen.chosen)}" if rows else "as estimated"
    lines.append(
        f"algorithms: {whole} ({len(rows)} of {plural(len(chosen.choices), 'choice')} changed, "
        f"{plural(chosen.trials, 'trial')} in {human_seconds(chosen.seconds)})"
    )
    return lines
