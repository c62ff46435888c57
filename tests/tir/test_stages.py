"""The lowering pipeline seen from outside: every stage is a text, meets its contract, and can be replaced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.backends.backend import lower
from tilewright.backends.device import device_kernels
from tilewright.ir.structural import assert_same_ir
from tilewright.support import settings
from tilewright.support.errors import CompilerBug, UserError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.pipeline import cpu_pipeline, gpu_pipeline
from tilewright.tir.script import parse_script, to_script

TEXT = """
@script.function
def scale(A: Buffer[(5, 7), "float32"], B: Buffer[(5, 7), "float32"]):
    T = alloc_buffer((5, 7), "float32")
    for i, j in grid(5, 7):
        with block("T"):
            vi, vj = spatial(5, i), spatial(7, j)
            T[vi, vj] = tanh(A[vi, vj]) * 2.0
    for i in parallel(5):
        for j in vectorized(7):
            with block("B"):
                vi, vj = spatial(5, i), spatial(7, j)
                B[vi, vj] = T[vi, vj] + 1.0
"""


def function() -> PrimFunc:
    func = parse_script(TEXT)
    assert isinstance(func, PrimFunc)
    return func


def test_every_stage_is_a_text_with_the_same_meaning() -> None:
    a = np.linspace(-3, 3, 35, dtype=np.float32).reshape(5, 7)
    func = function()
    for name, function_pass in cpu_pipeline(Target("native")):
        func = function_pass(func)
        read = parse_script(to_script(func))
        assert_same_ir(read, func)
        out = np.zeros_like(a)
        interpret(read, a, out)
        np.testing.assert_allclose(out, np.tanh(a) * 2 + 1, rtol=1e-5, err_msg=name)


def test_stages_are_dumped_and_replaced(tmp_path: Path) -> None:
    target = Target("native")
    with settings.TRACE.override(frozenset(["dump"])), settings.DUMP_DIR.override(tmp_path):
        plain = lower(function(), target)
    files = sorted((tmp_path / "cpu.scale").iterdir())
    names = [path.name for path in files]
    assert names[0] == "00_input.py" and any(name.endswith("_lower_blocks.py") for name in names)
    assert len(files) == 1 + len(cpu_pipeline(target).passes)
    for path in files:
        if not path.name.startswith("01_"):
            path.unlink()
    files[1].write_text(files[1].read_text().replace("2.0", "3.0"))
    with settings.OVERRIDE_DIR.override(tmp_path):
        changed = lower(function(), target)
    a = np.ones((5, 7), np.float32)
    first, second = np.zeros_like(a), np.zeros_like(a)
    interpret(plain, a, first)
    interpret(changed, a, second)
    np.testing.assert_allclose(second - first, np.tanh(a), rtol=1e-5)


def test_a_broken_stage_is_caught(tmp_path: Path) -> None:
    names = [item.name for item in cpu_pipeline(Target("native")).passes]
    path = tmp_path / "cpu.scale" / f"{names.index('flatten_buffers') + 1:02d}_flatten_buffers.py"
    path.parent.mkdir()
    path.write_text(TEXT)
    with (
        settings.OVERRIDE_DIR.override(tmp_path),
        settings.VERIFY.override(True),
        pytest.raises(CompilerBug, match="the stage 'flattened' does not hold") as caught,
    ):
        lower(function(), Target("native"))
    assert "block root is left after lowering" in str(caught.value)


def test_kernels_are_the_last_stage_for_a_device(tmp_path: Path) -> None:
    target = Target("cuda")
    with settings.TRACE.override(frozenset(["dump"])), settings.DUMP_DIR.override(tmp_path):
        first, second = device_kernels(function(), target).kernels
    last = max((tmp_path / "gpu.scale").iterdir())
    assert last.name == f"{1 + len(gpu_pipeline(target).passes):02d}_split_host_device.txt"
    text = last.read_text()
    assert text.startswith("# workspace T: 35 of float32\n# 1 x 1 x 1 blocks of 1 threads, 0 shared bytes\n")
    assert text.index(f"def {first.func.name}(") < text.index(f"def {second.func.name}(")
    # A dump may be given back as it is; what comes out of the last stage cannot be replaced.
    with settings.OVERRIDE_DIR.override(tmp_path):
        assert len(device_kernels(function(), target).kernels) == 2
        last.write_text(text.replace("2.0", "3.0"))
        with pytest.raises(UserError, match="the stage split_host_device has no text that can be read back"):
            device_kernels(function(), target)
    with pytest.raises(CompilerBug, match="the pipeline cpu ends in a program"):
        cpu_pipeline(Target("native")).finish(function(), PrimFunc)
