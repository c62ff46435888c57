"""Small models to train, built of graph operators, and data for them."""

from __future__ import annotations

import numpy as np

from tests.graph.helpers import function, op, random, var
from tilewright.graph.ir.expr import Constant, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.support.span import Span


def weight(name: str, seed: int, *shape: int, scale: float = 0.5) -> Constant:
    made = constant((scale * random(seed, *shape)).astype(np.float32))
    made.span = Span(name)
    return made


def perceptron(batch: int | Symbol = 8, inputs: int = 6, hidden: int = 12, outputs: int = 3) -> IRModule:
    """x -> relu(x a + b) c + d."""
    x = var("x", batch, inputs)
    inner = op("add", op("matmul", x, weight("a", 1, inputs, hidden)), weight("b", 2, hidden))
    result = op("add", op("matmul", op("nn.relu", inner), weight("c", 3, hidden, outputs)), weight("d", 4, outputs))
    return infer_types(IRModule([function([x], result)], attributes={"output_names": ("y",)}))


def normalised(batch: int = 4) -> IRModule:
    """A convolution, a batch normalisation and a dense layer."""
    x = var("x", batch, 1, 6, 6)
    value = op("nn.conv2d", x, weight("conv.weight", 1, 4, 1, 3, 3))
    statistics = [weight("norm.mean", 2, 4), constant(np.ones(4, np.float32))]
    statistics[1].span = Span("norm.var")
    value = op(
        "nn.batch_norm", value, weight("norm.scale", 3, 4), weight("norm.bias", 4, 4), *statistics, epsilon=1e-5, axis=1
    )
    value = op("mean", op("nn.relu", value), axes=(2, 3), keepdims=False)
    result = op("matmul", value, weight("dense.weight", 5, 4, 3))
    return infer_types(IRModule([function([x], result)], attributes={"output_names": ("y",)}))


def batch(seed: int, count: int = 8, inputs: int = 6, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and classes that follow from them."""
    x = random(seed, count, inputs)
    return x, (np.abs(x[:, :classes]).argmax(axis=1)).astype(np.int64)
