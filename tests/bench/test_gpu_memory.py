"""The cases of bench.gpu_memory: each is one kernel where it should be, whatever machine this is."""

from __future__ import annotations

import pytest

from bench.gpu_memory import CASES, SMALL, Case, program
from tests.topi.scheduling import schedule_gpu
from tilewright.backends.device import device_kernels
from tilewright.target import Target

H200 = Target("cuda -arch=sm_90 -num-cores=132 -shared-bytes=232448")
IN_PARTS = ("sum rows 1M", "sum all", "sum few columns")
"""Sums of too few results for all cores: two kernels."""


@pytest.mark.parametrize("case", [*CASES[::3], *SMALL[::3]], ids=lambda case: case.name)
def test_cases_are_single_kernels(case: Case) -> None:
    func = program(case)
    split = device_kernels(schedule_gpu(func, H200), H200)
    if case.operator == "nn.lstm":
        steps = case.shapes[0][0]
        assert len(split.order) == steps + 2
    else:
        assert len(split.kernels) == (2 if case.name in IN_PARTS else 1)
    for kernel in split.kernels:
        assert kernel.block[0] * kernel.block[1] * kernel.block[2] >= 32
