"""Memory while very many objects are made: garbage is looked for less often, and freed memory is given back.

    with seldom_collecting():
        ...                             # compile a model, or schedule thousands of programs and keep them
    return_freed_memory()               # large arrays were made and are gone

Python looks through all objects that are kept whenever their number has grown by a quarter, and through young ones
after every 700 new ones. Programs are trees of small objects without cycles: such a look finds nothing, and takes a
tenth of a compilation's time and a third of that of a search of many schedules.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Final

ALLOCATIONS: Final = 1_000_000
"""New objects between two looks: more than a kernel makes while it is compiled, some fifty megabytes."""

_LOCK: Final = Lock()
_inside = 0
_before = (0, 0, 0)


@contextmanager
def seldom_collecting(allocations: int = ALLOCATIONS) -> Iterator[None]:
    """Let Python look for cycles only after so many new objects; as before when the last that asked for it is through.

    It is the whole process's: threads may be inside at the same time.
    """
    global _inside, _before
    with _LOCK:
        now = gc.get_threshold()
        if _inside == 0:
            _before = now
        _inside += 1
        # Zero means never: whoever asked for that keeps it.
        gc.set_threshold(now[0] and max(now[0], allocations), *now[1:])
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            if _inside == 0:
                gc.set_threshold(*_before)


@cache
def _trim() -> Callable[[int], int] | None:
    """What returns unused memory to the system, in C libraries that keep it until asked (glibc's)."""
    try:
        found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):
        # Not every system can load the program itself as a library.
        return None
    return found


def return_freed_memory() -> None:
    """Give the memory of arrays that are gone back to the system, where the C library would keep it for later."""
    trim = _trim()
    if trim is not None:
        trim(0)
