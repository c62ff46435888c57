"""Operations that JAX does not write, or not in this form: text by hand against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.stablehlo.helpers import body, run

X = np.array([[1.5, -2.5, 0.0], [3.0, -0.5, 2.5]], np.float32)


def _unary(operation, kind="2x3xf32", result=None):
    result = result or kind
    types = f"tensor<{kind}>" if result == kind else f"(tensor<{kind}>) -> tensor<{result}>"
    return body(
        f"(%arg0: tensor<{kind}>) -> tensor<{result}>",
        f"%0 = stablehlo.{operation} %arg0 : {types}",
        f"return %0 : tensor<{result}>",
    )


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("negate", -X),
        ("floor", np.floor(X)),
        ("round_nearest_even", np.round(X)),
        ("round_nearest_afz", np.trunc(X + np.copysign(0.5, X))),
        ("logistic", 1 / (1 + np.exp(-X))),
        ("log_plus_one", np.log1p(np.abs(X))),
        ("cbrt", np.cbrt(X)),
        ("sign", np.sign(X)),
    ],
)
def test_functions_of_one_operand(operation, expected):
    data = np.abs(X) if operation == "log_plus_one" else X
    np.testing.assert_allclose(run(_unary(operation), data), expected, rtol=1e-5)


def test_whole_numbers_wrap_and_division_by_zero_is_defined():
    text = body(
        "(%a: tensor<4xi32>, %b: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>, tensor<4xi32>)",
        "%0 = stablehlo.multiply %a, %b : tensor<4xi32>",
        "%1 = stablehlo.divide %a, %b : tensor<4xi32>",
        "%2 = stablehlo.remainder %a, %b : tensor<4xi32>",
        "return %0, %1, %2 : tensor<4xi32>, tensor<4xi32>, tensor<4xi32>",
    )
    product, quotient, rest = run(text, np.array([2**30, -7, 7, 5], np.int32), np.array([8, 2, -2, 0], np.int32))
    assert product.tolist() == [0, -14, -14, 0]
    assert quotient[1:].tolist() == [-3, -3, -1]
    assert rest[1:].tolist() == [-1, 1, 5]


def test_tuples():
    text = body(
        "(%a: tensor<2xf32>) -> tensor<2xf32>",
        "%0 = stablehlo.tuple %a, %a : tuple<tensor<2xf32>, tensor<2xf32>>",
        "%1 = stablehlo.get_tuple_element %0[1] : (tuple<tensor<2xf32>, tensor<2xf32>>) -> tensor<2xf32>",
        "%2 = stablehlo.optimization_barrier %1 : tensor<2xf32>",
        "return %2 : tensor<2xf32>",
    )
    np.testing.assert_array_equal(run(text, np.ones(2, np.float32)), np.ones(2, np.float32))


def test_a_comparator_of_its_own():
    """By the distance from two, the greatest first."""
    text = body(
        "(%a: tensor<2x5xf32>, %b: tensor<2x5xi32>) -> (tensor<2x5xf32>, tensor<2x5xi32>)",
        '%0:2 = "stablehlo.sort"(%a, %b) <{dimension = 1 : i64, is_stable = true}> ({',
        "^bb0(%p: tensor<f32>, %q: tensor<f32>, %r: tensor<i32>, %s: tensor<i32>):",
        "  %two = stablehlo.constant dense<2.0> : tensor<f32>",
        "  %1 = stablehlo.subtract %p, %two : tensor<f32>",
        "  %2 = stablehlo.abs %1 : tensor<f32>",
        "  %3 = stablehlo.subtract %q, %two : tensor<f32>",
        "  %4 = stablehlo.abs %3 : tensor<f32>",
        "  %5 = stablehlo.compare GT, %2, %4 : (tensor<f32>, tensor<f32>) -> tensor<i1>",
        "  stablehlo.return %5 : tensor<i1>",
        "}) : (tensor<2x5xf32>, tensor<2x5xi32>) -> (tensor<2x5xf32>, tensor<2x5xi32>)",
        "return %0#0, %0#1 : tensor<2x5xf32>, tensor<2x5xi32>",
    )
    x = np.array([[1, 4, 3, -2, 2], [0, 1, 2, 3, 4]], np.float32)
    places = np.broadcast_to(np.arange(5, dtype=np.int32), (2, 5)).copy()
    order = np.argsort(-np.abs(x - 2), axis=1, kind="stable")
    values, found = run(text, x, places)
    np.testing.assert_array_equal(found, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


def test_map_and_reduce_in_both_forms():
    text = body(
        "(%a: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2xf32>, tensor<3xf32>)",
        "%zero = stablehlo.constant dense<0.0> : tensor<f32>",
        '%0 = "stablehlo.map"(%a, %a) <{dimensions = array<i64: 0, 1>}> ({',
        "^bb0(%p: tensor<f32>, %q: tensor<f32>):",
        "  %1 = stablehlo.multiply %p, %q : tensor<f32>",
        "  stablehlo.return %1 : tensor<f32>",
        "}) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>",
        "%2 = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [1] : "
        "(tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>",
        '%3 = "stablehlo.reduce"(%a, %zero) <{dimensions = array<i64: 0>}> ({',
        "^bb0(%p: tensor<f32>, %q: tensor<f32>):",
        "  %4 = stablehlo.maximum %q, %p : tensor<f32>",
        "  stablehlo.return %4 : tensor<f32>",
        "}) : (tensor<2x3xf32>, tensor<f32>) -> tensor<3xf32>",
        "return %0, %2, %3 : tensor<2x3xf32>, tensor<2xf32>, tensor<3xf32>",
    )
    squares, sums, greatest = run(text, X)
    np.testing.assert_array_equal(squares, X * X)
    np.testing.assert_allclose(sums, X.sum(1))
    np.testing.assert_array_equal(greatest, np.maximum(X.max(0), 0))


def test_batch_normalisation():
    kinds = "tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>"
    text = body(
        "(%a: tensor<2x3xf32>, %s: tensor<3xf32>, %o: tensor<3xf32>) -> "
        "(tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>)",
        '%0:3 = "stablehlo.batch_norm_training"(%a, %s, %o) <{epsilon = 1.0e-3 : f32, feature_index = 1 : i64}> : '
        f"({kinds}) -> ({kinds})",
        f"return %0#0, %0#1, %0#2 : {kinds}",
    )
    scale, offset = np.array([1, 2, 3], np.float32), np.array([0.5, 0, -1], np.float32)
    done, mean, variance = run(text, X, scale, offset)
    np.testing.assert_allclose(mean, X.mean(0), rtol=1e-5)
    np.testing.assert_allclose(variance, X.var(0), rtol=1e-5)
    np.testing.assert_allclose(done, (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-3) * scale + offset, rtol=1e-4)


@pytest.mark.parametrize(
    ("literal", "kind", "expected"),
    [
        ("dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>", "2x2xi32", [[1, 2], [3, 4]]),
        ("dense<7> : tensor<2x2xi32>", "2x2xi32", [[7, 7], [7, 7]]),
        ("dense<[true, false]> : tensor<2xi1>", "2xi1", [True, False]),
        ("dense<[0x7F800000, -1.5]> : tensor<2xf32>", "2xf32", [np.inf, -1.5]),
        ('dense<"0x0000803F00000040"> : tensor<2xf32>', "2xf32", [1.0, 2.0]),
        ("dense<> : tensor<0x3xf32>", "0x3xf32", np.empty((0, 3))),
        ("dense_resource<part> : tensor<2xf32>", "2xf32", [1.0, 2.0]),
    ],
)
def test_constants(literal, kind, expected):
    text = body(f"() -> tensor<{kind}>", f"%0 = stablehlo.constant {literal}", f"return %0 : tensor<{kind}>")
    footer = '{-# dialect_resources: { builtin: { part: "0x040000000000803F00000040" } } #-}\n'
    np.testing.assert_array_equal(run(text + footer), np.array(expected))


def test_padding_between_and_cut_off():
    text = body(
        "(%a: tensor<2x3xf32>) -> tensor<4x3xf32>",
        "%z = stablehlo.constant dense<9.0> : tensor<f32>",
        "%0 = stablehlo.pad %a, %z, low = [1, -1], high = [0, -1], interior = [1, 1] : "
        "(tensor<2x3xf32>, tensor<f32>) -> tensor<4x3xf32>",
        "return %0 : tensor<4x3xf32>",
    )
    wide = np.full((3, 5), 9.0, np.float32)
    wide[::2, ::2] = X
    expected = np.concatenate([np.full((1, 3), 9.0, np.float32), wide[:, 1:4]])
    np.testing.assert_array_equal(run(text, X), expected)
