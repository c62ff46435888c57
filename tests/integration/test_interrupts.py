"""Control-C at any moment: one word and the code 130 from commands, an exception in programs, nothing left over."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest

import tilewright as tw
from tests.integration import small_models
from tilewright import rpc

_COMMAND = """
import sys
from tilewright.__main__ import main
print("ready", flush=True)
sys.exit(main())
"""
_LONGEST = 60.0


@contextmanager
def _started(code: str, words: Sequence[str], **settings: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process in a session of its own, and a mark that it and all its children carry."""
    mark = f"tilewright-test-{uuid.uuid4().hex}"
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "TILEWRIGHT_PROGRESS": "never", "TILEWRIGHT_COMPILE_PROCESSES": "2", **settings, mark: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Whoever runs the tests in the background may ignore interrupts, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    ) as process:
        try:
            yield process, mark
        finally:
            process.kill()


def _with_mark(mark: str) -> list[str]:
    """The processes of this machine that carry a mark."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                if mark.encode() in (path / "environ").read_bytes():
                    found.append((path / "cmdline").read_text())
            except OSError:
                continue
    return found


def _none_left(mark: str) -> bool:
    deadline = time.monotonic() + 10
    while left := _with_mark(mark):
        if time.monotonic() > deadline:
            raise AssertionError(f"processes were left: {left}")
        time.sleep(0.05)
    return True


def _interrupt_compile(folder: Path, model: Path, delay: float) -> int:
    """Interrupt one compilation after a while; returns the exit code, after looking at everything it left."""
    output, cache = folder / "out" / "model.so", folder / "cache"
    output.parent.mkdir(exist_ok=True)
    words = ["compile", str(model), "-o", str(output)]
    with _started(_COMMAND, words, TILEWRIGHT_CACHE_DIR=str(cache)) as (process, mark):
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=_LONGEST)[1]
        assert (process.returncode, errors) in ((130, "interrupted\n"), (0, "")), f"after {delay} s"
        assert _none_left(mark)
    assert not [path.name for path in cache.rglob("*.tmp")]
    left = sorted(path.name for path in output.parent.iterdir())
    assert left in ([], ["model.h", "model.so"], ["model.so"]), left
    if process.returncode == 0 or "model.so" in left:
        tw.load(output)
        for path in output.parent.iterdir():
            path.unlink()
    return process.returncode


@pytest.mark.parametrize("count", [6, pytest.param(20, marks=pytest.mark.fuzz)])
def test_commands_end_with_one_word_at_any_moment(tmp_path: Path, count: int) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(small_models.classifier(), model)
    rng = random.Random(count)
    codes = [_interrupt_compile(tmp_path, model, rng.uniform(0.0, 2.5)) for _ in range(count)]
    assert 130 in codes


_STORM = """
import os, random, signal, sys, threading, time
import numpy as np
import tilewright as tw
from tilewright import te

def build(number):
    A = te.placeholder((64,), name="A")
    B = te.compute((64,), lambda i: A[i] * float(number) + 1.0, name="B")
    return tw.build(te.create_schedule(B.op), [A, B], name="f")

rng = random.Random(7)
build(0)
caught = 0
for number in range(1, 41):
    timer = threading.Timer(rng.uniform(0.0, 0.08), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        turn = 0
        while timer.is_alive() or turn < 1:
            turn += 1
            built = build(number + turn / 128)
            x, y = np.ones(64, np.float32), np.empty(64, np.float32)
            built(x, y)
    except KeyboardInterrupt:
        caught += 1
    timer.join()
built = build(5)
x, y = np.ones(64, np.float32), np.empty(64, np.float32)
built(x, y)
print(caught, (y == 6).all(), flush=True)
"""


def test_programs_catch_interrupts_and_go_on() -> None:
    """Interrupts at random moments of lowering, LLVM, linking and calls: each is raised, and the next build works."""
    with _started(_STORM, [], TILEWRIGHT_CACHE="0", TILEWRIGHT_VERIFY="0") as (process, mark):
        output, errors = process.communicate(timeout=_LONGEST)
        assert process.returncode == 0, errors
        caught, right = output.split()
        # One may come where Python cannot raise it (an object is being freed): it says so, and goes on.
        assert int(caught) + errors.count("KeyboardInterrupt") >= 40 and int(caught) > 30
        assert right == "True"
        assert _none_left(mark)


_CALLS = """
import os, random, signal, threading
import numpy as np
import tilewright as tw
from tilewright import te

A = te.placeholder((1 << 20,), name="A")
B = te.compute((1 << 20,), lambda i: A[i] * 2.0 + 1.0, name="B")
s = te.create_schedule(B.op)
s[B].parallel(s[B].op.axis[0])
built = tw.build(s, [A, B], name="f")
rng = random.Random(3)
x = np.arange(1 << 20, dtype=np.float32)
y = np.empty_like(x)
caught = 0
for number in range(30):
    timer = threading.Timer(rng.uniform(0.0, 0.02), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:
            y[:] = 0
            built(x, y)
    except KeyboardInterrupt:
        caught += 1
    timer.join()
built(x, y)
print(caught, (y == x * 2 + 1).all(), flush=True)
"""


def test_calls_of_compiled_code_on_several_threads_bear_interrupts() -> None:
    """The signal may reach a sleeping thread of the pool: it goes on, and the call ends before Python learns of it."""
    with _started(_CALLS, [], TILEWRIGHT_NUM_THREADS="3", TILEWRIGHT_VERIFY="0") as (process, mark):
        assert process.communicate(timeout=_LONGEST) == ("30 True\n", "")
        assert process.returncode == 0 and _none_left(mark)


@pytest.mark.parametrize("role", ["server", "tracker"])
def test_services_end_with_their_sessions(role: str, tmp_path: Path) -> None:
    with _started(_COMMAND, ["rpc", role, "--port", "0"], TMPDIR=str(tmp_path)) as (process, mark):
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        port = int(process.stdout.readline().split(":")[1].split()[0])
        session = rpc.connect("127.0.0.1", port) if role == "server" else None
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=_LONGEST)[1]
        assert (process.returncode, errors) == (130, "interrupted\n")
        assert _none_left(mark)
        if session is not None:
            session.close()
    assert not list(tmp_path.iterdir())


def test_an_interrupt_before_anything_has_begun() -> None:
    code = "import signal, sys, tilewright\nclass Late:\n  def find_spec(self, name, path, target=None):\n"
    code += "    if name == 'tilewright.cli.main': signal.raise_signal(signal.SIGINT)\n"
    code += "sys.meta_path.insert(0, Late())\nimport tilewright.__main__"
    with _started(code, []) as (process, _):
        assert process.communicate(timeout=_LONGEST) == ("", "")
        assert process.returncode == 130


def test_an_interrupt_after_everything_was_done() -> None:
    code = "import atexit, signal, sys\nfrom tilewright.__main__ import main\n"
    code += "class Late:\n  def __del__(self, kill=signal.raise_signal): kill(2)\n"
    code += "sys.late = Late()\natexit.register(signal.raise_signal, signal.SIGINT)\nsys.exit(main())"
    with _started(code, ["doctor", "--settings"]) as (process, _):
        errors = process.communicate(timeout=_LONGEST)[1]
        assert (process.returncode, errors) == (0, "")
