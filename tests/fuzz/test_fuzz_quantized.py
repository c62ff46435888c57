"""Random quantised graphs: some of them against onnxruntime, and the tools that make and judge them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.fuzz import quantized
from tests.fuzz.quantized import judge, run_seed
from tests.fuzz.quantized_maker import make

GRAPHS = 60


def test_some_graphs() -> None:
    verdicts = {seed: run_seed(seed) for seed in range(GRAPHS)}
    assert {seed: verdict for seed, verdict in verdicts.items() if verdict.kind == "wrong"} == {}
    kinds = Counter(verdict.kind for verdict in verdicts.values())
    assert kinds["equal"] > 0.9 * GRAPHS
    assert kinds["refused"] < 0.05 * GRAPHS


def test_graphs_are_repeatable_and_various() -> None:
    assert make.__wrapped__(3).model() == make.__wrapped__(3).model()
    kinds = Counter(stage.kind for seed in range(GRAPHS) for stage in make(seed).stages)
    assert set(kinds) == {
        "input",
        "product of numbers",
        "requantised product",
        "requantised sum",
        "integer product",
        "scaled sums",
        "move",
        "dequantised move",
        "numbers",
    }
    operators = {node.op_type for seed in range(GRAPHS) for stage in make(seed).stages for node in stage.nodes}
    assert {"Conv", "QLinearConv", "ConvInteger", "MatMulInteger", "QLinearMatMul", "QLinearAdd"} <= operators


def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps too many, a step where every bit is said, and a step that is no tie are all wrong."""
    graph = make(next(seed for seed in range(GRAPHS) if make(seed).stages[0].kind == "input"))
    first = replace_stages(graph, 1)
    assert judge(first, compiled=False).kind == "equal"
    right = quantized.run_ours

    def off(steps: int):
        def run(model, inputs, *, compiled):
            (result,) = right(model, inputs, compiled=compiled)
            changed = result.astype(np.int64)
            changed.flat[0] += steps if changed.flat[0] < 50 else -steps
            return [changed.astype(result.dtype)]

        return run

    for steps, kind in ((1, "input"), (2, "numbers"), (1, "numbers")):
        monkeypatch.setattr(quantized, "run_ours", off(steps))
        first.stages[0] = replace(first.stages[0], kind=kind)
        assert judge(first, compiled=False).kind == "wrong"


def replace_stages(graph, count):
    """A copy of a graph with its first stages alone."""
    return replace(graph, stages=graph.stages[:count], values=graph.values[:count])
