"""`torch.compile(model, backend="tilewright")`."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.requirements import need_module
from tilewright import front, torch_backend
from tilewright.support.errors import UnsupportedError
from tilewright.torch_backend import FallbackWarning, tilewright_backend

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


def compiled_with(function, **keywords):
    torch._dynamo.reset()
    return torch.compile(function, backend=tilewright_backend, **keywords)


@pytest.fixture
def compilations(monkeypatch):
    """The modules that are compiled."""
    modules = []

    def note(module, *arguments, **keywords):
        modules.append(module)
        return front.compile(module, *arguments, **keywords)

    monkeypatch.setattr(torch_backend, "compile", note)
    return modules


def test_varying_sizes_are_compiled_once(compilations):
    model = small().eval()
    compiled = compiled_with(model, dynamic=True)
    marked = torch.randn(7, 3, 4, 4)
    torch._dynamo.mark_dynamic(marked, 0)
    with torch.no_grad():
        for x in (torch.randn(2, 3, 4, 4), torch.randn(5, 3, 4, 4)):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        assert len(compilations) == 1
        compiled = compiled_with(model)
        for x in (marked, torch.randn(4, 3, 4, 4)):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(compilations) == 2


def test_numbers_that_are_no_sizes(compilations):
    compiled = compiled_with(lambda x, n, f: (x * n + f, n + 1, x[: abs(n)]), dynamic=True)
    x = torch.randn(6)
    for n, f in ((3, 0.5), (-2, 1.5), (3, 0.5)):
        result, number, part = compiled(x, n, f)
        torch.testing.assert_close(result, x * n + f)
        assert number == n + 1
        torch.testing.assert_close(part, x[: abs(n)])
    assert len(compilations) <= 4, "a graph is compiled for each set of numbers, not for each call"


def test_gradients_of_varying_sizes():
    def loss(x, y):
        return (torch.cat([x, y]).sin() * x.shape[0]).sum()

    compiled = compiled_with(loss, dynamic=True)
    for count in (3, 6):
        x, y = (torch.randn(size, 4, requires_grad=True) for size in (count, 2 * count))
        expected = torch.autograd.grad(loss(x, y), (x, y))
        for gradient, wanted in zip(torch.autograd.grad(compiled(x, y), (x, y)), expected, strict=True):
            torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


class Mixed(nn.Module):
    """Supported layers around operators that are not."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        """Eigenvalues in the middle."""
        square = self.first(x).tanh()
        values = torch.linalg.eig(square)[0]
        return self.last(values.real.abs().sort(-1)[0] + values.imag.abs().sort(-1)[0] + square.sum(-1)).relu()


def test_torch_runs_what_is_not_supported_and_says_so(compilations):
    model = Mixed().eval()
    compiled = compiled_with(model)
    with torch.no_grad():
        x = torch.randn(3, 4, 4)
        with pytest.warns(FallbackWarning, match=r"aten\.linalg_eig\.default is not supported"):
            found = compiled(x)
        torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)
        assert len(compilations) == 2, "what comes before and after is compiled"
        model.last.weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        assert len(compilations) == 3, "only the part whose weights have changed is compiled again"


def test_parts_of_varying_sizes(compilations):
    model = Mixed().eval()
    compiled = compiled_with(lambda x: model(torch.cat([x, x, x[:1]])), dynamic=True)
    with torch.no_grad():
        for count in (3, 5):
            x = torch.randn(count, 4, 4)
            with pytest.warns(FallbackWarning, match="linalg_eig") if count == 3 else nullcontext():
                found = compiled(x)
            torch.testing.assert_close(found, model(torch.cat([x, x, x[:1]])), rtol=1e-4, atol=1e-5)
    assert len(compilations) == 2


def test_torch_draws_random_numbers_if_asked_to():
    def noisy(x):
        return torch.rand_like(x) * 2 + torch.randn(3)

    compiled = compiled_with(noisy, options={"fallback_random": True})
    x = torch.randn(3)
    torch.manual_seed(5)
    expected = noisy(x)
    torch.manual_seed(5)
    with pytest.warns(FallbackWarning, match=r"aten\.rand_like(.|\n)*aten\.randn"):
        torch.testing.assert_close(compiled(x), expected)


def test_a_graph_that_cannot_be_compiled_is_run_by_torch(monkeypatch):
    def refuse(*_, **__):
        raise UnsupportedError("no such target", where="here")

    monkeypatch.setattr(torch_backend, "compile", refuse)
    x = torch.randn(3)
    with pytest.warns(FallbackWarning, match=r"a graph is run by torch itself:(.|\n)*no such target(.|\n)*here"):
        torch.testing.assert_close(compiled_with(torch.sin)(x), x.sin())


def test_without_a_fallback_it_is_an_error():
    compiled = compiled_with(lambda x: torch.linalg.eig(x)[0].abs(), options={"fallback": False})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="linalg_eig"):
        compiled(torch.randn(3, 3))
    for option in ("fallback", "fallback_random"):
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=f"'{option}' is True or False"):
            compiled_with(torch.sin, options={option: "eager"})(torch.randn(3))
