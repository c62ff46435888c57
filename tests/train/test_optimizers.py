"""Optimizers against torch.optim's of the same names, over steps with gradients that are given."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, random, var
from tests.requirements import need_module
from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Tuple
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError
from tilewright.train import LAMB, SGD, Adam, AdamW, Optimizer, StepDecay

torch = need_module("torch")

CASES = {
    "sgd": (SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "sgd with decay": (SGD(0.1, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.01)),
    "momentum": (SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "nesterov": (
        SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    ),
    "adam": (Adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "adam with decay": (Adam(0.01, weight_decay=0.1), lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1)),
    "adam of other betas": (
        Adam(0.01, betas=(0.5, 0.9), epsilon=1e-3),
        lambda p: torch.optim.Adam(p, 0.01, betas=(0.5, 0.9), eps=1e-3),
    ),
    "adamw": (AdamW(0.01, weight_decay=0.1), lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1)),
}


def run(optimizer: Optimizer, start: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """The parameter after steps with these gradients, by the interpreter."""
    b = ArithmeticBuilder()
    parameter, gradient = var("p", *start.shape), var("g", *start.shape)
    moments = {name: var(name, *start.shape) for name in optimizer.moments}
    scalars = {name: var(f"scalar_{name}") for name in optimizer.scalars(0)}
    after, found = optimizer.update(b, parameter, gradient, moments, scalars)
    assert list(found) == list(optimizer.moments)
    params = [parameter, gradient, *moments.values(), *scalars.values()]
    module = infer_types(IRModule([function(params, Tuple((after, *found.values())))]))
    held = [start, *(np.zeros_like(start) for _ in moments)]
    for step, given in enumerate(gradients):
        numbers = [np.asarray(value, np.float32) for value in optimizer.scalars(step).values()]
        held = list(evaluate(module, held[0], given, *held[1:], *numbers))
    return held[0]


@pytest.mark.parametrize("name", CASES)
def test_as_torch(name: str) -> None:
    optimizer, make = CASES[name]
    start = random(0, 4, 5)
    gradients = [random(step + 1, 4, 5) for step in range(20)]
    parameter = torch.nn.Parameter(torch.tensor(start))
    theirs = make([parameter])
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        theirs.step()
    np.testing.assert_allclose(run(optimizer, start, gradients), parameter.detach().numpy(), rtol=2e-5, atol=2e-6)


def lamb_in_numpy(start: np.ndarray, gradients: list[np.ndarray], rate: float, decay: float) -> np.ndarray:
    value, mean, square = start.astype(np.float64), np.zeros(start.shape), np.zeros(start.shape)
    for step, gradient in enumerate(gradients, 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient.astype(np.float64) ** 2
        direction = (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-6) + decay * value
        lengths = np.linalg.norm(value), np.linalg.norm(direction)
        trust = lengths[0] / lengths[1] if lengths[0] > 0 and lengths[1] > 0 else 1.0
        value = value - rate * trust * direction
    return value


def test_lamb_as_its_paper_has_it() -> None:
    gradients = [random(step + 1, 4, 5) for step in range(20)]
    for start in (random(0, 4, 5), np.zeros((4, 5), np.float32)):
        found = run(LAMB(0.01, weight_decay=0.1), start, gradients)
        np.testing.assert_allclose(found, lamb_in_numpy(start, gradients, 0.01, 0.1), rtol=1e-4, atol=1e-5)


def test_a_rate_that_changes_is_the_one_of_its_step() -> None:
    start, gradients = random(0, 3), [np.ones(3, np.float32)] * 4
    found = run(SGD(StepDecay(1.0, every=2, factor=0.1)), start, gradients)
    np.testing.assert_allclose(found, start - 2.2, rtol=1e-5, atol=1e-5)


def test_wrong_numbers_are_refused() -> None:
    for make, message in (
        (lambda: SGD(-1.0), "the learning rate of step 0 is -1.0"),
        (lambda: SGD("quick"), "a learning rate is a number or a function of the step's number"),
        (lambda: SGD(0.1, momentum=1.0), "the momentum is at least 0 and below 1"),
        (lambda: SGD(0.1, nesterov=True), "nesterov=True needs a momentum"),
        (lambda: SGD(0.1, weight_decay=-1), "the weight decay is at least 0"),
        (lambda: Adam(0.1, betas=(0.9, 1.0)), "betas are two numbers from 0 to below 1"),
        (lambda: Adam(0.1, epsilon=-1), "epsilon is at least 0"),
        (lambda: AdamW(0.1, weight_decay=-1), "the weight decay is at least 0"),
    ):
        with pytest.raises(UserError, match=message):
            make()
