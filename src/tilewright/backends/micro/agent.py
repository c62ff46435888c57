"""Kernels on a board without an operating system: a small runtime, reached through a debugger or over a serial line.

    with BoardAgent.start(board) as agent:
        run = agent.call(source, "kernel", arrays)           # what is in the arrays afterwards, and what it took

The runtime (`templates/agent.c` through a debugger, `templates/serial_agent.c` over a serial line) is loaded once. Code
and arrays then go into its memory, which need not be more than 64 KB; it calls the code with their addresses.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from tilewright.backends.micro.board import Board
from tilewright.backends.micro.build import build_image, link_files
from tilewright.backends.micro.example import TEMPLATES, board_values
from tilewright.backends.micro.gdb import GdbRemote
from tilewright.backends.micro.program import Program, read_program
from tilewright.backends.micro.remote import TIMEOUT_SECONDS, emulator, load_program
from tilewright.rpc.board import DEFAULT_BAUD, connect_board
from tilewright.support.errors import UserError

Array = npt.NDArray[Any]
ROOM: Final = 60 << 10
"""Bytes for code and arrays: the rest of 64 KB is the runtime's own, and the stack."""
SERIAL_ROOM: Final = 56 << 10
"""The same for the runtime with a serial line, which has frames to keep."""
_MOST_ARGUMENTS: Final = 32
_ALIGNMENT: Final = 16


@dataclass(frozen=True)
class Call:
    """What came of a call."""

    arrays: list[Array]
    """The arguments as they are afterwards."""
    count: int
    """Cycles, or instructions where an emulator has no cycles."""


class Link(Protocol):
    """The way to a runtime: its memory, and a call of what was put there."""

    memory: int
    """Where its memory begins."""
    room: int

    def read(self, address: int, size: int) -> bytes:
        """Bytes of memory."""

    def write(self, address: int, data: bytes) -> None:
        """Put bytes into memory."""

    def call(self, entry: int, arguments: Sequence[int]) -> tuple[int, int]:
        """Call a function with an array of words: what it returns, and what it took."""


class DebuggerLink:
    """A runtime behind a debugger: a mailbox in its memory says what to call."""

    def __init__(self, remote: GdbRemote, program: Program, room: int) -> None:
        self._remote = remote
        self._program = program
        self.memory = program.symbol("tw_memory")
        self.room = room
        self.read, self.write = remote.read, remote.write
        self._stop = program.symbol("tw_stop") & ~1
        remote.set_breakpoint(self._stop)
        remote.resume()

    def call(self, entry: int, arguments: Sequence[int]) -> tuple[int, int]:
        """Call a function with an array of words."""
        self._put("tw_arguments", arguments)
        self._put("tw_function", [entry])
        # A processor that stands at a breakpoint would stop there again.
        self._remote.clear_breakpoint(self._stop)
        self._remote.step()
        self._remote.set_breakpoint(self._stop)
        self._remote.resume()
        return self._get("tw_status"), self._get("tw_taken")

    def _put(self, name: str, words: Sequence[int]) -> None:
        self.write(self._program.symbol(name), np.asarray(words, "<u4").tobytes())

    def _get(self, name: str) -> int:
        return int.from_bytes(self.read(self._program.symbol(name), 4), "little", signed=True)


class BoardAgent:
    """The runtime on a board."""

    def __init__(self, link: Link, board: Board) -> None:
        self._link = link
        self._board = board
        self._images: dict[tuple[str, str], Program] = {}

    @classmethod
    @contextmanager
    def start(
        cls,
        board: Board,
        gdb: str | None = None,
        room: int = ROOM,
        *,
        serial: str | None = None,
        baud: int = DEFAULT_BAUD,
    ) -> Iterator[BoardAgent]:
        """The runtime on QEMU's board; on one behind a debugger's server at HOST:PORT; or on one on a serial line."""
        if serial is not None:
            if gdb is not None:
                raise UserError(
                    "a board is reached through a debugger or over a serial line: say one of gdb and serial"
                )
            with connect_board(serial, baud=baud) as session:
                yield cls(session, board)
            return
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
            yield cls(DebuggerLink(link, program, room), board)

    def call(self, source: str, function: str, arrays: Sequence[Array]) -> Call:
        """Call a function of some C source with the addresses of copies of arrays."""
        memory, room = self._link.memory, self._link.room
        image = self._image(source, function, memory, len(arrays))
        end = max(segment.address + len(segment.data) for segment in image.segments)
        places = []
        for array in arrays:
            end = -(-end // _ALIGNMENT) * _ALIGNMENT
            places.append(end)
            end += array.nbytes
        if end - memory > room or len(arrays) > _MOST_ARGUMENTS:
            raise UserError(
                f"a kernel with its arrays takes {end - memory} bytes, and the board has {room} for them",
                hint="kernels of this size are measured on a board with more memory: BoardAgent.start(room=...)",
            )
        for segment in image.segments:
            self._link.write(segment.address, segment.data)
        for place, array in zip(places, arrays, strict=True):
            self._link.write(place, np.ascontiguousarray(array).tobytes())
        status, count = self._link.call(image.entry, places)
        if status:
            raise UserError(f"the kernel returned {status}")
        after = [
            np.frombuffer(self._link.read(place, array.nbytes), array.dtype).reshape(array.shape)
            for place, array in zip(places, arrays, strict=True)
        ]
        return Call(after, count)

    def _image(self, source: str, function: str, memory: int, count: int) -> Program:
        if (source, function) not in self._images:
            arguments = ", ".join(f"a[{number}]" for number in range(count))
            text = f"{source}\nint32_t tw_call(void* const* a) {{ return {function}({arguments}); }}\n"
            self._images = {
                **dict(list(self._images.items())[-3:]),
                (source, function): build_image(text, memory, self._board),
            }
        return self._images[source, function]


def build_serial_agent(folder: Path, board: Board, room: int = SERIAL_ROOM, baud: int = DEFAULT_BAUD) -> Path:
    """The program of the runtime with a serial line; its sources stay in the folder."""
    driver, address = board.uart
    divider = max(16, board.clock_mhz * 1_000_000 // baud)
    values = {"uart_address": address, "uart_divider": str(divider), "most_arguments": str(_MOST_ARGUMENTS)}
    names = {driver: "uart.h"}
    for source in ("serial_agent.c", driver, "semihosting.h", "board.ld", board.start):
        text = Template((TEMPLATES / source).read_text(encoding="utf-8"))
        filled = text.substitute({**board_values(board), **values, "room": str(room)})
        (folder / names.get(source, source)).write_text(filled, encoding="utf-8")
    return link_files(folder, board, ["serial_agent.c", board.start], "serial_agent.elf")


def build_agent(folder: Path, board: Board, room: int) -> Path:
    """The program of the runtime."""
    values = {**board_values(board), "room": str(room), "most_arguments": str(_MOST_ARGUMENTS)}
    for source in ("agent.c", "semihosting.h", "board.ld", board.start):
        text = Template((TEMPLATES / source).read_text(encoding="utf-8")).substitute(values)
        (folder / source).write_text(text, encoding="utf-8")
    return link_files(folder, board, ["agent.c", board.start], "agent.elf")
