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


@pytest.mark.parametrize(
    ("name", "precision", "rtol"),
    [("residual", "float32", 1e-5), ("mixer", "float16", 2e-3)],
)
def test_steps_of_training_lose_what_torch_does(name: str, precision: str, rtol: float) -> None:
    made, data, labels = TRAINED[name]
    model, x, y = made(), data(), labels()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    module = from_torch(copy.deepcopy(model).eval(), (x,))
    step = tw.train.Step(module, "cross_entropy", tw.train.SGD(0.1, momentum=0.9), target="cuda", precision=precision)
    found = [float(step(x.numpy(), y.numpy()).loss) for _ in range(4)]
    wanted = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model.train()(x), y)
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    np.testing.assert_allclose(found, wanted, rtol=rtol)


PRODUCTS = {
    "few rows": (lambda: nn.Linear(1000, 77), (5, 1000)),
    "many steps for few blocks": (lambda: nn.Linear(2048, 96), (32, 2048)),
    "rows of one group": (lambda: nn.Linear(64, 64), (48, 64)),
    "rows of many groups": (lambda: nn.Linear(128, 320), (512, 128)),
    "sizes that no tile divides": (lambda: nn.Linear(96, 100), (130, 96)),
    "pixels": (lambda: nn.Conv2d(24, 40, 3, 2, 1), (3, 24, 17, 19)),
    "many channels for few pixels": (lambda: nn.Conv2d(256, 48, 3, padding=1), (1, 256, 5, 5)),
}
ERRORS = {"float32": 2e-6, "tf32": 1e-3, "float16": 2e-3, "bfloat16": 1e-2}


CASES = [(name, precision) for name in PRODUCTS for precision in ("float32", "float16")]
CASES += [
    (name, precision) for name in ("rows of one group", "rows of many groups") for precision in ("tf32", "bfloat16")
]


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_products_are_what_torch_computes(name: str, precision: str) -> None:
    make, shape = PRODUCTS[name]
    model, x = make().eval(), torch.randn(*shape)
    executable = tw.compile(from_torch(model, (x,)), target="cuda", precision=precision)
    with torch.no_grad():
        wanted = model(x).numpy()
    assert np.abs(executable(x.numpy()) - wanted).max() <= ERRORS[precision] * np.abs(wanted).max()


class Attention(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


@pytest.mark.parametrize(
    ("width", "rows", "causal", "precision"),
    [(64, 128, False, "float16"), (80, 70, True, "float16"), (128, 65, False, "tf32"), (64, 70, True, "float32")],
)
def test_attention(width: int, rows: int, causal: bool, precision: str) -> None:
    model = Attention(causal).eval()
    given = tuple(torch.randn(1, 2, rows, width) for _ in range(3))
    executable = tw.compile(from_torch(model, given), target="cuda", precision=precision)
    wanted = model(*given).numpy()
    found = executable(*(item.numpy() for item in given))
    assert np.abs(found - wanted).max() <= ERRORS[precision] * np.abs(wanted).max()
