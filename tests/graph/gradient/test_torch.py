"""Gradients against torch's: at kinks and where they are not finite, and of whole networks, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import op
from tests.requirements import need_module
from tilewright.graph.gradient import lift_constants
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, TupleGet, Var
from tilewright.ir.types import tensor_type

torch: Any = need_module("torch")

INF, NAN = np.inf, np.nan
AROUND = np.array([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, INF, -INF, NAN])
BASES = np.array([0.0, 0.0, 0.0, 0.0, 2.0, 2.0, -2.0, -2.0, -2.0, 1.0, INF])
POWERS = np.array([0.0, 1.0, 2.0, -1.0, 0.0, 0.5, 2.0, 3.0, 0.5, NAN, 2.0])
TIES = np.array([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0], [NAN, 1.0, 5.0, 5.0]])
ZEROS = np.array([[2.0, 0.0, 3.0, 4.0], [0.0, 2.0, 0.0, 3.0], [1.0, 2.0, 3.0, 4.0]])

Build = Callable[..., GraphExpr]
KINKS: dict[str, tuple[Build, Callable[..., Any], list[np.ndarray]]] = {
    "relu": (lambda x: op("nn.relu", x), lambda x: torch.relu(x), [AROUND]),
    "abs": (lambda x: op("abs", x), lambda x: x.abs(), [AROUND]),
    "sign": (lambda x: op("sign", x), lambda x: x.sign(), [AROUND]),
    "sqrt": (lambda x: op("sqrt", x), lambda x: x.sqrt(), [AROUND]),
    "rsqrt": (lambda x: op("rsqrt", x), lambda x: x.rsqrt(), [np.array([0.5, 2.0, -1.0, NAN])]),
    "log": (lambda x: op("log", x), lambda x: x.log(), [AROUND]),
    "reciprocal": (lambda x: op("reciprocal", x), lambda x: x.reciprocal(), [AROUND]),
    "leaky_relu": (
        lambda x: op("nn.leaky_relu", x, alpha=0.1),
        lambda x: torch.nn.functional.leaky_relu(x, 0.1),
        [AROUND],
    ),
    "elu": (lambda x: op("nn.elu", x), lambda x: torch.nn.functional.elu(x), [AROUND]),
    "selu": (lambda x: op("nn.selu", x), lambda x: torch.selu(x), [AROUND]),
    "hard_sigmoid": (
        lambda x: op("nn.hard_sigmoid", x, alpha=1 / 6, beta=0.5),
        lambda x: torch.nn.functional.hardsigmoid(x),
        [np.array([-4.0, -3.0, 0.0, 3.0, 4.0])],
    ),
    "clip": (
        lambda x: op("clip", x, minimum=-1.0, maximum=0.5),
        lambda x: x.clamp(-1.0, 0.5),
        [AROUND],
    ),
    "maximum": (
        lambda x, y: op("maximum", x, y),
        lambda x, y: torch.maximum(x, y),
        [np.array([1.0, 2.0, 3.0, NAN, 1.0]), np.array([2.0, 2.0, 1.0, 1.0, NAN])],
    ),
    "minimum": (
        lambda x, y: op("minimum", x, y),
        lambda x, y: torch.minimum(x, y),
        [np.array([1.0, 2.0, 3.0, NAN, 1.0]), np.array([2.0, 2.0, 1.0, 1.0, NAN])],
    ),
    "power": (lambda x, y: op("power", x, y), lambda x, y: torch.pow(x, y), [BASES, POWERS]),
    "max": (lambda x: op("max", x, axes=(1,)), lambda x: x.amax(1), [TIES[:2]]),
    "min": (lambda x: op("min", x, axes=(1,)), lambda x: x.amin(1), [TIES[:2]]),
    "topk": (
        lambda x: TupleGet(op("topk", x, axis=1, k=1), 0),
        lambda x: x.max(1, keepdim=True).values,
        [TIES[:2]],
    ),
    "prod": (lambda x: op("prod", x, axes=(1,)), lambda x: x.prod(1), [ZEROS]),
    "cumprod": (lambda x: op("cumprod", x, axis=1), lambda x: x.cumprod(1), [ZEROS]),
    "where with NaN beside": (
        lambda x: op("where", op("less", x, zero()), zero(), op("log", op("where", op("less", x, zero()), one(), x))),
        lambda x: torch.where(x < 0, 0.0, torch.log(torch.where(x < 0, 1.0, x))),
        [np.array([-1.0, 0.5, 2.0])],
    ),
    "atan of two halves": (lambda x: op("atan", x), lambda x: x.atan(), [AROUND]),
    "remainder": (
        lambda x, y: op("floor_mod", x, y),
        lambda x, y: torch.remainder(x, y),
        [np.array([5.0, -5.0, 4.0]), np.array([3.0, 3.0, -2.0])],
    ),
    "max_pool2d": (
        lambda x: op("nn.max_pool2d", x, kernel=(2, 2), strides=(1, 1)),
        lambda x: torch.nn.functional.max_pool2d(x, 2, 1),
        [np.array([[[[1.0, 1.0, 0.0], [1.0, 1.0, 2.0], [2.0, 2.0, 2.0]]]])],
    ),
}


def zero() -> GraphExpr:
    return tw.graph.expr.constant(0.0, "float64")


def one() -> GraphExpr:
    return tw.graph.expr.constant(1.0, "float64")


@pytest.mark.parametrize("name", KINKS)
def test_kinks_are_those_of_torch(name: str) -> None:
    build, reference, values = KINKS[name]
    params = [Var(f"x{place}", tensor_type(value.shape, "float64")) for place, value in enumerate(values)]
    tensors = [torch.tensor(value, requires_grad=True) for value in values]
    outputs = reference(*tensors)
    given = torch.arange(1, outputs.numel() + 1, dtype=torch.float64).reshape(outputs.shape)
    expected = torch.autograd.grad(outputs, tensors, given)
    results = evaluate(tw.vjp(Function("main", tuple(params), build(*params))), *values, given.numpy())
    for found, wanted in zip(results[1:], expected, strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-7)


def convolutional() -> tuple[Any, Any]:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1, stride=2),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(4, 8, 3, groups=2),
        torch.nn.AvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 5),
        torch.nn.LogSoftmax(1),
    )
    return model, torch.randn(2, 3, 16, 16)


def transformer() -> tuple[Any, Any]:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
    return torch.nn.Sequential(layer, torch.nn.Linear(8, 3)), torch.randn(2, 5, 8)


class Recurrent(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 4)
        self.lstm = torch.nn.LSTM(4, 5)
        self.gru = torch.nn.GRU(5, 3)

    def forward(self, words: Any) -> Any:
        states, _ = self.lstm(self.embedding(words))
        return self.gru(states)[0]


def recurrent() -> tuple[Any, Any]:
    return Recurrent(), torch.randint(0, 11, (4, 2))


@pytest.mark.parametrize("network", [convolutional, transformer, recurrent])
def test_networks(network: Callable[[], tuple[Any, Any]]) -> None:
    """The interpreter against torch, and compiled code against the interpreter."""
    torch.manual_seed(0)
    model, example = network()
    module = tw.frontend.from_torch(model.eval(), (example,))
    lifted, weights = lift_constants(module)
    wrt = [*weights, *([lifted["main"].params[0].name] if example.is_floating_point() else [])]
    program = tw.vjp(lifted, wrt)
    example.requires_grad_(example.is_floating_point())
    output = model(example)
    given = torch.randn_like(output)
    known = dict(model.named_parameters())
    expected = dict(
        zip(known, torch.autograd.grad(output, list(known.values()), given, retain_graph=True), strict=True)
    )
    values = [example.detach().numpy(), *weights.values(), given.numpy()]
    results = evaluate(program, *values)
    compared = 0
    for name, found in zip(wrt, results[1:], strict=True):
        # Weights that importers put together from several have no counterpart in torch.
        if name in expected and (network is not recurrent or name == "embedding.weight"):
            # A bias is stored as it is added, with axes of one element.
            wanted = expected[name].numpy().reshape(np.shape(found))
            np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5, err_msg=name)
            compared += 1
    assert compared >= (1 if network is recurrent else len(expected) // 2)
    if example.requires_grad:
        (wanted,) = torch.autograd.grad(output, example, given)
        np.testing.assert_allclose(results[-1], wanted.numpy(), rtol=2e-4, atol=2e-5)
    for found, wanted in zip(tw.compile(program, threads=1)(*values), results, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)
