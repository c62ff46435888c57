"""What the tests of the PyTorch frontend share. They skip where torch is not installed."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontend import from_torch
from tilewright.graph.interpreter import evaluate


@pytest.fixture
def wrap():
    """Makes a module of a function."""
    import torch

    class Wrapped(torch.nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def forward(self, *inputs):
            return self.function(*inputs)

    return Wrapped


@pytest.fixture(autouse=True, scope="session")
def composite_operators_are_looked_up_once():
    """For every program, torch looks up all its composite operators a dozen times. Here: where there are new ones."""
    import torch

    utils, state = torch._export.utils, torch._C._dispatch_get_registrations_for_dispatch_key
    look_up, known = utils._materialize_cpp_cia_ops, set()

    def look_up_new_ones():
        registered = frozenset(state("CompositeImplicitAutograd"))
        if registered not in known:
            look_up()
            known.add(registered)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "_materialize_cpp_cia_ops", look_up_new_ones)
        yield


@pytest.fixture(autouse=True)
def seeded():
    import torch

    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def check(wrap):
    """Import a module or function, run it by the interpreter (or compiled) and compare with torch."""
    import torch

    def run(model, *inputs, compiled=False, tolerance=1e-5):
        module = model if isinstance(model, torch.nn.Module) else wrap(model)
        imported = from_torch(module, inputs)
        with torch.no_grad():
            expected = module(*inputs)
        listed = expected if isinstance(expected, (tuple, list)) else [expected]
        arrays = [item.numpy() for item in inputs]
        found = tw.compile(imported, threads=1)(*arrays) if compiled else evaluate(imported, *arrays)
        results = found if isinstance(found, (tuple, list)) else [found]
        assert len(results) == len(listed)
        for value, wanted in zip(results, listed, strict=True):
            given = torch.from_numpy(np.array(value))
            torch.testing.assert_close(given, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
        return imported

    return run
