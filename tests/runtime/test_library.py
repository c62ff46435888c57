"""Functions of compiled code: a pool is told the number of threads when it changes, not before every call."""

from __future__ import annotations

import ctypes

from tilewright.runtime.core.library import thread_setter


class Pool:
    """A library of one function, which notes what it is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: list[int] = []
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.told.append)

    def find(self, name: str) -> int | None:
        return ctypes.cast(self._function, ctypes.c_void_p).value if name == self.name else None

    def symbol(self, name: str) -> int:
        address = self.find(name)
        assert address is not None
        return address


def test_a_pool_is_told_when_the_number_changes() -> None:
    pool, other = Pool("tw_set_num_threads"), Pool("model_set_num_threads")
    # Two models share one pool, a third has its own.
    first, second = thread_setter(pool, "model"), thread_setter(pool, "other")
    third = thread_setter(other, "model")
    for call, threads in ((first, 2), (first, 2), (second, 2), (second, 1), (third, 1), (first, 2), (third, 1)):
        call(threads)
    assert pool.told == [2, 1, 2]
    assert other.told == [1]


def test_code_without_a_pool_is_told_nothing() -> None:
    thread_setter(Pool("something_else"), "model")(4)
