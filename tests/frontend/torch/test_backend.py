"""`torch.compile(model, backend="tilewright")`."""

from __future__ import annotations

import pytest

from tests.requirements import need_module
from tilewright.torch_backend import tilewright_backend

torch = need_module("torch")
nn = torch.nn


def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))


def test_the_backend_is_known_by_its_name():
    known = torch.compiler.list_backends(exclude_tags=())
    assert "tilewright" in known, "the package is not installed with its entry points"
    assert torch._dynamo.lookup_backend("tilewright") is tilewright_backend


def test_inference_and_changed_weights():
    torch._dynamo.reset()
    model, x = small().eval(), torch.randn(2, 3, 4, 4)
    compiled = torch.compile(model, backend=tilewright_backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        model[4].weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_sizes_that_vary():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x.relu().sum(0), x.shape[0] * 2), backend=tilewright_backend, dynamic=True)
    for size in (3, 5):
        x = torch.randn(size, 4)
        total, number = compiled(x)
        torch.testing.assert_close(total, x.relu().sum(0))
        assert number == 2 * size


def test_gradients():
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), torch.randn(3, 4)
    model(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    torch.compile(model, backend=tilewright_backend)(x).sum().backward()
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-5)


def test_what_is_not_supported_is_an_error():
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="draw no random numbers"):
        torch.compile(lambda x: x + torch.rand_like(x), backend=tilewright_backend)(torch.randn(3))
