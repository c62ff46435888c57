"""Interrupts that are noted, held, raised again and ignored."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tilewright.support.interrupts import held_interrupts, ignore_interrupts, lasting_interrupts, noted_interrupts


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """Whoever runs the tests in the background may ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_is_noted_and_the_second_raised() -> None:
    with noted_interrupts() as interrupt:
        assert not interrupt.has_come()
        signal.raise_signal(signal.SIGINT)
        assert interrupt.has_come()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_that_comes_while_an_object_is_freed_is_noted_too() -> None:
    class Freed:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with noted_interrupts() as interrupt:
        Freed()
        assert interrupt.has_come()


def test_other_handlers_are_left_alone() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with noted_interrupts() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert not interrupt.has_come()


def test_other_threads_change_nothing() -> None:
    seen: list[object] = []

    def work() -> None:
        with noted_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_errors_restore_the_handler() -> None:
    with pytest.raises(KeyError), noted_interrupts():
        raise KeyError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_held_interrupts_come_at_the_end() -> None:
    done = []

    def work() -> None:
        with held_interrupts():
            signal.raise_signal(signal.SIGINT)
            with held_interrupts():
                signal.raise_signal(signal.SIGINT)
                done.append(1)
            done.append(2)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_held_interrupts_go_to_whoever_handles_them() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    with held_interrupts():
        signal.raise_signal(signal.SIGINT)
        assert not seen
    assert seen == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with held_interrupts():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_interrupts_that_python_cannot_raise_come_again() -> None:
    class Freed:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def work() -> None:
        with lasting_interrupts():
            Freed()
            time.sleep(10)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work()
    assert time.monotonic() - began < 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_other_errors_that_python_cannot_raise_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Freed:
        def __del__(self) -> None:
            raise ValueError("freed")

    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(unraisable.exc_type))
    with lasting_interrupts():
        Freed()
    assert seen == [ValueError]


def test_children_ignore_interrupts() -> None:
    ignore_interrupts()
    signal.raise_signal(signal.SIGINT)
