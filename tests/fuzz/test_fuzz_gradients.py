"""A few random programs and their gradients; `make fuzz-gradients` has many."""

from __future__ import annotations

import pytest

from tests.fuzz.gradients import check


@pytest.mark.parametrize("seed", [*range(2, 10), 12, 13, 14])
def test_gradients_of_random_programs(seed: int) -> None:
    check(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100, 200))
def test_gradients_of_many_random_programs(seed: int) -> None:
    check(seed)
