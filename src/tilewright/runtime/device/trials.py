"""Trials of launches: runs that decide how kernels are started. Each finds, and leaves, what was there before.

A stage of a run reads what earlier stages have left in the workspace, and its own results may take that place once
nothing reads it any more. Run again from its beginning, it would read something else.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.runtime.core.artifact import ArgKind
from tilewright.runtime.device.steps import Place, PlannedStep


def overwritten(earlier: Sequence[PlannedStep], tried: Sequence[PlannedStep]) -> list[Place]:
    """What `earlier` steps leave in the workspace for the `tried` ones to read, and these write over."""
    left = [place for step in earlier for place in _written(step)]
    read: list[Place] = []
    own: list[Place] = []
    for step in tried if left else ():
        for place, is_written in step.uses():
            is_left = not is_written and any(place.overlaps(item) for item in left)
            if is_left and not any(item.covers(place) for item in own):
                read.append(place)
        own += _written(step)
    return [place for place in dict.fromkeys(read) if any(place.overlaps(item) for item in own)]


def _written(step: PlannedStep) -> list[Place]:
    return [place for place, is_written in step.uses() if is_written and place.kind is ArgKind.WORKSPACE]
