"""Interrupts that are noted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from tilewright.support.interrupts import noted_interrupts


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
