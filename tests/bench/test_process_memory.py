"""Memory of some work: of a process and of those it starts, each once.

Every case is a process of its own: one that runs many tests frees what earlier ones have left, whenever it likes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
COMMON = """
import subprocess, sys, time
from bench.process_memory import EVERY_SECONDS, MemoryWatch, resident_bytes

def filled(megabytes):
    return bytearray(b"1") * (megabytes << 20)

def start(megabytes):
    # A process that holds so much until its input ends; it does already.
    waits = "import sys; held = b'1' * (%d << 20); print(flush=True); sys.stdin.read()" % megabytes
    child = subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline()
    return child

def end(child, watch=None):
    # Let a process go after it has been looked at a few times, however busy the machine.
    looks = 0 if watch is None else watch.looks
    while watch is not None and watch.looks < looks + 3:
        time.sleep(EVERY_SECONDS)
    child.communicate()

"""


def megabytes_of(work: str) -> float:
    """What a process prints that does this work."""
    command = [sys.executable, "-c", COMMON + work + "\nprint(watch.bytes / (1 << 20))"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_memory_that_is_gone_again_counts() -> None:
    taken = megabytes_of("""
with MemoryWatch() as watch:
    held = filled(64)
    end(start(0), watch)
    del held
""")
    # A process of Python's holds some ten megabytes itself.
    assert 60 <= taken <= 110


def test_a_process_counts_for_what_it_holds_itself() -> None:
    """The system says of one that is started that it held what its parent did."""
    taken = megabytes_of("""
held = filled(200)
with MemoryWatch() as watch:
    end(start(64), watch)
""")
    assert 60 <= taken <= 110


def test_processes_of_before_do_not_count() -> None:
    taken = megabytes_of("""
child = start(64)
with MemoryWatch() as watch:
    end(start(0), watch)
end(child)
""")
    assert 0 < taken < 40


def test_a_process_that_has_ended_holds_nothing() -> None:
    megabytes_of("""
watch = MemoryWatch()
child = start(0)
assert resident_bytes(str(child.pid)) > 0
end(child)
assert resident_bytes(str(child.pid)) == 0 < resident_bytes()
""")


def test_looking_is_told_from_the_work() -> None:
    command = (
        COMMON
        + """
before = time.process_time()
with MemoryWatch() as watch:
    while watch.looks < 5:
        time.sleep(EVERY_SECONDS)
print(watch.seconds, time.process_time() - before)
"""
    )
    done = subprocess.run([sys.executable, "-c", command], cwd=PROJECT, capture_output=True, text=True, check=True)
    looking, whole = map(float, done.stdout.split())
    assert 0 < looking <= whole
