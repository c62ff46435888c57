"""Interrupts from the keyboard: noted instead of raised, held back over steps that must be whole, and never lost.

    with noted_interrupts() as interrupt:               # work that ends well only between its steps
        while work and not interrupt.has_come():
            ...
    with held_interrupts():                             # a library that does not bear to be left in the middle
        ...

An exception that may come between any two instructions is easily lost (Python drops it where an object is being
freed) or leaves something half done. A second interrupt is raised as usual: whoever is in a hurry need not wait for
the step.
"""

from __future__ import annotations

import os
import signal
import sys
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


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Hold interrupts back to the end of a block of code, and give them to whoever handles them then.

    In another thread than the main one nothing is to be done: interrupts are raised in the main one only.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield
        return
    came: list[object] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if came:
            previous(signal.SIGINT, None)


_AGAIN_SECONDS = 0.02


@contextmanager
def lasting_interrupts() -> Iterator[None]:
    """Raise interrupts again that came where Python cannot raise them: while an object is freed, or in a callback.

    Python prints those and goes on. For programs, not for libraries: the hook is the process's own.
    """
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)
            return
        # A little later: now it would be raised in this hook, and lost as well.
        timer = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def ignore_interrupts() -> None:
    """For child processes: an interrupt is for the process that started them, which ends them as it sees fit."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
