"""Gradients of eigenvalues, singular values and what is made of them, against torch's."""

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
    "eigenvalues": (lambda x: linalg.eigvalsh(x + x.mT), (2, 4, 4)),
    "singular values": (lambda x: linalg.svdvals(x), (3, 4)),
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
    output = function(x)
    given = torch.randn_like(output)
    (wanted,) = torch.autograd.grad(output, x, given)
    result = evaluate(tw.vjp(from_torch(Calls(function), (x.detach(),)), [0]), x.detach().numpy(), given.numpy())
    assert isinstance(result, tuple)
    np.testing.assert_allclose(result[-1], wanted.numpy(), rtol=1e-9, atol=1e-9)


def test_equal_values_have_gradients_and_vectors_are_refused() -> None:
    unit = torch.eye(3, dtype=torch.float64)
    backward = tw.vjp(from_torch(Calls(lambda x: linalg.svd(x).S.sum()), (unit,)), [0])
    result = evaluate(backward, unit.numpy(), np.ones(()))
    assert isinstance(result, tuple)
    np.testing.assert_allclose(result[-1], np.eye(3), atol=1e-12)
    for function in (linalg.pinv, lambda x: linalg.svd(x).U, lambda x: linalg.eigh(x).eigenvectors):
        with pytest.raises(UserError, match="which equal values do not determine"):
            tw.vjp(from_torch(Calls(function), (unit,)), [0])
