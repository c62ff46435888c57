"""Damaged files: the importer gives a module or a UserError, and never anything else."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.frontend.onnx.helpers import data, make_model
from tilewright.frontend import from_onnx
from tilewright.support.errors import UserError


def _victim() -> bytes:
    """A model with many kinds of nodes, attributes and initializers."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"], epsilon=1e-3),
        helper.make_node("LeakyRelu", ["n"], ["l"], alpha=0.1),
        helper.make_node("MaxPool", ["l"], ["m"], kernel_shape=[2, 2], ceil_mode=1),
        helper.make_node("Shape", ["m"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "one"], ["s0"]),
        helper.make_node("Concat", ["s0", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["m", "shape"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
        helper.make_node("LSTM", ["t", "lw", "lr"], ["", "h"], hidden_size=2, direction="forward"),
        helper.make_node("Resize", ["m", "", "scales"], ["z"], mode="linear"),
        helper.make_node("Pad", ["z", "pads"], ["p"], mode="reflect"),
        helper.make_node("ReduceMean", ["p", "axes"], ["a"], keepdims=0),
        helper.make_node("Softmax", ["a"], ["y"], axis=-1),
        helper.make_node("Einsum", ["a", "a"], ["e"], equation="ij,kj->ik"),
        helper.make_node("Range", ["from", "to", "by"], ["g"]),
    ]
    stored = {
        "w": data(3, 2, 3, 3),
        "b": data(3),
        "v": data(3, low=0.5),
        "zero": np.array([0]),
        "one": np.array([1]),
        "rest": np.array([3, -1]),
        "lw": data(1, 8, 3),
        "lr": data(1, 8, 2),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "axes": np.array([2, 3]),
        "from": np.array(0),
        "to": np.array(5),
        "by": np.array(1),
    }
    outputs = ["y", "h", "e", "g"]
    return make_model(nodes, {"x": data(1, 2, 8, 8)}, outputs, stored).SerializeToString()


_WHOLE = _victim()


def _survives(content: bytes) -> None:
    with contextlib.suppress(UserError):
        from_onnx(content)


def test_the_victim_is_a_good_model():
    assert len(from_onnx(_WHOLE)["main"].params) == 1


@settings(max_examples=60)
@given(st.integers(0, len(_WHOLE) - 1))
def test_truncated_files(length):
    _survives(_WHOLE[:length])


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, len(_WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes(changes):
    content = bytearray(_WHOLE)
    for place, value in changes:
        content[place] = value
    _survives(bytes(content))


@pytest.mark.fuzz
def test_many_flipped_bytes():
    random = np.random.default_rng(0)
    for _ in range(20_000):
        content = bytearray(_WHOLE)
        for place in random.integers(0, len(_WHOLE), random.integers(1, 4)):
            content[place] = random.integers(0, 256)
        _survives(bytes(content))
