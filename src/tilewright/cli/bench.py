"""`tilewright bench`: time a model against other runtimes, interleaved, and check that the answers agree."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Mapping

from tilewright.cli.measure import Timing, format_ms, max_relative_error, measure
from tilewright.cli.models import is_library, open_executable
from tilewright.cli.options import add_algorithms, add_inputs, add_model, load_inputs, parse_sizes, positive_int
from tilewright.cli.peers import PEERS, REFERENCE, parse_peers
from tilewright.support.errors import UserError
from tilewright.support.progress import Progress
from tilewright.support.text import plural, table
from tilewright.target import detect_host

DESCRIPTION = """\
Time a model in Tilewright and in other runtimes, in interleaved rounds of one process, after checking that their
outputs agree. The ratio is the peer's time over ours: above 1, Tilewright is quicker.

  tilewright bench resnet18.onnx
  tilewright bench resnet18.onnx --threads 1 --against onnxruntime,openvino --rounds 20 --json
  tilewright bench resnet18.so

The exit code is 4 when a peer's outputs differ from ours by more than 1e-3 of the largest expected value.
"""
_TOLERANCE = 1e-3
_CHECK_FAILED = 4
_OURS = "tilewright"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model(parser, "an ONNX model, or a library made by `tilewright compile` (which has no peers)")
    add_algorithms(parser)
    add_inputs(parser)
    parser.add_argument(
        "--against",
        metavar="PEERS",
        help=f"comma-separated: {', '.join(PEERS)}; '' for none (default: {REFERENCE})",
    )
    parser.add_argument("--rounds", type=positive_int, default=10, metavar="N", help="interleaved rounds (default: 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON object after the table")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    rivals = _rivals(options)
    threads = options.threads = options.threads or detect_host().cores
    executable = open_executable(options)
    inputs = load_inputs(executable.input_info, options.input, options.seed, parse_sizes(options.size))
    competitors: dict[str, Callable[[], object]] = {_OURS: functools.partial(executable.run, inputs)}
    errors: dict[str, float] = {}
    ours = executable.run(inputs)
    for rival in rivals:
        call = PEERS[rival](options.model, threads, inputs)
        errors[rival] = max_relative_error(ours, call())
        competitors[rival] = call
    with Progress("timing rounds", total=options.rounds) as line:
        timings = measure(competitors, options.rounds, threads=threads, round_done=line.step)
    print(f"{options.model.name}, {plural(threads, 'thread')}")
    print(_render(timings, errors))
    if options.json:
        figures = {name: {"median_ms": t.median_ms, "min_ms": t.min_ms} for name, t in timings.items()}
        print(json.dumps({"threads": threads, "times": figures, "max_rel_err": errors}))
    if any(error > _TOLERANCE for error in errors.values()):
        print(f"the outputs differ by more than {_TOLERANCE:.0e}")
        return _CHECK_FAILED
    return 0


def _rivals(options: argparse.Namespace) -> list[str]:
    if not is_library(options.model):
        return parse_peers(REFERENCE if options.against is None else options.against)
    if options.against:
        raise UserError(
            f"{options.model} is a compiled library, which other runtimes cannot run",
            where="--against",
            hint="give the model it was made from",
        )
    return []


def _render(timings: Mapping[str, Timing], errors: Mapping[str, float]) -> str:
    reference = timings[_OURS].median_ms
    rows = [
        [
            name,
            format_ms(timing.median_ms),
            format_ms(timing.min_ms),
            "-" if name == _OURS else f"{timing.median_ms / reference:.2f}x",
            "-" if name == _OURS else f"{errors[name]:.1e}",
        ]
        for name, timing in timings.items()
    ]
    return table(["", "median ms", "min ms", "ratio", "max rel err"], rows)
