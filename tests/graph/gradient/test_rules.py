"""Every gradient rule against central differences, its transpose against itself, and its own gradient."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.gradient.cases import CASES, ELSEWHERE, Case
from tests.graph.gradient.checks import check_forward, check_reverse, cotangents_for
from tilewright.graph.gradient.registry import gradients
from tilewright.graph.ir.op import operators


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reverse_rule_is_the_derivative(case: Case) -> None:
    check_reverse(case.function(), case.values(7))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_tangent_is_the_transpose_of_the_gradient(case: Case) -> None:
    check_forward(case.function(), case.values(8))


@pytest.mark.parametrize("case", [case for case in CASES if case.second], ids=str)
def test_the_gradient_has_a_gradient(case: Case) -> None:
    values = case.values(9)
    function = case.function()
    backward = check_reverse(function, values)
    given = cotangents_for(function, values, 1)
    check_reverse(backward, [*values, *given], tolerance=2e-4)


def test_every_reverse_rule_has_a_case() -> None:
    with_rule = {name for name, known in gradients().items() if known.reverse is not None}
    assert with_rule - {case.operator for case in CASES} - ELSEWHERE == set()
    assert np.all([case.operator in with_rule for case in CASES])


def test_every_operator_says_what_its_gradient_is() -> None:
    assert set(operators()) - set(gradients()) == set()
