"""ONNX's own node tests in the graph interpreter: right values, or a clear refusal.

`python -m bench.onnx_suite` runs all of them as compiled code.
"""

from __future__ import annotations

import pytest

from bench.onnx_cases import load_cases, run_case, run_interpreted

LEAST_PASSED = 1874


@pytest.mark.slow
def test_node_cases():
    outcomes = [run_case(case, run_interpreted) for case in load_cases(("node",))]
    assert [item for item in outcomes if item.verdict == "failed"] == []
    assert sum(item.verdict == "passed" for item in outcomes) >= LEAST_PASSED
    assert all(item.reason for item in outcomes if item.verdict == "unsupported")


@pytest.mark.parametrize("kind", ["pytorch-converted", "pytorch-operator", "simple"])
def test_stored_cases(kind):
    outcomes = [run_case(case, run_interpreted) for case in load_cases((kind,))]
    assert [item for item in outcomes if item.verdict == "failed"] == []
    if kind != "simple":
        assert all(item.verdict == "passed" for item in outcomes)
