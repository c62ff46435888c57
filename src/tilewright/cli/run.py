"""`tilewright run`: run a model or an exported library on given or random inputs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tilewright.cli.models import chosen_inputs, open_executable
from tilewright.cli.options import add_inputs, add_model, add_trust
from tilewright.support.files import replacing
from tilewright.support.text import shorten

_WIDTH = 100

DESCRIPTION = """\
Run a model once and show its outputs. The model is a file of any format (`tilewright formats`), or a library that
`tilewright compile` wrote.

  tilewright run resnet18.onnx --input input=image.npy --output-file logits.npz
  tilewright run resnet18.so --profile --html profile.html
  tilewright run resnet18.so --timeline both.json
  tilewright run resnet18.so --require signed --trust release.pub

Inputs that are not given get random values: normal floats, fair bools, indices within the
tables that an ONNX model picks from with them, small integers elsewhere.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model(parser, "a model (`tilewright formats`), or a library made by `tilewright compile`")
    add_inputs(parser)
    add_trust(parser)
    parser.add_argument("--output-file", type=Path, metavar="FILE.npz", help="save the outputs, by name")
    parser.add_argument("--profile", action="store_true", help="show the time of every kernel")
    parser.add_argument("--html", type=Path, metavar="FILE.html", help="write the profile as a page")
    parser.add_argument(
        "--timeline",
        type=Path,
        metavar="FILE.json",
        help="write when kernels ran on a tensor processor and on the host beside it, for trace viewers (Perfetto)",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    executable = open_executable(options)
    inputs = chosen_inputs(executable, options)
    outputs = executable.run(inputs)
    for info, array in zip(executable.output_info, outputs, strict=True):
        # The sizes that this run gave it, not the symbols.
        print(replace(info, shape=array.shape) if isinstance(array, np.ndarray) else info)
        print(f"  {_summary(array)}")
    if options.output_file is not None:
        pairs = zip(executable.output_info, outputs, strict=True)
        _save(options.output_file, {info.name: array for info, array in pairs if isinstance(array, np.ndarray)})
        print(f"outputs written to {options.output_file}")
    if options.profile or options.html is not None:
        profile = executable.profile(*[inputs[info.name] for info in executable.input_info])
        if options.profile:
            print(profile.text())
        if options.html is not None:
            profile.save_html(options.html)
            print(f"profile written to {options.html}")
    if options.timeline is not None:
        timeline = executable.timeline(*[inputs[info.name] for info in executable.input_info])
        print(timeline.text())
        timeline.save(options.timeline)
        print(f"timeline written to {options.timeline}")
    return 0


def _save(path: Path, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def _summary(array: object) -> str:
    if not isinstance(array, np.ndarray) or array.dtype == object:
        # Sequences, data and texts have no figures.
        return shorten(repr(array), _WIDTH)
    if array.size == 0:
        return "empty"
    flat = array.reshape(-1)
    first = np.array2string(flat[:6], precision=5, separator=", ", threshold=6)
    wide = flat.astype(np.float64)
    shown = f"{first[:-1]}{', ...' if flat.size > 6 else ''}]"
    return f"{shown}  mean {wide.mean():.5g}, min {wide.min():.5g}, max {wide.max():.5g}"
