"""The agreement between schedules and the model's assembly about constant parameters.

A program whose attribute `CONSTANTS` lists parameter numbers promises that these are known at compile time. A
schedule may then rearrange them (`transform_layout`) and must record each index map under the attribute `PACKING`;
the assembly of the model stores the constants so arranged.
"""

from __future__ import annotations

from typing import Final

from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc

CONSTANTS: Final = "constant_params"
PACKING: Final = "packed_params"


def constant_parameters(func: PrimFunc) -> dict[Buffer, int]:
    """The parameters of a program that are constants, with their numbers."""
    numbers = func.attributes.get(CONSTANTS, ())
    assert isinstance(numbers, (tuple, list))
    found: dict[Buffer, int] = {}
    for number in numbers:
        param = func.params[number]
        assert isinstance(param, Buffer)
        found[param] = number
    return found
