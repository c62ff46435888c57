"""What a service says of itself: lines of bounded length and number, whatever strangers do."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

_LINES, _SECONDS = 10, 10.0
"""So many lines of a kind in such a time; the rest is counted."""
_LONGEST = 400


class Log:
    """Lines by kind; more of one kind than are worth reading are left out and counted.

    Letters that would move the cursor or begin a line are spelt out: names in lines come from the network.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}
        self.bugs = 0
        """How many errors were nobody's but ours."""

    def line(self, kind: str, text: str) -> None:
        """Say something of a kind."""
        now = self._clock()
        began, count = self._kinds.get(kind, (now, 0))
        if now - began >= _SECONDS:
            self._summary(kind, count)
            began, count = now, 0
        self._kinds[kind] = (began, count + 1)
        if count < _LINES:
            self._say(_printable(text))

    def bug(self, where: str, error: BaseException) -> None:
        """Say that something failed that never should."""
        self.bugs += 1
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        self.line("internal error", f"internal error in {where}: {error!r}{place} (this is a bug in Tilewright)")

    def close(self) -> None:
        """Say what was left out so far."""
        for kind, (_, count) in self._kinds.items():
            self._summary(kind, count)
        self._kinds.clear()

    def _summary(self, kind: str, count: int) -> None:
        if count > _LINES:
            self._say(f"... {count - _LINES} more lines were left out ({kind})")


def _printable(text: str) -> str:
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
