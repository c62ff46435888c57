"""Nested, timed spans: where compile time goes.

    with trace.span("pass:fuse"):
        ...

`TILEWRIGHT_TRACE=time` prints a table to stderr when the process ends; `trace.collect()` gathers a report in
a program. The logger `tilewright` gets each span as it ends, at the level DEBUG. With nobody listening, a span costs
two tests and returns a shared object that does nothing.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

from tilewright.support import settings
from tilewright.support.text import table


class _NoSpan:
    """What `span` returns when nobody listens."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


_NO_SPAN = _NoSpan()
LOGGER = logging.getLogger("tilewright")
"""The package's logger; silent unless a program configures logging."""
LOGGER.addHandler(logging.NullHandler())


class Recorder:
    """Adds up the time and count of spans by their path (`compile/lower/pass:fuse`), over all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._local = threading.local()
        self._seconds: dict[tuple[str, ...], float] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time the `with` body under `name`, inside the span that is open in this thread."""
        parent: tuple[str, ...] = getattr(self._local, "path", ())
        path = (*parent, name)
        with self._lock:
            # Registered on entry, so that the report lists parents before their children.
            self._seconds.setdefault(path, 0.0)
            self._counts[path] = self._counts.get(path, 0) + 1
        self._local.path = path
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self._local.path = parent
            with self._lock:
                self._seconds[path] += elapsed

    def seconds(self, *path: str) -> float:
        """Total time spent under the span at `path`; 0 when it never ran."""
        return self._seconds.get(path, 0.0)

    def count(self, *path: str) -> int:
        """How often the span at `path` was entered."""
        return self._counts.get(path, 0)

    def report(self) -> str:
        """A table of spans: total time, own time (without inner spans), count and share of the whole."""
        with self._lock:
            seconds, counts = dict(self._seconds), dict(self._counts)
        own = dict(seconds)
        for path, total in seconds.items():
            if len(path) > 1:
                own[path[:-1]] -= total
        whole = sum(total for path, total in seconds.items() if len(path) == 1)
        rows = []
        for path in _tree_order(seconds):
            share = 100 * seconds[path] / whole if whole else 0.0
            name = "  " * (len(path) - 1) + path[-1]
            rows.append(
                (name, f"{1e3 * seconds[path]:.2f}", f"{1e3 * own[path]:.2f}", str(counts[path]), f"{share:.1f}")
            )
        return table(("span", "total ms", "own ms", "count", "%"), rows)


def _tree_order(seconds: dict[tuple[str, ...], float]) -> list[tuple[str, ...]]:
    """Parents before children, siblings in the order they were first entered."""
    children: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for path in seconds:
        children.setdefault(path[:-1], []).append(path)
    order: list[tuple[str, ...]] = []
    stack = list(reversed(children.get((), [])))
    while stack:
        path = stack.pop()
        order.append(path)
        stack.extend(reversed(children.get(path, [])))
    return order


_recorder: Recorder | None = None
_environment_was_read = False


def _print_report(recorder: Recorder) -> None:
    report = recorder.report()
    if report:
        print(f"tilewright: time per stage\n{report}", file=sys.stderr)


def _read_environment() -> None:
    """Start the recorder that `TILEWRIGHT_TRACE=time` asks for, on the first span of the process."""
    global _recorder, _environment_was_read
    _environment_was_read = True
    if "time" in settings.TRACE.get():
        _recorder = Recorder()
        atexit.register(_print_report, _recorder)


def span(name: str) -> AbstractContextManager[None]:
    """Time the `with` body under `name` when somebody listens; do nothing otherwise."""
    if not _environment_was_read:
        _read_environment()
    inner: AbstractContextManager[None] = _NO_SPAN if _recorder is None else _recorder.span(name)
    return _logged(name, inner) if LOGGER.isEnabledFor(logging.DEBUG) else inner


@contextmanager
def _logged(name: str, inner: AbstractContextManager[None]) -> Iterator[None]:
    start = time.perf_counter()
    with inner:
        yield
    LOGGER.debug("%s: %.2f ms", name, 1e3 * (time.perf_counter() - start))


@contextmanager
def collect() -> Iterator[Recorder]:
    """Record the spans of the `with` body: `with trace.collect() as times: ...; print(times.report())`."""
    global _recorder
    if not _environment_was_read:
        _read_environment()
    before, recorder = _recorder, Recorder()
    _recorder = recorder
    try:
        yield recorder
    finally:
        _recorder = before
