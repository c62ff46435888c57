"""Compiling many kernels on several cores."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock, Thread

from tilewright.lower.kernel import CompiledKernel, Kernel, compile_kernel, is_cached
from tilewright.lower.worker import receive, send
from tilewright.support import settings
from tilewright.support.children import python_command, python_environment
from tilewright.support.errors import CompilerBug, TilewrightError
from tilewright.target import Target

_TYPICAL_SIZE = 128
"""What a symbolic extent is taken for when kernels are put in order."""
_WORTH_A_PROCESS = 8
"""Kernels to compile for each extra process: it loads the compiler first, for the time of four to 14."""

_START = """
from tilewright.support.collecting import seldom_collecting
with seldom_collecting():
    from tilewright.lower.worker import main
    main()
"""
"""What a child runs: modules are many objects, too, and garbage among them is none."""


def compile_kernels(
    kernels: Sequence[Kernel], target: Target, jobs: int, done: Callable[[int], None] = lambda count: None
) -> list[CompiledKernel]:
    """Kernels compiled for a memory plan, in order; `done(count)` is called as they finish."""
    missing = [n for n, kernel in enumerate(kernels) if not is_cached(kernel, target, planned=True)]
    workers = min(jobs, 1 + len(missing) // _WORTH_A_PROCESS) - 1
    if settings.OVERRIDE_DIR.get() is not None:
        # This process alone says in the end which of the files there took the place of nothing.
        workers = 0
    results: list[CompiledKernel | None] = [None] * len(kernels)
    # The heaviest first, so that the last ones to finish are light.
    order = sorted(range(len(kernels)), key=lambda n: -kernels[n].work.at(_TYPICAL_SIZE)[0])
    run = _Run(kernels, target, results, deque(order), done)
    threads = [Thread(target=run.serve, daemon=True) for _ in range(workers if sys.executable else 0)]
    for thread in threads:
        thread.start()
    interrupted = True
    try:
        run.work_here()
        interrupted = False
    finally:
        if interrupted:
            run.stop()
        for thread in threads:
            thread.join()
    # A child that died gave its kernel back, perhaps after this process had found the queue empty.
    run.work_here()
    if run.error is not None:
        raise run.error
    compiled = [result for result in results if result is not None]
    if len(compiled) != len(kernels):
        raise CompilerBug(f"{len(kernels) - len(compiled)} of {len(kernels)} kernels were not compiled")
    return compiled


class _Run:
    """One batch: a queue of kernels shared by this process and its children."""

    def __init__(
        self,
        kernels: Sequence[Kernel],
        target: Target,
        results: list[CompiledKernel | None],
        queue: deque[int],
        done: Callable[[int], None],
    ) -> None:
        self.kernels = kernels
        self.target = target
        self.results = results
        self.queue = queue
        self.done = done
        self.finished = 0
        self.lock = Lock()
        self.error: TilewrightError | None = None
        self.children: list[subprocess.Popen[bytes]] = []
        self.stopped = False

    def _next(self) -> int | None:
        with self.lock:
            is_over = self.stopped or self.error is not None
            return self.queue.popleft() if self.queue and not is_over else None

    def stop(self) -> None:
        """End the children, whatever they do: nobody wants their kernels any more."""
        with self.lock:
            self.stopped = True
            for child in self.children:
                child.kill()

    def _finish(self, position: int, payload: CompiledKernel) -> None:
        with self.lock:
            self.results[position] = payload
            self.finished += 1
            self.done(self.finished)

    def _fail(self, error: TilewrightError) -> None:
        with self.lock:
            self.error = self.error or error

    def work_here(self) -> None:
        """Compile in this process until the queue is empty."""
        while (position := self._next()) is not None:
            try:
                payload = compile_kernel(self.kernels[position], self.target, planned=True)
            except TilewrightError as error:
                self._fail(error)
                return
            self._finish(position, payload)

    def serve(self) -> None:
        """Feed one child process until the queue is empty. A child that dies gives its kernel back."""
        try:
            with self.lock:
                # Under the lock: one that is stopped gets no child that `stop` does not see.
                if self.stopped:
                    return
                child = _start_child()
                self.children.append(child)
        except OSError:
            # No process more, or no memory for one: those that there are do the work.
            return
        try:
            while (position := self._next()) is not None:
                reply = _ask(child, (self.kernels[position], self.target))
                if isinstance(reply, CompiledKernel):
                    self._finish(position, reply)
                elif isinstance(reply, TilewrightError):
                    self._fail(reply)
                else:
                    with self.lock:
                        self.queue.append(position)
                    return
        finally:
            assert child.stdin is not None and child.stdout is not None
            with suppress(OSError):
                child.stdin.close()
            child.stdout.close()
            child.wait()


def _start_child() -> subprocess.Popen[bytes]:
    environment = python_environment()
    # The report of times is one table of this process, not one more for every child.
    environment[settings.TRACE.name] = ",".join(sorted(settings.TRACE.get() - {"time"}))
    return subprocess.Popen(
        python_command("-c", _START),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        # An interrupt from the keyboard is for this process alone: the child ends when its stdin does.
        process_group=0,
    )


def _ask(child: subprocess.Popen[bytes], request: object) -> object | None:
    assert child.stdin is not None and child.stdout is not None
    try:
        send(child.stdin, request)
        return receive(child.stdout)
    except OSError:
        # The child is gone: its kernel is compiled elsewhere.
        return None
