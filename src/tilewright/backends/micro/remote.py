"""Models run on boards through a debugger: load the program, put inputs into its memory, let it run, read outputs.

The program (`example/remote.c`) stops in `tw_stop` before each run; a second stop says that one is done. Nothing is
asked of the board but memory and a breakpoint, so emulators and probes of any vendor will do.
"""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tilewright.backends.micro.board import Board
from tilewright.backends.micro.gdb import GdbRemote
from tilewright.backends.micro.program import Program
from tilewright.backends.micro.sources import parameters_of
from tilewright.runtime.core.artifact import ModelInfo
from tilewright.runtime.core.checks import code_messages
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.support.errors import UserError

Array = npt.NDArray[Any]
TIMEOUT_SECONDS: Final = 120.0
"""How long a debugger may take for an answer, and with it a run."""
_STOP: Final = "tw_stop"
_ARM_STACK, _ARM_COUNTER, _ARM_STATUS = 13, 15, 25
_THUMB: Final = 1 << 24
_RISCV_COUNTER: Final = 32
_TICK_BITS: Final = {"cortex_m.c": 24, "riscv.c": 32}
"""Of the clock that start-up files read where the processor has no counter of cycles."""


@dataclass(frozen=True)
class RemoteRun:
    """What a model gave on a board."""

    outputs: dict[str, Array]
    counts: list[int]
    """Of each step, in the unit beside."""
    unit: str
    """What is counted: cycles, or instructions where an emulator has no cycles."""


@contextmanager
def emulator(board: Board, program: Path) -> Iterator[GdbRemote]:
    """QEMU's board with a program in its flash, held before the first instruction."""
    with tempfile.TemporaryDirectory(prefix="tilewright-") as work:
        place = str(Path(work) / "gdb")
        options = ["-serial", "none", "-S", "-gdb", f"unix:{place},server=on,wait=off"]
        with _emulated(board, program, options) as process:
            link = GdbRemote(_connected(process, place), TIMEOUT_SECONDS)
            yield link
            link.close()


@contextmanager
def emulated_serial(board: Board, program: Path) -> Iterator[str]:
    """QEMU's board, running a program: the address of its serial line, which one after another may open."""
    with tempfile.TemporaryDirectory(prefix="tilewright-") as work:
        place = str(Path(work) / "line")
        line = ["-chardev", f"socket,id=line,path={place},server=on,wait=off", "-serial", "chardev:line"]
        with _emulated(board, program, line) as process:
            _connected(process, place).close()
            yield f"unix:{place}"


@contextmanager
def _emulated(board: Board, program: Path, options: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """QEMU's board with a program in its flash, as long as somebody is there."""
    command = shlex.split(board.emulator)
    found = shutil.which(command[0])
    if found is None:
        package = "qemu-system-arm" if "arm" in command[0] else "qemu-system-misc"
        raise UserError(f"there is no {command[0]} on this machine", hint=f"on Debian: apt-get install {package}")
    process = subprocess.Popen(
        [
            found,
            *command[1:],
            "-nographic",
            "-monitor",
            "none",
            "-icount",
            "shift=0",
            *options,
            "-kernel",
            str(program),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _connected(process: subprocess.Popen[bytes], place: str) -> socket.socket:
    """A connection to a process that is starting."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < end and process.poll() is None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(place)
        except OSError:
            connection.close()
            time.sleep(0.02)
        else:
            return connection
    said = b"" if process.poll() is None or process.stderr is None else process.stderr.read()
    raise UserError(f"the emulator did not start: {said.decode(errors='replace')[-500:]}")


def load_program(link: GdbRemote, program: Program, board: Board) -> None:
    """Put a program into memory, and the processor before its first instruction."""
    for segment in program.segments:
        link.write(segment.address, segment.data)
    for segment in program.segments:
        if link.read(segment.address, len(segment.data)) != segment.data:
            raise UserError(
                f"memory at {segment.address:#x} does not hold what was written there",
                hint="flash is written by the probe's own command; or link the program for RAM (example/board.ld)",
            )
    if board.start == "riscv.c":
        link.set_register(_RISCV_COUNTER, program.entry)
        return
    link.set_register(_ARM_STACK, program.symbol("tw_stack_top"))
    link.set_register(_ARM_STATUS, _THUMB)
    link.set_register(_ARM_COUNTER, program.entry & ~1)


def run_remotely(
    link: GdbRemote, program: Program, board: Board, model: ModelInfo, inputs: Mapping[str, Array]
) -> RemoteRun:
    """Run a loaded program once."""
    stop = program.symbol(_STOP) & ~1
    link.set_breakpoint(stop)
    link.resume()
    parameters = parameters_of(model)
    given = [item for item in parameters if not item.is_output]
    for number, item in enumerate(given):
        array = np.ascontiguousarray(inputs[item.info.name], storage_dtype(item.info.dtype))
        link.write(program.symbol(f"input_{number}"), array.tobytes())
    # A processor that stands at a breakpoint would stop there again.
    link.clear_breakpoint(stop)
    link.step()
    link.set_breakpoint(stop)
    link.resume()
    code = _word(link, program.symbol("tw_status"))
    if code:
        raise UserError(f"the model returned {code}: {code_messages(model).get(code, 'an unknown code')}")
    outputs = {
        item.info.name: _array(link, program.symbol(f"output_{number}"), item.info.dtype, item.info.static_shape)
        for number, item in enumerate(item for item in parameters if item.is_output)
    }
    return RemoteRun(outputs, *_counts(link, program, board, len(model.steps)))


def _counts(link: GdbRemote, program: Program, board: Board, steps: int) -> tuple[list[int], str]:
    raw = link.read(program.symbol("tw_begun"), 4 * (steps + 1))
    ticks = np.frombuffer(raw, "<u4").astype(np.int64)
    if "clock_has_cycles" in program.symbols and _word(link, program.symbol("clock_has_cycles")):
        return [int(count) % (1 << 32) for count in np.diff(ticks)], "cycles"
    differences = [int(count) % (1 << _TICK_BITS[board.start]) for count in np.diff(ticks)]
    return [count * 1000 // board.clock_mhz for count in differences], "instructions"


def _word(link: GdbRemote, address: int) -> int:
    return int.from_bytes(link.read(address, 4), "little", signed=True)


def _array(link: GdbRemote, address: int, dtype: str, shape: Sequence[int]) -> Array:
    kind = storage_dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    return np.frombuffer(link.read(address, size), kind).reshape(shape)
