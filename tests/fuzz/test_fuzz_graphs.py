"""Random ONNX graphs: a few of them against the oracles, and the tools that make, judge and shrink them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from tests.fuzz import graph_explained, graphs
from tests.fuzz.graph_draft import Draft
from tests.fuzz.graph_explained import Explained, explain
from tests.fuzz.graph_makers import MAKERS
from tests.fuzz.graph_oracles import difference
from tests.fuzz.graphs import Case, Verdict, judge, make, shrink

GRAPHS = 40


@pytest.fixture(autouse=True)
def without_donors(monkeypatch):
    """The onnx package's cases take seconds to compute."""
    monkeypatch.setattr(graphs, "donors", dict)
    monkeypatch.setattr(graphs, "DONATED", 0.0)


def test_some_graphs(monkeypatch, tmp_path):
    monkeypatch.setattr(graphs, "SAVED", tmp_path)
    monkeypatch.setattr(graphs, "COMPILED_EVERY", GRAPHS)
    records = [graphs.run_seed(seed) for seed in range(GRAPHS)]
    found = graphs.summary(records, 0.0)
    assert found["unexplained"] == []
    assert found["operators"] > 80
    assert found["kinds"]["right"] > GRAPHS / 2


def test_graphs_are_repeatable_and_various():
    assert make(3).model() == make(3).model()
    assert len({make(seed).model().SerializeToString() for seed in range(12)}) >= 11


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_every_maker_makes_nodes(name):
    def attempts():
        for seed in range(12):
            for opset in (18, 21, 26):
                yield MAKERS[name](Draft(np.random.default_rng(seed), opset), name)

    assert any(attempts())


def chain() -> Case:
    """Three nodes; the one in the middle is taken for wrong below."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Exp", ["b"], ["c"]),
    ]
    x = np.array([1.0, -2.0], np.float32)
    values = {"x": x, "a": abs(x), "b": -abs(x), "c": np.exp(-abs(x))}
    return Case(tuple(nodes), {"x": x}, {}, ("c",), values, 21, {}, False)


def test_verdicts(monkeypatch):
    assert judge(chain()) == Verdict("right")
    monkeypatch.setattr(graphs, "run_interpreted", lambda model, inputs: [np.float32([0, 0])])
    found = judge(chain())
    assert found.kind == "different" and found.text.count("values by") == 3
    monkeypatch.setattr(graphs, "run_onnxruntime", lambda model, inputs: [np.float32([0, 0])])
    assert judge(chain()) == Verdict("right")
    unknown = replace(chain(), nodes=(helper.make_node("ImageDecoder", ["x"], ["c"]),))
    monkeypatch.undo()
    assert judge(unknown).kind == "refused"


def test_shrinking(monkeypatch):
    def wrong(case):
        is_wrong = any(node.op_type == "Neg" for node in case.nodes)
        return Verdict("different" if is_wrong else "right", "values by 1")

    monkeypatch.setattr(graphs, "judge", wrong)
    small, verdict = shrink(chain(), Verdict("different"))
    assert [node.op_type for node in small.nodes] == ["Neg"]
    assert list(small.inputs) == ["a"] and verdict.text == "values by 1"


def test_explanations(monkeypatch):
    entry = Explained("its mode", lambda op, attributes, node: op == "Pad" and attributes.get("mode") == "wrap")
    monkeypatch.setattr(graph_explained, "TABLE", (entry,))
    assert explain([helper.make_node("Pad", ["x"], ["y"], mode="wrap")]) == "its mode"
    assert explain([helper.make_node("Pad", ["x"], ["y"], mode="edge")]) is None
    assert explain([helper.make_node("Pad", ["x"], ["y"], mode="wrap")], avoided_only=True) is None


def test_nodes_that_oracles_get_wrong_are_avoided():
    draft = Draft(np.random.default_rng(0))
    image = draft.fresh((1, 1, 5))
    assert draft.node("MaxPool", [image], kernel_shape=[2], dilations=[2], auto_pad="SAME_UPPER") is None
    assert draft.node("MaxPool", [image], kernel_shape=[2], auto_pad="SAME_UPPER") is not None


def test_differences_are_named():
    one = np.float32([1, 2])
    assert difference(one, one + np.float32(1e-5)) is None
    assert difference(one, one + 1) == "values by 1"
    assert difference(one, one[:1]) == "shape (2,) instead of (1,)"
    assert difference(one, one.astype(np.float64)) == "type float32 instead of float64"
    assert difference(np.float32([np.nan, 1]), one) == "other elements are finite"
    assert difference(np.int64([1]), np.int64([2])) == "1 of 1 elements"
    assert difference([one], [one, one]) == "another sequence"
    assert difference(None, one) == "nothing, or something"
