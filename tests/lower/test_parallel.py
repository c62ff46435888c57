"""Kernels compiled by several processes: helpers that die, or never start, cost time and nothing else."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from tests.integration import small_models
from tilewright.compiler import Compilation
from tilewright.frontend import from_onnx
from tilewright.lower import parallel
from tilewright.lower.kernel import Kernel
from tilewright.lower.worker import receive, send
from tilewright.support import settings
from tilewright.target import Target

DIES_IN_ITS_REPLY = """
import sys
from tilewright.lower.worker import receive
receive(sys.stdin.buffer)
sys.stdout.buffer.write((1000).to_bytes(8, "little") + b"half")
"""


def test_a_stream_that_ends_in_the_middle_of_a_value() -> None:
    stream = io.BytesIO()
    send(stream, {"some": "value"})
    content = stream.getvalue()
    assert receive(io.BytesIO(content)) == {"some": "value"}
    for length in range(len(content)):
        assert receive(io.BytesIO(content[:length])) is None


def _kernels() -> tuple[list[Kernel], Target]:
    compilation = Compilation(from_onnx(small_models.classifier()), threads=1)
    return list(compilation.kernels), compilation.target


def test_helpers_compile_what_one_process_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    module = from_onnx(small_models.classifier())
    with settings.CACHE.override(False):
        with settings.COMPILE_PROCESSES.override(1), monkeypatch.context() as alone:
            alone.setattr(parallel, "_start_child", lambda: pytest.fail("a helper was started"))
            expected = Compilation(module, threads=1).artifact().objects
        with settings.COMPILE_PROCESSES.override(3), monkeypatch.context() as shared:
            shared.setattr(parallel, "_WORTH_A_PROCESS", 1)
            # Nothing is compiled in this process: what there is came from helpers.
            shared.setattr(parallel._Run, "work_here", lambda run: None)
            assert Compilation(module, threads=1).artifact().objects == expected


def _dying_child() -> subprocess.Popen[bytes]:
    environment = {**settings.child_environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", DIES_IN_ITS_REPLY]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _no_child() -> subprocess.Popen[bytes]:
    raise BlockingIOError("no process more")


@pytest.mark.parametrize("start", [_dying_child, _no_child])
def test_helpers_that_are_no_help(monkeypatch: pytest.MonkeyPatch, start: object) -> None:
    kernels, target = _kernels()
    assert len(kernels) > 1
    monkeypatch.setattr(parallel, "_start_child", start)
    monkeypatch.setattr(parallel, "_WORTH_A_PROCESS", 1)
    with settings.CACHE.override(False):
        compiled = parallel.compile_kernels(kernels, target, jobs=3)
    assert len(compiled) == len(kernels)
    assert all(kernel.symbol.encode() in item.code for kernel, item in zip(kernels, compiled, strict=True))
