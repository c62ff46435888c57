"""Constants in one block: each is let go as soon as it is placed."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from tilewright.graph.ir.expr import constant
from tilewright.lower import constants
from tilewright.lower.constants import ConstantStore


def test_constants_are_let_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ConstantStore()
    arrays = [np.full(40, number, np.float32) for number in range(4)]
    alive = [weakref.ref(array) for array in arrays]
    offsets = [store.add(constant(array), None) for array in arrays]
    del arrays
    left: list[int] = []
    monkeypatch.setattr(constants, "_LET_GO_BYTES", 0)
    monkeypatch.setattr(
        constants, "return_freed_memory", lambda: left.append(sum(item() is not None for item in alive))
    )
    block = store.blob()
    # The one that was placed last is still at hand.
    assert left == [4, 3, 2]
    for number, offset in enumerate(offsets):
        np.testing.assert_array_equal(block[offset : offset + 160].view(np.float32), np.float32(number))
    assert [item() is None for item in alive] == [True] * 4


def test_constants_begin_at_lines() -> None:
    """One element in front of weights moves them by a line, not into the middle of one."""
    store = ConstantStore(256)
    offsets = [store.add(constant(np.ones(count, np.float32)), None) for count in (1, 300, 64, 65, 2)]
    assert offsets == [0, 256, 1536, 1792, 2304]
    block = store.blob()
    assert block.nbytes == 2560
    assert all(block[offset : offset + 4].view(np.float32) == 1 for offset in offsets)


def test_equal_constants_are_stored_once() -> None:
    store = ConstantStore()
    weights = np.arange(4096, dtype=np.float32).reshape(64, 64)
    # It differs where nothing is looked at first.
    other = weights.copy()
    other[0, 1] = 7
    zeros = np.zeros(3, np.float32)
    nothing = np.full(2, np.nan, np.float32)
    arrays = [weights, other, weights.copy(), weights.reshape(-1), zeros, -zeros, nothing, nothing.copy()]
    offsets = [store.add(constant(array), None) for array in arrays]
    assert offsets[2] == offsets[0] and offsets[7] == offsets[6]
    assert len(set(offsets)) == len(store.table()) == 6
    block = store.blob()
    for array, offset in zip(arrays, offsets, strict=True):
        assert block[offset : offset + array.nbytes].tobytes() == array.tobytes()
