"""Memory of some work: of this process and of those it starts, each once."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

from bench.process_memory import EVERY_SECONDS, MemoryWatch, resident_bytes

MEGABYTE = 1 << 20
WAITS = "import sys; held = b'1' * ({} << 20); print(flush=True); sys.stdin.read()"


def start(megabytes: int) -> subprocess.Popen[bytes]:
    """A process that holds so much until its input ends; it does already."""
    command = [sys.executable, "-c", WAITS.format(megabytes)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline()
    return child


def end(child: subprocess.Popen[bytes]) -> None:
    """Let a process go after it has been looked at a few times."""
    time.sleep(3 * EVERY_SECONDS)
    child.communicate()


def test_memory_that_is_gone_again_counts() -> None:
    with MemoryWatch() as watch:
        held = np.ones(64 * MEGABYTE, np.uint8)
        end(start(0))
        del held
    # A process of Python's holds some ten megabytes itself.
    assert 60 <= watch.bytes / MEGABYTE <= 110


def test_a_process_counts_for_what_it_holds_itself() -> None:
    """The system says of one that is started that it held what its parent did."""
    held = np.ones(200 * MEGABYTE, np.uint8)
    with MemoryWatch() as watch:
        end(start(64))
    assert held.any() and 60 <= watch.bytes / MEGABYTE <= 110


def test_processes_of_before_do_not_count() -> None:
    child = start(64)
    with MemoryWatch() as watch:
        end(start(0))
    end(child)
    assert watch.bytes / MEGABYTE < 40


def test_a_process_that_has_ended_holds_nothing() -> None:
    child = start(0)
    assert resident_bytes(str(child.pid)) > 0
    end(child)
    assert resident_bytes(str(child.pid)) == 0 < resident_bytes()
