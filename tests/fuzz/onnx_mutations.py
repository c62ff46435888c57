"""Mutations of ONNX models: of the bytes of a file, and of its structure (which stays valid protobuf)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

_ODD_NUMBERS = [-(2**63), -(2**31), -5, -2, -1, 0, 1, 2, 3, 7, 100, 2**20, 2**31, 2**40, 2**63 - 1]
_ODD_TEXTS = [b"", b"x", b"\xff", b"NOTSET", b"none", b"(" * 40, b"a" * 300, b"ij,jk->ik"]
_ODD_NAMES = ["", "x", "y", "é", "a" * 200, "x.1", "0"]
_ODD_FLOATS = [float("nan"), float("inf"), 0.0, -1.0, 1e30, 0.5]


def mutated_bytes(content: bytes, random: np.random.Generator) -> bytes:
    """Some bytes changed, cut off, doubled or taken out."""
    found = bytearray(content)
    match int(random.integers(4)):
        case 0:
            return bytes(found[: random.integers(len(found))])
        case 1:
            start, size = int(random.integers(len(found))), int(random.integers(1, 30))
            return bytes(found[:start] + found[start + size :])
        case 2:
            start, size = int(random.integers(len(found))), int(random.integers(1, 30))
            return bytes(found[: start + size] + found[start:])
    for place in random.integers(0, len(found), random.integers(1, 5)):
        found[place] = random.integers(0, 256)
    return bytes(found)


def mutate(model: onnx.ModelProto, random: np.random.Generator, operators: Sequence[tuple[str, str]]) -> None:
    """Change one thing somewhere in a model, in the graphs inside it too."""
    graph = _pick(_graphs(model), random)
    choice = int(random.integers(20))
    if choice >= 14 or not graph.node:
        _mutate_model(model, graph, random, choice)
        return
    node = _pick(graph.node, random)
    if choice < 4 and node.attribute:
        _mutate_attribute(node, random, choice)
    elif choice < 8:
        _mutate_names(node, graph, random, choice)
    elif choice < 10:
        node.domain, node.op_type = operators[random.integers(len(operators))]
    elif choice == 10:
        graph.node.remove(node)
    elif choice == 11:
        graph.node.append(node)
    elif choice == 12 and len(graph.node) > 1:
        other = _pick(graph.node, random)
        first, second = list(node.input), list(other.input)
        del node.input[:], other.input[:]
        node.input.extend(second)
        other.input.extend(first)
    else:
        node.attribute.append(onnx.helper.make_attribute("axis", int(_odd(random))))


def _pick(items, random: np.random.Generator):  # type: ignore[no-untyped-def]
    return items[random.integers(len(items))]


def _odd(random: np.random.Generator) -> int:
    return _ODD_NUMBERS[random.integers(len(_ODD_NUMBERS))]


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    found, waiting = [], [model.graph]
    while waiting:
        graph = waiting.pop()
        found.append(graph)
        waiting.extend(attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))
    return found


def _mutate_attribute(node: onnx.NodeProto, random: np.random.Generator, choice: int) -> None:
    attribute = _pick(node.attribute, random)
    if choice == 0:
        node.attribute.remove(attribute)
        return
    if choice == 1:
        attribute.type = int(random.integers(0, 15))
        return
    match attribute.type:
        case attribute.INT:
            attribute.i = _odd(random)
        case attribute.INTS if attribute.ints and random.random() < 0.7:
            attribute.ints[random.integers(len(attribute.ints))] = _odd(random)
        case attribute.INTS:
            attribute.ints.append(1)
        case attribute.FLOAT:
            attribute.f = _ODD_FLOATS[random.integers(len(_ODD_FLOATS))]
        case attribute.FLOATS if attribute.floats and random.random() < 0.5:
            del attribute.floats[-1]
        case attribute.FLOATS:
            attribute.floats.append(_ODD_FLOATS[random.integers(len(_ODD_FLOATS))])
        case attribute.STRING:
            attribute.s = _ODD_TEXTS[random.integers(len(_ODD_TEXTS))]
        case attribute.STRINGS:
            attribute.strings.append(_ODD_TEXTS[random.integers(len(_ODD_TEXTS))])
        case attribute.TENSOR:
            _mutate_tensor(attribute.t, random)
        case _:
            attribute.ref_attr_name = "alpha"


def _mutate_names(node: onnx.NodeProto, graph: onnx.GraphProto, random: np.random.Generator, choice: int) -> None:
    if choice == 4 and node.input:
        del node.input[random.integers(len(node.input))]
    elif choice == 5 and node.input:
        node.input.append(_pick(node.input, random))
    elif choice == 6 and node.input:
        names = [name for other in graph.node for name in other.output] + [info.name for info in graph.input]
        node.input[random.integers(len(node.input))] = _pick(names, random)
    elif node.output:
        node.output[random.integers(len(node.output))] = _pick(_ODD_NAMES, random)


def _mutate_model(model: onnx.ModelProto, graph: onnx.GraphProto, random: np.random.Generator, choice: int) -> None:
    if choice == 14 and graph.input:
        _mutate_type(_pick(graph.input, random).type, random)
    elif choice == 15 and graph.initializer:
        _mutate_tensor(_pick(graph.initializer, random), random)
    elif choice == 16 and model.opset_import:
        _pick(model.opset_import, random).version = [0, 1, 6, 7, 11, 13, 20, 28, 1000, -1][random.integers(10)]
    elif choice == 17 and graph.output:
        graph.output[random.integers(len(graph.output))].name = _pick(_ODD_NAMES, random)
    elif choice == 18 and model.functions:
        function = _pick(model.functions, random)
        if function.node and random.random() < 0.5:
            function.node[0].op_type = function.name
            function.node[0].domain = function.domain
        else:
            del function.output[:]
    elif graph.sparse_initializer:
        sparse = _pick(graph.sparse_initializer, random)
        _mutate_tensor(sparse.indices if random.random() < 0.5 else sparse.values, random)
    elif graph.input:
        graph.input.remove(_pick(graph.input, random))


def _mutate_type(kind: onnx.TypeProto, random: np.random.Generator) -> None:
    if random.random() < 0.1:
        kind.Clear()
        return
    if kind.WhichOneof("value") != "tensor_type":
        kind.tensor_type.elem_type = int(random.integers(0, 27))
        return
    dims = kind.tensor_type.shape.dim
    match int(random.integers(5)):
        case 0 if dims:
            dims[random.integers(len(dims))].dim_value = _odd(random)
        case 1:
            dims.add().dim_value = 2
        case 2 if dims:
            dims[random.integers(len(dims))].dim_param = _pick(["n", "n*2", "", "n+", "1", "n//0"], random)
        case 3 if dims:
            del dims[-1]
        case _:
            kind.tensor_type.elem_type = int(random.integers(0, 27))


def _mutate_tensor(tensor: onnx.TensorProto, random: np.random.Generator) -> None:
    match int(random.integers(5)):
        case 0 if tensor.dims:
            tensor.dims[random.integers(len(tensor.dims))] = _odd(random)
        case 1:
            tensor.dims.append(1)
        case 2:
            tensor.data_type = int(random.integers(0, 28))
        case 3:
            tensor.raw_data = tensor.raw_data[:-1] or b"\x01"
        case _:
            tensor.data_location = onnx.TensorProto.EXTERNAL
