"""TorchScript modules: scripted, traced and loaded ones give what torch gives; what torch cannot convert is refused."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest

from tests.requirements import need_module
from tilewright.frontend import from_torch
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError

torch = need_module("torch")
nn = torch.nn


class Classifier(nn.Module):
    """A convolution, its normalisation and a linear layer; two results."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x, scale):
        """Two inputs, two results."""
        features = torch.relu(self.norm(self.conv(x))).mean([2, 3]) * scale
        return self.last(features), features


def loaded(script):
    """The script as somebody who gets its file has it."""
    stream = io.BytesIO()
    torch.jit.save(script, stream)
    stream.seek(0)
    return torch.jit.load(stream)


@pytest.mark.parametrize("way", ["script", "trace", "file"])
def test_scripts_give_what_torch_gives(way):
    model, inputs = Classifier().eval(), (torch.randn(2, 3, 6, 6), torch.tensor(2.0))
    script = torch.jit.trace(model, inputs) if way == "trace" else torch.jit.script(model)
    script = loaded(script) if way == "file" else script
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        imported = from_torch(script, inputs)
    found = evaluate(imported, *(item.numpy() for item in inputs))
    for ours, theirs in zip(found, model(*inputs), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-6)


class Ranks(nn.Module):
    """Branches on sizes, an error in one of them, and a value that may be none."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 3)

    def forward(self, x: torch.Tensor, state: torch.Tensor):
        """Branches that only sizes decide."""
        if x.dim() not in [2, 3]:
            raise ValueError(f"{x.dim()} dimensions")
        if x.dim() == 3:
            x = x.mean(1)
        h, c = self.cell(x, (state[0], state[1]))
        return h * 2 if len(state) > 1 else h, torch.stack([h, c])


@pytest.mark.parametrize("shape", [(2, 4), (2, 5, 4)])
def test_branches_on_sizes_are_taken_as_the_example_says(shape):
    model, inputs = Ranks().eval(), (torch.randn(*shape), torch.randn(2, 2, 3))
    imported = from_torch(loaded(torch.jit.script(model)), inputs)
    assert [param.name for param in imported["main"].params] == ["x", "state"]
    for ours, theirs in zip(evaluate(imported, *(item.numpy() for item in inputs)), model(*inputs), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_a_script_that_torch_cannot_convert_is_refused():
    class Sign(nn.Module):
        def forward(self, x):
            parts = [x]
            while bool(x.sum() > 0) and len(parts) < 4:
                x = x - 1
                parts.append(x)
            return torch.cat(parts)

    with pytest.raises(UnsupportedError, match="torch cannot convert the TorchScript module") as caught:
        from_torch(torch.jit.script(Sign()), (torch.randn(3),))
    assert "torch.export" in str(caught.value)


def test_a_script_with_a_state_is_refused_by_its_name():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            if bool(x.sum() > 0):
                x = x[: self.calls]
            return x

    with pytest.raises(UnsupportedError, match=r"keeps a state from call to call \(it writes its calls\)"):
        from_torch(torch.jit.script(Counter()), (torch.randn(3),))


def test_a_script_has_the_sizes_of_its_example_inputs():
    script, shapes = torch.jit.script(nn.ReLU()), ({0: torch.export.Dim("n")},)
    with pytest.raises(UnsupportedError, match="the sizes of its example inputs only"):
        from_torch(script, (torch.randn(3),), dynamic_shapes=shapes)
