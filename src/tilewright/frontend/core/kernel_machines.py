"""Support vector machines and nearest neighbours on rows of float64: shared by importers of classic models."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import Builder
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT64
from tilewright.support.errors import UnsupportedError


def squared_distances(build: Builder, data: GraphExpr, vectors: Array) -> GraphExpr:
    """The squared distance of every row from every vector, by differences: near ones are exact."""
    apart = build.call("subtract", build.expand_dims(data, (1,)), build.constant(vectors, FLOAT64))
    return build.call("sum", build.call("multiply", apart, apart), axes=(2,), keepdims=False)


def kernel_values(
    build: Builder, kind: str, data: GraphExpr, vectors: Array, gamma: float, shift: float, degree: float
) -> GraphExpr:
    """The kernel (linear, rbf, poly, sigmoid) of every row with every support vector."""

    def number(value: float) -> GraphExpr:
        return build.constant_like(value, data)

    if kind == "rbf":
        return build.call("exp", build.call("multiply", squared_distances(build, data, vectors), number(-gamma)))
    products = build.call("matmul", data, build.constant(vectors.T, FLOAT64))
    if kind == "linear":
        return products
    line = build.call("add", build.call("multiply", products, number(gamma)), number(shift))
    if kind == "poly":
        return build.call("power", line, number(degree))
    if kind == "sigmoid":
        return build.call("tanh", line)
    raise UnsupportedError(f"a support vector machine with the kernel {kind!r}")


def pair_scores(build: Builder, kernels: GraphExpr, dual: Array, shifts: Array, counts: Array) -> GraphExpr:
    """The score of each pair of classes, as libsvm has it: `dual` is (classes - 1, vectors), vectors by class."""
    starts, classes = np.cumsum([0, *counts]), len(counts)
    pairs = class_pairs(classes)
    weights = np.zeros((int(starts[-1]), len(pairs)))
    for at, (i, j) in enumerate(pairs):
        weights[starts[i] : starts[i + 1], at] = dual[j - 1, starts[i] : starts[i + 1]]
        weights[starts[j] : starts[j + 1], at] = dual[i, starts[j] : starts[j + 1]]
    scores = build.call("matmul", kernels, build.constant(weights, FLOAT64))
    return build.call("add", scores, build.constant(shifts, FLOAT64))


def pair_votes(build: Builder, scores: GraphExpr, classes: int) -> GraphExpr:
    """How many pairs each class wins."""
    pairs = class_pairs(classes)
    first, second = np.zeros((len(pairs), classes)), np.zeros((len(pairs), classes))
    for at, (i, j) in enumerate(pairs):
        first[at, i] = second[at, j] = 1
    won = build.cast(build.call("greater", scores, build.constant_like(0, scores)), FLOAT64)
    lost = build.call("subtract", build.constant_like(1, won), won)
    votes = [
        build.call("matmul", part, build.constant(table, FLOAT64)) for part, table in ((won, first), (lost, second))
    ]
    return build.call("add", *votes)


def class_pairs(classes: int) -> list[tuple[int, int]]:
    """All pairs of classes, in libsvm's order."""
    return [(i, j) for i in range(classes) for j in range(i + 1, classes)]


def inverse_distance_mean(build: Builder, values: GraphExpr, distances: GraphExpr) -> GraphExpr:
    """The mean of neighbours (rows, neighbours, targets) by the inverse of distances; those at none count alone."""
    zero, one = build.constant_like(0, distances), build.constant_like(1, distances)
    same = build.call("equal", distances, zero)
    met = build.call("any", same, axes=(1,), keepdims=True)
    inverse = build.call("divide", one, build.call("where", same, one, distances))
    weights = build.call("where", met, build.cast(same, FLOAT64), inverse)
    total = build.call(
        "sum", build.call("multiply", values, build.expand_dims(weights, (2,))), axes=(1,), keepdims=False
    )
    return build.call("divide", total, build.call("sum", weights, axes=(1,), keepdims=True))
