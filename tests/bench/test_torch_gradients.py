"""The gradient command on a few operators."""

from __future__ import annotations

import importlib
from collections import Counter

import pytest

from tests.requirements import need

need("torch", "expecttest")


# Fixtures, because the operator database takes seconds to load: not in every process that only collects tests.
@pytest.fixture(scope="module")
def torch_gradients():
    return importlib.import_module("bench.torch_gradients")


@pytest.fixture(scope="module")
def operators():
    return importlib.import_module("bench.torch_cases").operators


def test_operators_pass_or_say_why_not(torch_gradients, operators) -> None:
    known = operators()
    assert torch_gradients.run_operator(known["sin"], 1, 60) == (Counter({"passed": 1}), "")
    assert torch_gradients.run_operator(known["where"], 2, 60)[0] == Counter({"passed": 2})
    counts, reason = torch_gradients.run_operator(known["frexp"], 1, 60)
    assert counts == Counter({"refused": 1})
    assert "reinterpret is not differentiable" in reason


def test_what_torch_gets_wrong_is_settled_by_differences(torch_gradients, operators) -> None:
    counts, _ = torch_gradients.run_operator(operators()["as_strided_scatter"], 2, 60)
    assert counts == Counter({"torch differs": 2})


def test_the_summary_counts_what_came_in(torch_gradients) -> None:
    found = {"a": (Counter({"passed": 3, "refused": 1}), ""), "b": (Counter({"forward unsupported": 2}), "")}
    figures = torch_gradients.summarize(found)
    assert figures["passed_percent"] == 75.0
    assert figures["operators"] == 2
    assert "a" in torch_gradients.render(found, details=False)
