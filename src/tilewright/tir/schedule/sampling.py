"""Random choices of a schedule: tile sizes, categories and places, and the checks of recorded decisions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random

from tilewright.ir.expr import const_value
from tilewright.tir.analysis.dependence import consumers
from tilewright.tir.schedule.compute_location import compute_at
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.inline import compute_inline
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.stmt import Block, For


def _prime_factors(number: int) -> list[int]:
    factors: list[int] = []
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return [*factors, number] if number > 1 else factors


def _constant_extent(state: ScheduleState, loop: For) -> int:
    extent = const_value(loop.extent)
    if extent is None or extent < 1:
        state.fail(f"sample_perfect_tile: loop {loop.var.name} has no constant positive extent", loop)
    return extent


def perfect_tile(state: ScheduleState, loop: For, parts: int, max_innermost: int, random: Random) -> list[int]:
    """Factors of a loop's extent, the last at most `max_innermost`, drawn at random."""
    factors = [1] * parts
    primes = _prime_factors(_constant_extent(state, loop))
    random.shuffle(primes)
    for prime in primes:
        places = list(range(parts if factors[-1] * prime <= max_innermost else parts - 1))
        # One part alone has to take everything.
        factors[random.choice(places) if places else 0] *= prime
    return factors


def check_perfect_tile(state: ScheduleState, loop: For, parts: int, decision: Sequence[int]) -> list[int]:
    """A recorded decision, if it fits the loop."""
    factors = list(decision)
    extent = _constant_extent(state, loop)
    if len(factors) != parts or any(factor < 1 for factor in factors) or prod(factors) != extent:
        state.fail(f"sample_perfect_tile: the decision {factors} is not {parts} factors of the extent {extent}", loop)
    return factors


def categorical(state: ScheduleState, count: int, probabilities: Sequence[float], random: Random) -> int:
    """The place of a candidate, drawn with the given probabilities."""
    if count == 0 or len(probabilities) != count or min(probabilities) < 0 or sum(probabilities) <= 0:
        state.fail(
            f"sample_categorical: {count} candidates with the probabilities {list(probabilities)}",
            hint="give one non-negative number for each candidate, not all zero",
        )
    return random.choices(range(count), weights=probabilities)[0]


INLINE, STAY = -2, -1
"""Locations that are not loops: inlined into the consumers, and where the block is now."""


def compute_locations(state: ScheduleState, block: Block) -> list[int]:
    """Where a producer can be computed: `STAY`, `INLINE`, or the number of a loop around its first consumer."""
    readers = consumers(state.index, block)
    locations = [STAY]
    choices = [INLINE, *range(len(state.index.loops_above(readers[0])))] if readers else []
    for choice in choices:
        trial = state.copy()
        try:
            move(trial, trial.index.blocks[block.name], choice)
        except ScheduleError:
            continue
        locations.append(choice)
    return sorted(locations)


def move(state: ScheduleState, block: Block, location: int) -> None:
    """Compute a producer at a location."""
    if location == STAY:
        return
    if location == INLINE:
        compute_inline(state, block)
        return
    readers = consumers(state.index, block)
    loops = state.index.loops_above(readers[0]) if readers else []
    if not 0 <= location < len(loops):
        state.fail(f"compute_at_location: there is no loop {location} around a consumer of block {block.name}", block)
    compute_at(state, block, loops[location])
