"""The gradient of a convolution for its weights: loop program, machine code and torch against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.requirements import need_module
from tests.topi.differential import Array, check, random_array, run_reference
from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.op import call, get_operator
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError

RANDOM = np.random.default_rng(3)
NAME = "nn.conv2d_weight_gradient"
LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


def _inputs(
    batch: int, groups: int, inputs: int, outputs: int, rows: tuple[int, int], attributes: dict[str, Any]
) -> list[Array]:
    """Data (NCHW) for a gradient with so many rows and columns."""
    (sh, sw), (dh, dw), (kh, kw) = attributes["strides"], attributes["dilation"], attributes["kernel"]
    top, left, bottom, right = attributes["padding"]
    height = max(1, (rows[0] - 1) * sh + (kh - 1) * dh + 1 - top - bottom)
    width = max(1, (rows[1] - 1) * sw + (kw - 1) * dw + 1 - left - right)
    places = [
        (size + low + high - (k - 1) * d - 1) // s + 1
        for size, low, high, k, d, s in ((height, top, bottom, kh, dh, sh), (width, left, right, kw, dw, sw))
    ]
    data = random_array(RANDOM, (batch, groups * inputs, height, width), "float32", -1, 1)
    return [data, random_array(RANDOM, (batch, groups * outputs, *places), "float32", -1, 1)]


def _run(arrays: list[Array], attributes: dict[str, Any], **options: Any) -> Array:
    params = tuple(Var(f"x{n}", tensor_type(value.shape, value.dtype.name)) for n, value in enumerate(arrays))
    module = IRModule([Function("main", params, call(NAME, *params, **attributes))])
    return np.asarray(tw.compile(module, **options)(*arrays))


small = st.integers(1, 3)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[Array], dict[str, Any]]:
    attributes: dict[str, Any] = {
        "strides": (draw(small), draw(small)),
        "dilation": (draw(st.integers(1, 2)), draw(st.integers(1, 2))),
        "kernel": (draw(small), draw(small)),
        "padding": tuple(draw(st.integers(0, 2)) for _ in range(4)),
        "groups": draw(st.sampled_from([1, 1, 2, 3])),
    }
    sizes = [draw(st.integers(1, 2)), attributes["groups"], draw(small), draw(small)]
    return _inputs(*sizes, (draw(small), draw(small)), attributes), attributes


@settings(max_examples=25, deadline=None)
@given(_cases(), st.booleans())
def test_any_convolution(case, last):
    arrays, attributes = case
    if last:
        arrays, attributes = [np.ascontiguousarray(a.transpose(0, 2, 3, 1)) for a in arrays], {**attributes, **LAST}
    check(NAME, *arrays, tolerance=1e-5, **attributes)


SHAPES = [
    # batch, groups, inputs, outputs, (rows, columns), attributes
    (2, 1, 16, 24, (9, 8), {"kernel": (3, 3), "padding": (1, 1, 1, 1)}),
    (1, 1, 3, 16, (10, 10), {"kernel": (7, 7), "padding": (3, 3, 2, 2), "strides": (2, 2)}),
    (3, 1, 13, 7, (5, 6), {"kernel": (1, 1)}),
    (2, 24, 1, 1, (8, 8), {"kernel": (3, 3), "padding": (1, 1, 1, 1)}),
    (1, 10, 1, 2, (7, 9), {"kernel": (5, 5), "padding": (2, 2, 2, 2), "strides": (2, 2)}),
    (2, 4, 8, 8, (6, 6), {"kernel": (3, 3), "padding": (0, 1, 2, 0), "dilation": (2, 1)}),
    (1, 1, 1, 1, (1, 1), {"kernel": (1, 1)}),
]


@pytest.mark.grid
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape[:4])))
def test_compiled(shape, threads):
    plain = {"strides": (1, 1), "dilation": (1, 1), "padding": (0, 0, 0, 0), "groups": shape[1]}
    attributes = {**plain, **shape[5]}
    arrays = _inputs(*shape[:5], attributes)
    (wanted,) = run_reference(NAME, arrays, **attributes)
    got = _run(arrays, attributes, threads=threads)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_half_precision_sums_in_single_precision():
    arrays = [random_array(RANDOM, (2, 4, 40, 40), "float16", 0, 1), random_array(RANDOM, (2, 4, 40, 40), "float16", 0)]
    (wanted,) = run_reference(NAME, arrays)
    np.testing.assert_allclose(_run(arrays, {}, threads=1), wanted, rtol=2e-3)


def test_open_batch():
    batch = tw.ir.expr.Var("batch")
    params = tuple(Var(name, tensor_type((batch, 8, 6, 6), "float32")) for name in ("data", "gradient"))
    attributes: dict[str, Any] = {"kernel": (3, 3), "padding": (1, 1, 1, 1)}
    executable = tw.compile(IRModule([Function("main", params, call(NAME, *params, **attributes))]), threads=2)
    for count in (1, 5):
        arrays = [random_array(RANDOM, (count, 8, 6, 6), "float32", -1, 1) for _ in range(2)]
        (wanted,) = run_reference(NAME, arrays, **attributes)
        np.testing.assert_allclose(executable(*arrays), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape[:4])))
def test_as_torch(shape):
    torch = need_module("torch")
    attributes = {"strides": (1, 1), "dilation": (1, 1), "padding": (0, 0, 0, 0), "groups": shape[1], **shape[5]}
    data, gradient = _inputs(*shape[:5], attributes)
    (got,) = run_reference(NAME, [data, gradient], **attributes)
    weight = torch.zeros(got.shape, requires_grad=True)
    top, left, bottom, right = attributes["padding"]
    padded = torch.nn.functional.pad(torch.tensor(data), (left, right, top, bottom))
    result = torch.nn.functional.conv2d(
        padded, weight, None, attributes["strides"], 0, attributes["dilation"], attributes["groups"]
    )
    result.backward(torch.tensor(gradient))
    np.testing.assert_allclose(got, weight.grad.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel": (0, 3)}, "kernel must be positive"),
        ({"kernel": (3,)}, "kernel must have 2 entries"),
        ({"kernel": (2, 3)}, "rows of the gradient"),
        ({"kernel": (3, 3), "groups": 3}, "do not divide into 3 groups"),
        ({"kernel": (3, 3), "data_layout": "NHWC"}, "no weight gradient for data in NHWC with a kernel in OIHW"),
    ],
)
def test_what_does_not_fit(changes, message):
    operator = get_operator(NAME)
    types = [tensor_type((1, 4, 5, 5), "float32"), tensor_type((1, 4, 3, 3), "float32")]
    with pytest.raises(UserError, match=message):
        operator.infer(types, operator.attributes_class(**changes))
