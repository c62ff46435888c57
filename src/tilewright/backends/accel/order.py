"""The order of steps in a stream, within what they depend on: units see each other only through tokens.

A load comes as early as it may, so that whoever waits for it is behind it. Parameters of EPI come behind the operands
of the first products, which nothing else can hide. Results of one thread wait until the other's accumulators are read,
where its last products are shorter than they: these are what the next tile waits for.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.instructions import Epi, Gemm, Load, Store, Unit
from tilewright.backends.accel.steps import Step, conflict


def in_good_order(steps: Sequence[Step], config: AccelConfig) -> list[Step]:
    """The same steps, as they overlap best."""
    return results_behind(parameters_behind(advance_loads(steps)), config)


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


def parameters_behind(steps: Sequence[Step]) -> list[Step]:
    """The first loads of parameters behind all loads that the first products wait for."""
    first = next((n for n, step in enumerate(steps) if isinstance(step.instruction, Gemm)), len(steps))
    early = [step for step in steps[:first] if _is_parameters(step)]
    others = [step for step in steps[:first] if not _is_parameters(step)]
    needed = [n for n, step in enumerate(others) if first < len(steps) and conflict(step, steps[first])]
    place = needed[-1] + 1 if needed else 0
    return [*others[:place], *early, *others[place:], *steps[first:]]


def _is_parameters(step: Step) -> bool:
    return isinstance(step.instruction, Load) and step.instruction.memory is Memory.PAR


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
