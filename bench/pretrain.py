"""The cost model that is shipped: `python -m bench.pretrain`.

    python -m bench.pretrain                     # measure what is not measured yet, learn, write
    python -m bench.pretrain --seconds 80        # as much measuring as fits; the same command goes on from there
    python -m bench.pretrain --learn-only        # from what is measured
    python -m bench.pretrain --learn-only --also tuned.db    # and from what tuning measured of the same kernels

Random schedules of every kernel of the ten models are measured for one core (`bench/tuning_runs.py`), and boosted trees
learn to order them; `tilewright.tune.forest` reads them back. The kernels that `bench.tuning` compares searches on are
left out: for these the shipped model is asked before anything of them was measured, as for a user's own kernels. What
`bench.tuning` knows of one of them goes to the tests, so that they can say whether the model is of use.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench import harness, zoo
from bench.tuning import MODELS, SEARCHES, choose_tasks, measured, programs_of
from bench.tuning_quality import Programs, learned_from, quality
from bench.tuning_runs import jobs_of, run_all
from tilewright.compiler import Compilation
from tilewright.lower.database import Database
from tilewright.support.text import table
from tilewright.tune.cost import TreeModel
from tilewright.tune.forest import SHIPPED, Forest
from tilewright.tune.task import Task, extract_tasks

HELD_OUT = Path(__file__).parents[1] / "tests" / "tune" / "held_out.npz"
ROUNDS, DEPTH, RATE = 400, 5, 0.08
"""Many small steps of shallow trees: these order kernels that they have not seen better than fewer deep ones do."""
_FEWEST, _KEPT = 8, 256
"""Programs that a kernel needs to be learned from, and that are kept for the tests."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    harness.say(harness.machine_line())
    tasks = all_tasks(options.models.split(","))
    jobs = list(jobs_of(tasks, {"random": SEARCHES["random"]}, 1, options.trials))
    options.database.parent.mkdir(parents=True, exist_ok=True)
    if not options.learn_only:
        runs = run_all(jobs, options.database, options.processes, options.seconds, harness.say)
        if any(job.name not in runs for job in jobs):
            harness.say("the time was up before all was measured: the same command goes on from here")
            return 1
    held_out = {task.key for task in choose_tasks(MODELS, options.held_out)}
    programs: list[Programs] = []
    for path in (options.database, *options.also):
        # Each database by itself: what it says is relative to the best that it knows.
        with Database(path) as database:
            found = [programs_of(task, measured(task, database)) for task in tasks]
        programs += [replace(item, task=f"{item.task} {path.stem}") for item in found if len(item.seconds) >= _FEWEST]
    harness.say(f"{sum(len(item.seconds) for item in programs)} programs of {len(programs)} kernels")
    model = TreeModel(rounds=ROUNDS, depth=DEPTH, rate=RATE)
    learned_from(lambda: model, [item for item in programs if item.task.split()[0] not in held_out])
    with Database(options.known) as database:
        asked = [programs_of(task, measured(task, database)) for task in tasks if task.key in held_out]
    asked = [item for item in asked if len(item.seconds) >= _FEWEST]
    rows = [[item.task, *(f"{value:.3f}" for value in quality(model, item).values())] for item in asked]
    harness.say(table(["held-out kernel", "pairwise accuracy", "recall@30", "programs"], rows))
    target = tasks[0].target
    SHIPPED.mkdir(exist_ok=True)
    Forest.of(model).save(SHIPPED / f"{target.arch}.npz")
    if asked:
        most = max(asked, key=lambda item: len(item.seconds))
        np.savez_compressed(HELD_OUT, features=most.features[:_KEPT], seconds=np.float32(most.seconds[:_KEPT]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.pretrain", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--models", default=",".join(zoo.SPECS), help="models whose kernels are learned from")
    parser.add_argument("--trials", type=int, default=56, help="schedules of each kernel (default: 56)")
    parser.add_argument("--held-out", type=int, default=6, help="kernels of bench.tuning to leave out (default: 6)")
    parser.add_argument("--processes", type=int, default=harness.all_threads(), help="measurements at once")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop measuring after so long (default: no limit)")
    parser.add_argument("--learn-only", action="store_true", help="measure nothing")
    parser.add_argument("--database", type=Path, default=Path(".cache/pretrain.db"), help="where measurements are kept")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="more databases to learn from")
    parser.add_argument(
        "--known", type=Path, default=Path(".cache/bench-tuning.db"), help="what bench.tuning measured of them"
    )
    return parser


def all_tasks(models: Sequence[str]) -> list[Task]:
    """The kernels of all models that have a choice to make, each once."""
    found: dict[str, Task] = {}
    for name in models:
        for task in extract_tasks(Compilation(zoo.path(name), threads=1).lowered):
            found.setdefault(task.key, task)
    return list(found.values())


if __name__ == "__main__":
    sys.exit(main())
