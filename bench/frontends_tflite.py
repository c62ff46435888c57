"""Operators and models of TFLite through import, compared with LiteRT.

    python -m bench.frontends_tflite                       # every operator and every model that is found
    python -m bench.frontends_tflite --filter 'CONV|POOL'  # some of them
    python -m bench.frontends_tflite --record              # keep LiteRT's answers for the tests
    python -m bench.frontends_tflite --models FOLDER...    # where to look for model files (default: installed packages)

Needs `ai-edge-litert`, in an environment of its own. An operator passes when all its cases do (`bench/tflite_cases*`):
integers and quantised results must be equal, floats within a tolerance; a case is held to the reference kernel, or to
the default one where that is the only one or the reference is off. A model passes when its results are within a
tolerance (quantised ones: a step) of those of LiteRT's reference kernels on random inputs.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import site
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import harness, tflite_cases_control, tflite_cases_float, tflite_cases_quantized
from bench.tflite_cases import CASES, Case
from tilewright.frontend import from_tflite
from tilewright.frontend.tflite.reader import looks_like_tflite
from tilewright.frontend.tflite.registry import converted_operators
from tilewright.frontend.tflite.schema import OPERATORS
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UserError
from tilewright.support.text import table

ANSWERS = Path(__file__).resolve().parent.parent / "tests" / "frontend" / "tflite" / "answers.npz"
RESULTS = harness.RESULTS_FOLDER / "frontend-tflite.json"
SOURCES = (tflite_cases_control, tflite_cases_float, tflite_cases_quantized)
"""The modules that register cases."""
NOT_OPERATORS = ("CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES")
_MODEL_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Outcome:
    """What became of a case or a model."""

    name: str
    verdict: str
    reason: str = ""


def run_litert(model: bytes, inputs: Sequence[Any] | None, optimized: bool) -> tuple[list[Any], list[Any]]:
    """Inputs (random ones if none are given) and what LiteRT gives for them, without delegates."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType  # type: ignore[import-not-found]

    kinds = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if optimized else OpResolverType.BUILTIN_REF
    interpreter = Interpreter(model_content=model, experimental_op_resolver_type=kinds, num_threads=1)
    details = interpreter.get_input_details()
    given = list(inputs) if inputs is not None else [_random(item) for item in details]
    for item, value in zip(details, given, strict=True):
        if tuple(item["shape"]) != np.shape(value):
            interpreter.resize_tensor_input(item["index"], np.shape(value))
    interpreter.allocate_tensors()
    interpreter.reset_all_variables()
    for item, value in zip(details, given, strict=True):
        interpreter.set_tensor(item["index"], value)
    interpreter.invoke()
    return given, [interpreter.get_tensor(item["index"]) for item in interpreter.get_output_details()]


def answers_of(case: Case) -> list[Any]:
    """What LiteRT gives for a case: the first answer that two runs agree on.

    Its kernel of bidirectional LSTMs reads memory that nothing has written, so that single runs differ.
    """
    answers: list[list[Any]] = []
    for _ in range(8):
        answers.append(run_litert(case.model, case.inputs, case.optimized)[1])
        if any(not difference(answers[-1], other, 0) for other in answers[:-1]):
            return answers[-1]
    return answers[-1]


def _random(item: dict[str, Any]) -> Any:
    random = np.random.default_rng(len(item["shape"]))
    dtype = np.dtype(item["dtype"])
    if dtype.kind == "f":
        return random.uniform(-1, 1, item["shape"]).astype(dtype)
    high = 2 if dtype.kind == "b" or dtype.itemsize > 2 else np.iinfo(dtype).max
    low = np.iinfo(dtype).min if dtype.kind == "i" and dtype.itemsize < 4 else 0
    return random.integers(low, high, item["shape"]).astype(dtype)


def difference(results: Sequence[Any], expected: Sequence[Any], tolerance: float) -> str:
    """How results differ from what is expected; empty if they do not."""
    if len(results) != len(expected):
        return f"{len(results)} results instead of {len(expected)}"
    for found, wanted in zip(results, expected, strict=True):
        found = np.asarray(found)
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            return f"{found.dtype}{found.shape} instead of {wanted.dtype}{wanted.shape}"
        if (wanted.dtype.kind != "f" and tolerance < 1) or not tolerance:
            if not np.array_equal(found, wanted):
                return f"{int((found != wanted).sum())} of {wanted.size} elements differ"
        elif not np.allclose(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"off by {np.abs(found.astype(np.float64) - wanted).max():.3g}"
    return ""


def interpreted(case: Case) -> list[Any]:
    """The results of a case through the graph interpreter."""
    result = evaluate(from_tflite(case.model), *case.inputs)
    return list(result) if isinstance(result, tuple) else [result]


def run_case(name: str) -> Outcome:
    """A case against LiteRT."""
    case = CASES[name]()
    try:
        reason = difference(interpreted(case), answers_of(case), case.tolerance)
    except UserError as error:
        return Outcome(name, "refused", error.message)
    return Outcome(name, "failed" if reason else "passed", reason)


def model_files(folders: Sequence[Path]) -> Iterator[Path]:
    """The TFLite files in folders: installed packages carry some."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".tflite", ".lite", ".task", ".bin") and path.is_file():
                with path.open("rb") as file:
                    if looks_like_tflite(file.read(8)):
                        yield path


def run_model(path: Path) -> Outcome:
    """A model against LiteRT, on random inputs, through tw.compile."""
    import tilewright as tw

    data = path.read_bytes()
    try:
        module = from_tflite(data)
    except UserError as error:
        return Outcome(path.name, "refused", error.message)
    try:
        inputs, expected = run_litert(data, None, optimized=True)
    except (RuntimeError, ValueError) as error:
        return Outcome(path.name, "not compared", str(error).strip().split("\n")[0])
    try:
        found = tw.compile(module, options=tw.CompileOptions(threads=1))(*inputs)
    except UserError as error:
        return Outcome(path.name, "refused", error.message)
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    quantized = any(item.dtype.kind in "iu" and item.dtype.itemsize == 1 for item in expected)
    reason = difference(results, expected, 1 if quantized else _MODEL_TOLERANCE)
    return Outcome(path.name, "failed" if reason else "passed", reason)


def coverage() -> tuple[list[str], list[str]]:
    """Built-in operators with a converter, and those without."""
    known = {name for name, custom in converted_operators() if not custom}
    names = [name for name in OPERATORS if name not in NOT_OPERATORS]
    return [name for name in names if name in known], [name for name in names if name not in known]


def record() -> None:
    """Keep LiteRT's answers to all cases."""
    answers: dict[str, Any] = {}
    for name, build in CASES.items():
        answers.update({f"{name}#{at}": value for at, value in enumerate(answers_of(build()))})
    np.savez_compressed(ANSWERS, **answers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.frontends_tflite", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--filter", default="", metavar="REGEX", help="only cases and models whose name has this")
    parser.add_argument("--record", action="store_true", help="write LiteRT's answers to the tests' folder")
    parser.add_argument("--models", type=Path, nargs="*", metavar="FOLDER", help="where to look for models")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go (default: bench/results)")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    if options.record:
        record()
        return 0
    outcomes = [run_case(name) for name in CASES if re.search(options.filter, name)]
    folders = [Path(item) for item in site.getsitepackages()] if options.models is None else options.models
    for path in model_files(folders):
        if re.search(options.filter, path.name):
            outcomes.append(run_model(path))
            harness.say(f"{path.name} {outcomes[-1].verdict} {outcomes[-1].reason[:120]}")
    with_converter, without = coverage()
    counts = dict(collections.Counter(item.verdict for item in outcomes))
    shown = [[item.name, item.verdict, item.reason[:140]] for item in outcomes if item.verdict != "passed"]
    print(table(["case or model", "verdict", "reason"], shown))
    print("no converter:", ", ".join(without))
    figures = {**counts, "operators": len(with_converter), "of": len(with_converter) + len(without)}
    print(json.dumps(figures))
    if not options.filter or options.json:
        rest = {
            "without": without,
            "reasons": {item.name: f"{item.verdict}: {item.reason}" for item in outcomes if item.reason},
        }
        harness.write_json(options.json or RESULTS, {**figures, **rest, "machine": harness.machine()})
    return 1 if counts.get("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
