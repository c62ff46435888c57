"""The thread pool: coverage of the range, errors, nesting, many callers, forks, and changing thread counts."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tilewright.backends.llvm import jit, pool, toolchain
from tilewright.runtime.core.library import bind

TEXT = """
declare i32 @tw_parallel(ptr, ptr, i64)

define internal i32 @count.body(ptr %counts, i64 %begin, i64 %end) {
entry:
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %at = getelementptr i64, ptr %counts, i64 %i
  %old = atomicrmw add ptr %at, i64 1 monotonic
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}
define i32 @count(ptr %counts, i64 %n) {
  %code = call i32 @tw_parallel(ptr @count.body, ptr %counts, i64 %n)
  ret i32 %code
}

; Every index of the outer range runs an inner parallel loop over the same counters.
define internal i32 @nest.body(ptr %counts, i64 %begin, i64 %end) {
entry:
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %code = call i32 @tw_parallel(ptr @count.body, ptr %counts, i64 50)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret i32 %code
}
define i32 @nest(ptr %counts, i64 %n) {
  %code = call i32 @tw_parallel(ptr @nest.body, ptr %counts, i64 %n)
  ret i32 %code
}

; Each index notes the thread that ran it.
declare i64 @pthread_self()
define internal i32 @who.body(ptr %threads, i64 %begin, i64 %end) {
entry:
  %self = call i64 @pthread_self()
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %at = getelementptr i64, ptr %threads, i64 %i
  store i64 %self, ptr %at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}
define i32 @who(ptr %threads, i64 %n) {
  %code = call i32 @tw_parallel(ptr @who.body, ptr %threads, i64 %n)
  ret i32 %code
}

; Fails with 7 in the chunk that holds index 3.
define internal i32 @fail.body(ptr %counts, i64 %begin, i64 %end) {
  %low = icmp sle i64 %begin, 3
  %high = icmp sgt i64 %end, 3
  %hit = and i1 %low, %high
  %code = select i1 %hit, i32 7, i32 0
  ret i32 %code
}
define i32 @fail(i64 %n) {
  %code = call i32 @tw_parallel(ptr @fail.body, ptr null, i64 %n)
  ret i32 %code
}

define i32 @repeat(ptr %counts, i64 %n, i64 %times) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %code = call i32 @tw_parallel(ptr @count.body, ptr %counts, i64 %n)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %times
  br i1 %more, label %loop, label %done
done:
  ret i32 %code
}
"""


class _Calls:
    def __init__(self) -> None:
        imports = pool.runtime_imports()
        image = toolchain.compile_ir(TEXT, triple=toolchain.host_triple())
        library = jit.JitLibrary([image], imports)
        number, pointer, code = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32
        self.count = bind(library, "count", code, pointer, number)
        self.nest = bind(library, "nest", code, pointer, number)
        self.who = bind(library, "who", code, pointer, number)
        self.self = bind(library, "pthread_self", number)
        self.fail = bind(library, "fail", code, number)
        self.repeat = bind(library, "repeat", code, pointer, number, number)
        self.set_threads = bind(library, "tw_set_num_threads", None, number)
        self.get_threads = bind(library, "tw_get_num_threads", number)
        self.alloc = bind(library, "tw_alloc", pointer, number)
        self.free = bind(library, "tw_free", None, pointer)


@pytest.fixture
def calls() -> Iterator[_Calls]:
    made = _Calls()
    yield made
    made.set_threads(0)


@pytest.mark.parametrize("threads", [1, 2, 8, 3, 5])
def test_every_index_runs_once(calls: _Calls, threads: int) -> None:
    calls.set_threads(threads)
    assert calls.get_threads() == threads
    for extent in (0, 1, 2, 3, 7, 16, 100, 1001):
        counts = np.zeros(1001, np.int64)
        for _ in range(20):
            assert calls.count(counts.ctypes.data, extent) == 0
        assert (counts[:extent] == 20).all()
        assert (counts[extent:] == 0).all()


def test_negative_extent_is_nothing(calls: _Calls) -> None:
    assert calls.count(None, -5) == 0


def test_default_thread_count(calls: _Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_NUM_THREADS", raising=False)
    calls.set_threads(0)
    assert calls.get_threads() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "3")
    calls.set_threads(-1)
    assert calls.get_threads() == 3
    calls.set_threads(10**9)
    assert calls.get_threads() == 1023


def test_error_code_comes_back_and_the_pool_goes_on(calls: _Calls) -> None:
    calls.set_threads(4)
    for _ in range(50):
        assert calls.fail(10) == 7
        assert calls.fail(2) == 0
    calls.set_threads(1)
    assert calls.fail(10) == 7


def test_nested_loops_run_serially_inside(calls: _Calls) -> None:
    calls.set_threads(4)
    counts = np.zeros(50, np.int64)
    for _ in range(20):
        assert calls.nest(counts.ctypes.data, 30) == 0
    assert (counts == 600).all()


def test_each_thread_starts_in_a_part_of_its_own(calls: _Calls) -> None:
    """The calling thread's part is the first: it meets the same data in region after region."""
    calls.set_threads(2)

    def own_parts() -> int:
        mine = 0
        for _ in range(200):
            counts = np.zeros(64, np.int64)
            assert calls.who(counts.ctypes.data, 64) == 0
            mine += int(counts[0] == calls.self())
            assert (counts != 0).all()
        return mine

    # Where others hold the cores, a thread may find its part taken by one that had nothing left to do.
    assert any(own_parts() > 100 for _ in range(10))


def test_many_python_threads_at_once(calls: _Calls) -> None:
    calls.set_threads(3)
    wrong = []

    def work() -> None:
        for _ in range(300):
            counts = np.zeros(64, np.int64)
            if calls.repeat(counts.ctypes.data, 64, 3) != 0 or not (counts == 3).all():
                wrong.append(counts)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_sleeping_workers_wake(calls: _Calls) -> None:
    calls.set_threads(3)
    for _ in range(30):
        counts = np.zeros(64, np.int64)
        calls.count(counts.ctypes.data, 64)
        time.sleep(0.003)
        assert (counts == 1).all()


def test_changing_thread_counts_under_load(calls: _Calls) -> None:
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            calls.set_threads(1 + number % 6)
            time.sleep(0.0002)

    changer = threading.Thread(target=change)
    changer.start()
    counts = np.zeros(40, np.int64)
    for _ in range(200):
        assert calls.repeat(counts.ctypes.data, 40, 20) == 0
    stop.set()
    changer.join()
    assert (counts == 4000).all()


def test_memory_is_aligned(calls: _Calls) -> None:
    for size in (0, 1, 63, 64, 1000, 10**6):
        memory = calls.alloc(size)
        assert memory % 64 == 0
        calls.free(memory)
    assert calls.alloc(2**62) is None


FORK = """
import os, sys, threading, time
import numpy as np
sys.path.insert(0, {folder!r})
from test_pool import _Calls
calls = _Calls()
calls.set_threads(4)
counts = np.zeros(100, np.int64)
busy = threading.Event()
def background():
    own = np.zeros(1000, np.int64)
    while not busy.is_set():
        calls.repeat(own.ctypes.data, 1000, 100)
thread = threading.Thread(target=background)
thread.start()
for attempt in range(20):
    child = os.fork()
    if child == 0:
        mine = np.zeros(100, np.int64)
        for _ in range(50):
            calls.count(mine.ctypes.data, 100)
        threads = len(os.listdir('/proc/self/task'))
        os._exit(0 if (mine == 50).all() and threads == 4 else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0, (attempt, status)
busy.set()
thread.join()
calls.count(counts.ctypes.data, 100)
assert (counts == 1).all()
print("fine")
"""


def test_fork_while_the_pool_is_busy() -> None:
    code = FORK.format(folder=os.path.dirname(__file__))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize(
    "triple", ["x86_64-linux-gnu", "aarch64-linux-gnu", "riscv64-linux-gnu", "wasm32-unknown-unknown"]
)
@pytest.mark.parametrize("hidden", [True, False])
def test_compiles_for_every_target(triple: str, hidden: bool) -> None:
    assert pool.pool_object(triple, hidden=hidden)
    assert pool.has_threads(triple) == ("linux" in triple)
    assert ("pthread_create" in pool.pool_ir(triple, hidden=hidden)) == ("linux" in triple)


def test_serial_version_has_the_same_interface() -> None:
    triple = toolchain.host_triple()
    image = toolchain.compile_ir(pool.pool_ir("wasm32-unknown-unknown", hidden=False), triple=triple)
    library = jit.JitLibrary([toolchain.compile_ir(TEXT, triple=triple), image])
    counts = np.zeros(10, np.int64)
    number, pointer, code = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32
    assert bind(library, "count", code, pointer, number)(counts.ctypes.data, 10) == 0
    assert bind(library, "count", code, pointer, number)(counts.ctypes.data, 0) == 0
    assert (counts == 1).all()
    assert bind(library, "tw_get_num_threads", number)() == 1
    assert all(library.find(name) is not None for name in pool.EXPORTED)
