"""The order of steps in a stream, within what they depend on: units see each other only through tokens.

A load comes as early as it may, so that whoever waits for it is behind it. What stays on chip comes when it is used
first: the operands of the first products before all else, which nothing can hide. Results of one thread wait until the
other's accumulators are read, where its last products are shorter than they: these are what the next tile waits for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from tilewright.accel.config import AccelConfig
from tilewright.accel.instructions import Epi, Gemm, Store, Unit
from tilewright.backends.accel.first_products import split_first_products
from tilewright.backends.accel.steps import Step, conflict

_AHEAD: Final = 2
"""Products before its first use at which something that stays is loaded."""


def in_good_order(steps: Sequence[Step], config: AccelConfig) -> list[Step]:
    """The same steps, as they overlap best."""
    return results_behind(loads_in_time(split_first_products(advance_loads(steps))), config)


def advance_loads(steps: Sequence[Step]) -> list[Step]:
    """Loads as early in the program as what they depend on allows: units wait for steps after them nowhere."""
    result: list[Step] = []
    for step in steps:
        place = len(result)
        if step.unit is Unit.LOAD:
            while place and result[place - 1].unit is not Unit.LOAD and not conflict(result[place - 1], step):
                place -= 1
        result.insert(place, step)
    return result


def loads_in_time(steps: Sequence[Step]) -> list[Step]:
    """What is loaded before the first products, but first used later, comes a few products before it is used."""
    products = [n for n, step in enumerate(steps) if isinstance(step.instruction, Gemm)]
    first = products[0] if products else 0
    moved: dict[int, list[Step]] = {}
    kept: list[Step] = []
    uses = [(_first_use(step, steps, first) if step.unit is Unit.LOAD else first, step) for step in steps[:first]]
    # What is used first is loaded first: parameters of results come behind the operands of products.
    for use, step in sorted(uses, key=lambda item: item[0]):
        place = bisect_right(products, use) - 1 - _AHEAD
        if place >= 0:
            moved.setdefault(products[place], []).append(step)
        else:
            kept.append(step)
    result = kept
    for number in range(first, len(steps)):
        result += [steps[number], *moved.get(number, ())]
    return result


def _first_use(load: Step, steps: Sequence[Step], begin: int) -> int:
    """The first step from a place on that depends on a load."""
    return next((n for n in range(begin, len(steps)) if conflict(load, steps[n])), begin)


def results_behind(steps: Sequence[Step], config: AccelConfig) -> list[Step]:
    """EPI before the STORE in front of it, where its accumulators are ready before that STORE is done."""
    result = list(steps)
    for place in range(1, len(result)):
        epi, at = result[place], place
        if not isinstance(epi.instruction, Epi):
            continue
        products = _last_products(result, place)
        while at and isinstance(result[at - 1].instruction, Store) and not conflict(result[at - 1], epi):
            if products >= _cycles(result[at - 1], config) + epi.instruction.outer * epi.instruction.inner:
                break
            at -= 1
        result.insert(at, result.pop(place))
    return result


def _last_products(steps: Sequence[Step], place: int) -> int:
    """Steps of the last GEMM before a place that its EPI waits for."""
    for step in reversed(steps[:place]):
        item = step.instruction
        if isinstance(item, Gemm) and conflict(step, steps[place]):
            return item.outer * item.inner * (item.uop_end - item.uop_begin)
    return 0


def _cycles(step: Step, config: AccelConfig) -> int:
    item = step.instruction
    assert isinstance(item, Store)
    return item.x_size * item.y_size * config.dma_bytes[item.memory] // config.bus_bytes
