"""What tests of training have in common: a step by eager mode and by `torch.compile`, side by side."""

from __future__ import annotations

import copy
import warnings
from contextlib import contextmanager

import numpy as np
import pytest

from tilewright import torch_backend
from tilewright.frontend.torch.importer import to_array
from tilewright.graph.interpreter import evaluate
from tilewright.ir.dtype import DataType
from tilewright.torch_backend import FallbackWarning, tilewright_backend


@pytest.fixture
def interpreted(monkeypatch):
    """Graphs are run by the interpreter: what is tested is what they say, and not how it is compiled."""
    import torch

    def to_numpy(tensor):
        return to_array(torch, tensor, DataType.of(str(tensor.dtype).removeprefix("torch.")))

    def run(module, *_, **__):
        def executable(*tensors):
            found = evaluate(module, *map(to_numpy, tensors))
            listed = found if isinstance(found, (tuple, list)) else [found]
            return tuple(torch.from_numpy(np.array(value)) for value in listed)

        return executable

    monkeypatch.setattr(torch_backend, "compile", run)


@contextmanager
def without_fallback():
    """Nothing may be left to torch."""
    import torch

    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        yield


def gradients(model, inputs):
    """The results of a model, and the gradients of a random sum of them for its inputs and parameters."""
    import torch

    leaves = [item.detach().clone().requires_grad_(item.is_floating_point()) for item in inputs]
    model.zero_grad()
    results = model(*leaves)
    listed = results if isinstance(results, (tuple, list)) else [results]
    generator = torch.Generator().manual_seed(7)
    total = sum((item * torch.randn(item.shape, generator=generator)).sum() for item in listed)
    total.backward()
    found = {f"result {n}": item.detach() for n, item in enumerate(listed)}
    found |= {f"input {n}": item.grad for n, item in enumerate(leaves) if item.requires_grad}
    found |= {name: item.grad.clone() for name, item in model.named_parameters() if item.grad is not None}
    return found | {name: item.clone() for name, item in model.named_buffers()}


@pytest.fixture
def check_gradients():
    """Compare a compiled model's results, gradients and buffers with those of eager mode."""
    import torch

    def check(model, *inputs, tolerance=1e-4, options=None, **keywords):
        with without_fallback():
            wanted = gradients(copy.deepcopy(model), inputs)
            compiled = torch.compile(model, backend=tilewright_backend, options=options or {"threads": 1}, **keywords)
            found = gradients(compiled, inputs)
        found = {name.removeprefix("_orig_mod."): value for name, value in found.items()}
        assert found.keys() == wanted.keys()
        for name, value in found.items():
            torch.testing.assert_close(
                value, wanted[name], rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
            )

    return check
