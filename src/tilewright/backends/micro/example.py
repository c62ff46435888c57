"""The example beside a model's sources: a program for one of QEMU's boards, ready for `make run`.

It reads input_<n>.bin, runs the model and writes output_<n>.bin, through the semihosting of the emulator or debugger.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

from tilewright.backends.micro.board import Board
from tilewright.backends.micro.sources import parameters_of
from tilewright.runtime.core.artifact import ModelInfo

TEMPLATES: Final = Path(__file__).with_name("templates")


@dataclass(frozen=True, slots=True)
class _Array:
    """An input or output: the array that holds it in the program, and the file that it is read from or written to."""

    name: str
    element: str
    count: int
    nbytes: int
    is_output: bool

    @property
    def file(self) -> str:
        return f"{self.name}.bin"

    @property
    def transfer(self) -> str:
        return f'  {"write" if self.is_output else "read"}_file("{self.file}", {self.name}, {self.nbytes});'


def write_example(folder: Path, model: ModelInfo, name: str, board: Board) -> None:
    """Write the example of a model that is called `name`."""
    arrays = _arrays(model)
    inputs = [item for item in arrays if not item.is_output]
    values = {
        "name": name,
        "macro": name.upper(),
        "steps": str(len(model.steps)),
        "arrays": "\n".join(f"static {item.element} {item.name}[{max(item.count, 1)}];" for item in arrays),
        "globals": "\n".join(f"{item.element} {item.name}[{max(item.count, 1)}];" for item in arrays),
        "reads": "\n".join(item.transfer for item in inputs),
        "writes": "\n".join(item.transfer for item in arrays if item.is_output),
        "arguments": ", ".join(item.name for item in arrays),
        "inputs": " ".join(item.file for item in inputs),
        "zeros": "\n".join(f"{item.file}:\n\thead -c {item.nbytes} /dev/zero > $@" for item in inputs),
        **board_values(board),
    }
    folder.mkdir()
    for source in ("main.c", "remote.c", "step.h", "semihosting.h", "Makefile", "board.ld", board.start):
        text = Template((TEMPLATES / source).read_text(encoding="utf-8")).substitute(values)
        (folder / source).write_text(text, encoding="utf-8")


def _arrays(model: ModelInfo) -> list[_Array]:
    """The arrays of a program, in the order of the parameters of a model's function."""
    count = len(model.inputs)
    return [
        _Array(
            f"input_{number}" if number < count else f"output_{number - count}",
            item.element,
            item.count,
            item.info.nbytes,
            item.is_output,
        )
        for number, item in enumerate(parameters_of(model))
    ]


def board_values(board: Board) -> dict[str, str]:
    """What templates say of a board."""
    return {
        "tools": board.tools,
        "flags": f"{board.flags}{_specs(board)}",
        "emulator": board.emulator,
        "start": board.start,
        "clock_mhz": str(board.clock_mhz),
        "flash_origin": board.flash[0],
        "flash_length": board.flash[1],
        "ram_origin": board.ram[0],
        "ram_length": board.ram[1],
    }


def _specs(board: Board) -> str:
    """The option that tells the compiler of its C library, where that is installed, as a Makefile asks for it."""
    found = f"$(wildcard $(shell $(CC) -print-file-name={board.specs}))"
    return f" $(if {found},--specs={board.specs})" if board.specs else ""
