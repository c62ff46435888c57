"""A child process that answers requests, with a time limit on each; one that dies or hangs is replaced.

Whatever a candidate does (crash the compiler, run wild, never return), it costs that candidate alone.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module

from tilewright.lower.worker import own_output, receive, send, serve
from tilewright.support import settings
from tilewright.support.children import python_command, python_environment
from tilewright.support.errors import TilewrightError, UserError
from tilewright.support.interrupts import ignore_interrupts

_DYING_SECONDS = 2.0


class ChildFailed(UserError):
    """The child died or took too long over a request."""


class Child:
    """A child that runs the function `answer` of a module; started when first asked, and again after a failure."""

    def __init__(self, module: str, *, memory_bytes: int = 0, cpus: frozenset[int] | None = None) -> None:
        self._module = module
        self._memory = memory_bytes
        self._cpus = cpus
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def ask(self, request: object, seconds: float) -> object:
        """The child's reply. Raises the error that the child reports, or `ChildFailed`."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()

        def expire() -> None:
            late.set()
            self._kill(process)

        timer = threading.Timer(seconds, expire)
        timer.start()
        try:
            send(process.stdin, request)
            reply = receive(process.stdout)
        except (OSError, EOFError):
            reply = None
        finally:
            timer.cancel()
        if reply is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                # One that is dying shall say of what.
                process.wait(_DYING_SECONDS)
            self._kill(process)
            code = process.wait()
            self._process = None
            if late.is_set():
                raise ChildFailed(f"took more than {seconds:g} s")
            raise ChildFailed(f"died: {_cause(code)}")
        if isinstance(reply, TilewrightError):
            raise reply
        return reply

    @property
    def is_running(self) -> bool:
        """Whether the child that answered last is there to answer more."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """End the child."""
        if self._process is not None:
            self._kill(self._process)
            self._process.wait()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            environment = python_environment()
            environment[settings.TRACE.name] = ""
            self._process = subprocess.Popen(
                python_command("-m", __name__, self._module, str(self._memory), _cpu_words(self._cpus)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # What a dying candidate prints is of no use; why it died is in the exit code.
                stderr=subprocess.DEVNULL,
                env=environment,
                process_group=0,
            )
            self.starts += 1
        return self._process

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _cpu_words(cpus: frozenset[int] | None) -> str:
    return ",".join(map(str, sorted(cpus))) if cpus else "-"


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def main(module: str, memory: int, words: str) -> None:
    """The child: answer requests from stdin until it ends."""
    ignore_interrupts()
    answer: Callable[[object], object] = import_module(module).answer
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if words != "-":
        os.sched_setaffinity(0, {int(word) for word in words.split(",")})

    def guarded(request: object) -> object:
        try:
            return answer(request)
        except MemoryError:
            return UserError("ran out of memory")

    serve(guarded, own_output())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
