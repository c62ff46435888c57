"""`tilewright run`: run a model or an exported library on given or random inputs."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tilewright.cli.options import add_inputs, add_model, load_inputs, parse_shapes
from tilewright.compiler import Compilation
from tilewright.runtime.executor import Executable
from tilewright.runtime.load import load
from tilewright.support.errors import UserError

_DESCRIPTION = """\
Run a model once and show its outputs. The model is an ONNX file or a library that `tilewright compile` wrote.

  tilewright run resnet18.onnx --input data=image.npy --output-file logits.npz
  tilewright run resnet18.so --profile --html profile.html
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="run a model or an exported library",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser, "an ONNX model, or a library made by `tilewright compile`")
    add_inputs(parser)
    parser.add_argument("--output-file", type=Path, metavar="FILE.npz", help="save the outputs, by name")
    parser.add_argument("--profile", action="store_true", help="show the time of every kernel")
    parser.add_argument("--html", type=Path, metavar="FILE.html", help="write the profile as a page")
    parser.set_defaults(command=_run)


def open_model(options: argparse.Namespace) -> Executable:
    """The executable of a model file or an exported library."""
    if options.model.suffix == ".so":
        loaded = load(options.model)
        if not isinstance(loaded, Executable):
            raise UserError(f"{options.model} holds functions, not a model", hint="load it in Python with tw.load")
        if options.threads is not None:
            loaded.set_num_threads(options.threads)
        return loaded
    return Compilation(options.model, options.target, options.threads, shapes=parse_shapes(options.shape)).executable()


def _run(options: argparse.Namespace) -> int:
    executable = open_model(options)
    inputs = load_inputs(executable.input_info, options.input, options.seed)
    outputs = executable.run(inputs)
    for info, array in zip(executable.output_info, outputs, strict=True):
        print(info)
        print(f"  {_summary(array)}")
    if options.output_file is not None:
        names = [info.name for info in executable.output_info]
        try:
            np.savez(options.output_file, **dict(zip(names, outputs, strict=True)))
        except OSError as error:
            raise UserError(f"{options.output_file} cannot be written: {error.strerror}") from None
        print(f"outputs written to {options.output_file}")
    if options.profile or options.html is not None:
        profile = executable.profile(*[inputs[info.name] for info in executable.input_info])
        if options.profile:
            print(profile.text())
        if options.html is not None:
            profile.save_html(options.html)
            print(f"profile written to {options.html}")
    return 0


def _summary(array: npt.NDArray[np.generic]) -> str:
    if array.size == 0:
        return "empty"
    flat = array.reshape(-1)
    first = np.array2string(flat[:6], precision=5, separator=", ", threshold=6)
    wide = flat.astype(np.float64)
    shown = f"{first[:-1]}{', ...' if flat.size > 6 else ''}]"
    return f"{shown}  mean {wide.mean():.5g}, min {wide.min():.5g}, max {wide.max():.5g}"
