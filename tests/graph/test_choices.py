"""Questions of graph passes: keys that mean computations, answers that fit, and the nodes that are concerned."""

from __future__ import annotations

import pytest

from tests.graph.helpers import function, op, random, var
from tilewright.graph.choices import GraphChoices, graph_answers, is_graph_key, question_label, stored_answer
from tilewright.graph.ir.expr import Call, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.function import IRModule
from tilewright.support.errors import CompilerBug

OPTIONS = ("slow", "quick")
NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


def convolution(name: str | None = "a", size: int = 8, seed: int = 0, **attributes: object) -> Call:
    x = var("x", 1, size, size, 4)
    made = op("nn.conv2d", x, constant(random(seed, 3, 3, 4, 4)), span=name, **{**NHWC, **attributes})
    typed = infer_types(IRModule([function([x], made)]))["main"].body
    assert isinstance(typed, Call)
    return typed


def key_of(*calls: Call) -> str:
    choices = GraphChoices()
    choices.choose(calls, OPTIONS, "slow")
    (key,) = choices.asked
    return key


def test_keys_are_of_computations() -> None:
    key = key_of(convolution("a"))
    assert is_graph_key(key) and question_label(key) == "nn.conv2d float32 1x8x8x4 3x3x4x4"
    # Neither names of nodes nor values of weights matter.
    assert key == key_of(convolution("b", seed=1))
    others = [convolution(size=9), convolution(strides=(2, 2)), convolution(padding=(1, 1, 1, 1))]
    keys = {key, *map(key_of, others), key_of(convolution(), convolution())}
    assert len(keys) == 5


def test_answers_that_are_no_options_are_not_taken() -> None:
    key = key_of(convolution())
    for given, expected in ({}, "slow"), ({key: "quick"}, "quick"), ({key: "other"}, "slow"), ({"x": "quick"}, "slow"):
        assert GraphChoices(given).choose([convolution()], OPTIONS, "slow") == expected


def test_a_question_knows_all_nodes_that_ask_it() -> None:
    choices = GraphChoices()
    for name in ("a", "b", "a"):
        choices.choose([convolution(name)], OPTIONS, "slow")
    (question,) = choices.asked.values()
    assert question.nodes == ("a", "b")
    assert question.alternatives == ("quick",) and question.default == "slow"


def test_what_is_of_no_node_is_answered_but_not_kept() -> None:
    key = key_of(convolution())
    choices = GraphChoices({key: "quick"})
    assert choices.choose([convolution(None)], OPTIONS, "slow") == "quick"
    # Nor is what has no alternative.
    assert choices.choose([convolution()], ("slow",), "slow") == "slow"
    assert not choices.asked


def test_one_key_has_one_set_of_options() -> None:
    choices = GraphChoices()
    choices.choose([convolution()], OPTIONS, "slow")
    with pytest.raises(CompilerBug, match="different options"):
        choices.choose([convolution()], OPTIONS, "quick")


def test_answers_among_those_of_a_database() -> None:
    key = key_of(convolution())
    known = {key: {**stored_answer("quick"), "compiler": "x"}, "graph:other": {"compiler": "x"}, "tw_k": {"rows": 4}}
    assert graph_answers(known) == {key: "quick"}
