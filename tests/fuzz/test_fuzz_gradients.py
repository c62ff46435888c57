"""A few random programs and their gradients; `make fuzz-gradients` has many."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fuzz import operator_gradients
from tests.fuzz.gradient_peers import jax_peers, torch_peers
from tests.fuzz.gradients import check
from tests.fuzz.operator_calls import random_case
from tests.grids import rare
from tests.requirements import need_module

RECORDED = json.loads((Path(__file__).resolve().parents[1] / "fixtures" / "gradients" / "jax.json").read_text())


@pytest.mark.parametrize("seed", [*range(2, 7), *rare(*range(7, 10), 12, 13, 14)])
def test_gradients_of_random_programs(seed: int) -> None:
    check(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100, 200))
def test_gradients_of_many_random_programs(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", [*range(6), *rare(*range(6, 12))])
def test_gradients_of_random_operators_are_those_of_torch(seed: int) -> None:
    need_module("torch")
    case = random_case(seed)
    operator_gradients.check(case, seed, torch_peers()[case.operator], operator_gradients.torch_gradients)


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row["call"])
def test_gradients_of_operators_are_those_that_jax_gave(row: dict[str, Any]) -> None:
    """Written by `python -m tests.fuzz.operator_gradients --record FILE --count 24`, where JAX is."""
    case = random_case(row["seed"])
    assert str(case) == row["call"]
    first, second = ([np.asarray(item) for item in row[order]] for order in ("first", "second"))
    operator_gradients.compare(case, row["seed"], (first, second))


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100))
def test_gradients_of_random_operators_are_those_of_jax(seed: int) -> None:
    need_module("jax")
    case = random_case(seed)
    operator_gradients.check(case, seed, jax_peers()[case.operator], operator_gradients.jax_gradients)
