"""The command `tilewright accel`: the tensor processor itself, and its programs."""

from __future__ import annotations

import argparse

from tilewright.cli import accel_programs

DESCRIPTION = """\
The tensor processor itself: its programs, and what a configuration of it amounts to.

  tilewright accel asm sums.s -o sums.twa                    a program's text to a program file
  tilewright accel disasm sums.twa                           and back
  tilewright accel run sums.twa --trace sums.json            run it in the functional simulator
  tilewright accel header --config mine.json -o accel.h      instructions and driver interface for C
  tilewright accel config --config mine.json                 depths of memories, multipliers, bytes on chip
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True, help="what to do")
    accel_programs.add_actions(actions)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    return accel_programs.execute(options)
