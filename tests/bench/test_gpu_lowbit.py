"""The bench of kernels of few bits: right on a device that is here, scheduled for one that is not; errors are seen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench import gpu_lowbit
from bench.lowbit_cases import CASES, SMALL, Case
from tests.requirements import need
from tilewright.target import Target

H200 = Target("cuda -arch=sm_90a -num-cores=132 -l2-bytes=52428800 -shared-bytes=232448")


def test_a_run_on_opencl(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    need("opencl")
    only = "dot4 20*,4-bit weights 1x*,W1A2*"
    file = tmp_path / "lowbit.json"
    code = gpu_lowbit.main(["--target", "opencl", "--small", "--only", only, "--rounds", "1", "--json", str(file)])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0
    assert [row["right"] for row in figures["kernels"]] == [True] * 3
    assert figures["kernels"][1]["of_copy"] > 0
    assert json.loads(file.read_text())["kernels"] == figures["kernels"]


def test_a_wrong_result_is_seen() -> None:
    case = SMALL[1]
    operands = case.operands()
    result = np.zeros((20, 24), np.int32)
    assert gpu_lowbit.largest_error(case, operands, result) == 1.0


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name.startswith(("dot4 1x", "8-bit weights 1x4096x4096"))]
)
def test_large_cases_are_scheduled(case: Case) -> None:
    case = gpu_lowbit.for_target(case, H200)
    func, templates = gpu_lowbit.scheduled(case, case.operands(), H200)
    assert templates[-1] in ("vector_product", "packed_fragments")
    assert len(gpu_lowbit.arranged(func, case.operands())) == len(case.operands())
