"""Gradients of eigenvalues, singular values and what is made of them, first and second, against torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.requirements import need_module
from tilewright.frontend import from_torch
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UserError

torch = need_module("torch")
linalg = torch.linalg

CASES = {
    "eigenvectors": (lambda x: tuple(linalg.eigh(x + x.mT)), (2, 3, 3)),
    "eigenvalues": (lambda x: linalg.eigvalsh(x + x.mT), (4, 4)),
    "singular values": (lambda x: linalg.svdvals(x), (3, 4)),
    "pseudo-inverse": (lambda x: linalg.pinv(x), (4, 3)),
    "pseudo-inverse below full rank": (lambda x: linalg.pinv(x @ x.mT), (4, 2)),
    "pseudo-inverse of symmetric matrices": (lambda x: linalg.pinv(x + x.mT, hermitian=True), (3, 3)),
    "condition": (lambda x: linalg.cond(x), (3, 3)),
    "nuclear norm": (lambda x: linalg.matrix_norm(x, "nuc"), (2, 3)),
}


class Calls(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize("name", CASES)
def test_like_torch(name: str) -> None:
    function, shape = CASES[name]
    torch.manual_seed(3)
    x = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    found = function(x)
    outputs = list(found) if isinstance(found, tuple) else [found]
    given, weights = [torch.randn_like(item) for item in outputs], torch.randn_like(x)
    (first,) = torch.autograd.grad(outputs, x, given, create_graph=True)
    (second,) = torch.autograd.grad((first * weights).sum(), x)
    backward = tw.vjp(from_torch(Calls(function), (x.detach(),)), [0])
    values = [item.detach().numpy() for item in (x, *given)]
    zeros = [np.zeros(item.shape) for item in outputs]
    results = evaluate(backward, *values), evaluate(tw.vjp(backward, [0]), *values, *zeros, weights.numpy())
    for result, wanted in zip(results, (first, second), strict=True):
        assert isinstance(result, tuple)
        scale = float(wanted.detach().abs().max())
        np.testing.assert_allclose(result[-1], wanted.detach().numpy(), rtol=1e-9, atol=1e-11 * max(scale, 1.0))


def test_equal_values_have_gradients_and_vectors_that_no_value_determines_are_refused() -> None:
    unit = torch.eye(3, dtype=torch.float64)
    backward = tw.vjp(from_torch(Calls(lambda x: linalg.svd(x).S.sum()), (unit,)), [0])
    result = evaluate(backward, unit.numpy(), np.ones(()))
    assert isinstance(result, tuple)
    np.testing.assert_allclose(result[-1], np.eye(3), atol=1e-12)
    with pytest.raises(UserError, match="no singular value belongs to"):
        tw.vjp(from_torch(Calls(lambda x: linalg.svd(x).U), (torch.randn(4, 2, dtype=torch.float64),)), [0])
