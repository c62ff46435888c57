"""Measuring candidates on boards with microcontrollers: built here, run by the runtime that serves the board.

    with BoardMeasurer(Target("cortex-m4")) as measurer:                    # QEMU's board; or gdb= or serial=
        tune(tasks, database, options, measurer=measurer)

Times are cycles, or instructions where an emulator counts them, as nanoseconds: only their ratios mean something.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from tilewright.backends.micro.agent import ROOM, BoardAgent
from tilewright.backends.micro.board import board_of
from tilewright.backends.micro.compiler import check_architecture
from tilewright.lower.kernel import CompiledKernel
from tilewright.rpc.board import DEFAULT_BAUD
from tilewright.support.errors import TilewrightError
from tilewright.target import Target
from tilewright.tune.builder import build_candidate
from tilewright.tune.measure import Defaults, Measurement
from tilewright.tune.runner import Array, compare, inputs_of, result_numbers
from tilewright.tune.space import Point
from tilewright.tune.task import Task

_NANOSECOND = 1e-9


class BoardMeasurer:
    """Measures on one board. Counts are exact on an emulator: each candidate runs once.

    The board is QEMU's; or one behind a debugger's server (`gdb="localhost:3333"`), or on a serial line
    (`serial="/dev/ttyUSB0"`, with `baud` bits a second) that has the runtime of `tilewright board`.
    """

    def __init__(
        self,
        target: Target,
        *,
        gdb: str | None = None,
        room: int = ROOM,
        serial: str | None = None,
        baud: int = DEFAULT_BAUD,
    ) -> None:
        check_architecture(target)
        self._defaults = Defaults()
        self._right: dict[str, tuple[list[Array], float]] = {}
        self._around = ExitStack()
        board = board_of(target.triple, target.cpu, target.features)
        self._agent = self._around.enter_context(BoardAgent.start(board, gdb, room, serial=serial, baud=baud))

    def close(self) -> None:
        """Let the board go."""
        self._around.close()

    def __enter__(self) -> BoardMeasurer:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def measure(self, task: Task, points: Sequence[Point]) -> Iterator[Measurement]:
        """Build and run; errors are part of the answer."""
        for point in points:
            try:
                right, reference = self._default(task)
                code = build_candidate(task.request(point))
            except TilewrightError as error:
                yield Measurement(point, None, error=f"build: {error}")
                continue
            try:
                got, seconds = self._run(task, code)
                compare(task.kernel.func, {number: got[number] for number in result_numbers(task.kernel.func)}, right)
            except TilewrightError as error:
                yield Measurement(point, None, error=f"run: {error}")
                continue
            yield Measurement(point, seconds, reference)

    def _default(self, task: Task) -> tuple[list[Array], float]:
        """What the default schedule of a task gives, and takes."""
        if task.key not in self._right:
            self._right[task.key] = self._run(task, self._defaults.code(task))
        return self._right[task.key]

    def _run(self, task: Task, code: CompiledKernel) -> tuple[list[Array], float]:
        func = task.kernel.func
        arrays = inputs_of(func)
        packed = [
            code.packing[number].rearrange(array) if number in code.packing else array
            for number, array in enumerate(arrays)
        ]
        done = self._agent.call(code.code.decode(), func.name, packed)
        return done.arrays, done.count * _NANOSECOND
