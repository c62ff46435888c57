"""The command `tilewright accel`: the tensor processor itself, and its programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.accel.config import AccelConfig
from tilewright.accel.hardware.verilog import verilog
from tilewright.cli import accel_explore, accel_programs
from tilewright.support.files import replacing

DESCRIPTION = """\
The tensor processor itself: its programs, what a configuration amounts to, and its hardware.

  tilewright accel rtl -o core.v                             the hardware of the default configuration, as Verilog
  tilewright accel rtl --config mine.json -o core.v          of another one
  tilewright accel asm sums.s -o sums.twa                    a program's text to a program file
  tilewright accel disasm sums.twa                           and back
  tilewright accel check sums.twa                            prove that it ends and that no two units race
  tilewright accel run sums.twa --trace sums.json            run it in the functional simulator
  tilewright accel header --config mine.json -o accel.h      instructions and driver interface for C
  tilewright accel config --config mine.json                 depths of memories, multipliers, bytes on chip
  tilewright accel explore resnet18-int8.onnx --memory 262144 --report found.html
                                                             configurations and schedules, searched together
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True, help="what to do")
    rtl = actions.add_parser("rtl", help="write the hardware as Verilog (the extra 'accel')")
    rtl.add_argument(
        "--config", type=Path, metavar="FILE", help="the configuration, as JSON (default: the default one)"
    )
    rtl.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.v", help="the file to write")
    accel_programs.add_actions(actions)
    accel_explore.add_action(actions)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.action == "explore":
        accel_explore.execute(options)
        return 0
    if options.action != "rtl":
        return accel_programs.execute(options)
    config = AccelConfig() if options.config is None else AccelConfig.read(options.config)
    text = verilog(config)
    with replacing(options.output) as path:
        path.write_text(text)
    print(
        f"{options.output}: {config.multipliers} multipliers, {config.on_chip_bytes >> 10} KB on chip, "
        f"a bus of {config.bus_bytes} bytes"
    )
    return 0
