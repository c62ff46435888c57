"""`tilewright place`: a model over the host and one or several devices, by what was measured."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.cli.models import chosen_inputs
from tilewright.cli.options import add_inputs, add_model, compile_options, compile_target
from tilewright.front import compile
from tilewright.placement import place
from tilewright.support.errors import UserError

DESCRIPTION = """\
Measure a model on devices and on the CPU beside them, and say what should run where. With one device its kernels are
placed one by one; with several the graph is divided into parts, which run at once where they can.

  tilewright place resnet18.onnx --device opencl
  tilewright place detector.onnx --device opencl --device accel --timeline run.html -o detector

Ask it on the machine that the model is to run on, when that has nothing else to do.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model(parser)
    add_inputs(parser)
    parser.add_argument(
        "--device", action="append", default=[], metavar="TARGET", help="a device (repeat for several): cuda, opencl"
    )
    parser.add_argument(
        "--timeline", type=Path, metavar="FILE", help="run it so placed, and write what ran when (.html, else a trace)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="PATH", help="save it: a library, or of several devices a folder"
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if not options.device:
        raise UserError("no device is named", where="--device", hint="--device opencl")
    chosen = compile_options(options)
    on_cpu = compile(options.model, compile_target(options), options=chosen)
    inputs = list(chosen_inputs(on_cpu, options).values())
    if len(options.device) == 1:
        single = place(options.model, inputs, options.device[0], options=chosen)
        print(single)
        executable = single.compile()
        if options.output is not None:
            executable.export_library(options.output)
        timeline = executable.timeline(*inputs) if options.timeline is not None else None
    else:
        placement = place(options.model, inputs, [compile_target(options), *options.device], options=chosen)
        print(placement)
        with placement.compile() as model:
            print(model.placement())
            if options.output is not None:
                model.save(options.output)
            timeline = model.timeline(*inputs) if options.timeline is not None else None
    if timeline is not None:
        print(timeline.text())
        timeline.save(options.timeline)
    return 0
