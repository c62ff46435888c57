"""Random quantised graphs against onnxruntime: `python -m tests.fuzz.quantized --count 2000 --seed 0`.

Onnxruntime runs each graph without optimisations, as it is written. Integers must be the same wherever ONNX says every
bit (sums of integers, what is moved, what is quantised of given numbers). Elsewhere a result may be one step off where
the number that is rounded lies next to the middle between two steps: onnxruntime adds the products of numbers in an
order of its own where integers are added exactly here, and merges scales in an order of its own when it requantises.
A stage that differs is looked at alone, on onnxruntime's own integers, so that what one step off becomes further on is
not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import tilewright as tw
from tests.fuzz.graph_oracles import Refused, run_onnxruntime
from tests.fuzz.quantized_maker import Graph, Stage, make
from tilewright.frontend import from_onnx
from tilewright.graph.interpreter import evaluate
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import optimize
from tilewright.ir.function import IRModule
from tilewright.target import Target

Array = npt.NDArray[Any]
COMPILED_EVERY = 10
"""One graph of so many is compiled; the others run in the graph interpreter after all graph passes."""
TIE = 2e-3
"""How near to the middle between two steps (in steps) a number lies that may go either way."""


@dataclass(frozen=True)
class Verdict:
    """`equal`, `one step` (with the stages that are), `refused` (by onnxruntime), or what is wrong."""

    kind: str
    text: str = ""


def run_ours(model: onnx.ModelProto, inputs: dict[str, Array], *, compiled: bool) -> list[Array]:
    """The results of a model, by compiled code or by the interpreter after all graph passes."""
    if compiled:
        return [np.asarray(item) for item in tw.compile(model, threads=1).run(inputs)]
    module = optimize(from_onnx(model), GraphOptions(target=Target.parse("native")))
    assert isinstance(module, IRModule)
    results = evaluate(module, *(inputs[item.name] for item in model.graph.input))
    return [np.asarray(item) for item in (results if isinstance(results, tuple | list) else (results,))]


def judge(graph: Graph, *, compiled: bool) -> Verdict:
    """Compare a graph with onnxruntime: as a whole, and what differs stage by stage."""
    model = graph.model()
    try:
        theirs = run_onnxruntime(model, graph.inputs, optimized=False)
    except Refused as refusal:
        return Verdict("refused", str(refusal))
    ours = run_ours(model, graph.inputs, compiled=compiled)
    if all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(ours, theirs, strict=True)):
        return Verdict("equal")
    values = {**graph.inputs, **{stage.output.name: item for stage, item in zip(graph.stages, theirs, strict=True)}}
    steps = []
    for stage in graph.stages:
        verdict = _judge_stage(graph, stage, values, compiled)
        if verdict.kind not in ("equal", "one step"):
            return verdict
        if verdict.kind == "one step":
            steps.append(stage.kind)
    # A stage alone may be right that is not in the whole: then it is the whole that is wrong.
    return Verdict("one step", ", ".join(steps)) if steps else Verdict("wrong", "only the whole graph differs")


def _judge_stage(graph: Graph, stage: Stage, values: dict[str, Array], compiled: bool) -> Verdict:
    names = [name for name in dict.fromkeys(n for node in stage.nodes for n in node.input) if name in values]
    inputs = {name: values[name] for name in names}
    shapes = {name: (value.dtype.name, value.shape) for name, value in inputs.items()}
    model = graph.model_of([stage], shapes, [stage.output])
    (ours,), theirs = run_ours(model, inputs, compiled=compiled), values[stage.output.name]
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return Verdict("wrong", f"{stage.kind}: {ours.dtype}{ours.shape}, not {theirs.dtype}{theirs.shape}")
    distance = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
    if not distance.any():
        return Verdict("equal")
    described = f"{stage.kind} ({', '.join(node.op_type for node in stage.nodes)})"
    if stage.is_exact or distance.max() > 1:
        return Verdict("wrong", f"{described}: {np.count_nonzero(distance)} integers differ, by up to {distance.max()}")
    if stage.real is not None:
        whole = graph.model_of([stage], shapes, [stage.output], stage.real)
        real = run_onnxruntime(whole, inputs, optimized=False)[1]
        place = real.astype(np.float64) / stage.output.scale
        if np.abs(np.abs(place - np.floor(place)) - 0.5)[distance > 0].max() > TIE:
            return Verdict("wrong", f"{described}: one step off, and not between two steps")
    elif np.count_nonzero(distance) > max(2, distance.size // 50):
        return Verdict("wrong", f"{described}: {np.count_nonzero(distance)} of {distance.size} are one step off")
    return Verdict("one step")


def run_seed(seed: int) -> Verdict:
    """Make the graph of a seed and judge it."""
    return judge(make(seed), compiled=seed % COMPILED_EVERY == 0)


def main() -> int:
    """Run many graphs; the exit code says whether all were right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="how many graphs")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    kinds: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    wrong: list[int] = []
    begin = time.monotonic()
    for seed in range(options.seed, options.seed + options.count):
        verdict = run_seed(seed)
        kinds[verdict.kind] += 1
        if verdict.kind == "one step":
            steps.update(verdict.text.split(", "))
        elif verdict.kind == "wrong":
            wrong.append(seed)
            print(f"seed {seed}: {verdict.text}", flush=True)
        if (seed + 1) % 50 == 0:
            print(f"{dict(kinds)}, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps({"graphs": options.count, "kinds": kinds, "one_step_in": steps, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
