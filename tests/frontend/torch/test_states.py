"""Programs with structured inputs and outputs, and programs that write to their inputs and buffers: caches."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.requirements import need_module
from tilewright.frontend import from_torch
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError

torch = need_module("torch")
nn = torch.nn


class GrowingCache:
    """Keys of what came before; like the caches of language models it starts from an empty tensor."""

    def __init__(self, keys=()):
        self.keys = torch.tensor([])
        for item in keys:
            self.append(item)

    def append(self, item):
        self.keys = torch.cat([self.keys, item], -2)
        return self.keys


@pytest.fixture(scope="module", autouse=True)
def registered():
    pytree = torch.utils._pytree
    pytree.register_pytree_node(
        GrowingCache,
        lambda cache: ([cache.keys], None),
        lambda values, _: GrowingCache(values),
        flatten_with_keys_fn=lambda cache: ([(pytree.MappingKey("keys"), cache.keys)], None),
        serialized_type_name="tests.GrowingCache",
    )


class Attention(nn.Module):
    """Attends to what a cache holds and to the new keys."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x, cache):
        """The values that are attended to, and the longer cache."""
        keys = cache.append(self.project(x))
        if keys.shape[1] > 100:
            keys = keys * 2
        x.clone().mul_(2)
        return (x @ keys.transpose(-1, -2)).softmax(-1) @ keys, cache


def test_a_cache_that_grows_goes_in_and_out():
    model = Attention().eval()
    old = torch.randn(2, 5, 8)
    length = torch.export.Dim.DYNAMIC
    shapes = {"x": None, "cache": [{1: length}]}
    module = from_torch(model, {"x": torch.randn(2, 1, 8), "cache": GrowingCache([old])}, dynamic_shapes=shapes)
    assert [param.name for param in module["main"].params] == ["x", "cache_keys"]
    exe = tw.compile(module, threads=1)
    with pytest.raises(UserError, match="to be equal, which they are not"):
        exe(torch.randn(2, 1, 8), torch.randn(2, 200, 8))
    for count in (5, 9):
        x, old = torch.randn(2, 1, 8), torch.randn(2, count, 8)
        with torch.no_grad():
            expected, cache = model(x, GrowingCache([old]))
        result, keys = exe(x, old)
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(keys, cache.keys, rtol=1e-5, atol=1e-5)


class Static(nn.Module):
    """A cache of fixed size in a buffer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("cache", torch.zeros(6, 3))

    def forward(self, x, place):
        """The mean of what the cache holds after a write."""
        self.inner.cache.index_copy_(0, place, x)
        return self.inner.cache.sum(0)


class Along(nn.Module):
    """Slices of a cache along its last axis but one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.arange(24.0).reshape(2, 4, 3))

    def forward(self, x, place):
        """What the cache holds after a write."""
        self.cache.index_copy_(1, place, x)
        return self.cache * 2


@pytest.mark.parametrize("places", [[2], [3, 0], [1, 1, 2, 0]])
def test_slices_are_copied_along_any_axis(places):
    """The last one counts where several have one place."""
    model, place = Along(), torch.tensor(places)
    x = torch.randn(2, len(places), 3)
    module = from_torch(model, (x, place), return_changes=True)
    before = model.cache.numpy().copy()
    expected = before.copy()
    for number, at in enumerate(places):
        expected[:, at] = x.numpy()[:, number]
    doubled, cache = evaluate(module, x.numpy(), place.numpy(), before)
    np.testing.assert_array_equal(cache, expected)
    np.testing.assert_array_equal(doubled, 2 * expected)


@pytest.mark.parametrize("place", [4, -1])
def test_a_slice_outside_the_axis_is_an_error_and_changes_nothing(place):
    model = Along()
    exe = tw.compile(from_torch(model, (torch.ones(2, 1, 3), torch.tensor([1])), state=True), threads=1)
    first = exe.state["cache"]
    with pytest.raises(UserError, match="out of range"):
        exe(torch.ones(2, 1, 3), torch.tensor([place]))
    np.testing.assert_array_equal(exe.state["cache"], first)


def test_buffers_that_change_are_state_with_the_values_they_have():
    model, x = Along(), torch.randn(2, 1, 3)
    module = from_torch(model, (x, torch.tensor([1])), state=True)
    exe = tw.compile(module, threads=1)
    assert [info.name for info in exe.input_info] == ["x", "place"] and len(exe.output_info) == 1
    np.testing.assert_array_equal(exe.state["cache"], np.arange(24.0).reshape(2, 4, 3))
    for place in (2, 0):
        with torch.no_grad():
            expected = model(x, torch.tensor([place]))
        torch.testing.assert_close(exe(x, torch.tensor([place])), expected)
    np.testing.assert_array_equal(exe.state["cache"], model.cache.numpy())
    # A program that changes nothing has no state.
    assert not tw.compile(from_torch(nn.ReLU(), (x,), state=True), threads=1).state


def test_a_buffer_that_changes_is_an_input_and_an_output():
    model, inputs = Static(), (torch.randn(2, 3), torch.tensor([1, 4]))
    with pytest.raises(UnsupportedError, match=r"changes its buffer 'inner.cache'(.|\n)*return_changes=True"):
        from_torch(model, inputs)
    module = from_torch(model, inputs, return_changes=True)
    assert [param.name for param in module["main"].params] == ["x", "place", "inner_cache"]
    assert module.attributes["output_names"][1:] == ("inner_cache",)
    cache = np.zeros((6, 3), np.float32)
    for places in ([1, 4], [0, 1]):
        x, place = torch.randn(2, 3), torch.tensor(places)
        total, cache = evaluate(module, x.numpy(), place.numpy(), cache)
        np.testing.assert_allclose(total, model(x, place).numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(cache, model.inner.cache.numpy())


def test_an_input_that_changes_is_an_output_as_well(wrap):
    def add(x, y):
        x.add_(y)
        return x * 2

    x, y = torch.randn(3), torch.randn(3)
    module = from_torch(wrap(add), (x.clone(), y), return_changes=True)
    doubled, changed = evaluate(module, x.numpy(), y.numpy())
    np.testing.assert_allclose(doubled, 2 * (x + y).numpy())
    np.testing.assert_allclose(changed, (x + y).numpy())
    assert module.attributes["output_names"][1] == "inputs_0"
