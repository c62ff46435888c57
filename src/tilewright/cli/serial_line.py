"""Options of commands that reach a board over its serial line."""

from __future__ import annotations

import argparse

from tilewright.cli.options import positive_int
from tilewright.rpc.board import DEFAULT_BAUD


def add_baud(parser: argparse.ArgumentParser) -> None:
    """The speed of a serial line."""
    parser.add_argument(
        "--baud", type=positive_int, default=DEFAULT_BAUD, metavar="N", help=f"its speed (default: {DEFAULT_BAUD})"
    )


def add_serial(parser: argparse.ArgumentParser) -> None:
    """The serial line of a board, and its speed."""
    parser.add_argument(
        "--serial",
        metavar="LINE",
        help="measure on a board at this serial line (/dev/ttyUSB0, tcp:HOST:PORT, unix:PATH; see `tilewright board`)",
    )
    add_baud(parser)
