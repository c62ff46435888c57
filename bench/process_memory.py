"""How much memory some work takes: of this process, and of those that it starts meanwhile.

    with MemoryWatch() as watch:
        ...
    watch.bytes

`getrusage` cannot say it: to the system, a process that is started begins with the peak of the one that started it, so
what a parent holds would be counted once more for its children. Here resident memory is read again and again, and the
largest sum counts, less what this process held before.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

EVERY_SECONDS = 0.1
_PROCESSES = Path("/proc")


class MemoryWatch:
    """The peak of resident memory while it is entered, in bytes more than before."""

    def __init__(self) -> None:
        self.bytes = 0
        self.looks = 0
        """How often memory has been read."""
        self.seconds = 0.0
        """The processor's time that reading it took."""
        self._before = 0
        self._known: frozenset[int] = frozenset()
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._known = frozenset(_children())
        self._before = resident_bytes()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(EVERY_SECONDS)
            started = [number for number in _children() if number not in self._known]
            whole = resident_bytes() + sum(resident_bytes(str(number)) for number in started)
            self.bytes = max(self.bytes, whole - self._before)
            self.looks += 1
            self.seconds = time.thread_time()


def resident_bytes(process: str = "self") -> int:
    """What a process holds in memory now; nothing of one that has ended."""
    try:
        status = (_PROCESSES / process / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return 0 if found is None else int(found[1]) * 1024


def _children() -> Iterator[int]:
    """The processes that this one has started and that have not ended."""
    for place in _PROCESSES.glob("[0-9]*/stat"):
        try:
            after_name = place.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            # It has ended since it was listed.
            continue
        if int(after_name[1]) == os.getpid():
            yield int(place.parent.name)
