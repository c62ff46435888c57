"""`tw.build` for devices: arrays in and out, symbolic sizes, several functions, errors."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.on_device import require_opencl
from tests.tir.passes.test_bind_threads import tiled_product
from tilewright import te
from tilewright.ir.function import IRModule
from tilewright.runtime.device.program import DeviceModule
from tilewright.support.errors import UserError


def _scale(n: object) -> tuple[te.Schedule, list[te.Tensor]]:
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[i] * 2.0 + 1.0, name="B")
    s = te.create_schedule(b.op)
    block, thread = s[b].split(b.op.axis[0], factor=64)
    s[b].bind(block, te.thread_axis("blockIdx.x"))
    s[b].bind(thread, te.thread_axis("threadIdx.x"))
    return s, [a, b]


def test_build_for_opencl() -> None:
    require_opencl()
    module = tw.build(*_scale(te.var("n")), target="opencl")
    assert isinstance(module, DeviceModule)
    assert "__kernel void" in module.source
    for size in (1, 64, 1000):
        a, b = np.random.rand(size).astype(np.float32), np.zeros(size, np.float32)
        module(a, b)
        np.testing.assert_allclose(b, a * 2 + 1, rtol=1e-6)
    empty = np.zeros(0, np.float32)
    module(empty, empty.copy())
    timing = module.time_evaluator("main", number=2, repeat=2)(a, b)
    assert len(timing.results) == 2 and timing.min > 0
    with pytest.raises(UserError, match="expected \\[n\\]"):
        module(a, np.zeros((1, 1000), np.float32))


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    require_opencl()
    page = (Path(__file__).resolve().parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
    block, *_ = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, np.ndarray] = {}
    exec(block, names)
    np.testing.assert_array_equal(names["b"], names["a"] * 2 + 1)
    assert "__kernel void" in capsys.readouterr().out


def test_unbound_programs_run_in_one_thread() -> None:
    require_opencl()
    a = te.placeholder((7,), name="A")
    b = te.compute((7,), lambda i: a[6 - i], name="B")
    values, result = np.arange(7, dtype=np.float32), np.zeros(7, np.float32)
    tw.build(te.create_schedule(b.op), [a, b], target="opencl")(values, result)
    np.testing.assert_array_equal(result, values[::-1])


def test_tiles_with_barriers_on_a_device() -> None:
    """Products with remainders in every direction, in one module of several functions."""
    require_opencl()
    cases = [(12, 10, 6, (4, 4), (2, 1), 3), (9, 17, 8, (2, 8), (3, 2), 4), (16, 16, 16, (8, 8), (1, 2), 8)]
    functions = [tiled_product(*case) for case in cases]
    module = tw.build(IRModule({func.name: func for func in functions}), target="opencl")
    assert len(module) == 3
    rng = np.random.default_rng(0)
    for (m, n, depth, *_), func in zip(cases, functions, strict=True):
        a, b = rng.random((m, depth), np.float32), rng.random((depth, n), np.float32)
        c = np.full((m, n), np.nan, np.float32)
        module[func.name](a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    with pytest.raises(UserError, match="the module has 3 functions, so it cannot be called itself"):
        module()
    with pytest.raises(UserError, match="the module has no function 'missing'"):
        module["missing"]


def test_scalars_of_every_kind() -> None:
    require_opencl()
    a = te.placeholder((4,), name="A")
    n, x = te.var("n", "int32"), te.var("x", "float32")
    b = te.compute((4,), lambda i: a[i] * x + n.astype("float32"), name="B")
    result = np.zeros(4, np.float32)
    tw.build(te.create_schedule(b.op), [a, n, x, b], target="opencl")(np.ones(4, np.float32), -3, 2.5, result)
    np.testing.assert_array_equal(result, np.full(4, -0.5, np.float32))
