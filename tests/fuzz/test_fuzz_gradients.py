"""A few random programs and their gradients; `make fuzz-gradients` has many."""

from __future__ import annotations

import pytest

from tests.fuzz import operator_gradients
from tests.fuzz.gradient_peers import jax_peers, torch_peers
from tests.fuzz.gradients import check
from tests.requirements import need_module


@pytest.mark.parametrize("seed", [*range(2, 10), 12, 13, 14])
def test_gradients_of_random_programs(seed: int) -> None:
    check(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100, 200))
def test_gradients_of_many_random_programs(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", range(12))
def test_gradients_of_random_operators_are_those_of_torch(seed: int) -> None:
    need_module("torch")
    case = operator_gradients.random_case(seed)
    operator_gradients.check(case, seed, torch_peers()[case.operator], operator_gradients.torch_gradients)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100))
def test_gradients_of_random_operators_are_those_of_jax(seed: int) -> None:
    need_module("jax")
    case = operator_gradients.random_case(seed)
    operator_gradients.check(case, seed, jax_peers()[case.operator], operator_gradients.jax_gradients)
