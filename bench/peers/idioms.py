"""ONNX graphs as a PyTorch user would write them: linear layers, layer norms, GELU and attention as one function each.

Exporters decompose these, and a peer that runs the pieces is slower than its own users' models. Nodes of the types
`Linear`, `LayerNormalization`, `Gelu` and `ScaledDotProductAttention` (whose steps are in `onnx_to_torch.py`) take the
place of the pieces; results are the same up to rounding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

Node = onnx.NodeProto


def idiomatic(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each idiom as one node."""
    graph = _Graph(model)
    for rule in (_layer_norm, _gelu, _attention, _linear):
        for node in list(graph.nodes):
            if node.output[0] in graph.producer:
                rule(graph, node)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(graph.nodes)
    return result


class _Graph:
    """The nodes of a graph, and who makes and reads values."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes = list(model.graph.node)
        self.constants = {item.name: item for item in model.graph.initializer}
        self.producer = {name: node for node in self.nodes for name in node.output}
        self.readers = Counter(name for node in self.nodes for name in node.input)
        self.readers.update(item.name for item in model.graph.output)

    def maker(self, name: str, kind: str) -> Node | None:
        """The node of a type that makes a value which only one other reads."""
        node = self.producer.get(name)
        return node if node is not None and node.op_type == kind and self.readers[name] == 1 else None

    def number(self, name: str) -> float | None:
        """The value of a constant of one element."""
        item = self.constants.get(name)
        if item is None or math.prod(item.dims) != 1:
            return None
        return float(np.asarray(numpy_helper.to_array(item), np.float64).reshape(()))

    def rank(self, name: str) -> int | None:
        """The number of dimensions of a constant."""
        return len(self.constants[name].dims) if name in self.constants else None

    def is_near(self, name: str, value: float) -> bool:
        """Whether a constant is a number, up to the rounding of half precision."""
        found = self.number(name)
        return found is not None and math.isclose(found, value, rel_tol=1e-3)

    def split(self, node: Node, test: Callable[[str], bool]) -> tuple[str, str] | None:
        """The two inputs of a node, one that satisfies a test first."""
        a, b = node.input
        if test(a):
            return a, b
        return (b, a) if test(b) else None

    def replace(self, old: Iterable[Node | None], new: Node) -> None:
        """Put a node in the place of others, the last of which makes its result."""
        gone = [node for node in old if node is not None]
        place = self.nodes.index(gone[-1])
        self.nodes[place] = new
        for node in gone[:-1]:
            self.nodes.remove(node)
        for node in gone:
            for name in node.output:
                self.producer.pop(name, None)
            self.readers.subtract(node.input)
        self.readers.update(new.input)
        self.producer[new.output[0]] = new


def _linear(graph: _Graph, node: Node) -> None:
    """MatMul by a constant matrix, plus a constant vector."""
    if node.op_type != "Add":
        return
    parts = graph.split(node, lambda name: graph.rank(name) == 1)
    product = graph.maker(parts[1], "MatMul") if parts is not None else None
    if parts is not None and product is not None and graph.rank(product.input[1]) == 2:
        graph.replace([product, node], helper.make_node("Linear", [*product.input, parts[0]], node.output))


def _gelu(graph: _Graph, node: Node) -> None:
    """x (1 + erf(x / sqrt 2)) / 2."""
    if node.op_type != "Mul" or not (half := graph.split(node, lambda name: graph.is_near(name, 0.5))):
        return
    product = graph.maker(half[1], "Mul")
    parts = graph.split(product, lambda name: graph.maker(name, "Add") is not None) if product is not None else None
    if product is None or parts is None:
        return
    plus = graph.maker(parts[0], "Add")
    one = graph.split(plus, lambda name: graph.is_near(name, 1.0)) if plus is not None else None
    error = graph.maker(one[1], "Erf") if one is not None else None
    scaled = graph.maker(error.input[0], "Div") if error is not None else None
    if scaled is None or scaled.input[0] != parts[1] or not graph.is_near(scaled.input[1], math.sqrt(2)):
        return
    graph.replace([scaled, error, plus, product, node], helper.make_node("Gelu", [parts[1]], node.output))


def _layer_norm(graph: _Graph, node: Node) -> None:
    """(x - mean) / sqrt(mean of squares + epsilon) * scale + bias, along the last axis."""
    if node.op_type != "Add" or not (shift := graph.split(node, lambda name: graph.rank(name) == 1)):
        return
    product = graph.maker(shift[1], "Mul")
    scale = graph.split(product, lambda name: graph.rank(name) == 1) if product is not None else None
    quotient = graph.maker(scale[1], "Div") if scale is not None else None
    root = graph.maker(quotient.input[1], "Sqrt") if quotient is not None else None
    total = graph.maker(root.input[0], "Add") if root is not None else None
    variance = graph.maker(total.input[0], "ReduceMean") if total is not None else None
    square = graph.maker(variance.input[0], "Pow") if variance is not None else None
    if quotient is None or total is None or square is None or scale is None or product is None:
        return
    centred = graph.producer.get(quotient.input[0])
    epsilon = graph.number(total.input[1])
    if centred is None or centred.op_type != "Sub" or square.input[0] != quotient.input[0] or epsilon is None:
        return
    mean = graph.maker(centred.input[1], "ReduceMean")
    if mean is None or mean.input[0] != centred.input[0] or graph.readers[centred.output[0]] != 2:
        return
    new = helper.make_node(
        "LayerNormalization", [centred.input[0], scale[0], shift[0]], node.output, axis=-1, epsilon=epsilon
    )
    graph.replace([mean, centred, square, variance, total, root, quotient, product, node], new)


def _attention(graph: _Graph, node: Node) -> None:
    """softmax(q k^T / c + mask) v, with the keys transposed back."""
    if node.op_type != "MatMul":
        return
    weights = graph.maker(node.input[0], "Softmax")
    if weights is None:
        return
    masked = graph.maker(weights.input[0], "Add")
    scaled, mask = None, None
    if masked is not None:
        parts = graph.split(masked, lambda name: _scaling(graph, graph.producer.get(name)) is not None)
        if parts is None:
            return
        scaled, mask = graph.producer[parts[0]], parts[1]
    else:
        scaled = graph.producer.get(weights.input[0])
    scale = _scaling(graph, scaled)
    scores = graph.maker(scaled.input[0], "MatMul") if scaled is not None and scale is not None else None
    keys = graph.maker(scores.input[1], "Transpose") if scores is not None else None
    if scores is None or keys is None:
        return
    order = list(next(item for item in keys.attribute if item.name == "perm").ints)
    upright = helper.make_node(
        "Transpose", keys.input, keys.output, perm=[*order[:-2], order[-1], order[-2]], name=keys.name
    )
    graph.replace([keys], upright)
    inputs = [scores.input[0], upright.output[0], node.input[1], *([mask] if mask is not None else [])]
    new = helper.make_node("ScaledDotProductAttention", inputs, node.output, scale=scale)
    graph.replace([scores, scaled, masked, weights, node], new)


def _scaling(graph: _Graph, node: Node | None) -> float | None:
    """The factor by which a node scales the products of queries and keys."""
    if node is None or node.op_type not in ("Div", "Mul") or graph.readers[node.output[0]] != 1:
        return None
    number = graph.number(node.input[1])
    if number is None or graph.maker(node.input[0], "MatMul") is None:
        return None
    return 1 / number if node.op_type == "Div" else number


def kinds(model: onnx.ModelProto) -> Counter[str]:
    """How many nodes of each type a model has."""
    nodes: Sequence[Node] = model.graph.node
    return Counter(node.op_type for node in nodes)
