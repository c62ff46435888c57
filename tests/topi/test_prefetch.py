"""Memory that schedules of CPUs ask for ahead of its use."""

from __future__ import annotations

import pytest

from tests.graph.helpers import function, op, var
from tests.topi.scheduling import schedule_cpu
from tilewright.graph.ir.expr import Function
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.visit import find_all
from tilewright.lower.primitive import lower_primitive
from tilewright.target import Target
from tilewright.tir.annotations import PREFETCH
from tilewright.tir.stmt import For

AVX512 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=1)


@pytest.mark.parametrize(("outputs", "fetched"), [(1, False), (8, False), (16, True)])
def test_rows_of_results_that_are_no_vector_wide_are_not_fetched(outputs: int, fetched: bool) -> None:
    """Sixteen pixels of one channel are one line of the cache: each step of the sum asked for it sixteen times."""
    x, w = var("x", 1, 512, 512, 64), var("w", 3, 3, 64, outputs)
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    layer = infer_types(function([x, w], op("nn.relu", op("nn.conv2d", x, w, padding=(1, 1, 1, 1), **layouts))))
    assert isinstance(layer, Function)
    scheduled = schedule_cpu(lower_primitive(layer, "kernel", (1,), on_cpu=True), AVX512)
    noted = [loop for loop in find_all(scheduled.body, For) if PREFETCH.of(loop)]
    assert any("relu" in (PREFETCH.of(loop) or {}) for loop in noted) == fetched
