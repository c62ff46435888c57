"""`tilewright board`: the runtime of a board without an operating system, which serves it over a serial line."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.backends.micro.agent import SERIAL_ROOM, build_serial_agent
from tilewright.backends.micro.board import board_of, processor_of
from tilewright.backends.micro.program import read_program
from tilewright.cli.options import positive_int
from tilewright.cli.serial_line import add_baud
from tilewright.rpc.board import connect_board
from tilewright.target import Target

DESCRIPTION = """\
Build the runtime that serves a board over a serial line, and ask a board that has it who it is.

  tilewright board build mps2-an386 -o runtime        sources, and a program for the board's flash
  tilewright board ask /dev/ttyUSB0                   what answers on this line
  tilewright tune keywords.tflite --target cortex-m4 --serial /dev/ttyUSB0

The runtime takes 64 KB of RAM with the kernels that it calls. Its sources are two pages of C: for a board that is not
listed (docs/micro.md) write uart.h, which has three functions, and board.ld for it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True, help="what to do")
    build = actions.add_parser("build", help="build the runtime for a board")
    build.add_argument("board", metavar="NAME", help="the board (docs/micro.md)")
    build.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="where it goes")
    build.add_argument(
        "--room", type=positive_int, default=SERIAL_ROOM, metavar="BYTES", help="memory for kernels and their arrays"
    )
    add_baud(build)
    ask = actions.add_parser("ask", help="ask a board who it is")
    ask.add_argument("line", metavar="LINE", help="its serial line: /dev/ttyUSB0, tcp:HOST:PORT or unix:PATH")
    add_baud(ask)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.action == "ask":
        with connect_board(options.line, baud=options.baud) as session:
            unit = "cycles" if session.counts_cycles else "instructions or ticks"
            print(f"a board with {session.room} bytes for kernels at {session.memory:#x}, which counts {unit}")
        return 0
    target = Target(processor_of(options.board))
    options.output.mkdir(parents=True, exist_ok=True)
    board = board_of(target.triple, target.cpu, target.features)
    path = build_serial_agent(options.output, board, options.room, options.baud)
    program = read_program(path)
    print(f"{path}: {program.flash_bytes} bytes of flash, {program.ram_bytes} of RAM without the stack")
    return 0
