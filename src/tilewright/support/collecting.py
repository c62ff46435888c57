"""Python's search for cyclic garbage, less often: for work that makes and keeps very many small objects.

    with seldom_collecting():
        ...                             # schedule thousands of programs and keep them

Python looks through all objects that are kept whenever their number has grown by a quarter, and through young ones
after every 700 new ones. Programs are trees of small objects without cycles: such a look finds nothing, and over a
search of many schedules it takes a third of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ALLOCATIONS: Final = 200_000
"""New objects between two looks: some ten megabytes."""


@contextmanager
def seldom_collecting(allocations: int = ALLOCATIONS) -> Iterator[None]:
    """Let Python look for cycles only after so many new objects; as before afterwards. It is the whole process's."""
    before = gc.get_threshold()
    # Zero means never: whoever asked for that keeps it.
    gc.set_threshold(before[0] and max(before[0], allocations), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
