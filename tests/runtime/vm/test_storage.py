"""Storage of the virtual machine: memory comes back when the last array over it dies."""

from __future__ import annotations

import threading

import numpy as np

from tilewright.runtime.vm.storage import Storage

FLOAT = np.dtype(np.float32)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again_only_when_no_view_is_left() -> None:
    storage = Storage()
    first = storage.empty((4, 5), FLOAT)
    place, view = address(first), first[1:].reshape(-1)
    assert place % 64 == 0
    del first
    other = storage.empty((4, 5), FLOAT)
    assert address(other) != place
    held = (view, [view])
    del view
    assert address(storage.empty((4, 5), FLOAT)) not in (place, address(other))
    del held
    assert address(storage.empty((20,), FLOAT)) == place


def test_sizes_that_are_near_share_memory() -> None:
    storage = Storage()
    place = address(storage.empty((1000,), FLOAT))
    assert address(storage.empty((1010,), FLOAT)) == place
    assert storage.empty((0, 3), FLOAT).shape == (0, 3)
    assert storage.empty((), FLOAT).shape == ()


def test_threads_never_get_the_same_memory() -> None:
    storage = Storage()
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(300):
            array = storage.empty((64,), FLOAT)
            array[:] = seed
            if not (array == seed).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
