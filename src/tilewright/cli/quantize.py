"""`tilewright quantize`: a model in, the same model with quantised weights and activations out."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tilewright.cli.options import check_output, positive_int
from tilewright.front import quantize
from tilewright.onnx_writer import to_onnx
from tilewright.quantization.observers import OBSERVERS
from tilewright.quantization.options import ACTIVATIONS, ROUNDINGS, SCHEMES, QuantizeOptions
from tilewright.support.files import replacing
from tilewright.support.text import human_bytes, human_seconds

DESCRIPTION = """\
Quantise a model: weights and activations in 8 bits (or weights alone, in 2 to 8), with scales from calibration data.

The result is an ONNX model with QuantizeLinear and DequantizeLinear nodes, which Tilewright and other runtimes compute
in integers. The report says which layer loses how much.

  tilewright quantize resnet18.onnx --data images/ -o resnet18.q.onnx
  tilewright quantize resnet18.onnx --data examples.npz --observer entropy --report report.html
  tilewright quantize resnet18.onnx --data examples.npz --max-drop 0.0005
  tilewright quantize bert.onnx --data examples.npz --scheme dynamic
  tilewright quantize decoder.onnx --data examples.npz --scheme weights --weight-bits 4 --group 64 --rounding learned
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="a model of float32 (`tilewright formats`)")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR|FILE",
        help="calibration data: a .npz file with an array for each input (examples along the first axis), a .npy file, "
        "or a folder of these or of images",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.onnx",
        help="the model to write (default: the model's name with the suffix .q.onnx, in the current folder)",
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report as .html or .json")
    parser.add_argument(
        "--threads", type=positive_int, metavar="N", help="threads for calibration (default: every core)"
    )
    _add_options(parser)


def _add_options(parser: argparse.ArgumentParser) -> None:
    default = QuantizeOptions()
    parser.add_argument("--scheme", choices=SCHEMES, default=default.scheme, help="what is rounded (default: static)")
    parser.add_argument("--weight-bits", type=int, default=default.weight_bits, metavar="N", help="2 to 8 (default: 8)")
    parser.add_argument("--affine", action="store_true", help="weights have zero points (scheme weights)")
    parser.add_argument(
        "--activation-bits", type=int, default=default.activation_bits, metavar="N", help="1 to 8 (default: 8)"
    )
    parser.add_argument("--group", type=int, default=0, metavar="N", help="inputs that share a scale (scheme weights)")
    parser.add_argument("--per-tensor", action="store_true", help="one scale for a weight, not one for each output")
    parser.add_argument("--activations", choices=ACTIVATIONS, default=default.activations, help="(default: uint8)")
    parser.add_argument("--observer", choices=tuple(OBSERVERS), default=default.observer, help="how ranges are taken")
    parser.add_argument("--rounding", choices=ROUNDINGS, default=default.rounding, help="how weights are rounded")
    parser.add_argument("--products", action="store_true", help="quantise products of two activations too")
    parser.add_argument("--equalize", action="store_true", help="scale channels between layers to like ranges first")
    parser.add_argument(
        "--correct-bias",
        action=argparse.BooleanOptionalAction,
        help="take the mean error that rounded weights make off the results (default: for the scheme static)",
    )
    parser.add_argument("--skip", action="append", default=[], metavar="LAYER", help="a layer to leave in float32")
    parser.add_argument(
        "--max-drop",
        type=float,
        metavar="X",
        help="keep the most sensitive layers in float32 until the relative squared error of the results is at most X",
    )
    parser.add_argument("--sensitivity", action="store_true", help="measure what each layer costs alone")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE.json",
        help="keep what is measured of layers in this file, and go on from it",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    output: Path = options.output or Path(options.model.with_suffix(".q.onnx").name)
    check_output(output, options.model, "model.q.onnx")
    settings = QuantizeOptions(
        scheme=options.scheme,
        weight_bits=options.weight_bits,
        activation_bits=options.activation_bits,
        per_channel=not options.per_tensor,
        group=options.group,
        affine=options.affine,
        activations=options.activations,
        observer=options.observer,
        rounding=options.rounding,
        products=options.products,
        equalize=options.equalize,
        correct_bias=options.correct_bias,
        skip=options.skip,
        max_drop=options.max_drop,
        sensitivity=options.sensitivity,
    )
    start = time.perf_counter()
    result = quantize(options.model, options.data, options=settings, threads=options.threads, resume=options.resume)
    with replacing(output) as temporary:
        temporary.write_bytes(to_onnx(result.module))
    if options.report is not None:
        result.report.write(options.report)
    print(result.report)
    before, after = (human_bytes(path.stat().st_size) for path in (options.model, output))
    print(f"{output}: {after} ({before} before), in {human_seconds(time.perf_counter() - start)}")
    return 0
