"""Accesses of lowered programs: those that leave their buffers are found, masks are understood."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fuzz import templates
from tests.fuzz.lowered_bounds import refuse_lowered_outside
from tests.fuzz.template_families import Draft
from tests.tir.schedule.scripts import parse
from tilewright.support.errors import UserError

COPY = """
def f(A: Buffer[(10,), "float32"], B: Buffer[(16,), "float32"]):
    B[ramp(0, 1, 16)] = {}
"""


@pytest.mark.parametrize(
    "masked",
    [
        "A[ramp(0, 1, 16)] if ramp(0, 1, 16) < broadcast(int64(10), 16) else broadcast(float32(0.0), 16)",
        "A[ramp(9, -1, 16)] if ramp(0, 1, 16) < broadcast(int64(10), 16) else broadcast(float32(0.0), 16)",
    ],
)
def test_masks_keep_lanes_inside(masked: str) -> None:
    refuse_lowered_outside(parse(COPY.format(masked)))


@pytest.mark.parametrize(
    "value",
    [
        "A[ramp(0, 1, 16)]",
        "A[ramp(0, 1, 16)] if ramp(0, 1, 16) < broadcast(int64(11), 16) else broadcast(float32(0.0), 16)",
    ],
)
def test_lanes_outside_are_refused(value: str) -> None:
    with pytest.raises(UserError, match="out of bounds"):
        refuse_lowered_outside(parse(COPY.format(value)))


@pytest.mark.parametrize("hidden", [1, 2, 3, 5, 17])
@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers_of_few_units_stay_in_their_tiles(kind: str, gates: int, hidden: int) -> None:
    """Their weights are inputs: a tile of sums is as narrow as the layer, and vectors are not."""
    draft = Draft(np.random.default_rng(0))
    data, weight = draft.input(3, 3, 4, name="x"), draft.weight(1, gates * hidden, 4)
    state = draft.input(1, gates * hidden, hidden, name="r")
    model = draft.model(draft.node(kind, data, weight, state, hidden_size=hidden))
    for target in ("native", "llvm -mcpu=emeraldrapids -mtriple=x86_64-linux-gnu"):
        templates.lower_all(model, target, 2)
