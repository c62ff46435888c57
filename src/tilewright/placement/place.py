"""`place` itself: one device beside the host, or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from tilewright.options import CompileOptions
from tilewright.placement.kernels import Placement, place_kernels
from tilewright.placement.program import ProgramPlacement, place_program
from tilewright.request import ModelLike, TargetLike


@overload
def place(
    model: ModelLike, inputs: Sequence[object], target: TargetLike, *, options: CompileOptions | None = None
) -> Placement: ...


@overload
def place(
    model: ModelLike,
    inputs: Sequence[object],
    target: list[TargetLike] | tuple[TargetLike, ...],
    *,
    options: CompileOptions | None = None,
) -> ProgramPlacement: ...


def place(
    model: ModelLike,
    inputs: Sequence[object],
    target: TargetLike | list[TargetLike] | tuple[TargetLike, ...],
    *,
    options: CompileOptions | None = None,
) -> Placement | ProgramPlacement:
    """Measure a model on a device, or on several in a list, and on the CPU beside them, and find what should run where.

    With one device its kernels are placed one by one, and the result is one executable. With a list the graph is
    divided into parts, each compiled for its place, that run at once where they can.
    """
    if isinstance(target, (list, tuple)):
        return place_program(model, inputs, target, options)
    return place_kernels(model, inputs, target, options)
