"""Operators that LiteRT has no kernels for, against numpy; and tables of texts."""

from __future__ import annotations

import numpy as np
import pytest

from bench.tflite_cases import Case, fixed, numbers, single
from bench.tflite_writer import Graph, Tensor, write
from tilewright.frontend import from_tflite
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UserError

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


# By the converters of the StableHLO importer


def test_products_over_any_dimensions():
    a, b = numbers(2, 3, 5, 4), numbers(4, 2, 7, 5, seed=1)
    options = {
        "lhs_batching_dimensions": [0],
        "rhs_batching_dimensions": [1],
        "lhs_contracting_dimensions": [2, 3],
        "rhs_contracting_dimensions": [3, 0],
    }
    found = run(single("STABLEHLO_DOT_GENERAL", [a, b], options=options, shapes=[(2, 3, 7)]))
    np.testing.assert_allclose(found, np.einsum("bikl,lbjk->bij", a, b), rtol=1e-5, atol=1e-5)


def test_convolutions_of_any_layout():
    """Planes of channels, weights with their outputs last, and a step."""
    data, weight = numbers(1, 2, 5, 6), numbers(3, 2, 2, 4, seed=1)
    options = {
        "window_strides": [2, 1],
        "padding": [1, 0, 0, 1],
        "lhs_dilation": [1, 1],
        "rhs_dilation": [1, 1],
        "input_batch_dimension": 0,
        "input_feature_dimension": 1,
        "input_spatial_dimensions": [2, 3],
        "kernel_input_feature_dimension": 2,
        "kernel_output_feature_dimension": 3,
        "kernel_spatial_dimensions": [0, 1],
        "output_batch_dimension": 0,
        "output_feature_dimension": 1,
        "output_spatial_dimensions": [2, 3],
        "feature_group_count": 1,
        "batch_group_count": 1,
    }
    found = run(single("STABLEHLO_CONVOLUTION", [data, weight], options=options, shapes=[(1, 4, 2, 6)]))
    padded = np.pad(data, ((0, 0), (0, 0), (1, 0), (0, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), axis=(2, 3))[:, :, ::2]
    np.testing.assert_allclose(found, np.einsum("nchwij,ijco->nohw", windows, weight), rtol=1e-5, atol=1e-5)


def test_windows_at_places_that_are_data():
    """Places beyond the end are moved inside."""
    data, places = numbers(5, 4), np.int32([[3], [0], [9]])
    options = {
        "offset_dims": [1],
        "collapsed_slice_dims": [0],
        "start_index_map": [0],
        "index_vector_dim": 1,
        "slice_sizes": [1, 4],
    }
    found = run(single("STABLEHLO_GATHER", [data, fixed(places)], options=options, shapes=[(3, 4)]))
    np.testing.assert_array_equal(found, data[[3, 0, 4]])


def with_body(name, body_operator, inputs, shape, options, body_options=None, result="float32"):
    """A model of one operator whose region is another graph, of one operator on scalars; the first input is its."""
    graph, body = Graph(), Graph()
    places = [graph.input("x", inputs[0].shape), *(graph.constant(item) for item in inputs[1:])]
    graph.output(graph.add(f"STABLEHLO_{name}", places, [Tensor("y", shape)], options))
    sides = [body.input("a", ()), body.input("b", ())]
    body.output(body.add(f"STABLEHLO_{body_operator}", sides, [Tensor("r", (), result)], body_options or {}))
    return from_tflite(write([graph, body]))


@pytest.mark.parametrize(("operator", "start", "expected"), [("ADD", 0, np.sum), ("MAXIMUM", -np.inf, np.max)])
def test_reductions_by_a_graph(operator, start, expected):
    data = numbers(3, 4, 5)
    options = {"dimensions": [0, 2], "body_subgraph_index": 1}
    module = with_body("REDUCE", operator, [data, np.float32(start)], (4,), options)
    np.testing.assert_allclose(evaluate(module, data), expected(data, axis=(0, 2)), rtol=1e-5)


def test_windows_combined_by_a_graph():
    data = numbers(4, 6)
    options = {"window_dimensions": [1, 3], "window_strides": [1, 1], "padding": [0, 0, 1, 1], "body_subgraph_index": 1}
    module = with_body("REDUCE_WINDOW", "ADD", [data, np.float32(0)], (4, 6), options)
    padded = np.pad(data, ((0, 0), (1, 1)))
    expected = sum(padded[:, at : at + 6] for at in range(3))
    np.testing.assert_allclose(evaluate(module, data), expected, rtol=1e-5, atol=1e-6)


def test_updates_combined_by_a_graph():
    data, places, updates = numbers(5, 4), np.int32([[3], [0], [3]]), numbers(3, 4, seed=1)
    options = {
        "update_window_dims": [1],
        "inserted_window_dims": [0],
        "scatter_dims_to_operand_dims": [0],
        "index_vector_dim": 1,
        "update_computation_subgraph_index": 1,
    }
    module = with_body("SCATTER", "ADD", [data, places, updates], (5, 4), options)
    expected = data.copy()
    np.add.at(expected, places[:, 0], updates)
    np.testing.assert_allclose(evaluate(module, data), expected, rtol=1e-5)


@pytest.mark.parametrize(("direction", "sign"), [(5, 1), (3, -1)])
def test_orders_of_a_comparator(direction, sign):
    data = numbers(3, 7)
    options = {"dimension": 1, "is_stable": True, "comparator_subgraph_index": 1}
    module = with_body("SORT", "COMPARE", [data], (3, 7), options, {"comparison_direction": direction}, "bool")
    np.testing.assert_array_equal(evaluate(module, data), sign * np.sort(sign * data, axis=1))


def test_a_region_that_is_no_graph_of_the_model_is_an_error():
    with pytest.raises(UserError, match="names the graph 7"):
        with_body("REDUCE", "ADD", [numbers(3), np.float32(0)], (), {"dimensions": [0], "body_subgraph_index": 7})
