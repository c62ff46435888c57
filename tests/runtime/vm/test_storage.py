"""Storage of the virtual machine: memory comes back when the last array over it dies."""

from __future__ import annotations

import threading

import numpy as np

from tilewright.runtime.vm.storage import Storage

FLOAT = np.dtype(np.float32)


def empty(storage: Storage, *shape: int) -> np.ndarray:
    array, start = storage.empty(shape, FLOAT)
    assert start == address(array)
    return array


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again_only_when_no_view_is_left() -> None:
    storage = Storage()
    first = empty(storage, 40, 50)
    place, view = address(first), first[1:].reshape(-1)
    assert place % 64 == 0
    del first
    other = empty(storage, 40, 50)
    assert address(other) != place
    held = (view, [view])
    del view
    assert address(empty(storage, 40, 50)) not in (place, address(other))
    del held
    assert address(empty(storage, 2000)) == place


def test_sizes_that_are_near_share_memory() -> None:
    storage = Storage()
    place = address(empty(storage, 10000))
    assert address(empty(storage, 10100)) == place
    assert empty(storage, 0, 3).shape == (0, 3)
    assert empty(storage).shape == ()


def test_threads_never_get_the_same_memory() -> None:
    storage = Storage()
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(300):
            array = empty(storage, 2048)
            array[:] = seed
            if not (array == seed).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
