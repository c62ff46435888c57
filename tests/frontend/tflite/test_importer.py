"""Names, signatures, shapes, custom operators and errors of the importer."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from bench.tflite_writer import Graph, Tensor, write
from tilewright.frontend import from_tflite
from tilewright.frontend.tflite import converter
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError


def doubled(name="main", shape=(2, 3), signature=None):
    graph = Graph(name)
    x = graph.input("x", shape)
    graph.tensors[x].signature = signature
    return graph.output(graph.add("ADD", [x, x], [Tensor("y", shape)]))


def test_names_are_those_of_tensors():
    module = from_tflite(write([doubled()]))
    assert [param.name for param in module["main"].params] == ["x"]
    assert module.attributes["output_names"] == ("y",)
    assert module.attributes["model_name"] == "main"


def test_names_are_those_of_the_signature():
    data = write([doubled()], [{"key": "serve", "inputs": {"image": 0}, "outputs": {"scores": 1}}])
    module = from_tflite(data)
    assert [param.name for param in module["main"].params] == ["image"]
    assert module.attributes["output_names"] == ("scores",)


def test_one_of_several_signatures():
    squared = Graph("squared")
    x = squared.input("x", (4,))
    squared.output(squared.add("MUL", [x, x], [Tensor("y", (4,))]))
    entries = [
        {"key": "double", "inputs": {"a": 0}, "outputs": {"b": 1}},
        {"key": "square", "inputs": {"c": 0}, "outputs": {"d": 1}, "graph": 1},
    ]
    data = write([doubled(), squared], entries)
    assert from_tflite(data).attributes["signatures"] == ("double", "square")
    module = from_tflite(data, signature="square")
    assert np.asarray(evaluate(module, np.float32([1, 2, 3, 4]))).tolist() == [1, 4, 9, 16]
    with pytest.raises(UserError, match="no signature 'cube'"):
        from_tflite(data, signature="cube")


def test_a_signature_that_does_not_fit_is_an_error():
    data = write([doubled()], [{"key": "serve", "inputs": {"image": 1}, "outputs": {"scores": 1}}])
    with pytest.raises(UserError, match="does not fit its graph"):
        from_tflite(data)


def test_open_dimensions_are_symbols_that_shapes_fix():
    data = write([doubled(shape=(1, 3), signature=(-1, 3))])
    exe = tw.compile(from_tflite(data))
    for rows in (1, 5):
        x = np.ones((rows, 3), np.float32)
        assert (exe(x) == 2).all()
    assert from_tflite(data, shapes={"x": (7, 3)})["main"].params[0].type.static_shape == (7, 3)
    with pytest.raises(UserError, match="fixes dimension 1"):
        from_tflite(data, shapes={"x": (7, 4)})


@pytest.mark.parametrize("size", [5, 8])
def test_windows_over_open_sizes(size):
    """SAME padding with steps depends on the size, which only a run knows."""
    results = []
    for signature in (None, (1, -1, -1, 2)):
        graph = Graph()
        x = graph.input("x", (1, size, size, 2))
        graph.tensors[x].signature = signature
        options = {"padding": 0, "stride_h": 2, "stride_w": 2}
        weight = graph.constant(np.ones((3, 3, 3, 2), np.float32))
        y = graph.add("CONV_2D", [x, weight, -1], [Tensor("y", ())], options)
        pool = {**options, "filter_height": 3, "filter_width": 3}
        mean = graph.add("AVERAGE_POOL_2D", [x], [Tensor("mean", ())], pool)
        module = from_tflite(write([graph.output(y, mean)]))
        image = np.arange(size * size * 2, dtype=np.float32).reshape(1, size, size, 2)
        results.append(evaluate(module, image))
    for fixed, opened in zip(*results, strict=True):
        np.testing.assert_allclose(fixed, opened, rtol=1e-6)


def test_custom_operators_by_a_converter():
    graph = Graph()
    x = graph.input("x", (3,))
    graph.output(graph.add("MyScale", [x], [Tensor("y", (3,))], custom=b"\x05"))
    data = write([graph])
    with pytest.raises(UnsupportedError, match="custom operator MyScale") as caught:
        from_tflite(data)
    assert "'y' (custom operator MyScale, version 1)" in str(caught.value)

    @converter("MyScale", custom=True)
    def my_scale(node):
        factor = node.builder.constant_like(node.node.custom_options[0], node.input(0))
        return node.call("multiply", node.input(0), factor)

    assert np.asarray(evaluate(from_tflite(data), np.float32([1, 2, 3]))).tolist() == [5, 10, 15]


def test_errors_name_the_operator():
    graph = Graph()
    x = graph.input("x", (2, 5))
    weight = graph.constant(np.zeros((4, 3), np.float32))
    graph.output(graph.add("FULLY_CONNECTED", [x, weight, -1], [Tensor("dense/out", ())], {"keep_num_dims": 1}))
    with pytest.raises(UserError) as caught:
        from_tflite(write([graph]))
    assert caught.value.where == "the model, 'dense/out' (FULLY_CONNECTED, version 1)"


def test_unknown_operators_and_types_are_refused():
    graph = Graph()
    x = graph.input("x", (2,))
    graph.output(graph.add("LSH_PROJECTION", [x, x, -1], [Tensor("y", ())]))
    with pytest.raises(UnsupportedError, match="LSH_PROJECTION is not supported"):
        from_tflite(write([graph]))


def test_a_graph_that_calls_itself_is_an_error():
    graph = Graph()
    x = graph.input("x", (2,))
    options = {"name": "again", "decomposition_subgraph_index": 0}
    graph.output(graph.add("STABLEHLO_COMPOSITE", [x], [Tensor("y", (2,))], options))
    with pytest.raises(UserError, match="nested too deeply"):
        from_tflite(write([graph]))


@pytest.mark.parametrize("model", [b"", b"onnx", 3, "missing.tflite"])
def test_what_is_no_model_is_an_error(model):
    with pytest.raises(UserError):
        from_tflite(model)


def test_elements_of_four_bits_and_texts():
    graph = Graph()
    codes = np.arange(-8, 7, dtype=np.int8)
    x = graph.constant(codes, dtype="int4")
    graph.output(graph.add("CAST", [x], [Tensor("y", (15,), "int32")], {"in_data_type": 17, "out_data_type": 2}))
    assert np.asarray(evaluate(from_tflite(write([graph])))).tolist() == codes.tolist()
