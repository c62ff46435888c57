"""The architecture command: models of transformers, timm and torchvision through every way into the compiler.

    python -m bench.torch_zoo                                   # everything
    python -m bench.torch_zoo --filter 'BERT|GPT' --way onnx    # some of it; the results file keeps the others
    python -m bench.torch_zoo --missing                         # what the results file has not as right

Each architecture is built small, with random weights, in a process of its own with a time limit, and goes through
`from_torch`, `torch.compile(backend="tilewright")` and an ONNX export with its batch and length left open. Results for
two sets of sizes are compared with what torch gives. Prints a table and ends with one line of JSON. What is needed is
installed into an environment of its own (`.venv-torch-zoo`). Figures go to bench/results/torch-zoo.json.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from bench import harness
from bench.architectures import ARCHITECTURES
from bench.environments import REPOSITORY, Environment, variables
from tilewright.support.text import table

RESULTS = harness.RESULTS_FOLDER / "torch-zoo.json"
WAYS = ("from_torch", "torch.compile", "onnx")
PACKAGES = ("transformers", "timm", "onnxscript")
"""What is installed beside torch and torchvision."""
_LATE = "crashed"


@dataclass(frozen=True)
class Figure:
    """A row of the table."""

    verdict: str
    reason: str
    seconds: float


Figures = dict[str, dict[str, Figure]]
"""By architecture and way."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    pattern = re.compile(options.filter)
    path = options.json or RESULTS
    figures = _stored(path)
    python = environment().python()
    for name in [name for name in ARCHITECTURES if pattern.search(name)]:
        known = figures.get(name, {})
        ways = [way for way in options.way or WAYS if not (options.missing and _is_right(known.get(way)))]
        if not ways:
            continue
        figures[name] = {**known, **run(python, name, ways, options.timeout)}
        for way in ways:
            harness.say(f"{name}, {way}: {_words(figures[name][way])}")
        _write(path, figures)
    shown = {name: ways for name, ways in figures.items() if pattern.search(name) and name in ARCHITECTURES}
    print(render(shown))
    print(json.dumps(summarize(shown)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.torch_zoo", description="Run architectures of packages.")
    parser.add_argument(
        "--filter",
        default="",
        type=harness.regular_expression,
        metavar="REGEX",
        help="only architectures whose name has this",
    )
    parser.add_argument("--way", action="append", choices=WAYS, help="only this way (may be given several times)")
    parser.add_argument("--missing", action="store_true", help="only what the results file has not as right")
    parser.add_argument("--timeout", type=float, default=900.0, metavar="SECONDS", help="time limit of an architecture")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go (default: bench/results)")
    return parser


def environment() -> Environment:
    """The environment that the packages are installed into."""
    # The wheels of torchvision ask for one build of torch; the one that is here, of the same version, will do.
    matching = ("--no-deps", f"torchvision=={torchvision_for(metadata.version('torch'))}")
    return Environment(REPOSITORY / ".venv-torch-zoo", ("torchvision", *PACKAGES), (matching, PACKAGES))


def torchvision_for(version: str) -> str:
    """The version of torchvision that belongs to one of torch: 0.28.0 to 2.13.0."""
    minor = int(version.split(".")[1])
    return f"0.{minor + 15}.0"


def run(python: str, name: str, ways: Sequence[str], timeout: float) -> dict[str, Figure]:
    """An architecture in a process of its own; a way that is not done in time, or takes the process along, crashed."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        try:
            code = subprocess.run(
                [python, "-m", "bench.torch_ways", name, *ways],
                stdout=output,
                stderr=errors,
                timeout=timeout,
                check=False,
                cwd=REPOSITORY,
                env=variables({"HF_HUB_OFFLINE": "1"}),
            ).returncode
            end = f"the process ended with code {code}"
        except subprocess.TimeoutExpired:
            end = f"not done after {timeout:.0f} s"
        output.seek(0)
        errors.seek(0)
        rows = _rows(output)
        last = (errors.read().strip().splitlines() or [""])[-1]
    missing = Figure(_LATE, f"{end}: {last}"[:300], 0.0)
    return {way: rows.get(way, missing) for way in ways}


def _rows(lines: Iterable[str]) -> dict[str, Figure]:
    """The rows among what a process printed, by way."""
    found = [json.loads(line) for line in lines if line.startswith('{"architecture"')]
    return {row["way"]: Figure(row["verdict"], row["reason"], round(row["seconds"], 1)) for row in found}


def _is_right(figure: Figure | None) -> bool:
    return figure is not None and figure.verdict == "right"


def _right(ways: Iterable[Figure]) -> bool:
    possible = [figure for figure in ways if figure.verdict != "no export"]
    return bool(possible) and all(map(_is_right, possible))


def summarize(figures: Figures) -> dict[str, int]:
    """The counts: an architecture is right if it is right in every way that torch itself can export it for."""
    verdicts = collections.Counter(figure.verdict for ways in figures.values() for figure in ways.values())
    return {
        "architectures": len(figures),
        "right": sum(_right(ways.values()) for ways in figures.values()),
        "right_in_every_way": sum(all(map(_is_right, ways.values())) for ways in figures.values()),
        "ways": sum(map(len, figures.values())),
        "right_ways": verdicts["right"],
        "not_exported": verdicts["no export"],
        "refused": verdicts["refused"],
        "wrong": verdicts["wrong"],
        "crashed": verdicts["crashed"],
    }


def render(figures: Figures) -> str:
    """A table by architecture and way."""
    rows = [
        [name, ARCHITECTURES[name].package, way, figure.verdict, f"{figure.seconds:.1f}", figure.reason[:160]]
        for name, ways in figures.items()
        for way, figure in ways.items()
    ]
    return table(["architecture", "package", "way", "verdict", "seconds", "reason"], rows)


def _words(figure: Figure) -> str:
    return f"{figure.verdict} in {figure.seconds:.1f} s {figure.reason}".strip()


def _stored(path: Path) -> Figures:
    if not path.exists():
        return {}
    stored = json.loads(path.read_text())["architectures_by_name"]
    return {name: {way: Figure(**fields) for way, fields in ways.items()} for name, ways in stored.items()}


def _write(path: Path, figures: Figures) -> None:
    listed = {
        name: {way: asdict(figures[name][way]) for way in WAYS if way in figures[name]}
        for name in ARCHITECTURES
        if name in figures
    }
    packages = ("torch", "torchvision", *PACKAGES)
    record = {
        **summarize(figures),
        "architectures_by_name": listed,
        "versions": harness.versions(packages),
        "machine": harness.machine(),
    }
    harness.write_json(path, record)


if __name__ == "__main__":
    sys.exit(main())
