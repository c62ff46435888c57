"""Every operator against the answers of LiteRT's kernels, which `python -m bench.tflite_fixtures` kept."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from bench.frontend_tflite import ANSWERS, CASES, difference, interpreted
from bench.tflite_writer import Graph
from tilewright.frontend import from_tflite
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.traverse import graph_functions
from tilewright.support.errors import UserError

COMPILED = (
    "CONV_2D/int8/V21",
    "DEPTHWISE_CONV_2D/int8/S11",
    "FULLY_CONNECTED/uint8",
    "ADD/int8/3",
    "SOFTMAX/int8",
    "DIV/uint8",
    "L2_NORMALIZATION/int8",
    "AVERAGE_POOL_2D/int8/0",
    "UNIDIRECTIONAL_SEQUENCE_LSTM/",
    "WHILE",
)
"""Cases that run as compiled code too: the arithmetic of quantised kernels, and control flow."""


@pytest.fixture(scope="module")
def answers():
    with np.load(ANSWERS) as stored:
        return dict(stored)


def expected(answers, name):
    return [
        answers[key] for key in sorted(answers, key=lambda key: int(key.split("#")[1])) if key.split("#")[0] == name
    ]


def test_there_are_answers_for_all_cases(answers):
    assert {key.split("#")[0] for key in answers} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_litert(answers, name):
    case = CASES[name]()
    assert not difference(interpreted(case), expected(answers, name), case.tolerance)


def test_a_quantised_divisor_of_zero_is_an_error():
    case = CASES["DIV/uint8"]()
    dividend, divisor = case.inputs
    with pytest.raises(UserError, match="divisor"):
        evaluate(from_tflite(case.model), dividend, np.full_like(divisor, 120))


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_results_are_those_of_litert(answers, name):
    case = CASES[name]()
    found = tw.compile(from_tflite(case.model))(*case.inputs)
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    assert not difference(results, expected(answers, name), case.tolerance)


@pytest.fixture
def of_open_sizes(monkeypatch):
    """The inputs of cases are written as images of any size."""
    given = Graph.input
    monkeypatch.setattr(
        Graph, "input", lambda graph, *args, **more: given(graph, *args, signature=(-1, -1, -1, -1), **more)
    )


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("MEAN/int8", "MEAN/uint8", "SUM/int8"))])
def test_quantised_sums_over_open_sizes(answers, name, of_open_sizes):
    """What counts the elements is known to a call alone: the same integers."""
    case = CASES[name]()
    module = from_tflite(case.model)
    (param,) = graph_functions(module)["main"].params
    assert param.tensor_type.static_shape is None
    assert not difference([evaluate(module, *case.inputs)], expected(answers, name), case.tolerance)
    assert not difference([tw.compile(module)(*case.inputs)], expected(answers, name), case.tolerance)


@pytest.mark.parametrize(("name", "zero"), [("MEAN/int8/image", -3), ("MEAN/int8/same", 3), ("MEAN/int8/drop", -3)])
def test_the_mean_of_nothing_is_zero(name, zero, of_open_sizes):
    """A call decides that there is nothing to count: no division traps."""
    module, nothing = from_tflite(CASES[name]().model), np.zeros((2, 0, 7, 3), np.int8)
    for found in (evaluate(module, nothing), tw.compile(module)(nothing)):
        assert found.size == 6 and (found == zero).all()
