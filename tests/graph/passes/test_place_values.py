"""Places of values in memory: none alive at the same time overlap, quickly, and the total is as little as it can be."""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.graph.passes import place_values


@dataclass(eq=False)
class Value:
    size: int
    first: int
    last: int
    offset: int = 0


def some_values(seed):
    generator = Random(seed)
    values = []
    for _ in range(generator.choice([3, 40, 120])):
        first = generator.randrange(60)
        lifetime = generator.choice([0, 1, 1, 2, 5, 17, 90])
        values.append(Value(generator.choice([8, 64, 200, 4096]), first, first + lifetime))
    return values


def _placed_one_by_one(values):
    """What `_place_in_order` must give: each value compared with all that were placed before it."""
    offsets = []
    for number, value in enumerate(values):
        size = place_values.aligned(value.size)
        best, best_gap, end = -1, 0, 0
        for offset, other in sorted((offsets[n], n) for n in range(number)):
            other = values[other]
            if other.first > value.last or other.last < value.first:
                continue
            gap = offset - end
            if gap >= size and (best < 0 or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, offset + place_values.aligned(other.size))
        offsets.append(end if best < 0 else best)
    return offsets


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_only_values_alive_at_the_same_time_are_compared(seed):
    values = some_values(seed)
    expected = _placed_one_by_one(values)
    place_values._place_in_order(values)
    assert [value.offset for value in values] == expected


def test_placing_takes_time_in_proportion():
    def seconds(count):
        values = [Value(64 * (1 + n % 7), n, n + 1 + n % 3) for n in range(count)]
        start = time.process_time()
        place_values._place_in_order(values)
        return time.process_time() - start

    # Eight times the values: comparing each with each would take 64 times as long.
    assert seconds(16_000) < 24 * seconds(2_000) + 0.1


@pytest.mark.parametrize("seed", [98, 185, 202])
def test_values_that_stick_out_are_placed_first_the_next_time(monkeypatch, seed):
    generator = Random(seed)
    values = []
    for _ in range(30):
        first = generator.randrange(20)
        size = 64 * generator.choice([1, 2, 3, 5, 8, 13])
        values.append(Value(size, first, first + generator.choice([1, 1, 2, 3, 8])))
    bound = max(sum(v.size for v in values if v.first <= step <= v.last) for step in range(30))
    assert place_values.place_values(values) == bound
    # One round an order is not enough for these.
    monkeypatch.setattr(place_values, "_MOST_ROUNDS", 1)
    assert place_values.place_values(values) > 1.1 * bound


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 100_000), backwards=st.booleans())
def test_by_time_is_best_fit_in_that_order(seed, backwards):
    values = some_values(seed)
    order = sorted(values, key=lambda value: (-value.last if backwards else value.first, -value.size))
    expected = _placed_one_by_one(order)
    total = place_values._place_by_time(values, backwards)
    assert [value.offset for value in order] == expected
    assert total == max(value.offset + place_values.aligned(value.size) for value in values)


def test_many_values_that_live_long_take_time_in_proportion():
    def seconds(count):
        values = [Value(64 * (1 + n % 3), n, n + count // 8) for n in range(count)]
        start = time.process_time()
        assert place_values.place_values(values) >= place_values.lower_bound(values)
        return time.process_time() - start

    # Each is compared with none of the thousands that live beside it.
    assert seconds(16_000) < 24 * seconds(2_000) + 0.1
