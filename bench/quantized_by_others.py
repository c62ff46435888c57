"""Models that onnxruntime's tool quantised, in every form that it writes: Tilewright and onnxruntime in pairs of runs.

    python -m bench.quantized_by_others                                       # on one thread
    python -m bench.quantized_by_others --models resnet18,dcgan --forms qdq,qoperator --rounds 20
    python -m bench.quantized_by_others --models all --forms all

The files are those of `bench.peer_quantization`. Both run the same file. A model is right where its outputs are about
as close to those of the float model as onnxruntime's are; `equal` is the share of its outputs that are onnxruntime's
to the bit (onnxruntime adds floats and merges scales in an order of its own: a value between two steps may go either
way, and what follows differs). A form that has nothing to quantise in a model is left out.

Prints a table, writes the figures as JSON into `bench/results/`, and ends with one line of JSON. The exit code is 1
when a model failed or its outputs are wrong.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

import tilewright as tw
from bench import harness, models, peer_quantization, zoo
from bench.neighbours import CoreWatch
from bench.peers import REFERENCE, clock_for, process
from tilewright.cli import measure, versus
from tilewright.cli.options import positive_int
from tilewright.support.errors import TilewrightError, UserError
from tilewright.support.text import plural, table
from tilewright.target import Target

USUAL = ("resnet18", "mobilenet_v2", "dqn", "dcgan", "lstm_lm_35", "lstm_lm_1", "bert_small")
"""The models that are measured unless others are asked for: one of each kind."""
_INTEGER_OPERATORS = ("QLinear", "QGemm", "DynamicQuantize", "MatMulInteger", "ConvInteger", "DequantizeLinear")

Result = dict[str, object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        names = list(USUAL) if options.models == "usual" else models.parse_models(options.models)
        forms = parse_forms(options.forms)
        process.parse_peers(REFERENCE)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    harness.say(f"{harness.machine_line()}; {plural(options.threads, 'thread')}")
    results: dict[str, Result] = {}
    peer = process.start([REFERENCE], options.threads)[REFERENCE]
    try:
        for name in names:
            for form in forms:
                result = measure_file(name, form, peer, options.threads, options.rounds, options.seed)
                if result is not None:
                    results[f"{name} {form}"] = result
    finally:
        peer.close()
    ratios = [result["ratio"] for result in results.values() if "ratio" in result]
    summary = {
        "models": results,
        "threads": options.threads,
        "rounds": options.rounds,
        "ratio_means": "time of onnxruntime / time of tilewright on the same file: above 1, tilewright is quicker",
        "geomean_ratio": models.geometric_mean(ratios),
        "behind": sorted(key for key, result in results.items() if _upper_bound(result) < 1),
        "machine": harness.machine(),
        "versions": harness.versions(["tilewright", "numpy", "onnx", "onnxruntime"]),
    }
    print(render(results))
    path = options.json or harness.RESULTS_FOLDER / f"quantized-by-others-{options.threads}t.json"
    harness.write_json(path, summary)
    harness.say(f"figures written to {path}")
    print(json.dumps(summary))
    return 0 if all(is_right(result) for result in results.values()) else 1


def measure_file(
    name: str, form: str, peer: process.PeerProcess, threads: int, rounds: int, seed: int
) -> Result | None:
    """Check and time one file; None where the tool found nothing to quantise."""
    inputs = zoo.inputs(name, seed)
    exact = peer.load(zoo.path(name, seed), inputs)
    file = peer_quantization.path(name, seed, form)
    if not _is_quantized(file):
        return None
    try:
        theirs = peer.load(file, inputs)
    except process.PeerError as problem:
        return {"peer_failed": str(problem)}
    start = time.perf_counter()
    try:
        executable = tw.compile(str(file), threads=threads)
        compile_seconds = time.perf_counter() - start
        with harness.pinned(threads):
            ours = executable.run(inputs)
    except TilewrightError as error:
        harness.say(f"{name} {form}: failed: {error}")
        return {"error": str(error)}
    harness.say(f"{name} {form}: compiled in {compile_seconds:.1f} s; timing")
    with harness.pinned(threads):
        watch = CoreWatch(Target("native")) if threads == 1 else None
        places = functools.partial(models.placed, executable, inputs, clock_for(threads))
        standing = versus.against(places, {REFERENCE: peer}, rounds, threads=threads, watch=watch)
    harness.say(f"{name} {form}: onnxruntime takes {standing.peers[REFERENCE].ratio:.2f} of our time")
    return {
        **models.figures(standing, zoo.spec(name).gflop),
        "decibels": round(models.decibels(ours, exact), 2),
        "peers_decibels": round(models.decibels(theirs, exact), 2),
        "equal": round(equal_share(ours, theirs), 4),
        "compile_s": round(compile_seconds, 2),
    }


def equal_share(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """The share of elements that are the same."""
    same = sum(int(np.count_nonzero(a == b)) for a, b in zip(ours, theirs, strict=True))
    return same / max(1, sum(item.size for item in theirs))


def is_right(result: Result) -> bool:
    """Whether a file ran and its outputs are as close to the float model's as onnxruntime's are."""
    return "peer_failed" in result or ("error" not in result and models.is_good(result))


def parse_forms(text: str) -> list[str]:
    """The forms in a comma-separated list."""
    if text == "all":
        return list(peer_quantization.FORMS)
    chosen = [form.strip() for form in text.split(",") if form.strip()]
    for form in chosen:
        if form not in peer_quantization.FORMS:
            known = ", ".join(peer_quantization.FORMS)
            raise UserError(f"there is no form '{form}': the forms are {known}", where="--forms")
    return chosen


def render(results: dict[str, Result]) -> str:
    """The table of figures; times are medians in milliseconds."""
    header = ["model and form", "tilewright ms", "onnxruntime ms", "ratio", "equal", "decibels, ours / theirs"]
    rows = []
    for key, result in results.items():
        if "ratio" not in result:
            why = "onnxruntime failed" if "peer_failed" in result else "failed"
            rows.append([key, why, *["-"] * (len(header) - 2)])
            continue
        times, between = result["peers_ms"], result["between"]
        assert isinstance(times, dict) and isinstance(between, list)
        rows.append(
            [
                key,
                measure.format_ms(result["ours_ms"]),
                measure.format_ms(times[REFERENCE]),
                measure.format_ratio(result["ratio"], (between[0], between[1])),
                f"{result['equal']:.1%}",
                f"{result['decibels']:.1f} / {result['peers_decibels']:.1f}" + ("" if is_right(result) else " WRONG"),
            ]
        )
    return table(header, rows)


def _is_quantized(file: Path) -> bool:
    model = onnx.load(file, load_external_data=False)
    return any(node.op_type.startswith(_INTEGER_OPERATORS) for node in model.graph.node)


def _upper_bound(result: Result) -> float:
    between = result.get("between")
    return float(between[1]) if isinstance(between, list) else float("inf")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.quantized_by_others", description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=positive_int, default=1, help="threads to run on (default: 1)")
    parser.add_argument("--models", default="usual", help=f"comma-separated, or 'all'; {', '.join(USUAL)} by default")
    forms = "; ".join(f"{name}: {form.text}" for name, form in peer_quantization.FORMS.items())
    parser.add_argument("--forms", default="all", help=f"comma-separated, or 'all' (default): {forms}")
    parser.add_argument("--rounds", type=positive_int, default=10, help="rounds of pairs of runs (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and inputs (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench/results/)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
