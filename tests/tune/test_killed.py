"""`kill -9` of a tuner at random moments: each resume continues with every committed record."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.lower.database import Database
from tilewright.tune.space import key_of

ROOT = Path(__file__).parents[2]
KILLS = 20


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    """The process that starts the jobs: it has loaded what they need, so that each is there at once."""
    command = [sys.executable, "-m", "tests.tune.killed"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def _killed_run(
    server: subprocess.Popen[str], path: Path, seconds: float, after: str = "found"
) -> tuple[int, int, bool]:
    """Start the job, kill it `seconds` after the first line of a kind: records found, records it called safe, done."""
    assert server.stdin is not None and server.stdout is not None
    print(path, file=server.stdin, flush=True)
    number = int(server.stdout.readline())
    timer = threading.Timer(seconds, os.kill, (number, signal.SIGKILL))
    first = server.stdout.readline().split()
    assert first[0] == "found", first
    if after == "found":
        timer.start()
    lines: list[list[str]] = []
    for line in server.stdout:
        if line == "ended\n":
            break
        words = line.split()
        if len(words) != 2 and words != ["done"]:
            continue  # the rest of a line that was cut off
        lines.append(words)
        if after == "safe" and len(lines) == 1:
            timer.start()
    timer.cancel()
    print(file=server.stdin, flush=True)
    safe = [int(words[1]) for words in lines if words[0] == "safe"]
    return int(first[1]), max(safe, default=int(first[1])), ["done"] in lines


@pytest.mark.slow
def test_no_committed_record_is_lost(server: subprocess.Popen[str], tmp_path: Path) -> None:
    rng = random.Random(3)
    path = tmp_path / "tune.db"
    before = 0
    for number in range(KILLS):
        # Half of them may die before they have written anything, the others write at least once.
        found, safe, _ = _killed_run(server, path, rng.uniform(0.0, 0.12), ("found", "safe")[number % 2])
        assert found >= before
        before = safe
    found, total, done = _killed_run(server, path, 300.0)
    assert found >= before and done
    with Database(path) as database:
        keys = [(record.task, key_of(record.answers)) for record in database.records()]
    # Every point of every space once: nothing was lost, nothing measured again.
    assert len(keys) == len(set(keys)) == total
    assert found > 0 and total > found
