"""Every operator against the answers of LiteRT's kernels, which `python -m bench.tflite_fixtures` kept."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from bench.frontend_tflite import ANSWERS, CASES, difference, interpreted
from bench.tflite_cases import REFUSED
from tilewright.frontend import from_tflite
from tilewright.support.errors import UnsupportedError

COMPILED = (
    "CONV_2D/int8/V21",
    "DEPTHWISE_CONV_2D/int8/S11",
    "FULLY_CONNECTED/uint8",
    "ADD/int8/3",
    "SOFTMAX/int8",
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


@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_results_are_those_of_litert(answers, name):
    case = CASES[name]()
    assert not difference(interpreted(case), expected(answers, name), case.tolerance)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_refused_says_so(name):
    with pytest.raises(UnsupportedError, match="of quantised tensors"):
        from_tflite(CASES[name]().model)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_results_are_those_of_litert(answers, name):
    case = CASES[name]()
    found = tw.compile(from_tflite(case.model))(*case.inputs)
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    assert not difference(results, expected(answers, name), case.tolerance)
