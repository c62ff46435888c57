"""The command queue of a device: commands are executed in order, beside the program that gives them.

A caller waits for what it reads only: for the last command under way that writes those bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Thread

from tilewright.support.errors import CompilerBug, TilewrightError

_KEPT = (TilewrightError, ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)
"""Errors of commands that are raised where the next one is given or waited for."""
Range = tuple[int, int]
"""Bytes of DRAM: the first, and the one after the last."""


@dataclass(frozen=True, slots=True)
class _Command:
    action: Callable[[], None]
    writes: tuple[Range, ...]


class CommandQueue:
    """Commands under way. A thread executes them, and ends when there are none: an idle queue has none.

    After a command that fails nothing is executed until its error has been raised where the next command is given or
    waited for; then the queue is as new.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._commands: deque[_Command] = deque()
        self._has_thread = False
        self._error: Exception | None = None

    def put(self, action: Callable[[], None], writes: Sequence[Range] = ()) -> None:
        """Append a command, which writes these bytes and no others."""
        with self._changed:
            self._raise()
            self._commands.append(_Command(action, tuple(writes)))
            if not self._has_thread:
                self._has_thread = True
                Thread(target=self._work, name="accel", daemon=True).start()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, and no error waits to be raised."""
        with self._changed:
            return not self._commands and self._error is None

    def wait(self) -> None:
        """Wait for all commands."""
        with self._changed:
            self._changed.wait_for(lambda: not self._commands)
            self._raise()

    def wait_for(self, begin: int, end: int) -> None:
        """Wait until no command under way writes these bytes."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_written(begin, end))
            self._raise()

    def _is_written(self, begin: int, end: int) -> bool:
        return any(first < end and begin < last for command in self._commands for first, last in command.writes)

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        while self._execute_next():
            pass

    def _execute_next(self) -> bool:
        """Execute a command; False where there is none, and the thread ends."""
        with self._changed:
            if not self._commands:
                self._has_thread = False
                return False
            action = self._commands[0].action
        error: Exception | None = CompilerBug("a command of a device failed in an unknown way")
        is_known = False
        try:
            action()
            error, is_known = None, True
        except _KEPT as caught:
            error, is_known = caught, True
        finally:
            # What the command kept alive is let go here, not when the next one comes.
            del action
            with self._changed:
                self._commands.popleft()
                if error is not None:
                    self._error = error
                    self._commands.clear()
                # Another error than those above ends the thread, with its traceback.
                self._has_thread = is_known
                self._changed.notify_all()
        return True
