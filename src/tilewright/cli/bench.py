"""`tilewright bench`: time a model against other runtimes in pairs of runs, and check that the answers agree."""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tilewright.cli.measure import LocalSampler, format_ms, format_ratio, max_relative_error
from tilewright.cli.models import chosen_inputs, is_library, is_onnx, open_executable
from tilewright.cli.options import add_inputs, add_model, compile_options, positive_int
from tilewright.cli.peers import OWN_FORMATS, PEERS, REFERENCE, Arrays, parse_peers
from tilewright.cli.versus import Standing, against
from tilewright.frontend.formats import from_file, identify
from tilewright.onnx_writer import to_onnx
from tilewright.runtime.core.executor import Executable
from tilewright.support.errors import UserError
from tilewright.support.progress import Progress
from tilewright.support.text import plural, table
from tilewright.target import detect_host
from tilewright.tune.turns import elsewhere

DESCRIPTION = """\
Time a model in Tilewright and in other runtimes, in one process, after checking that their outputs agree. The ratio is
the peer's time over ours, the middle of many pairs of runs, with the bounds between which it lies: above 1, Tilewright
is quicker.

  tilewright bench resnet18.onnx
  tilewright bench resnet18.onnx --threads 1 --against onnxruntime,openvino --rounds 20 --json
  tilewright bench mobilenet.tflite --threads 1 --against litert
  tilewright bench resnet18.so

The exit code is 4 when a peer's outputs differ from ours by more than 1e-3 of the largest expected value.
"""
_TOLERANCE = 1e-3
_CHECK_FAILED = 4
_OURS = "tilewright"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model(parser, "a model (`tilewright formats`), or a library made by `tilewright compile` (which has no peers)")
    add_inputs(parser)
    parser.add_argument(
        "--against",
        metavar="PEERS",
        help=f"comma-separated: {', '.join(PEERS)}; '' for none (default: {REFERENCE})",
    )
    parser.add_argument(
        "--rounds", type=positive_int, default=10, metavar="N", help="rounds of pairs of runs (default: 10)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object after the table")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    rivals = _rivals(options)
    threads = options.threads = options.threads or detect_host().cores
    executable = open_executable(options)
    inputs = chosen_inputs(executable, options)
    clock = _clock(executable, threads)
    competitors: dict[str, LocalSampler] = {}
    errors: dict[str, float] = {}
    ours = executable.run(inputs)
    for rival in rivals:
        call = PEERS[rival](_for_peer(rival, options), threads, inputs)
        errors[rival] = max_relative_error(ours, call())
        competitors[rival] = LocalSampler(call, clock)
    places = functools.partial(_placed, executable, inputs, clock)
    with Progress("timing rounds", total=options.rounds) as line:
        standing = against(places, competitors, options.rounds, threads=threads, round_done=line.step)
    print(f"{options.model.name}, {plural(threads, 'thread')}")
    print(_render(standing, errors))
    if options.json:
        ratios = {rival: {"ratio": found.ratio, "between": found.bounds} for rival, found in standing.peers.items()}
        times = {
            name: {"median_ms": median, "min_ms": least} for name, (median, least) in standing.times(_OURS).items()
        }
        print(json.dumps({"threads": threads, "times": times, "ratios": ratios, "max_rel_err": errors}))
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


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _for_peer(rival: str, options: argparse.Namespace) -> Path:
    """The model as a peer reads it: its own file, or ONNX, to which a file of another format is converted."""
    own = OWN_FORMATS.get(rival)
    if own is not None and identify(options.model).key != own:
        raise UserError(f"{rival} reads files of the format {own}, not {options.model.name}", where="--against")
    if own is not None or is_onnx(options.model):
        return Path(options.model)
    path = Path(_folder().name) / "model.onnx"
    if not path.exists():
        path.write_bytes(to_onnx(from_file(options.model, compile_options(options).shapes)))
    return path


def _clock(executable: Executable, threads: int) -> Callable[[], float]:
    """On one thread of a CPU the time that the process has the processor: other work on it does not count."""
    return time.process_time if threads == 1 and executable.artifact.device is None else time.perf_counter


def _placed(executable: Executable, inputs: Arrays, clock: Callable[[], float], place: int) -> LocalSampler:
    """Runs of a model that lies somewhere else in memory at each place, if it is code and data of this process."""
    artifact = executable.artifact
    model = elsewhere(executable) if place > 0 and artifact.objects and artifact.device is None else executable
    return LocalSampler(functools.partial(model.run, inputs), clock)


def _render(standing: Standing, errors: Mapping[str, float]) -> str:
    rows = []
    for name, (median, least) in standing.times(_OURS).items():
        found = standing.peers.get(name)
        ratio = "-" if found is None else format_ratio(found.ratio, found.bounds)
        error = "-" if found is None else f"{errors[name]:.1e}"
        rows.append([name, format_ms(median), format_ms(least), ratio, error])
    return table(["", "median ms", "min ms", "ratio", "max rel err"], rows)
