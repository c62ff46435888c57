"""Gradients of pooling: loop program, machine code and torch against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.requirements import need_module
from tests.topi.differential import Array, check, random_array, run_reference
from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.op import call, get_operator
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError

RANDOM = np.random.default_rng(5)
SHAPES: list[dict[str, Any]] = [
    {"kernel": (2, 2), "strides": (2, 2)},
    {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)},
    {"kernel": (3, 2), "strides": (1, 3), "padding": (1, 0, 0, 1)},
    {"kernel": (2, 3), "strides": (3, 1), "dilation": (2, 1)},
]


def _gradient_shape(data: Array, attributes: dict[str, Any]) -> tuple[int, ...]:
    pool = get_operator("nn.max_pool2d")
    kind = pool.infer([tensor_type(data.shape, data.dtype.name)], pool.attributes_class(**attributes))
    return tuple(int(dim.value) for dim in kind.shape)


def _attributes(draw: st.DrawFn) -> dict[str, Any]:
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    low, high = (tuple(draw(st.integers(0, size - 1)) for size in kernel) for _ in range(2))
    return {
        "kernel": kernel,
        "strides": (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        "dilation": (draw(st.integers(1, 2)), draw(st.integers(1, 2))),
        "padding": (*low, *high),
        "layout": draw(st.sampled_from(["NCHW", "NHWC"])),
    }


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(4, 7), st.integers(4, 7))
def test_max_pool(source, height, width):
    attributes = _attributes(source.draw)
    shape = (2, 2, height, width) if attributes["layout"] == "NCHW" else (2, height, width, 2)
    data = RANDOM.integers(-2, 3, shape).astype(np.float32)  # many are equal
    places = _gradient_shape(data, attributes)
    assume(0 not in places)
    check("nn.max_pool2d_gradient", data, random_array(RANDOM, places), tolerance=1e-5, **attributes)


@settings(max_examples=30, deadline=None)
@given(st.data(), st.booleans(), st.integers(4, 7), st.integers(4, 7))
def test_avg_pool(source, whole, height, width):
    attributes = {**_attributes(source.draw), "count_include_pad": whole}
    shape = (2, 2, height, width) if attributes["layout"] == "NCHW" else (2, height, width, 2)
    places = _gradient_shape(np.zeros(shape, np.float32), attributes)
    assume(0 not in places)
    gradient = random_array(RANDOM, places)
    check("nn.avg_pool2d_gradient", gradient, tolerance=1e-5, size=(height, width), **attributes)


def test_special_values():
    data = np.full((1, 1, 4, 4), -np.inf, np.float32)
    data[0, 0, 0, 1] = data[0, 0, 2, 0] = np.nan
    data[0, 0, 2, 3] = np.inf
    attributes = {"kernel": (2, 2), "strides": (2, 2), "padding": (1, 1, 1, 1)}
    gradient = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    check("nn.max_pool2d_gradient", data, gradient, **attributes)
    (got,) = run_reference("nn.max_pool2d_gradient", [data, gradient], **attributes)
    assert got.sum() == gradient.sum()  # no window gives to the padding
    assert got[0, 0, 0, 1] == 2


def _compiled(name: str, arrays: list[Array], attributes: dict[str, Any]) -> Array:
    params = tuple(Var(f"x{n}", tensor_type(value.shape, value.dtype.name)) for n, value in enumerate(arrays))
    module = IRModule([Function("main", params, call(name, *params, **attributes))])
    return np.asarray(tw.compile(module, threads=2)(*arrays))


@pytest.mark.parametrize("attributes", SHAPES)
def test_compiled_and_torch(attributes):
    torch = need_module("torch")
    data = random_array(RANDOM, (2, 5, 9, 10), "float32")
    gradient = random_array(RANDOM, _gradient_shape(data, attributes), "float32")
    top, left, bottom, right = attributes.get("padding", (0, 0, 0, 0))
    pad = (left, right, top, bottom)
    steps, spacing = attributes["strides"], attributes.get("dilation", (1, 1))
    x = torch.tensor(data, requires_grad=True)
    padded = torch.nn.functional.pad(x, pad, value=-np.inf)
    torch.nn.functional.max_pool2d(padded, attributes["kernel"], steps, 0, spacing).backward(torch.tensor(gradient))
    (wanted,) = run_reference("nn.max_pool2d_gradient", [data, gradient], **attributes)
    np.testing.assert_allclose(wanted, x.grad.numpy(), rtol=1e-5, atol=1e-5)
    got = _compiled("nn.max_pool2d_gradient", [data, gradient], attributes)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    sized = {**attributes, "size": (9, 10), "count_include_pad": True}
    (wanted,) = run_reference("nn.avg_pool2d_gradient", [gradient], **sized)
    if spacing == (1, 1):
        x = torch.tensor(data, requires_grad=True)
        pooled = torch.nn.functional.avg_pool2d(torch.nn.functional.pad(x, pad), attributes["kernel"], steps)
        pooled.backward(torch.tensor(gradient))
        np.testing.assert_allclose(wanted, x.grad.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(_compiled("nn.avg_pool2d_gradient", [gradient], sized), wanted, rtol=1e-5, atol=1e-5)


def test_half_precision():
    data = random_array(RANDOM, (1, 3, 6, 6), "float16")
    gradient = random_array(RANDOM, (1, 3, 3, 3), "float16")
    check("nn.max_pool2d_gradient", data, gradient, **SHAPES[0])
    check("nn.avg_pool2d_gradient", gradient, size=(6, 6), **SHAPES[0])


def test_what_does_not_fit():
    four, three = tensor_type((1, 1, 4, 4), "float32"), tensor_type((1, 1, 3, 3), "float32")
    message = "the shape of the gradient, and of the pool's result"
    for name, types, more in (("max", [four, three], {}), ("avg", [three], {"size": (9, 9)})):
        operator = get_operator(f"nn.{name}_pool2d_gradient")
        with pytest.raises(UserError, match=message):
            operator.infer(types, operator.attributes_class(**SHAPES[0], **more))
