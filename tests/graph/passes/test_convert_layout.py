"""Layout conversion: which operators run channels last, and where transposes remain."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, inputs_for, op, random, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Tuple, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.convert_layout import convert_layout
from tilewright.graph.pipeline import optimize
from tilewright.ir.function import IRModule


def converted(params, body):
    """Operators of the converted and simplified program, in order; the meaning is checked on the way."""
    module = infer_types(IRModule([function(params, body)]))
    arguments = inputs_for(module["main"])
    expected = evaluate(module, *arguments)
    plain = convert_layout(module, GraphOptions(layout="NHWC"))
    infer_types(plain)
    result = optimize(module, GraphOptions(layout="NHWC", fuse=False))
    for other in (plain, result):
        actual = evaluate(other, *arguments)
        for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (actual, expected)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    order = post_order(result["main"])
    return [item.callee.name for item in order if isinstance(item, Call) and isinstance(item.callee, Operator)]


def conv(x, outputs, inputs, seed=0, kernel=3, **attributes):
    pad = kernel // 2
    return op("nn.conv2d", x, constant(random(seed, outputs, inputs, kernel, kernel)), padding=(pad,) * 4, **attributes)


X = var("x", 1, 4, 6, 6)


def test_only_the_border_transposes_remain():
    body = op("nn.relu", op("add", conv(X, 8, 4), constant(random(1, 8, 1, 1))))
    body = op("nn.max_pool2d", body, kernel=(2, 2), strides=(2, 2))
    body = op("add", conv(body, 8, 8, seed=2), body)
    names = converted([X], body)
    assert names.count("transpose") == 2
    assert names[0] == names[-1] == "transpose"


def test_classifier_head_needs_no_transpose_at_the_end():
    pooled = op("mean", conv(X, 8, 4), axes=(2, 3), keepdims=True)
    logits = op("matmul", op("reshape", pooled, shape=(1, 8)), constant(random(3, 8, 5)))
    assert converted([X], logits).count("transpose") == 1
    flat = op("mean", conv(X, 8, 4), axes=(2, 3))
    assert converted([X], flat).count("transpose") == 1


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups(groups):
    assert converted([X], conv(X, 8, 4 // groups, groups=groups)) == ["transpose", "nn.conv2d", "transpose"]


def test_equal_dimensions_are_not_confused():
    square = var("x", 4, 4, 4, 4)
    names = converted([square], op("nn.softmax", op("nn.relu", conv(square, 4, 4)), axis=1))
    assert names == ["transpose", "nn.conv2d", "nn.relu", "nn.softmax", "transpose"]


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("nn.softmax", {"axis": 1}),
        ("cumsum", {"axis": 2}),
        ("sum", {"axes": (1,), "keepdims": True}),
        ("max", {"axes": (0, 3), "keepdims": True}),
        ("pad", {"before": (0, 1, 2, 3), "after": (0, 0, 1, 0)}),
        ("slice", {"begin": (0, 1, 0, 2), "end": (1, 8, 6, 6), "strides": (1, 2, 1, 1)}),
        ("tile", {"repeats": (1, 2, 1, 3)}),
        ("argmax", {"axis": 1, "keepdims": True}),
        ("nn.avg_pool2d", {"kernel": (3, 2), "strides": (2, 1), "padding": (1, 0, 1, 1)}),
        ("clip", {"minimum": 0.5}),
    ],
)
def test_operators_that_keep_the_order(name, attributes):
    names = converted([X], op("negative", op(name, conv(X, 8, 4), **attributes)))
    assert names[:2] == ["transpose", "nn.conv2d"]
    assert names[2] == name
    # What moves only a dimension of 1 is a reshape.
    assert names[-1] in ("transpose", "reshape")
    assert "transpose" not in names[2:-1]


def test_reductions_that_drop_dimensions():
    c = conv(X, 8, 4)
    assert converted([X], op("sum", c, axes=(1,))).count("transpose") == 1
    assert converted([X], op("argmax", c, axis=1, keepdims=False)).count("transpose") == 1
    assert converted([X], op("sum", c, axes=(0,))).count("transpose") == 2


def test_concatenate_and_take():
    c = conv(X, 8, 4)
    both = op("concatenate", c, conv(X, 4, 4, seed=3), X, axis=1)
    assert converted([X], both).count("transpose") == 2
    rows = op("take", c, constant([1, 3], "int64"), axis=2)
    assert converted([X], rows) == ["transpose", "nn.conv2d", "take", "transpose"]


def test_broadcast_operands_of_every_rank():
    row, table = var("row", 6), var("table", 8, 1, 6)
    c = conv(X, 8, 4)
    body = op("add", op("multiply", op("subtract", c, row), table), constant(random(5, 8, 6, 6)))
    names = converted([X, row, table], op("where", op("greater", body, constant(0.0, "float32")), body, row))
    assert "nn.conv2d" in names


def test_batch_norm_moves_its_axis():
    c = conv(X, 8, 4)
    s = var("s", 8)
    names = converted([X, s], op("nn.batch_norm", op("nn.relu", c), s, s, s, op("abs", s)))
    assert names.count("transpose") == 2


def test_images_normalised_by_themselves_stay_channels_last():
    scale, bias = constant(random(4, 8, 1, 1)), constant(random(5, 8, 1, 1))
    normal = op("nn.layer_norm", conv(X, 8, 4), scale, bias, axis=2)
    assert converted([X], conv(op("nn.relu", normal), 8, 8)).count("transpose") == 2


def test_transposes_of_the_model_cancel():
    body = op("transpose", op("nn.relu", conv(X, 8, 4)), axes=(0, 2, 3, 1))
    assert converted([X], body) == ["transpose", "nn.conv2d", "nn.relu"]
    last = var("y", 1, 6, 6, 4)
    around = conv(op("transpose", last, axes=(0, 3, 1, 2)), 8, 4)
    assert converted([last], op("transpose", around, axes=(0, 2, 3, 1))) == ["nn.conv2d"]


def test_computed_weights():
    w = var("w", 8, 4, 3, 3)
    names = converted([X, w], op("nn.conv2d", X, op("nn.relu", w)))
    assert names.count("transpose") == 3


def test_networks_without_convolutions_do_not_change():
    pooled = op("nn.max_pool2d", X, kernel=(2, 2))
    assert converted([X], pooled) == ["nn.max_pool2d"]
    shared = op("nn.conv2d_transpose", conv(X, 8, 4), constant(random(6, 8, 2, 3, 3)))
    assert converted([X], Tuple((shared, pooled))).count("transpose") == 2
    module = infer_types(IRModule([function([X], pooled)]))
    assert convert_layout(module, GraphOptions(layout="NCHW")) is module
