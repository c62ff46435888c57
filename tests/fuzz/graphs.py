"""Random ONNX graphs against onnxruntime and ONNX's reference: `python -m tests.fuzz.graphs --count 2000 --seed 0`.

Graphs of 1 to 12 nodes over the operators that are imported, compiled or interpreted. A graph whose results are
onnxruntime's is right; where that refuses or differs, those of ONNX's own reference count. What is left is shrunk by
taking out nodes, looked up in the table of explained differences, and saved with its inputs.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tests.fuzz.graph_shape_makers  # noqa: F401 - it registers makers
import tilewright as tw
from tests.fuzz.graph_donors import donate, donors
from tests.fuzz.graph_draft import Draft, model_of
from tests.fuzz.graph_explained import explain
from tests.fuzz.graph_makers import MAKERS
from tests.fuzz.graph_oracles import TOLERANCES, Refused, difference, run_onnxruntime, run_referred
from tilewright.frontend import from_onnx
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import optimize
from tilewright.support.errors import UnsupportedError, UserError

LONGEST = 300.0
"""Seconds that one graph may take, shrinking included (and a child to start)."""
SAVED = Path(".cache") / "fuzz-graphs"
COMPILED_EVERY = 10
"""One graph of so many is compiled; the others run in the graph interpreter after all graph passes."""
DONATED = 0.25
"""How often a node is one of the onnx package's."""


@dataclass(frozen=True)
class Case:
    """A graph with the values of all its names."""

    nodes: tuple[onnx.NodeProto, ...]
    inputs: dict[str, Any]
    constants: dict[str, Any]
    outputs: tuple[str, ...]
    values: dict[str, Any]
    opset: int
    symbols: dict[int, str]
    """Sizes of float inputs that are left open, and their names."""
    is_compiled: bool = True

    def model(self) -> onnx.ModelProto:
        """The model, with its open sizes."""
        shapes = {
            name: [self.symbols.get(size, size) for size in value.shape]
            for name, value in self.inputs.items()
            if isinstance(value, np.ndarray) and value.dtype.kind == "f"
        }
        return model_of(self.nodes, self.inputs, self.constants, self.outputs, self.opset, shapes)


@dataclass(frozen=True)
class Verdict:
    """`right`, `right node by node`, `reference` (onnxruntime is not), `refused`; else `different`, `error`, `bug`."""

    kind: str
    text: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether something is to be explained."""
        return self.kind in ("different", "error", "bug")


def make(seed: int) -> Case:
    """The graph of a seed."""
    draft = Draft(np.random.default_rng(seed))
    draft.opset = int(draft.one(18, 21, 21, 23, 24, 26))
    wanted, tries = draft.whole(1, 12), 0
    names, keys = sorted(MAKERS), sorted(donors())
    while len(draft.nodes) < wanted and tries < 4 * wanted:
        tries += 1
        if draft.chance(DONATED):
            donate(draft, keys[draft.whole(0, len(keys) - 1)])
        else:
            name = names[draft.whole(0, len(names) - 1)]
            MAKERS[name](draft, name)
    used = {name for node in draft.nodes for name in node.input}
    made = [name for node in draft.nodes for name in node.output]
    outputs = [name for name in made if name not in used or draft.chance(0.1)]
    symbols = {size: f"n{size}" for size in range(2, 9) if draft.chance(0.5)} if draft.chance(0.25) else {}
    constants = {name: draft.values[name] for name, kind in draft.kinds.items() if kind == "constant"}
    compiled = seed % COMPILED_EVERY == 0
    return _closed(
        Case(tuple(draft.nodes), {}, constants, tuple(outputs), draft.values, draft.opset, symbols, compiled)
    )


def _closed(case: Case) -> Case:
    """Without nodes that no output needs; what no node makes and is no constant is an input."""
    needed, kept = set(case.outputs), []
    for node in reversed(case.nodes):
        if needed & set(node.output):
            kept.append(node)
            needed |= set(node.input)
    made = {name for node in kept for name in node.output}
    constants = {name: value for name, value in case.constants.items() if name in needed and name not in made}
    inputs = {name: case.values[name] for name in sorted(needed) if name and name not in made and name not in constants}
    return replace(case, nodes=tuple(reversed(kept)), inputs=inputs, constants=constants)


def run_compiled(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    """The outputs by compiled code."""
    return list(tw.compile(model, threads=1).run(inputs))


def run_interpreted(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    """The outputs by import, all graph passes and the graph interpreter: no kernel is compiled, which takes longest."""
    module = optimize(from_onnx(model), GraphOptions())
    main = module["main"]
    assert isinstance(main, Function)
    result = evaluate(module, *(inputs[param.name] for param in main.params))
    return list(result) if isinstance(result, tuple) else [result]


def judge(case: Case) -> Verdict:
    """Run a graph, and compare."""
    model = case.model()
    try:
        mine = (run_compiled if case.is_compiled else run_interpreted)(model, case.inputs)
    except UnsupportedError as error:
        return Verdict("refused", error.message)
    except UserError as error:
        return Verdict("error", error.message)
    except Exception as error:  # anything else is a bug, which is what is looked for
        return Verdict("bug", f"{type(error).__name__}: {error}")
    return compared(case, model, mine)


def compared(case: Case, model: onnx.ModelProto, mine: list[Any]) -> Verdict:
    """What oracles say of results: all are onnxruntime's, all are those of its nodes, or each is some oracle's."""
    # What was computed when the graph was made: each node by onnxruntime, or else by the reference.
    theirs: dict[str, list[Any]] = {"node by node": [case.values[name] for name in case.outputs]}
    with suppress(Refused):
        theirs["onnxruntime"] = run_onnxruntime(model, case.inputs)
    single = [
        model_of([node], {name: case.values[name] for name in node.input if name}, {}, list(node.output), case.opset)
        for node in case.nodes
    ]
    with suppress(Refused):
        theirs["the reference"] = run_referred(single, {**case.inputs, **case.constants}, case.outputs)
    # Results cast to a wider type have the rounding of the narrowest one that they went through.
    types = {value.dtype.name for value in case.values.values() if isinstance(value, np.ndarray)}
    tolerance = max((room for name, room in TOLERANCES.items() if name in types), default=0.0)
    found = {name: list(map(difference, mine, results, repeat(tolerance))) for name, results in theirs.items()}
    for name, kind in (("onnxruntime", "right"), ("node by node", "right node by node")):
        if name in found and not any(found[name]):
            return Verdict(kind)
    said = "; ".join(f"{name}: {next(filter(None, texts))}" for name, texts in sorted(found.items()) if any(texts))
    is_some = all(any(texts[at] is None for texts in found.values()) for at in range(len(mine)))
    return Verdict("reference" if is_some else "different", said)


def shrink(case: Case, verdict: Verdict) -> tuple[Case, Verdict]:
    """A graph of fewer nodes of which the same can be said; what was computed becomes an input."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(case):
            found = judge(candidate)
            if found.kind == verdict.kind:
                case, verdict, is_smaller = candidate, found, True
                break
    return case, verdict


def _smaller(case: Case) -> list[Case]:
    alone = [_closed(replace(case, nodes=(node,), outputs=tuple(node.output))) for node in case.nodes]
    one_output = [_closed(replace(case, outputs=(name,))) for name in case.outputs]
    without = [
        _closed(
            replace(
                case,
                nodes=tuple(n for n in case.nodes if n is not node),
                outputs=tuple(o for o in case.outputs if o not in node.output),
            )
        )
        for node in case.nodes
    ]
    candidates = [*alone, *one_output, *without, replace(case, symbols={})]
    size = (len(case.nodes), len(case.outputs), len(case.symbols))
    return [
        item for item in candidates if item.nodes and (len(item.nodes), len(item.outputs), len(item.symbols)) < size
    ]


def run_seed(seed: int) -> dict[str, Any]:
    """What became of one graph; a failure without a reason is saved."""
    case = make(seed)
    if not case.nodes:
        return {"seed": seed, "kind": "empty"}
    verdict = judge(case)
    record: dict[str, Any] = {"seed": seed, "kind": verdict.kind, "text": verdict.text, "nodes": len(case.nodes)}
    record["operators"] = sorted({node.op_type for node in case.nodes})
    if verdict.is_failure:
        small, said = shrink(case, verdict)
        reason = explain(small.nodes, said.text)
        record |= {"text": said.text, "shrunk": [node.op_type for node in small.nodes], "reason": reason}
        if reason is None:
            SAVED.mkdir(parents=True, exist_ok=True)
            onnx.save(small.model(), SAVED / f"{seed}.onnx")
            np.savez(
                SAVED / f"{seed}.npz",
                **{name: value for name, value in small.inputs.items() if isinstance(value, np.ndarray)},
            )
    return record


def run_children(first: int, count: int) -> list[dict[str, Any]]:
    """Run seeds in a child process, and in another one where that crashes or hangs."""
    records: list[dict[str, Any]] = []
    following = first
    while following < first + count:
        words = [
            sys.executable,
            "-m",
            "tests.fuzz.graphs",
            "--child",
            "--seed",
            str(following),
            "--count",
            str(first + count - following),
        ]
        child = subprocess.Popen(words, stdout=subprocess.PIPE)
        try:
            found = _read(child)
        finally:
            child.kill()
            child.wait()
        records += found
        following += len(found)
        if following < first + count:
            records.append(
                {"seed": following, "kind": "crash", "text": f"exit code {child.returncode}", "reason": None}
            )
            following += 1
    return records


def _read(child: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """The records that a child writes until it ends or is quiet for too long."""
    assert child.stdout is not None
    text = b""
    with child.stdout as stream:
        while select.select([stream], [], [], LONGEST)[0]:
            part = os.read(stream.fileno(), 1 << 16)
            if not part:
                break
            text += part
    return [
        json.loads(line)
        for line in text.decode().splitlines(keepends=True)
        if line.startswith("{") and line.endswith("\n")
    ]


def summary(records: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Counts of what became of graphs, and the seeds of failures without a reason."""
    failures = [item for item in records if item["kind"] in ("different", "error", "bug", "crash")]
    reasons = Counter(item["reason"] for item in failures if item["reason"])
    operators = {name for item in records for name in item.get("operators", ())}
    return {
        "graphs": len(records),
        "nodes": sum(item.get("nodes", 0) for item in records),
        "operators": len(operators),
        "kinds": dict(Counter(item["kind"] for item in records).most_common()),
        "explained": dict(reasons.most_common()),
        "unexplained": [item["seed"] for item in failures if not item["reason"]],
        "seconds": round(seconds),
    }


def main() -> int:
    """Run the command line; the exit code says whether every difference has a reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="how many graphs")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        for seed in range(options.seed, options.seed + options.count):
            print(json.dumps(run_seed(seed)), flush=True)
        return 0
    begin = time.monotonic()
    records = run_children(options.seed, options.count)
    for item in records:
        if item["kind"] in ("different", "error", "bug", "crash") and not item["reason"]:
            print(f"seed {item['seed']}: {item['kind']}: {item.get('shrunk')}: {item['text'][:300]}")
    found = summary(records, time.monotonic() - begin)
    print(json.dumps(found))
    return 1 if found["unexplained"] else 0


if __name__ == "__main__":
    sys.exit(main())
