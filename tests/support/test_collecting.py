"""Looking for cyclic garbage less often."""

from __future__ import annotations

import gc

import pytest

from tilewright.support import collecting
from tilewright.support.collecting import return_freed_memory, seldom_collecting


def test_thresholds_are_raised_inside_and_restored_also_after_an_error() -> None:
    before = gc.get_threshold()
    with seldom_collecting(before[0] + 1000):
        assert gc.get_threshold() == (before[0] + 1000, *before[1:])
    assert gc.get_threshold() == before
    with pytest.raises(KeyError), seldom_collecting(before[0] + 1000):
        raise KeyError
    assert gc.get_threshold() == before


def test_a_higher_threshold_and_none_at_all_are_kept() -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(500_000, 7, 8)
        with seldom_collecting(1000):
            assert gc.get_threshold() == (500_000, 7, 8)
        gc.set_threshold(0, 7, 8)
        with seldom_collecting(1000):
            assert gc.get_threshold() == (0, 7, 8)
    finally:
        gc.set_threshold(*before)


def test_threads_that_are_inside_together_end_in_any_order() -> None:
    before = gc.get_threshold()
    first, second = seldom_collecting(before[0] + 1000), seldom_collecting(before[0] + 2000)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (before[0] + 2000, *before[1:])
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_freed_memory_is_returned_where_the_c_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    return_freed_memory()
    left: list[int] = []
    monkeypatch.setattr(collecting, "_trim", lambda: left.append)
    return_freed_memory()
    assert left == [0]
    monkeypatch.setattr(collecting, "_trim", lambda: None)
    return_freed_memory()
    assert left == [0]


def test_cycles_are_still_found() -> None:
    class Node:
        alive = 0

        def __init__(self) -> None:
            Node.alive += 1
            self.itself = self

        def __del__(self) -> None:
            Node.alive -= 1

    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        with seldom_collecting(2000):
            for _ in range(20_000):
                Node()
            assert Node.alive < 10_000
    finally:
        gc.set_threshold(*before)
