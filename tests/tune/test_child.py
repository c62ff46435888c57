"""Children: their replies, and what happens when one dies, hangs, prints or reports an error."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.requirements import need
from tilewright.support.errors import UserError
from tilewright.tune.child import Child, ChildFailed

MODULE = """
import os, time
from tilewright.support.errors import UserError

def answer(request):
    if request == "die":
        os.abort()
    if request == "exit":
        os._exit(3)
    if request == "hang":
        time.sleep(600)
    if request == "error":
        raise UserError("wrong", hint="mend it")
    if request == "print":
        print("noise")
        os.write(1, b"noise")
    if request == "memory":
        return len(bytearray(1 << 33))
    return request
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    (tmp_path / "child_for_tests.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    made = Child("child_for_tests", memory_bytes=4 << 30)
    yield made
    made.close()


def test_replies(child: Child) -> None:
    assert child.ask({"a": [1, 2]}, 60) == {"a": [1, 2]}
    assert child.ask("print", 60) == "print"
    assert child.ask("again", 60) == "again"
    assert child.starts == 1


def test_errors_are_raised_here(child: Child) -> None:
    with pytest.raises(UserError, match="wrong") as caught:
        child.ask("error", 60)
    assert caught.value.hint == "mend it"
    assert child.ask(1, 60) == 1
    assert child.starts == 1


@pytest.mark.parametrize(("request_text", "cause"), [("die", "SIGABRT"), ("exit", "exit code 3")])
def test_a_death_costs_one_request(child: Child, request_text: str, cause: str) -> None:
    with pytest.raises(ChildFailed, match=cause):
        child.ask(request_text, 60)
    assert child.ask(1, 60) == 1
    assert child.starts == 2


def test_a_hang_is_cut_off(child: Child) -> None:
    child.ask("warm up", 60)
    start = time.monotonic()
    with pytest.raises(ChildFailed, match="took more than 1 s"):
        child.ask("hang", 1)
    assert time.monotonic() - start < 20
    assert child.ask(1, 60) == 1


def test_memory_has_a_limit(child: Child) -> None:
    with pytest.raises(UserError, match="memory"):
        child.ask("memory", 60)
    assert child.ask(1, 60) == 1


def test_a_child_that_someone_kills(child: Child) -> None:
    child.ask(1, 60)
    assert child._process is not None
    os.kill(child._process.pid, signal.SIGKILL)
    child._process.wait()
    assert child.ask(2, 60) == 2


def test_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("affinity")
    (tmp_path / "child_affinity.py").write_text("import os\ndef answer(request):\n    return os.sched_getaffinity(0)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    one = min(os.sched_getaffinity(0))
    made = Child("child_affinity", cpus=frozenset({one}))
    try:
        assert made.ask("which", 60) == {one}
    finally:
        made.close()
