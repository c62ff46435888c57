"""The operator benchmark: verdicts of operators that pass, are refused and fail, and its summary."""

from __future__ import annotations

import importlib

import pytest

from tests.requirements import need

need("torch", "expecttest")


# Fixtures, because the operator database takes seconds to load: not in every process that only collects tests.
@pytest.fixture(scope="module")
def torch_ops():
    return importlib.import_module("bench.torch_ops")


@pytest.fixture(scope="module")
def torch_cases():
    return importlib.import_module("bench.torch_cases")


def test_verdicts(torch_ops, torch_cases):
    run = torch_cases.run_interpreted
    good = torch_cases.run_operator("logit", run, 3)
    assert (good.verdict, good.passed, good.total) == ("passed", 3, 3)
    refused = torch_cases.run_operator("bernoulli", run, 2)
    assert refused.verdict == "unsupported"
    assert "random numbers" in refused.reason

    def wrong(module, inputs):
        return [value + 1 for value in run(module, inputs)]

    bad = torch_cases.run_operator("logit", wrong, 3)
    assert (bad.verdict, bad.passed) == ("failed", 0)
    summary = torch_ops.summarize([good, refused, bad])
    assert {key: summary[key] for key in ("passed_operators", "failed", "unsupported", "total")} == {
        "passed_operators": 1,
        "failed": 1,
        "unsupported": 1,
        "total": 3,
    }
    text = torch_ops.render([good, refused, bad], details=False)
    assert "bernoulli" in text
    assert text.count("logit") == 1


def test_the_database_is_large(torch_cases):
    assert len(torch_cases.operators()) > 500
