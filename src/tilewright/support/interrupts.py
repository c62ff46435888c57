"""Interrupts from the keyboard that are noted instead of raised: for work that ends well only between its steps.

    with noted_interrupts() as interrupt:
        while work and not interrupt.has_come():
            ...

An exception that may come between any two instructions is easily lost (Python drops it where an object is being
freed) or leaves something half done. A second interrupt is raised as usual: whoever is in a hurry need not wait for
the step.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupt:
    """Whether an interrupt has come."""

    def __init__(self) -> None:
        self._came = False

    def note(self) -> None:
        """It has."""
        self._came = True

    def has_come(self) -> bool:
        """Whether one came so far."""
        return self._came


@contextmanager
def noted_interrupts() -> Iterator[Interrupt]:
    """Note the first interrupt of a block of code.

    Where interrupts mean something else than to stop Python (another handler, or they are ignored), or in another
    thread than the main one, nothing is changed, and nothing noted.
    """
    interrupt = Interrupt()
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupt
        return

    def note(number: int, frame: object) -> None:
        interrupt.note()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
