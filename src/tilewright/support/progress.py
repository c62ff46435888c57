"""A progress line on stderr for steps that take longer than about a second.

    with progress.Progress("compiling kernels", total=len(kernels)) as line:
        for kernel in kernels:
            ...
            line.step(kernel.name)

Nothing shows in the first second, nor when stderr is not a terminal; `TILEWRIGHT_PROGRESS=always|never` decides
otherwise. Where stderr is no terminal (`always`), full lines are printed now and then instead of one that is redrawn.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from tilewright.support import settings
from tilewright.support.text import human_seconds, shorten

_QUIET_SECONDS = 1.0
_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 5.0
_WIDTH = 100


class Progress:
    """A step in progress; `total` is the number of parts when it is known."""

    def __init__(self, title: str, total: int | None = None, *, stream: TextIO | None = None) -> None:
        self.title = title
        self.total = total
        self.done = 0
        self._stream = stream if stream is not None else sys.stderr
        self._terminal = self._stream.isatty()
        mode = settings.PROGRESS.get()
        self._active = mode == "always" or (mode == "auto" and self._terminal)
        self._start = time.monotonic()
        self._next = self._start + _QUIET_SECONDS
        self._drawn = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def step(self, detail: str = "", *, count: int = 1) -> None:
        """Say that `count` more parts are done; `detail` names the one at hand."""
        self.done += count
        if not self._active:
            return
        now = time.monotonic()
        if now >= self._next:
            self._draw(detail, now)

    def finish(self) -> None:
        """Close the line; prints the total time when something was shown."""
        if not self._drawn:
            return
        text = f"{self.title}: done in {human_seconds(time.monotonic() - self._start)}"
        self._write(text, last=True)
        self._drawn = False

    def _draw(self, detail: str, now: float) -> None:
        count = f" {self.done}/{self.total}" if self.total is not None else f" {self.done}" if self.done else ""
        text = f"{self.title}:{count}, {human_seconds(now - self._start)}" + (f"  {detail}" if detail else "")
        self._write(shorten(text, _WIDTH), last=False)
        self._next = now + (_REDRAW_SECONDS if self._terminal else _LINE_SECONDS)
        self._drawn = True

    def _write(self, text: str, *, last: bool) -> None:
        if self._terminal:
            # Carriage return and "erase to the end of the line" redraw in place.
            self._stream.write(f"\r{text}\x1b[K" + ("\n" if last else ""))
        else:
            self._stream.write(text + "\n")
        self._stream.flush()
