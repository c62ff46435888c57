"""Damaged files give errors, never crashes or endless work."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from bench.tflite_cases import CASES
from bench.tflite_writer import Graph, Tensor, write
from tilewright.frontend import from_tflite
from tilewright.frontend.tflite.flatbuffer import Buffer
from tilewright.frontend.tflite.flexbuffer import read_map
from tilewright.support.errors import UserError

SEEDS = (
    "CONV_2D/int8/S11",
    "WHILE",
    "UNIDIRECTIONAL_SEQUENCE_LSTM/",
    "TFLite_Detection_PostProcess",
    "DENSIFY",
    "SPLIT_V",
)


@pytest.mark.parametrize("name", SEEDS)
def test_changed_bytes(name):
    data = CASES[name]().model
    random = np.random.default_rng(len(data))
    for _ in range(60):
        changed = bytearray(data)
        for place in random.integers(8, len(data), random.integers(1, 6)):
            changed[place] = random.integers(0, 256)
        try:
            from_tflite(bytes(changed))
        except UserError:
            continue


@pytest.mark.parametrize("name", SEEDS)
def test_files_that_end_early(name):
    data = CASES[name]().model
    for size in range(8, len(data), max(1, len(data) // 40)):
        try:
            from_tflite(data[:size])
        except UserError:
            continue


def test_offsets_outside_of_the_file():
    data = bytearray(write([Graph()]))
    struct.pack_into("<I", data, 0, 1 << 31)
    with pytest.raises(UserError, match="damaged"):
        from_tflite(bytes(data))


def test_references_to_one_table_are_counted():
    """A vector of many references to one large table would be read for a long time."""
    buffer = Buffer(bytes(64), "a file")
    buffer.charge(1000)
    with pytest.raises(UserError, match="more often than it has bytes"):
        buffer.charge(10_000)


def test_constants_that_do_not_fit_their_shape():
    graph = Graph()
    x = graph.tensor(Tensor("x", (2, 3), "float32", data=b"1234"))
    graph.output(graph.add("RELU", [x], [Tensor("y", (2, 3))]))
    with pytest.raises(UserError, match="'x' of shape"):
        from_tflite(write([graph]))


def test_numbers_that_no_memory_holds():
    graph = Graph()
    x = graph.input("x", (1, 4, 4, 3), "int8", scale=0.1)
    options = {"padding": 0, "stride_h": 1, "stride_w": 1, "filter_height": 3, "filter_width": (1 << 31) - 1}
    graph.output(graph.add("AVERAGE_POOL_2D", [x], [Tensor("y", (), "int8", 0.1)], options))
    with pytest.raises(UserError, match="too large"):
        from_tflite(write([graph]))
    graph = Graph()
    limits = [graph.constant(np.float32(value)) for value in (0, 3e38, 1)]
    graph.output(graph.add("RANGE", limits, [Tensor("y", ())]))
    with pytest.raises(UserError, match="too long"):
        from_tflite(write([graph]))


def test_inputs_that_do_not_fit_an_operator():
    graph = Graph()
    x = graph.input("x", (2, 3))
    pads = graph.constant(np.int32([1, 2, 3]))
    graph.output(graph.add("MIRROR_PAD", [x, pads], [Tensor("y", ())]))
    with pytest.raises(UserError, match="MIRROR_PAD do not fit together"):
        from_tflite(write([graph]))


def test_zero_points_outside_of_their_type():
    graph = Graph()
    x = graph.input("x", (2, 3), "int8", scale=0.1, zero=1 << 31)
    graph.output(graph.add("RELU", [x], [Tensor("y", (), "int8", 0.1)]))
    with pytest.raises(UserError, match="zero points of 'x'"):
        from_tflite(write([graph]))


def test_damaged_options_of_custom_operators():
    for data in (b"", b"\0\0\0", bytes(range(40)), b"\xff" * 40):
        with pytest.raises(UserError, match="options of the custom operator"):
            read_map(data)
