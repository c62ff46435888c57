"""Every rule of canonicalisation, before and after."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tests.graph.passes.checking import assert_becomes, assert_same_ir, program
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, If, Let, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.passes.canonicalize import RULES, canonicalize, inline_lets
from tilewright.ir.function import IRModule

X = "f32[2, 3]"
PAIRS = [
    ("return reshape(reshape(x, shape=(6,)), shape=(3, 2))", "return reshape(x, shape=(3, 2))", X),
    ("return reshape(x, shape=(2, 3))", "return x", X),
    (
        "return transpose(transpose(x, axes=(1, 2, 0)), axes=(1, 2, 0))",
        "return transpose(x, axes=(2, 0, 1))",
        "f32[2, 3, 4]",
    ),
    ("return transpose(x, axes=(0, 1))", "return x", X),
    ("return transpose(x, axes=(1, 0, 2))", "return reshape(x, shape=(3, 1, 4))", "f32[1, 3, 4]"),
    ("return cast(x, dtype=float32)", "return x", X),
    ("return cast(cast(x, dtype=float64), dtype=float16)", "return cast(x, dtype=float16)", X),
    ("return cast(cast(x, dtype=int32), dtype=float32)", "return cast(cast(x, dtype=int32), dtype=float32)", X),
    ("return cast(cast(x, dtype=float32), dtype=int64)", "return cast(cast(x, dtype=float32), dtype=int64)", "i64[2]"),
    ("return cast(cast(x, dtype=int64), dtype=int32)", "return x", "i32[2]"),
    ("return pad(x, before=(0, 0), after=(0, 0))", "return x", X),
    ("return slice(x, begin=(0, 0), end=(2, 3), strides=(1, 1))", "return x", X),
    (
        "return slice(slice(x, begin=(1,), end=(9,), strides=(2,)), begin=(1,), end=(4,), strides=(2,))",
        "return slice(x, begin=(3,), end=(8,), strides=(4,))",
        "f32[10]",
    ),
    (
        "return slice(slice(x, begin=(9,), end=(-1,), strides=(-1,)), begin=(1,), end=(4,), strides=(1,))",
        "return slice(slice(x, begin=(9,), end=(-1,), strides=(-1,)), begin=(1,), end=(4,), strides=(1,))",
        "f32[10]",
    ),
    (
        "return slice(concatenate(x, nn.relu(x), axis=1), begin=(1, 4), end=(2, 6), strides=(1, 1))",
        "return slice(nn.relu(x), begin=(1, 1), end=(2, 3), strides=(1, 1))",
        X,
    ),
    (
        "return slice(concatenate(x, x, axis=1), begin=(0, 2), end=(2, 4), strides=(1, 1))",
        "return slice(concatenate(x, x, axis=1), begin=(0, 2), end=(2, 4), strides=(1, 1))",
        X,
    ),
    ("return tile(x, repeats=(1, 1))", "return x", X),
    ('return where(constant([True, True, True], "bool"), x, constant([0.0], "float32"))', "return x", X),
    ('return where(constant([[False], [False]], "bool"), constant([0.0], "float32"), x)', "return x", X),
    ("return broadcast_to(x, shape=(2, 3))", "return x", X),
    ("return concatenate(x, axis=1)", "return x", X),
    (
        "return concatenate(x, slice(x, begin=(0, 0), end=(0, 3), strides=(1, 1)), axis=0)",
        "return x",
        X,
    ),
    ("return split(x, sizes=(1, 2), axis=1)[1]", "return slice(x, begin=(0, 1), end=(2, 3), strides=(1, 1))", X),
    ("return (x, nn.relu(x))[0]", "return x", X),
    (
        'return add(x, broadcast_to(constant([1.5], "float32"), shape=(2, 3)))',
        'return add(x, constant([1.5], "float32"))',
        X,
    ),
    ('return add(x, constant(0.0, "float32"))', "return x", X),
    ('return add(constant([[[0.0]]], "float32"), x)', 'return add(constant([[[0.0]]], "float32"), x)', X),
    ('return subtract(x, constant(0.0, "float32"))', "return x", X),
    ('return multiply(constant(1.0, "float32"), x)', "return x", X),
    ('return divide(x, constant(1.0, "float32"))', "return x", X),
    (
        'return divide(x, constant([8.0, -0.5, 1.0], "float32"))',
        'return multiply(x, constant([0.125, -2.0, 1.0], "float32"))',
        X,
    ),
    ('return divide(x, constant(3.0, "float32"))', 'return divide(x, constant(3.0, "float32"))', X),
    ('return power(x, constant(1.0, "float32"))', "return x", X),
    ('return power(x, constant(2.0, "float32"))', "return multiply(x, x)", X),
    ('return power(x, constant(3.0, "float32"))', "return multiply(multiply(x, x), x)", X),
    ('return power(x, constant(-1.0, "float32"))', "return reciprocal(x)", X),
    ('return power(x, constant(0.7, "float32"))', 'return power(x, constant(0.7, "float32"))', X),
    ("return negative(negative(x))", "return x", X),
    ("return reciprocal(sqrt(x))", "return rsqrt(x)", X),
    ("return logical_not(logical_not(x))", "return x", "bool[2]"),
    ('return maximum(x, constant(0.0, "float32"))', "return nn.relu(x)", X),
    (
        'return minimum(maximum(x, constant(-1.0, "float32")), constant(6.0, "float32"))',
        "return clip(x, minimum=-1.0, maximum=6.0)",
        X,
    ),
    ("return clip(nn.relu(x), minimum=-3.0, maximum=6.0)", "return clip(x, minimum=0.0, maximum=6.0)", X),
    ("return nn.relu(clip(x, minimum=-3.0))", "return nn.relu(x)", X),
    ("return clip(clip(x, maximum=1.0), minimum=2.0)", "return clip(x, minimum=2.0, maximum=2.0)", X),
    ("return clip(x)", "return x", X),
    ("return mean(x, axes=(0,), keepdims=True)", "return x", "f32[1, 3]"),
    ("return sum(x, axes=(1,))", "return reshape(x, shape=(2, 3))", "f32[2, 1, 3]"),
    ("return matmul(x, transpose(x, axes=(1, 0)))", "return matmul(x, x, transpose_b=True)", X),
    (
        'return matmul(constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "float32"), x, transpose_b=True)',
        """
        y = matmul(x, constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "float32"), transpose_b=True)
        return transpose(y, axes=(1, 0))
        """,
        X,
    ),
    (
        'return matmul(constant([[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]], "float32"), x, transpose_b=True)',
        """
        y = matmul(x, constant([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]], "float32"), transpose_b=True)
        return transpose(reshape(y, shape=(4, 2, 3)), axes=(1, 2, 0))
        """,
        "f32[4, 1]",
    ),
    ("return matmul(transpose(x, axes=(1, 0)), x, transpose_a=True)", "return matmul(x, x)", "f32[3, 3]"),
]


@pytest.mark.parametrize(("before", "after", "kind"), PAIRS)
def test_rules(before, after, kind):
    result = assert_becomes(canonicalize, before, after, x=kind)
    assert infer_types(result) is result


def test_padding_becomes_part_of_the_convolution():
    kinds = {"x": "f32[1, 2, 4, 4]", "w": "f32[3, 2, 3, 3]"}
    padded = "return nn.conv2d(pad(x, before=(0, 0, 1, 2), after=(0, 0, 0, 1)), w, padding=(1, 0, 0, 0))"
    assert_becomes(canonicalize, padded, "return nn.conv2d(x, w, padding=(2, 2, 0, 1))", **kinds)
    for other in ("(0, 1, 1, 2), after=(0, 0, 0, 1)", "(0, 0, 1, 2), after=(0, 0, 0, 1), value=1.0"):
        kinds["w"] = "f32[3, 3, 3, 3]" if other.startswith("(0, 1") else "f32[3, 2, 3, 3]"
        kept = f"return nn.conv2d(pad(x, before={other}), w)"
        assert_becomes(canonicalize, kept, kept, **kinds)


def test_a_convolution_along_a_column_is_one_along_a_row():
    kinds = {"x": "float32[2, 4, 9, 1]", "w": "float32[6, 2, 3, 1]"}
    options = "strides=(2, 1), dilation=(2, 1), padding=(1, 0, 2, 0), groups=2"
    turned = "strides=(1, 2), dilation=(1, 2), padding=(0, 1, 0, 2), groups=2"
    row = f"nn.conv2d(reshape(x, shape=(2, 4, 1, 9)), reshape(w, shape=(6, 2, 1, 3)), {turned})"
    after = f"return reshape({row}, shape=(2, 6, 4, 1))"
    assert_becomes(canonicalize, f"return nn.conv2d(x, w, {options})", after, **kinds)


def test_a_convolution_along_a_column_of_open_length_is_one_along_a_row():
    kinds = {"x": "float32[2, 4, n, 1]", "w": "float32[6, 4, 3, 1]"}
    row = "nn.conv2d(reshape(x, shape=(2, 4, 1, n)), reshape(w, shape=(6, 4, 1, 3)), padding=(0, 1, 0, 1))"
    before, after = "return nn.conv2d(x, w, padding=(1, 0, 1, 0))", f"return reshape({row}, shape=(2, 6, n, 1))"
    changed = canonicalize(program(before, **kinds))
    assert_same_ir(changed, program(after, **kinds))
    arrays = random(0, 2, 4, 7, 1), random(1, 6, 4, 3, 1)
    np.testing.assert_allclose(evaluate(changed, *arrays), evaluate(program(before, **kinds), *arrays), rtol=1e-5)


@pytest.mark.parametrize(
    ("data", "weight", "padding"),
    [
        ("float32[2, 4, 9, 2]", "float32[6, 4, 3, 1]", (0, 0, 0, 0)),
        ("float32[2, 4, 9, 1]", "float32[6, 4, 3, 3]", (0, 1, 0, 1)),
        ("float32[2, 4, 9, 1]", "float32[6, 4, 3, 1]", (0, 1, 0, 0)),
        ("float32[2, 4, 1, 1]", "float32[6, 4, 1, 1]", (0, 0, 0, 0)),
    ],
)
def test_other_convolutions_keep_their_axes(data, weight, padding):
    kept = f"return nn.conv2d(x, w, padding={padding})"
    assert_becomes(canonicalize, kept, kept, x=data, w=weight)


def test_rule_sources_are_known():
    assert all("canonicalize.py" in rule.source or "rewrite.py" in rule.source for rule in RULES)


def test_lets_of_values_are_inlined_and_lets_of_functions_stay():
    x, c = var("x", 4), var("c", dtype="bool")
    y, z, f, p = Var("y"), Var("z"), Var("f"), Var("p", x.annotation)
    inner = Let(z, op("exp", y), op("add", z, y))
    body = Let(y, op("nn.relu", x), If(c, inner, Let(f, Function("", (p,), p), y)))
    main = infer_types(function([x, c], body))
    result = inline_lets(main)
    lets = [item for item in post_order(result) if isinstance(item, Let)]
    assert [item.var for item in lets] == [f]
    data = random(0, 4)
    for condition in (True, False):
        expected = evaluate(main, data, np.asarray(condition))
        np.testing.assert_array_equal(evaluate(result, data, np.asarray(condition)), expected)
    module = canonicalize(IRModule([main]))
    np.testing.assert_array_equal(evaluate(module, data, np.asarray(True)), evaluate(main, data, np.asarray(True)))


def test_spans_stay_on_rewritten_nodes():
    x = var("x", 2, 3)
    main = infer_types(IRModule([function([x], op("maximum", x, op("subtract", x, x, span="s"), span="kept"))]))
    assert canonicalize(main)["main"].body.span.source == "kept"
    relu = op("power", x, op("multiply", x, x), span="p")
    assert canonicalize(infer_types(IRModule([function([x], relu)])))["main"].body.span.source == "p"
