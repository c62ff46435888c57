"""The agreement between schedules and the model's assembly about constant parameters.

A program whose attribute `CONSTANTS` lists parameter numbers promises that these are known at compile time. A
schedule may then rearrange them (`transform_layout`) and must record each index map under the attribute `PACKING`;
the assembly of the model stores the constants so arranged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tilewright.tir.buffer import Buffer
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.tir.index_map import IndexMap

PACKING: Final = "packed_params"


def constant_parameters(func: PrimFunc) -> dict[Buffer, int]:
    """The parameters of a program that are constants, with their numbers."""
    numbers = func.attributes.get(CONSTANTS, ())
    assert isinstance(numbers, (tuple, list))
    constants: dict[Buffer, int] = {}
    for number in numbers:
        param = func.params[number]
        assert isinstance(param, Buffer)
        constants[param] = number
    return constants


def with_packing(func: PrimFunc, packing: Mapping[int, IndexMap]) -> PrimFunc:
    """A scheduled program that records how its constant parameters were rearranged."""
    if not packing:
        return func
    plain = {str(number): index_map.encode() for number, index_map in packing.items()}
    return func.replace(attributes={**func.attributes, PACKING: plain})


def packing_of(func: PrimFunc) -> dict[int, IndexMap]:
    """The index maps that `with_packing` recorded, by parameter number."""
    plain = func.attributes.get(PACKING, {})
    assert isinstance(plain, dict)
    return {int(number): IndexMap.decode(_old_rank(steps), steps) for number, steps in plain.items()}


def _old_rank(steps: Sequence[Sequence[object]]) -> int:
    return len({step[0] for step in steps})
