"""Kernels on a board without an operating system: a runtime of a few hundred bytes, reached through a debugger.

    with BoardAgent.start(board) as agent:
        run = agent.call(source, "kernel", arrays)           # what is in the arrays afterwards, and what it took

The runtime (`templates/agent.c`) is loaded once. Code and arrays then go into its memory, which need not be more than
64 KB: a mailbox says which function to call with which addresses.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tilewright.backends.micro.board import Board
from tilewright.backends.micro.build import build_image, link_files
from tilewright.backends.micro.example import TEMPLATES, board_values
from tilewright.backends.micro.gdb import GdbRemote
from tilewright.backends.micro.program import Program, read_program
from tilewright.backends.micro.remote import TIMEOUT_SECONDS, emulator, load_program
from tilewright.support.errors import UserError

Array = npt.NDArray[Any]
ROOM: Final = 60 << 10
"""Bytes for code and arrays: the rest of 64 KB is the runtime's own, and the stack."""
_MOST_ARGUMENTS: Final = 32
_ALIGNMENT: Final = 16


@dataclass(frozen=True)
class Call:
    """What came of a call."""

    arrays: list[Array]
    """The arguments as they are afterwards."""
    count: int
    """Cycles, or instructions where an emulator has no cycles."""


class BoardAgent:
    """The runtime on a board."""

    def __init__(self, link: GdbRemote, program: Program, board: Board, room: int) -> None:
        self._link = link
        self._program = program
        self._board = board
        self._room = room
        self._stop = program.symbol("tw_stop") & ~1
        self._images: dict[tuple[str, str], Program] = {}
        link.set_breakpoint(self._stop)
        link.resume()

    @classmethod
    @contextmanager
    def start(cls, board: Board, gdb: str | None = None, room: int = ROOM) -> Iterator[BoardAgent]:
        """The runtime on QEMU's board, or on one behind a debugger's server at HOST:PORT."""
        with ExitStack() as around:
            work = around.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-"))
            path = build_agent(Path(work), board, room)
            program = read_program(path)
            if gdb is None:
                link = around.enter_context(emulator(board, path))
            else:
                link = GdbRemote.connect(gdb, TIMEOUT_SECONDS)
                around.callback(link.close)
                load_program(link, program, board)
            yield cls(link, program, board, room)

    def call(self, source: str, function: str, arrays: Sequence[Array]) -> Call:
        """Call a function of some C source with the addresses of copies of arrays."""
        memory = self._program.symbol("tw_memory")
        image = self._image(source, function, memory, len(arrays))
        end = max(segment.address + len(segment.data) for segment in image.segments)
        places = []
        for array in arrays:
            end = -(-end // _ALIGNMENT) * _ALIGNMENT
            places.append(end)
            end += array.nbytes
        if end - memory > self._room or len(arrays) > _MOST_ARGUMENTS:
            raise UserError(
                f"a kernel with its arrays takes {end - memory} bytes, and the board has {self._room} for them",
                hint="kernels of this size are measured on a board with more memory: BoardAgent.start(room=...)",
            )
        for segment in image.segments:
            self._link.write(segment.address, segment.data)
        for place, array in zip(places, arrays, strict=True):
            self._link.write(place, np.ascontiguousarray(array).tobytes())
        self._put("tw_arguments", places)
        self._put("tw_function", [image.entry])
        self._pass_stop()
        status = self._get("tw_status")
        if status:
            raise UserError(f"the kernel returned {status}")
        after = [
            np.frombuffer(self._link.read(place, array.nbytes), array.dtype).reshape(array.shape)
            for place, array in zip(places, arrays, strict=True)
        ]
        return Call(after, self._get("tw_taken"))

    def _image(self, source: str, function: str, memory: int, count: int) -> Program:
        if (source, function) not in self._images:
            arguments = ", ".join(f"a[{number}]" for number in range(count))
            text = f"{source}\nint32_t tw_call(void* const* a) {{ return {function}({arguments}); }}\n"
            self._images = {
                **dict(list(self._images.items())[-3:]),
                (source, function): build_image(text, memory, self._board),
            }
        return self._images[source, function]

    def _pass_stop(self) -> None:
        """Run from one stop to the next; a processor that stands at a breakpoint would stop there again."""
        self._link.clear_breakpoint(self._stop)
        self._link.step()
        self._link.set_breakpoint(self._stop)
        self._link.resume()

    def _put(self, name: str, words: Sequence[int]) -> None:
        self._link.write(self._program.symbol(name), np.asarray(words, "<u4").tobytes())

    def _get(self, name: str) -> int:
        return int.from_bytes(self._link.read(self._program.symbol(name), 4), "little", signed=True)


def build_agent(folder: Path, board: Board, room: int) -> Path:
    """The program of the runtime."""
    values = {**board_values(board), "room": str(room), "most_arguments": str(_MOST_ARGUMENTS)}
    for source in ("agent.c", "semihosting.h", "board.ld", board.start):
        text = Template((TEMPLATES / source).read_text(encoding="utf-8")).substitute(values)
        (folder / source).write_text(text, encoding="utf-8")
    return link_files(folder, board, ["agent.c", board.start], "agent.elf")
