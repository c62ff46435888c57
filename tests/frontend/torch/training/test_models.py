"""Models trained by compiled code: losses of several steps as in eager mode, compiled once."""

from __future__ import annotations

import copy

import pytest

import tilewright as tw
from tests.frontend.torch.training.conftest import without_fallback
from tests.requirements import need_module
from tilewright import front, torch_backend
from tilewright.frontend import from_torch
from tilewright.frontend.core.builder import sizes_of
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UserError
from tilewright.torch_backend import tilewright_backend

torch = need_module("torch")
nn = torch.nn
F = nn.functional


@pytest.fixture
def compilations(monkeypatch):
    """The modules that are compiled."""
    modules = []

    def note(module, *arguments, **keywords):
        modules.append(module)
        return front.compile(module, *arguments, **keywords)

    monkeypatch.setattr(torch_backend, "compile", note)
    return modules


def losses(model, run, batches, rate=0.05):
    """The loss of each step of training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    found = []
    for x, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), labels)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def trained_alike(model, batches, **keywords):
    """Train a model and a copy of it, compiled and not; gives both."""
    other = copy.deepcopy(model)
    with without_fallback():
        compiled = torch.compile(model, backend=tilewright_backend, options={"threads": 1}, **keywords)
        found = losses(model, compiled, batches)
    wanted = losses(other, other, batches)
    assert found == pytest.approx(wanted, rel=1e-3, abs=1e-4)
    for (name, buffer), expected in zip(model.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(buffer, expected, rtol=1e-3, atol=1e-4, msg=name)
    return model, other


class Block(nn.Module):
    """A residual block as ResNet has it, with steps of two."""

    def __init__(self, channels, outputs):
        super().__init__()
        self.first = nn.Conv2d(channels, outputs, 3, 2, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(3))
        self.shorter = nn.Conv2d(channels, outputs, 1, 2, bias=False)

    def forward(self, x):
        """The sum of both ways."""
        inner = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(inner)) + self.norms[2](self.shorter(x))).relu()


def residual_network():
    stem = [nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, Block(4, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def images(count, batch=4):
    return [(torch.randn(batch, 3, 10, 10), torch.randint(0, 5, (batch,))) for _ in range(count)]


def test_a_residual_network_is_compiled_once_and_trains_as_in_eager_mode(compilations):
    trained_alike(residual_network(), images(6))
    assert len(compilations) == 2, "one forward and one backward graph for all steps"
    shapes = [sizes_of(param) for param in compilations[1]["main"].params]
    assert (4, 10, 10, 4) in shapes, "what convolutions gave is saved as (N, H, W, C)"
    assert (4, 4, 10, 10) not in shapes


def test_batches_of_other_sizes_are_compiled_once_more_at_most(compilations):
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 5))
    batches = [(torch.randn(size, 6), torch.randint(0, 5, (size,))) for size in (3, 5, 9, 4)]
    trained_alike(model, batches, dynamic=True)
    assert len(compilations) == 2


class Translator(nn.Module):
    """Tokens to labels by one layer of a transformer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
        self.last = nn.Linear(8, 5)

    def forward(self, tokens):
        """Of the mean of all places."""
        return self.last(self.layer(self.table(tokens)).mean(1))


def test_a_transformer():
    trained_alike(Translator(), [(torch.randint(0, 7, (3, 4)), torch.randint(0, 5, (3,))) for _ in range(4)])


class Reader(nn.Module):
    """Sequences to labels by an LSTM."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 5)

    def forward(self, x):
        """Of the last place."""
        return self.last(self.layer(x)[0][:, -1])


def test_an_lstm(compilations):
    with torch._dynamo.config.patch(allow_rnn=True):
        trained_alike(Reader(), [(torch.randn(2, 3, 3), torch.randint(0, 5, (2,))) for _ in range(3)])
    assert len(compilations) == 2


class Dropping(nn.Module):
    """Dropout between layers, of elements and of channels."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 40), nn.Linear(40, 5)

    def forward(self, x):
        """Half of them."""
        inner = F.dropout(self.first(x), 0.5, self.training)
        inner = F.dropout1d(inner.view(-1, 10, 4), 0.2, self.training).flatten(1)
        return self.last(F.rrelu(inner, training=self.training))


def test_dropout_is_decided_by_the_seed(compilations):
    model, x = Dropping(), torch.randn(3, 6)
    with without_fallback():
        compiled = torch.compile(model, backend=tilewright_backend, options={"threads": 1})
        results = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            model.zero_grad()
            found = compiled(x)
            found.sum().backward()
            results.append((found.detach(), model.first.weight.grad.clone()))
        again = compiled(x).detach()
    (one, slope), (same, same_slope), (other, _) = results
    assert torch.equal(one, same) and torch.equal(slope, same_slope)
    assert not torch.equal(one, other) and not torch.equal(other, again)
    assert len(compilations) == 2


def test_what_is_dropped_has_no_gradient():
    layer = nn.Dropout(0.25)
    x = torch.ones(50, 40, requires_grad=True)
    with without_fallback():
        found = torch.compile(layer, backend=tilewright_backend, options={"threads": 1})(x)
        found.sum().backward()
    torch.testing.assert_close(x.grad, found.detach())
    assert 0.7 < float((found > 0).float().mean()) < 0.8
    assert found.detach().unique().tolist() == pytest.approx([0, 4 / 3])


def test_second_derivatives_are_refused_by_torch(interpreted):
    compiled = torch.compile(lambda x: (x * x.sin()).sum(), backend=tilewright_backend)
    x = torch.randn(3, requires_grad=True)
    (slope,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        slope.sum().backward()


def test_a_module_is_imported_for_training():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    x = torch.randn(2, 3, 6, 6)
    module = from_torch(model, (x,), training=True)
    statistics = ["1_running_mean", "1_running_var", "1_num_batches_tracked"]
    assert [param.name for param in module["main"].params] == ["input", *statistics]
    assert list(module.attributes["output_names"])[1:] == statistics
    assert not any(part.training for part in model.modules()), "the mode is what it was"
    state = [item.clone() for item in model.buffers()]
    found = evaluate(module, x.numpy(), *(item.numpy() for item in state))
    model.train()
    wanted = [model(x).detach(), *model.buffers()]
    for value, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(torch.as_tensor(value), expected)


@pytest.mark.parametrize(("seed", "names"), [(None, ["input", "seed"]), ("input", ["input", "seed"]), (3, ["input"])])
def test_a_module_that_draws_takes_a_seed(seed, names):
    module = from_torch(nn.Dropout(0.5), (torch.randn(3),), training=True, seed=seed)
    assert [param.name for param in module["main"].params] == names


def test_parts_that_are_frozen_stay_so():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    model[0].eval()
    module = from_torch(model, (torch.randn(4, 3),), training=True)
    assert list(module.attributes["output_names"])[1:] == ["1_running_mean", "1_running_var", "1_num_batches_tracked"]


def test_only_modules_are_imported_for_training():
    program = torch.export.export(nn.Linear(3, 2), (torch.randn(1, 3),))
    with pytest.raises(UserError, match="only a module is imported for training"):
        from_torch(program, training=True)


def test_gradients_of_an_imported_module():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    x = torch.randn(2, 4)
    module = tw.vjp(from_torch(model, (x,), training=True))
    leaf = x.clone().requires_grad_()
    result = model(leaf)
    (wanted,) = torch.autograd.grad(result.sum(), leaf)
    found = evaluate(module, x.numpy(), torch.ones_like(result).numpy())
    torch.testing.assert_close(torch.as_tensor(found[-1]), wanted)
