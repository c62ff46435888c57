"""`tilewright convert`: a model of any format in, the same model as ONNX out."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tilewright.cli.options import add_shapes, check_output, parse_shapes
from tilewright.frontend.formats import from_file, identify
from tilewright.onnx_writer import to_onnx
from tilewright.support.files import replacing
from tilewright.support.text import human_bytes, human_seconds

DESCRIPTION = """\
Write a model of any format (`tilewright formats`) as an ONNX model, for other runtimes and for tools.

  tilewright convert model.tflite -o model.onnx
  tilewright convert model.pt --shape x=1,3,224,224 -o model.onnx

Inputs and outputs keep their names, and nodes are named after the model's own layers. What ONNX has no operators for is
an error that names the layer.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="a model (`tilewright formats`)")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.onnx",
        help="the model to write (default: the model's name with the suffix .onnx, in the current folder)",
    )
    add_shapes(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    output: Path = options.output or Path(options.model.with_suffix(".onnx").name)
    check_output(output, options.model, "model.onnx")
    start = time.perf_counter()
    source = identify(options.model)
    content = to_onnx(from_file(options.model, parse_shapes(options.shape)))
    with replacing(output) as temporary:
        temporary.write_bytes(content)
    seconds = human_seconds(time.perf_counter() - start)
    print(f"{output}: {human_bytes(len(content))}, from {source.title} in {seconds}")
    return 0
