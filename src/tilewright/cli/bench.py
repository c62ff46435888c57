"""`tilewright bench`: time a model against other runtimes, interleaved, and check that the answers agree."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable

from tilewright.cli.measure import format_ms, max_relative_error, measure
from tilewright.cli.options import add_inputs, add_model, load_inputs, parse_shapes
from tilewright.cli.peers import PEERS, parse_peers
from tilewright.compiler import Compilation
from tilewright.support.errors import UserError
from tilewright.support.text import table
from tilewright.target import detect_host

_DESCRIPTION = """\
Time a model in Tilewright and in other runtimes, in interleaved rounds of one process, after checking that their
outputs agree. The ratio is the peer's time over ours: above 1, Tilewright is quicker.
"""
_TOLERANCE = 1e-3


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bench",
        help="time a model against other runtimes",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    add_inputs(parser)
    parser.add_argument(
        "--against", default="onnxruntime", help=f"peers, comma-separated: {', '.join(PEERS)}; '' for none"
    )
    parser.add_argument("--rounds", type=int, default=10, help="interleaved rounds (default: 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON object after the table")
    parser.set_defaults(command=_bench)


def _bench(options: argparse.Namespace) -> int:
    if options.rounds < 1:
        raise UserError("at least one round is needed", where="--rounds")
    rivals = parse_peers(options.against)
    threads = options.threads or detect_host().cores
    executable = Compilation(options.model, options.target, threads, shapes=parse_shapes(options.shape)).executable()
    inputs = load_inputs(executable.input_info, options.input, options.seed)
    competitors: dict[str, Callable[[], object]] = {"tilewright": functools.partial(executable.run, inputs)}
    errors: dict[str, float] = {}
    ours = executable.run(inputs)
    for rival in rivals:
        call = PEERS[rival](options.model, threads, inputs)
        errors[rival] = max_relative_error(ours, call())
        competitors[rival] = call
    timings = measure(competitors, options.rounds, threads=threads)
    reference = timings["tilewright"].median_ms
    rows = [
        [
            name,
            format_ms(timing.median_ms),
            format_ms(timing.min_ms),
            "" if name == "tilewright" else f"{timing.median_ms / reference:.2f}x",
            "" if name == "tilewright" else f"{errors[name]:.1e}",
        ]
        for name, timing in timings.items()
    ]
    print(f"{options.model.name}, {threads} thread{'s' if threads != 1 else ''}")
    print(table(["", "median ms", "min ms", "ratio", "max rel err"], rows))
    if options.json:
        figures = {name: {"median_ms": t.median_ms, "min_ms": t.min_ms} for name, t in timings.items()}
        print(json.dumps({"threads": threads, "times": figures, "max_rel_err": errors}))
    if any(error > _TOLERANCE for error in errors.values()):
        print(f"the outputs differ by more than {_TOLERANCE:.0e}")
        return 4
    return 0
