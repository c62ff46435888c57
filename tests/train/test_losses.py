"""Losses and their gradients against torch.nn's of the same names."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, random, var
from tests.requirements import need_module
from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Var, tuple_of
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError
from tilewright.train import L1, MSE, NLL, BCEWithLogits, CrossEntropy, Loss
from tilewright.train.losses import loss_of

torch = need_module("torch")
F = torch.nn.functional

CLASSES = np.array([0, 2, 1, 3, 2, 0])
CASES = {
    "cross_entropy": (CrossEntropy(), (6, 4), CLASSES, F.cross_entropy),
    "smoothed": (
        CrossEntropy(label_smoothing=0.2),
        (6, 4),
        CLASSES,
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.2),
    ),
    "ignoring": (
        CrossEntropy(ignore_index=2, label_smoothing=0.1),
        (6, 4),
        CLASSES,
        lambda x, y: F.cross_entropy(x, y, ignore_index=2, label_smoothing=0.1),
    ),
    "of images": (CrossEntropy(ignore_index=-1), (2, 4, 3), np.array([[0, -1, 2], [3, 1, -1]]), None),
    "nll": (NLL(), (6, 4), CLASSES, F.nll_loss),
    "mse": (MSE(), (6, 4), random(9, 6, 4), F.mse_loss),
    "l1": (L1(), (6, 4), random(9, 6, 4), F.l1_loss),
    "bce_with_logits": (
        BCEWithLogits(),
        (6, 4),
        (random(9, 6, 4) > 0).astype(np.float32),
        F.binary_cross_entropy_with_logits,
    ),
}


def aimed_of(loss: Loss, shape: tuple[int, ...]) -> IRModule:
    b = ArithmeticBuilder()
    x = var("x", *shape)
    target = Var("target", loss.target(x))
    return infer_types(IRModule([function([x, target], b.body(loss.aimed(b, x, target, loss.loss(b, x, target))))]))


def module_of(loss: Loss, shape: tuple[int, ...], only_loss: bool = True) -> IRModule:
    b = ArithmeticBuilder()
    x = var("x", *shape)
    target = Var("target", loss.target(x))
    results = [loss.loss(b, x, target), *loss.metrics(b, x, target).values()]
    body = results[0] if only_loss else tuple_of(results)
    return infer_types(IRModule([function([x, target], b.body(body))]))


@pytest.mark.parametrize("name", CASES)
def test_as_torch(name: str) -> None:
    loss, shape, target, theirs = CASES[name]
    theirs = theirs or (lambda x, y: F.cross_entropy(x, y, ignore_index=-1))
    x = 3 * random(1, *shape)
    tensor = torch.tensor(x, requires_grad=True)
    expected = theirs(tensor, torch.tensor(target))
    expected.backward()
    module = module_of(loss, shape)
    value, gradient = evaluate(tw.value_and_grad(module, "x"), x, target)
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-5, atol=1e-7)
    _, gradient = evaluate(tw.value_and_grad(aimed_of(loss, shape), "x"), x, target)
    np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-5, atol=1e-7)


def test_large_numbers_do_not_overflow() -> None:
    x = np.array([[500.0, -500.0], [-1000.0, 1000.0]], np.float32)
    for loss, target, expected in (
        (CrossEntropy(), np.array([0, 0]), 1000.0),
        (BCEWithLogits(), np.array([[1.0, 0.0], [0.0, 0.0]], np.float32), 250.0),
    ):
        np.testing.assert_allclose(evaluate(module_of(loss, (2, 2)), x, target), expected)


def test_accuracy() -> None:
    x = np.eye(4, dtype=np.float32)
    found = evaluate(module_of(CrossEntropy(ignore_index=3), (4, 4), only_loss=False), x, np.array([0, 1, 0, 3]))
    np.testing.assert_allclose(found[1], 2 / 3, rtol=1e-6)
    # Of equal ones the first, as argmax has it; classes need not be the last dimension.
    equal = np.array([[[1.0, 2.0], [3.0, 2.0], [3.0, 2.0]]], np.float32)
    for target, share in (([1, 0], 1.0), ([2, 0], 0.5), ([2, 1], 0.0)):
        found = evaluate(module_of(CrossEntropy(), (1, 3, 2), only_loss=False), equal, np.array([target]))
        np.testing.assert_allclose(found[1], share)
    signs = np.array([[1.0, -1.0, 2.0, -2.0]], np.float32)
    target = np.array([[1.0, 0.0, 0.0, 0.0]], np.float32)
    found = evaluate(module_of(BCEWithLogits(), (1, 4), only_loss=False), signs, target)
    np.testing.assert_allclose(found[1], 0.75)


def test_a_class_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UserError, match="out of range"):
        evaluate(module_of(CrossEntropy(), (2, 3)), random(0, 2, 3), np.array([0, 3]))


def test_wrong_losses_are_refused() -> None:
    assert loss_of("mse") == MSE()
    for make, message in (
        (lambda: loss_of("least"), "there is no loss 'least'"),
        (lambda: loss_of(3), "there is no loss"),
        (lambda: CrossEntropy(label_smoothing=2.0), "label smoothing is between 0 and 1"),
        (lambda: module_of(NLL(), (3,)), r"NLL needs predictions \(batch, classes, ...\)"),
        (
            lambda: CrossEntropy().target(var("x", 2, 3, dtype="int64")),
            "CrossEntropy needs predictions that are floats",
        ),
    ):
        with pytest.raises(UserError, match=message):
            make()
