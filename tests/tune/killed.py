"""Tuning jobs to be killed: `python -m tests.tune.killed` reads names of databases, a line each.

For each it forks a process that tunes toy tasks and says what it has committed, its own number first; then `ended`
says that this process is gone. It stays to be reaped until another line comes: a number that someone is about to kill
is not given to another process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence

from tests.tune import toy
from tilewright.lower.cost import work_of
from tilewright.lower.database import Database
from tilewright.lower.kernel import Kernel
from tilewright.tune.cost import RandomModel
from tilewright.tune.measure import Measurement
from tilewright.tune.space import Point, Space
from tilewright.tune.task import Task
from tilewright.tune.tuner import Progress, TuneOptions, tune

TASKS = 6


class _ToyTask(Task):
    def space(self) -> Space:
        return toy.ToySpace()


class _SlowMeasurer:
    """Times by formula, after a while, so that a kill may come at any moment of a batch."""

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        default = toy.seconds(task.space().default)
        for point in points:
            time.sleep(0.002)
            seconds = toy.seconds(point)
            yield Measurement(point, seconds, default, None if seconds else "run: crash")

    def close(self) -> None: ...


def main() -> None:
    """Start a job for each line."""
    for path in iter(sys.stdin.readline, ""):
        job = os.fork()
        if job == 0:
            _tune(path.strip())
            os._exit(0)
        os.waitid(os.P_PID, job, os.WEXITED | os.WNOWAIT)
        # On a line of its own, also after half a line of a job that was killed as it wrote.
        print("\nended", flush=True)
        sys.stdin.readline()
        os.waitpid(job, 0)


def _tune(path: str) -> None:
    """Tune; each line says how many records are safe."""
    print(os.getpid(), flush=True)
    func = toy.matmul()
    names = [f"tw_matmul_{number}" for number in range(TASKS)]
    tasks = [_ToyTask(Kernel(name, func.replace(name=name), work_of(func)), toy.TARGET) for name in names]
    options = TuneOptions(trials=10_000, batch=2, early_stop=1000, model=RandomModel, confirm=0, search="random")
    with Database(path) as database:
        print(f"found {database.count()}", flush=True)

        def say(tasks: Sequence[Progress], item: Progress, trials: int) -> None:
            print(f"safe {database.count()}", flush=True)

        tune(tasks, database, options, measurer=_SlowMeasurer(), on_batch=say)
    print("done", flush=True)


if __name__ == "__main__":
    main()
