"""`kill -9` of a tuner at random moments: each resume continues with every committed record."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tilewright.lower.database import Database
from tilewright.tune.space import key_of

ROOT = Path(__file__).parents[2]
KILLS = 20


def _killed_run(path: Path, seconds: float, after: str = "found") -> tuple[int, int, bool]:
    """Start the job, kill it `seconds` after the first line of a kind: records found, records it called safe, done."""
    command = [sys.executable, "-m", "tests.tune.killed", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline().split()
        assert first[0] == "found", first
        timer = threading.Timer(seconds, process.kill)
        if after == "found":
            timer.start()
        lines = []
        for line in process.stdout:
            # A line that the kill cut short says nothing.
            if line.endswith("\n"):
                lines.append(line.split())
            if after == "safe" and len(lines) == 1:
                timer.start()
        timer.cancel()
        process.wait()
    safe = [int(words[1]) for words in lines if words[0] == "safe"]
    return int(first[1]), max(safe, default=int(first[1])), ["done"] in lines


@pytest.mark.slow
def test_no_committed_record_is_lost(tmp_path: Path) -> None:
    rng = random.Random(3)
    path = tmp_path / "tune.db"
    before = 0
    for number in range(KILLS):
        # Half of them may die before they have written anything, the others write at least once.
        found, safe, _ = _killed_run(path, rng.uniform(0.0, 0.12), ("found", "safe")[number % 2])
        assert found >= before
        before = safe
    found, total, done = _killed_run(path, 300.0)
    assert found >= before and done
    with Database(path) as database:
        keys = [(record.task, key_of(record.answers)) for record in database.records()]
    # Every point of every space once: nothing was lost, nothing measured again.
    assert len(keys) == len(set(keys)) == total
    assert found > 0 and total > found
