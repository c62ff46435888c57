"""Batch normalisation and scales into contractions: every rule, on every kind of contraction."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, inputs_for, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Tuple, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.passes.fold_batch_norm import fold_batch_norm
from tilewright.ir import expr as ir
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type


def fold(params, body):
    """The operators left after folding; the meaning is checked on the way."""
    module = infer_types(IRModule([function(params, body)]))
    result = fold_batch_norm(module)
    arguments = inputs_for(module["main"])
    actual, expected = evaluate(result, *arguments), evaluate(module, *arguments)
    for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (actual, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(b).max())))
    order = post_order(result["main"])
    return [item.callee.name for item in order if isinstance(item, Call) and isinstance(item.callee, Operator)]


def batch_norm(data, channels, axis=1, seed=5):
    rng = np.random.default_rng(seed)
    statistics = [rng.standard_normal(channels).astype(np.float32) for _ in range(3)]
    variance = rng.random(channels).astype(np.float32) + np.float32(0.5)
    return op("nn.batch_norm", data, *map(constant, statistics), constant(variance), axis=axis, epsilon=1e-3)


def test_at_sizes_that_are_open():
    n, h = ir.Var("n"), ir.Var("h")
    x = Var("x", tensor_type((n, 4, h, 6), "float32"))
    y = Var("y", tensor_type((n, 4), "float32"))
    after = batch_norm(op("nn.conv2d", x, constant(random(0, 8, 4, 3, 3)), padding=(1, 1, 1, 1)), 8)
    before = op("nn.conv2d", batch_norm(x, 4), constant(random(1, 8, 4, 3, 3)))
    product = batch_norm(op("matmul", y, constant(random(2, 4, 5))), 5)
    rng = np.random.default_rng(0)
    for param, body in ((x, after), (x, before), (y, product)):
        module = infer_types(IRModule([function([param], body)]))
        result = fold_batch_norm(module)
        assert not {"multiply", "nn.batch_norm"} & {
            item.callee.name
            for item in post_order(result["main"])
            if isinstance(item, Call) and isinstance(item.callee, Operator)
        }
        argument = rng.standard_normal((3, 4, 5, 6) if param is x else (3, 4)).astype(np.float32)
        np.testing.assert_allclose(evaluate(result, argument), evaluate(module, argument), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_into_convolution(groups):
    x = var("x", 1, 4, 6, 6)
    w = constant(random(0, 8, 4 // groups, 3, 3))
    conv = op("nn.conv2d", x, w, padding=(1, 1, 1, 1), groups=groups)
    assert fold([x], batch_norm(conv, 8)) == ["nn.conv2d", "add"]
    biased = op("add", conv, constant(random(1, 8, 1, 1)))
    assert fold([x], batch_norm(biased, 8)) == ["nn.conv2d", "add"]


def test_into_channels_last_convolution():
    x = var("x", 1, 6, 6, 4)
    w = constant(random(0, 3, 3, 1, 4))
    conv = op("nn.conv2d", x, w, groups=4, data_layout="NHWC", kernel_layout="HWIO")
    assert fold([x], batch_norm(conv, 4, axis=3)) == ["nn.conv2d", "add"]


@pytest.mark.parametrize("groups", [1, 2])
def test_into_transposed_convolution(groups):
    x = var("x", 1, 4, 5, 5)
    w = constant(random(0, 4, 6 // groups, 3, 3))
    conv = op("nn.conv2d_transpose", x, w, strides=(2, 2), groups=groups)
    assert fold([x], batch_norm(conv, 6)) == ["nn.conv2d_transpose", "add"]
    scaled = op("multiply", x, constant(random(3, 4, 1, 1)))
    assert fold([x], op("nn.conv2d_transpose", scaled, w, groups=groups)) == ["nn.conv2d_transpose"]


@pytest.mark.parametrize("transposed", [False, True])
def test_into_matmul(transposed):
    x = var("x", 5, 4)
    w = constant(random(0, 6, 4) if transposed else random(0, 4, 6))
    product = op("matmul", x, w, transpose_b=transposed)
    assert fold([x], batch_norm(product, 6)) == ["matmul", "add"]
    assert fold([x], op("matmul", batch_norm(x, 4), w, transpose_b=transposed)) == ["matmul", "add"]
    assert fold([x], op("multiply", product, constant(2.0, "float32"))) == ["matmul"]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_from_before_a_convolution(groups):
    x = var("x", 1, 4, 6, 6)
    w = constant(random(0, 8, 4 // groups, 3, 3))
    assert fold([x], op("nn.conv2d", batch_norm(x, 4), w, groups=groups)) == ["nn.conv2d", "add"]
    padded = op("nn.conv2d", batch_norm(x, 4), w, groups=groups, padding=(1, 1, 1, 1))
    assert fold([x], padded) == ["multiply", "add", "nn.conv2d"]
    scaled = op("multiply", x, constant(random(2, 4, 1, 1)))
    assert fold([x], op("nn.conv2d", scaled, w, groups=groups, padding=(1, 1, 1, 1))) == ["nn.conv2d"]


def test_results_read_elsewhere_are_not_folded():
    x = var("x", 1, 4, 6, 6)
    conv = op("nn.conv2d", x, constant(random(0, 4, 4, 1, 1)))
    both = Tuple((conv, batch_norm(conv, 4)))
    assert sorted(fold([x], both)) == ["add", "multiply", "nn.conv2d"]


def test_what_does_not_fit_stays():
    x = var("x", 1, 4, 6, 6)
    conv = op("nn.conv2d", x, constant(random(0, 4, 4, 1, 1)))
    assert fold([x], op("multiply", conv, constant(random(1, 6)))) == ["nn.conv2d", "multiply"]
    growing = op("multiply", conv, constant(random(1, 2, 4, 1, 1)))
    assert fold([x], growing) == ["nn.conv2d", "multiply"]
    assert fold([x], batch_norm(op("nn.relu", x), 4)) == ["nn.relu", "multiply", "add"]


def test_shifts_add_up():
    x = var("x", 5, 4)
    twice = op("add", op("add", x, constant(random(0, 4))), constant(1.0, "float32"))
    assert fold([x], twice) == ["add"]
    wide = op("add", op("add", x, constant(random(0, 5, 1))), constant(random(1, 4)))
    assert fold([x], wide) == ["add", "add"]


def test_computed_statistics_are_left_to_a_later_pass():
    x, s = var("x", 2, 3, 4, 4), var("s", 3)
    positive = op("add", op("abs", s), constant(0.5, "float32"))
    assert "nn.batch_norm" in fold([x, s], op("nn.batch_norm", x, s, s, s, positive))
