"""The ten benchmark models from ONNX to running code, against onnxruntime."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import tilewright as tw
from bench import zoo
from tests.grids import rare
from tests.requirements import need
from tilewright.cli.measure import max_relative_error
from tilewright.cli.peers import onnxruntime

need("onnxruntime")

TOLERANCE = 1e-4
LARGER = ("resnet50", "mobilenet_v1", "mobilenet_v2", "bert_base", "lstm_lm_35")
"""Models of layers that others, or tiny variants of them, have too: `make test-all` has them, and `bench.models`."""
MODELS = [*(name for name in zoo.names() if name not in LARGER), *rare(*LARGER)]


@functools.lru_cache(maxsize=2)
def expected(name: str) -> list[np.ndarray]:
    return onnxruntime(zoo.path(name), 1, zoo.inputs(name))()


@pytest.mark.parametrize("name", MODELS)
def test_one_thread_agrees_with_onnxruntime(name: str) -> None:
    executable = tw.compile(zoo.path(name), threads=1)
    outputs = executable.run(zoo.inputs(name))
    assert max_relative_error(outputs, expected(name)) <= TOLERANCE
    # A second run in the same workspace must not see what the first one left there.
    for first, second in zip(outputs, executable.run(zoo.inputs(name)), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", ["dqn", "dcgan", "lstm_lm_1", "bert_small", *rare("mobilenet_v2")])
def test_two_threads_give_the_same_answers(name: str) -> None:
    executable = tw.compile(zoo.path(name), threads=2)
    inputs = zoo.inputs(name)
    outputs = executable.run(inputs)
    assert max_relative_error(outputs, expected(name)) <= TOLERANCE
    # Nor may answers depend on who is quicker, or on how many threads there really are.
    for threads in (2, 1, 3):
        executable.set_num_threads(threads)
        for first, again in zip(outputs, executable.run(inputs), strict=True):
            np.testing.assert_array_equal(first, again)


def test_names_of_the_model_reach_the_profile() -> None:
    executable = tw.compile(zoo.path("dqn"), threads=1)
    profile = executable.profile(*zoo.inputs("dqn").values(), repeat=1)
    nodes = {node for row in profile.rows for node in row.kernel.nodes}
    assert {"/conv1/Conv", "/fc2/Gemm"} <= nodes
    assert "/conv1/Conv" in profile.text()


def test_the_input_of_a_caller_is_left_alone() -> None:
    inputs = zoo.inputs("dqn")
    copies = {name: value.copy() for name, value in inputs.items()}
    tw.compile(zoo.path("dqn"), threads=1).run(inputs)
    for name, value in inputs.items():
        np.testing.assert_array_equal(value, copies[name])
