"""Models for microcontrollers built by a C compiler on this machine: static libraries, and programs for boards."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tilewright.backends.micro.board import Board
from tilewright.backends.micro.program import Program, read_program
from tilewright.support.errors import UserError
from tilewright.support.files import replacing

_CODE_FLAGS: Final = ("-std=gnu11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-ffunction-sections")
_SECONDS: Final = 600
_PACKAGES: Final = {
    "arm-none-eabi-": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "riscv64-unknown-elf-": "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf",
}
"""What Debian calls the compilers."""


def find_tool(board: Board, name: str) -> str:
    """A tool of a board's compiler, or a `UserError` that says what to install."""
    found = shutil.which(f"{board.tools}{name}")
    if found is None:
        raise UserError(
            f"there is no {board.tools}{name} on this machine, which builds for this processor",
            hint=f"on Debian: apt-get install {_PACKAGES[board.tools]}; or write sources: -o FOLDER",
        )
    return found


def processor_flags(board: Board) -> list[str]:
    """The options of the compiler for the processor, and for the C library that it has to be told of."""
    flags = board.flags.split()
    if board.specs:
        named = _output([find_tool(board, "gcc"), f"-print-file-name={board.specs}"]).strip()
        if os.path.sep in named:
            flags.append(f"--specs={board.specs}")
    return flags


def build_library(sources: Path, name: str, board: Board, library: Path) -> None:
    """Compile the sources of a model to a static library, with its header beside it."""
    compiler, archiver = find_tool(board, "gcc"), find_tool(board, "ar")
    with tempfile.TemporaryDirectory(prefix="tilewright-") as work:
        compiled = Path(work) / f"{name}.o"
        flags = [*processor_flags(board), *_CODE_FLAGS]
        _output([compiler, *flags, "-c", str(sources / f"{name}.c"), "-o", str(compiled)])
        archive = Path(work) / "library.a"
        _output([archiver, "rcsD", str(archive), str(compiled)])
        for path, source in ((library.with_name(f"{name}.h"), sources / f"{name}.h"), (library, archive)):
            with replacing(path) as temporary:
                temporary.write_bytes(source.read_bytes())


def build_program(example: Path, name: str, board: Board, main: str) -> Path:
    """Build the program of a model's example folder around one of its main files."""
    return link_files(
        example, board, ["-I..", "-include", "step.h", f"../{name}.c", main, board.start], f"{Path(main).stem}.elf"
    )


def link_files(folder: Path, board: Board, files: list[str], program: str) -> Path:
    """Build a program of a folder that holds its linker script."""
    command = [find_tool(board, "gcc"), *processor_flags(board), *_CODE_FLAGS, "-fdata-sections", *files]
    _output([*command, "-nostartfiles", "-Wl,--gc-sections", "-T", "board.ld", "-lm", "-o", program], folder)
    return folder / program


_IMAGE: Final = """\
ENTRY(tw_call)
PHDRS { image PT_LOAD; }
SECTIONS {
  . = %#x;
  .image : { *(.text*) *(.rodata*) *(.srodata*) *(.bss*) *(.sbss*) *(COMMON) *(.data*) *(.sdata*) . = ALIGN(8); } :image
}
"""
"""A segment by name, so that it has no headers of the file: these would be loaded over what lies before the address."""


def build_image(text: str, address: int, board: Board) -> Program:
    """Code that is to lie at an address of a board's memory; its entry is the function `tw_call`."""
    with tempfile.TemporaryDirectory(prefix="tilewright-") as work:
        folder = Path(work)
        (folder / "image.c").write_text(text, encoding="utf-8")
        (folder / "board.ld").write_text(_IMAGE % address, encoding="utf-8")
        return read_program(link_files(folder, board, ["image.c"], "image.elf"))


def _output(command: list[str], folder: Path | None = None) -> str:
    """What a tool prints; what it complains about is ours to mend, since the sources are."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{command[0]} does not run: {error}", hint="is the compiler installed as a whole?") from None
    if done.returncode:
        raise UserError(
            f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()[-2000:]}",
            hint="is the memory of the board large enough for this model?",
        )
    return done.stdout
