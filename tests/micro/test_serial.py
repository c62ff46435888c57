"""A board on a serial line: frames, noise, lost answers, and kernels measured on an emulated one with 64 KB."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from bench.micro_models import tiny
from tests.requirements import need
from tilewright.backends.micro.agent import BoardAgent, build_serial_agent
from tilewright.backends.micro.board import board_of
from tilewright.backends.micro.build import build_image
from tilewright.backends.micro.program import read_program
from tilewright.backends.micro.remote import emulated_serial
from tilewright.cli.main import main
from tilewright.compiler import Compilation
from tilewright.rpc.board import BoardSession, connect_board
from tilewright.rpc.serial_link import ESC, FrameReader, SerialLink, framed, open_port
from tilewright.support.errors import UserError
from tilewright.target.target import Target
from tilewright.tune.board_measure import BoardMeasurer
from tilewright.tune.task import extract_tasks

BOARDS = {"cortex-m4": "arm-none-eabi", "cortex-m55": "arm-none-eabi", "rv32imac": "riscv-none-elf"}
ADD = """
#include <stdint.h>
int32_t add(const int32_t* a, const int32_t* b, int32_t* sum) {
  for (int n = 0; n < 100; ++n) sum[n] = a[n] + b[n];
  return 0;
}
"""


@contextmanager
def board_at(name: str, folder: Path) -> Iterator[str]:
    """The address of an emulated board that runs the runtime."""
    need(BOARDS[name])
    target = Target(name)
    board = board_of(target.triple, target.cpu)
    with emulated_serial(board, build_serial_agent(folder, board)) as address:
        yield address


def test_frames_are_found_in_noise() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        bodies = [random.bytes(int(random.integers(2, 40))) for _ in range(4)]
        line = b"".join(
            random.bytes(int(random.integers(0, 9))).replace(b"\xc0", b"") + framed(body) for body in bodies
        )
        reader = FrameReader()
        for place in range(0, len(line), 7):
            reader.feed(line[place : place + 7])
        found = list(iter(reader.take, None))
        assert found == bodies, "noise between frames costs none of them"


def test_damaged_frames_are_dropped() -> None:
    random = np.random.default_rng(1)
    body = bytes([7, ord("w"), ESC, 0xC0, 1, 2, 3])
    good = framed(body)
    assert good.count(b"\xc0") == 2
    for _ in range(500):
        line = bytearray(good)
        line[int(random.integers(len(line)))] ^= 1 << int(random.integers(8))
        reader = FrameReader()
        reader.feed(bytes(line) + good)
        found = list(iter(reader.take, None))
        assert found and set(found) == {body}, "only the right one comes through, and it does"
    reader = FrameReader()
    reader.feed(bytes(200_000) + good)
    assert reader.take() == body


class Faulty:
    """A line that damages, loses or doubles what goes over it, by a plan: `damage(number of the write, bytes)`."""

    def __init__(
        self, address: str, damage: Callable[[int, bytes], bytes], hear: Callable[[int, bytes], bytes]
    ) -> None:
        self._port = open_port(address, 115200)
        self._damage, self._hear = damage, hear
        self._written = self._heard = 0

    def write(self, data: bytes) -> None:
        self._written += 1
        self._port.write(self._damage(self._written, data))

    def read(self, seconds: float) -> bytes:
        data = self._port.read(seconds)
        if data:
            self._heard += 1
        return self._hear(self._heard, data)

    def close(self) -> None:
        self._port.close()


def _flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :] if len(data) > place else data


@pytest.mark.parametrize("name", BOARDS)
def test_functions_are_called_over_a_line(name: str, tmp_path: Path) -> None:
    target = Target(name)
    board = board_of(target.triple, target.cpu)
    a, b = np.arange(100, dtype=np.int32), np.full(100, 7, np.int32)
    with board_at(name, tmp_path) as address:
        with BoardAgent.start(board, serial=address) as agent:
            done = agent.call(ADD, "add", [a, b, np.zeros(100, np.int32)])
            np.testing.assert_array_equal(done.arrays[2], a + b)
            assert 100 < done.count < 2000
            with pytest.raises(UserError, match="the kernel returned 5"):
                agent.call("#include <stdint.h>\nint32_t five(void) { return 5; }", "five", [])
            with pytest.raises(UserError, match=r"takes 6\d\d\d\d bytes, and the board has 57344"):
                agent.call(ADD, "add", [a, b, np.zeros(16000, np.int32)])
        # The runtime waits for the next session.
        with connect_board(address) as session:
            assert session.room == 56 << 10
            data = np.random.default_rng(0).bytes(3000)
            session.write(session.memory, data)
            assert session.read(session.memory, 3000) == data
            for outside in (session.memory - 4, session.memory + session.room - 2, 0xFFFFFFFF):
                with pytest.raises(UserError, match="not the runtime's to give"):
                    session.write(outside, b"1234")
            with pytest.raises(UserError, match="not the runtime's to give"):
                session.call(4, [])
            with pytest.raises(UserError, match="too long"):
                session.call(session.memory, [0] * 33)


def test_noise_and_lost_answers_are_survived(tmp_path: Path) -> None:
    """Every third request is damaged, every fifth lost, and some answers too: the same bytes, nothing is done twice."""
    count = "#include <stdint.h>\nstatic int32_t calls;\nint32_t count(int32_t* n) { *n = ++calls; return 0; }"

    def damage(number: int, data: bytes) -> bytes:
        if number % 5 == 4:
            return b""
        return _flipped(data, 5) if number % 3 == 2 else b"\x55\xdb\xc0" + data

    def hear(number: int, data: bytes) -> bytes:
        # Pieces of answers are as long as they happen to be: a share of them would be a part of every long answer.
        return _flipped(data, 2) if number in (3, 10, 24) else data

    with board_at("cortex-m4", tmp_path) as address:
        session = BoardSession(SerialLink(Faulty(address, damage, hear), 115200, 0.1, address))
        agent = BoardAgent(session, board_of("thumbv7em-none-eabi", "cortex-m4"))
        data = np.random.default_rng(0).bytes(2500)
        session.write(session.memory, data)
        assert session.read(session.memory, 2500) == data
        assert session.repeated > 3
        # The image is written anew for each call: its counter says how often the function ran.
        for _ in range(2):
            assert agent.call(count, "count", [np.zeros(1, np.int32)]).arrays[0][0] == 1
        session.close()


def test_a_board_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "line")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    kept: list[socket.socket] = []

    def chatter() -> None:
        with suppress(OSError):
            line, _ = listening.accept()
            kept.append(line)
            line.sendall(b"login: \xc0\xc0" + bytes(range(64)))

    threading.Thread(target=chatter, daemon=True).start()
    begin = time.monotonic()
    with pytest.raises(UserError, match=r"does not answer \(6 times asked, \d+ damaged frames\)") as caught:
        connect_board(f"unix:{path}", timeout=0.02)
    assert time.monotonic() - begin < 20 and "tilewright board" in str(caught.value.hint)
    for line in kept:
        line.close()
    listening.close()


def test_other_answers_are_errors(tmp_path: Path) -> None:
    class Scripted:
        """A line whose other side answers every request with the same words."""

        def __init__(self, answer: bytes) -> None:
            self._answer, self._waiting = answer, b""

        def write(self, data: bytes) -> None:
            self._waiting = framed(data[1:2] + self._answer)

        def read(self, seconds: float) -> bytes:
            data, self._waiting = self._waiting, b""
            if not data:
                raise ConnectionResetError("gone")
            return data

        def close(self) -> None:
            pass

    with pytest.raises(UserError, match="no runtime of this version"):
        BoardSession(SerialLink(Scripted(b"hTWB9" + bytes(18)), 115200, 0.1, "here"))
    with pytest.raises(UserError, match="does not know it"):
        BoardSession(SerialLink(Scripted(b"E\x01"), 115200, 0.1, "here"))
    with pytest.raises(UserError, match="to the board at here broke: gone"):
        BoardSession(SerialLink(Scripted(b"w"), 115200, 0.1, "here"))
    for address in ("/nowhere/tty", "tcp:nowhere", f"unix:{tmp_path}/none", str(tmp_path)):
        with pytest.raises(UserError, match="cannot be opened"):
            connect_board(address)
    with (
        pytest.raises(UserError, match="say one of gdb and serial"),
        BoardAgent.start(board_of("thumbv7em-none-eabi", "cortex-m4"), "localhost:1", serial="/dev/null"),
    ):
        pass
    with pytest.raises(UserError, match="no speed of 5 bits"):
        connect_board("/dev/null", baud=5)


def test_the_runtime_with_a_line_is_small(tmp_path: Path) -> None:
    need("arm-none-eabi")
    program = read_program(build_serial_agent(tmp_path, board_of("thumbv7em-none-eabi", "cortex-m4")))
    assert program.flash_bytes <= 4 << 10
    assert program.ram_bytes <= 60 << 10, "and 4 KB of stack: a board of 64 KB"


def test_the_command_builds_the_runtime_and_asks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need("arm-none-eabi")
    assert main(["board", "build", "mps2-an386", "-o", str(tmp_path / "runtime")]) == 0
    assert "bytes of flash" in capsys.readouterr().out
    assert {"serial_agent.c", "uart.h", "serial_agent.elf"} <= {path.name for path in (tmp_path / "runtime").iterdir()}
    with emulated_serial(
        board_of("thumbv7em-none-eabi", "cortex-m4"), tmp_path / "runtime" / "serial_agent.elf"
    ) as line:
        assert main(["board", "ask", line]) == 0
    assert "57344 bytes for kernels at 0x2" in capsys.readouterr().out


def test_images_begin_where_they_are_told() -> None:
    """Headers of the file were once loaded before them, over the runtime's own memory."""
    need("arm-none-eabi")
    text = "#include <stdint.h>\nint32_t tw_call(void* const* a) { return 0; }"
    for address in (0x20000010, 0x20000830, 0x20001000):
        image = build_image(text, address, board_of("thumbv7em-none-eabi", "cortex-m4"))
        assert [segment.address for segment in image.segments] == [address]


def test_candidates_are_measured_over_a_line(tmp_path: Path) -> None:
    compilation = Compilation(tiny().proto.SerializeToString(), target="cortex-m4")
    task = next(task for task in extract_tasks(compilation.lowered) if "depthwise" not in task.label)
    default = task.space().default
    with board_at("cortex-m4", tmp_path) as address, BoardMeasurer(task.target, serial=address) as measurer:
        first, other = measurer.measure(task, [default, {**default, "columns": 1, "rows": 1}])
    assert first.error is None and other.error is None
    assert first.seconds is not None and other.seconds is not None and other.seconds > first.seconds
