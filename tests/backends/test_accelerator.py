"""The accelerator of the tutorial: products of tiles run on it as instructions, and what it has not is refused."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from bench import pages
from tilewright import backends, te
from tilewright.backends.device import device_kernels
from tilewright.support.errors import UnsupportedError
from tilewright.target import Target
from tilewright.tir.interpreter import interpret

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "06_add_an_accelerator.md"


@pytest.fixture
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The back end of the tutorial: its folder, and its name. The answer is the module of its instructions."""
    monkeypatch.chdir(tmp_path)
    for block in pages.blocks(TUTORIAL):
        if block.file:
            pages.write(block.file, block.code)
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    monkeypatch.setattr(backends, "SLICES", (*backends.SLICES, "npu"))
    return import_module("tilewright.backends.npu.instructions")


def _product(npu: Any, m: int, k: int, n: int) -> tuple[te.Schedule, list[te.Tensor]]:
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    axis = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis=axis), name="C")
    s = te.create_schedule(c.op)
    sums = s.cache_write(c, "accumulator")
    _, column, tile_row, _ = s[c].tile(*c.op.axis, npu.TILE, npu.TILE)
    s[c].tensorize(tile_row, npu.COPY)
    s[sums].compute_at(s[c], column)
    step, inner = s[sums].split(sums.op.reduce_axis[0], npu.TILE)
    s[sums].reorder(step, *sums.op.axis, inner)
    for operand, scope in ((a, "left"), (b, "right")):
        tile = s.cache_read(operand, scope, [sums])
        s[tile].compute_at(s[sums], step)
        s[tile].tensorize(tile.op.axis[0], npu.COPY)
    s[sums].tensorize(sums.op.axis[0], npu.PRODUCT)
    return s, [a, b, c]


@pytest.mark.parametrize(("m", "k", "n"), [(16, 16, 16), (32, 48, 64)])
def test_products_of_tiles_are_instructions(npu: Any, m: int, k: int, n: int) -> None:
    schedule, args = _product(npu, m, k, n)
    module = tw.build(schedule, args, target="npu", name="product")
    names = [line.split()[0] for line in module.source.split("\n")]
    assert set(names) <= {"kernel", "loop", "end", "scratchpad", "npu.copy", "npu.clear", "npu.product"}
    assert names.count("npu.copy") == 3 and names.count("npu.product") == 1
    random = np.random.default_rng(0)
    a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    c = np.zeros((m, n), np.float32)
    module(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)
    # The references of the instructions say the same as the machine.
    (kernel,) = device_kernels(schedule.func(args), Target("npu")).kernels
    expected = np.zeros(m * n, np.float32)
    interpret(kernel.func, a.reshape(-1), b.reshape(-1), expected)
    np.testing.assert_allclose(expected.reshape(m, n), c, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("npu")
def test_what_it_has_not_is_refused() -> None:
    a = te.placeholder((4, 4), name="A")
    with pytest.raises(UnsupportedError, match="npu kernels have no BufferStore"):
        tw.build(te.create_prim_func([a, te.compute((4, 4), lambda i, j: a[i, j] * 2.0)]), target="npu")
