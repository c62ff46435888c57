"""The CUDA back end without a GPU: kernels' text, graphs and launches as they are, on fibers of this machine."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.cuda_on_fibers import use_fibers
from tests.requirements import need_module
from tilewright.frontend.torch.importer import from_torch

torch = need_module("torch")
nn = torch.nn
functional = nn.functional


@pytest.fixture(autouse=True)
def fibers(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fibers(monkeypatch)
    torch.manual_seed(1)


class Residual(nn.Module):  # type: ignore[misc, name-defined]
    """Convolutions of both strides, batch normalisations, a residual sum: most of a ResNet in little."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.left = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32))
        self.right = nn.Sequential(nn.Conv2d(16, 32, 1, 2, bias=False), nn.BatchNorm2d(32))
        self.last = nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(self.first(x), 3, 2, 1)
        x = functional.relu(self.left(x) + self.right(x))
        return self.last(x.mean((2, 3)))


class Mixer(nn.Module):  # type: ignore[misc, name-defined]
    """Attention, layer normalisation and a feed-forward pair."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.inner, self.outer = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.outer(functional.gelu(self.inner(self.norm(x)))).flatten(0, 1)


TRAINED = {
    "residual": (Residual, lambda: torch.randn(8, 3, 16, 16), lambda: torch.randint(0, 10, (8,))),
    "mixer": (Mixer, lambda: torch.randn(2, 12, 32), lambda: torch.randint(0, 32, (24,))),
}


@pytest.mark.parametrize("name", list(TRAINED))
def test_steps_of_training_lose_what_torch_does(name: str) -> None:
    made, data, labels = TRAINED[name]
    model, x, y = made(), data(), labels()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    module = from_torch(copy.deepcopy(model).eval(), (x,))
    step = tw.train.Step(module, "cross_entropy", tw.train.SGD(0.1, momentum=0.9), target="cuda")
    found = [float(step(x.numpy(), y.numpy()).loss) for _ in range(4)]
    wanted = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model.train()(x), y)
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


PRODUCTS = {
    "few rows": (lambda: nn.Linear(1000, 77), (5, 1000)),
    "many steps for few blocks": (lambda: nn.Linear(2048, 96), (32, 2048)),
    "many rows": (lambda: nn.Linear(96, 192), (400, 96)),
    "pixels": (lambda: nn.Conv2d(24, 40, 3, 2, 1), (3, 24, 17, 19)),
    "many channels for few pixels": (lambda: nn.Conv2d(256, 48, 3, padding=1), (1, 256, 5, 5)),
}


@pytest.mark.parametrize("name", list(PRODUCTS))
def test_products_are_what_torch_computes(name: str) -> None:
    make, shape = PRODUCTS[name]
    model, x = make().eval(), torch.randn(*shape)
    executable = tw.compile(from_torch(model, (x,)), target="cuda")
    with torch.no_grad():
        np.testing.assert_allclose(executable(x.numpy()), model(x).numpy(), rtol=1e-4, atol=1e-5)
