"""Operators that LiteRT has no kernels for, against numpy; and tables of texts."""

from __future__ import annotations

import numpy as np
import pytest

from bench.tflite_cases import Case, fixed, numbers, single
from bench.tflite_writer import Graph, Tensor, write
from tilewright.frontend import from_tflite
from tilewright.graph.interpreter import evaluate

X, Y = numbers(2, 3, low=0.2), numbers(2, 3, low=0.2, seed=1)
UNARY = {
    "ABS": np.abs, "COSINE": np.cos, "EXPONENTIAL": np.exp, "FLOOR": np.floor, "LOG": np.log, "NEGATE": np.negative,
    "LOGISTIC": lambda x: 1 / (1 + np.exp(-x)), "RSQRT": lambda x: 1 / np.sqrt(x), "TANH": np.tanh, "CBRT": np.cbrt,
}  # fmt: skip
BINARY = {
    "ADD": np.add, "DIVIDE": np.divide, "MAXIMUM": np.maximum, "MINIMUM": np.minimum, "MULTIPLY": np.multiply,
    "POWER": np.power, "REMAINDER": np.fmod, "SUBTRACT": np.subtract,
}  # fmt: skip


def run(case: Case):
    return np.asarray(evaluate(from_tflite(case.model), *case.inputs))


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_value(name):
    found = run(single(f"STABLEHLO_{name}", [X], shapes=[(2, 3)]))
    np.testing.assert_allclose(found, UNARY[name](X), rtol=1e-5)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_values(name):
    found = run(single(f"STABLEHLO_{name}", [X, Y], shapes=[(2, 3)]))
    np.testing.assert_allclose(found, BINARY[name](X, Y), rtol=1e-5)


COMPARISONS = (np.equal, np.not_equal, np.greater_equal, np.greater, np.less_equal, np.less)


@pytest.mark.parametrize("number", range(len(COMPARISONS)))
def test_comparisons(number):
    a, b = np.int32([1, 2, 3]), np.int32([2, 2, 2])
    found = run(single("STABLEHLO_COMPARE", [a, b], "bool", {"comparison_direction": number}))
    np.testing.assert_array_equal(found, COMPARISONS[number](a, b))


def test_moves():
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    cases = {
        "TRANSPOSE": ([data], {"permutation": [1, 0]}, data.T),
        "SLICE": ([data], {"start_indices": [0, 1], "limit_indices": [3, 4], "strides": [2, 1]}, data[::2, 1:]),
        "CONCATENATE": ([data, data], {"dimension": 1}, np.concatenate([data, data], 1)),
        "DYNAMIC_SLICE": ([data, np.int32(9), np.int32(1)], {"slice_sizes": [2, 2]}, data[1:, 1:3]),
        "RESHAPE": ([data], {}, data.reshape(2, 6)),
        "CLAMP": ([np.float32(2), data, np.float32(5)], {}, data.clip(2, 5)),
        "CONVERT": ([data], {}, data),
        "SELECT": ([data > 3, data, -data], {}, np.where(data > 3, data, -data)),
    }
    for name, (values, options, wanted) in cases.items():
        found = run(single(f"STABLEHLO_{name}", values, "float32", options, shapes=[wanted.shape]))
        np.testing.assert_array_equal(found, wanted, err_msg=name)


def test_padding_between_elements():
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    options = {"edge_padding_low": [1, 0], "edge_padding_high": [0, -1], "interior_padding": [0, 1]}
    found = run(single("STABLEHLO_PAD", [data, fixed(9.0, np.float32)], options=options, shapes=[(3, 4)]))
    assert found.tolist() == [[9, 9, 9, 9], [0, 9, 1, 9], [3, 9, 4, 9]]
    spread = run(single("DILATE", [data, fixed([2, 1], np.int32), fixed(7.0, np.float32)]))
    assert spread.tolist() == [[0, 1, 2], [7, 7, 7], [3, 4, 5]]


def test_numbers_along_a_dimension():
    found = run(single("STABLEHLO_IOTA", [], "int32", {"iota_dimension": 1}, shapes=[(2, 3)]))
    assert found.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_bits():
    a, b = np.int32([6, 3]), np.int32([5, 2])
    assert run(single("STABLEHLO_AND", [a, b], "int32")).tolist() == [4, 2]
    assert run(single("STABLEHLO_OR", [a > 4, b > 4], "bool")).tolist() == [True, False]
    assert run(single("STABLEHLO_SHIFT_LEFT", [a, b], "int32")).tolist() == [192, 12]


def test_broadcasts_in_dimensions():
    found = run(single("STABLEHLO_BROADCAST_IN_DIM", [np.float32([1, 2]), fixed([1], np.int32)], shapes=[(3, 2)]))
    assert found.tolist() == [[1, 2]] * 3


def test_one_of_several_graphs():
    graphs = [Graph()]
    x = graphs[0].input("x", (2,))
    chosen = graphs[0].constant(np.int32(7))
    y = graphs[0].add("STABLEHLO_CASE", [chosen, x], [Tensor("y", (2,))], {"branch_subgraph_indices": [1, 2]})
    graphs[0].output(y)
    for factor in (2.0, 3.0):
        body = Graph()
        value = body.input("x", (2,))
        graphs.append(body.output(body.add("MUL", [value, body.constant(np.float32(factor))], [Tensor("y", (2,))])))
    assert np.asarray(evaluate(from_tflite(write(graphs)), np.float32([1, 2]))).tolist() == [3, 6]


def test_tables_of_texts():
    graph = Graph()
    words = graph.input("words", (3,), "string")
    graph.add("CALL_ONCE", [], [], {"init_subgraph_index": 1})
    options = {"table_id": 4, "key_dtype": 5, "value_dtype": 4}
    handle = graph.add("HASHTABLE", [], [Tensor("h", (), "resource")], options)
    default = graph.constant(np.int64(-1))
    found = graph.add("HASHTABLE_FIND", [handle, words, default], [Tensor("y", (3,), "int64")])
    count = graph.add("HASHTABLE_SIZE", [handle], [Tensor("n", (1,), "int64")])
    start = Graph("start")
    inner = start.add("HASHTABLE", [], [Tensor("h", (), "resource")], options)
    keys = start.constant(np.array(["a", "b"], object), dtype="string")
    start.add("HASHTABLE_IMPORT", [inner, keys, start.constant(np.int64([5, 7]))], [])
    module = from_tflite(write([graph.output(found, count), start]))
    numbers_found, size = evaluate(module, np.array(["b", "x", "a"], object))
    assert np.asarray(numbers_found).tolist() == [7, -1, 5] and np.asarray(size).tolist() == [2]
