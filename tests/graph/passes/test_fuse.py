"""Fusion: which operators end up in one kernel, and that the pass cannot make wrong groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.generate import random_module
from tests.graph.helpers import function, inputs_for, op, random, var
from tilewright.compiler import Compilation
from tilewright.graph.choices import GraphChoices
from tilewright.graph.interpreter import evaluate, to_bfloat16
from tilewright.graph.ir.expr import Call, Constant, Function, If, Tuple, TupleGet, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import MAX_GROUP, fuse, is_primitive, primitive_functions
from tilewright.graph.views import is_view
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.target import Target


def fused(params, body, target=None):
    """The fused module, and the names of its kernels."""
    module = infer_types(IRModule([function(params, body)]))
    result = fuse(module, GraphOptions(target=target))
    arguments = inputs_for(module["main"])
    actual, expected = evaluate(result, *arguments), evaluate(module, *arguments)
    for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (actual, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return result, [str(item.notes["name"]) for item in primitive_functions(result)]


def conv(x, outputs, seed=0, span=None, **attributes):
    channels = 4
    return op(
        "nn.conv2d", x, constant(random(seed, outputs, channels, 3, 3)), padding=(1, 1, 1, 1), span=span, **attributes
    )


X = var("x", 1, 4, 6, 6)


def test_convolution_takes_its_epilogue():
    body = op("nn.relu", op("add", conv(X, 4, span="conv"), constant(random(1, 4, 1, 1)), span="bias"), span="relu")
    module, names = fused([X], body)
    assert names == ["fused_nn_conv2d_add_nn_relu"]
    (primitive,) = primitive_functions(module)
    assert primitive.notes["nodes"] == ("conv", "bias", "relu")
    assert primitive.notes["primitive"] is True
    assert primitive.result_type is X.annotation
    assert module["main"].body.span.source == "relu"


def channels_last(x, weight, **attributes):
    turned = op("transpose", x, axes=(0, 2, 3, 1))
    given = {"padding": (1, 1, 1, 1), "data_layout": "NHWC", "kernel_layout": "HWIO", **attributes}
    return turned, op("nn.conv2d", turned, constant(weight), **given)


def test_few_channels_change_their_layout_in_the_convolution():
    image = var("image", 1, 3, 6, 6)
    turned, product = channels_last(image, random(0, 3, 3, 3, 8))
    assert fused([image], op("nn.relu", product))[1] == ["fused_transpose_nn_conv2d_nn_relu"]
    bare = channels_last(image, random(0, 3, 3, 3, 8), padding=(0, 0, 0, 0))[1]
    assert fused([image], bare)[1] == ["fused_transpose_nn_conv2d"]
    # Not where others read the turned image, or channels are many.
    separate = ["transpose", "nn_conv2d", "nn_relu"]
    assert sorted(fused([image], Tuple((product, op("nn.relu", turned))))[1]) == sorted(separate)
    deep = var("deep", 1, 16, 6, 6)
    assert fused([deep], channels_last(deep, random(0, 3, 3, 16, 8))[1])[1] == separate[:2]


def separable(height, outputs, batch=1, **attributes):
    x = var("x", batch, height, height, 8)
    given = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    first = op("nn.conv2d", x, constant(random(0, 3, 3, 1, 8)), groups=8, padding=(1, 1, 1, 1), **given)
    middle = op("nn.relu", first)
    last = op("nn.conv2d", middle, constant(random(1, 1, 1, 8, outputs)), **{**given, **attributes})
    return x, middle, last


def kernels_for(target, x, body):
    return [
        str(item.notes["name"]) for item in primitive_functions(fuse(typed([x], body), GraphOptions(target=target)))
    ]


def typed(params, body):
    return infer_types(IRModule([function(params, body)]))


def test_depthwise_convolutions_join_the_pointwise_one():
    target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(l2_bytes=32 << 10)
    x, middle, last = separable(16, 24)
    together, apart = (
        ["fused_nn_conv2d_nn_relu_nn_conv2d_nn_relu"],
        ["fused_nn_conv2d_nn_relu", "fused_nn_conv2d_nn_relu_1"],
    )
    assert kernels_for(target, x, op("nn.relu", last)) == together
    data = random(3, 1, 16, 16, 8)
    module = typed([x], op("nn.relu", last))
    np.testing.assert_allclose(
        evaluate(fuse(module, GraphOptions(target=target)), data), evaluate(module, data), rtol=1e-5, atol=1e-6
    )
    # Not without a target, for results that stay in the cache, for weights that do not, or for several readers.
    assert kernels_for(None, x, op("nn.relu", last)) == apart
    assert kernels_for(target.replace(l2_bytes=1 << 20), x, op("nn.relu", last)) == apart
    x, _, last = separable(16, 1024)
    assert kernels_for(target, x, op("nn.relu", last)) == apart
    x, middle, last = separable(16, 8)
    assert len(kernels_for(target, x, Tuple((last, op("exp", middle))))) == 3
    x, _, last = separable(16, 24, strides=(2, 2))
    assert kernels_for(target, x, op("nn.relu", last)) == apart


def expanded(height, channels, stride=1, batch=1):
    x = var("x", batch, height, height, 8)
    given = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    middle = op("nn.relu", op("nn.conv2d", x, constant(random(0, 1, 1, 8, channels)), **given))
    weights, strides = constant(random(1, 3, 3, 1, channels)), (stride, stride)
    last = op("nn.conv2d", middle, weights, groups=channels, strides=strides, padding=(1, 1, 1, 1), **given)
    return x, middle, last


def test_pointwise_convolutions_join_the_depthwise_one():
    """On Arm, where a vector of channels of what is in between stays near and all of it does not."""
    target = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1").replace(l1_bytes=16 << 10, l2_bytes=64 << 10)
    together, apart = (
        ["fused_nn_conv2d_nn_relu_nn_conv2d_nn_relu"],
        ["fused_nn_conv2d_nn_relu", "fused_nn_conv2d_nn_relu_1"],
    )
    x, middle, last = expanded(16, 24)
    assert kernels_for(target, x, op("nn.relu", last)) == together
    data = random(3, 1, 16, 16, 8)
    module = typed([x], op("nn.relu", last))
    np.testing.assert_allclose(
        evaluate(fuse(module, GraphOptions(target=target)), data), evaluate(module, data), rtol=1e-5, atol=1e-6
    )
    assert len(kernels_for(target, x, Tuple((last, op("exp", middle))))) == 3
    # Not where all of it stays near, nor on x86.
    assert kernels_for(target.replace(l2_bytes=1 << 20), x, op("nn.relu", last)) == apart
    skylake = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(l2_bytes=64 << 10)
    assert kernels_for(skylake, x, op("nn.relu", last)) == apart
    # Large images only where reading them is most of the work; channels in whole vectors.
    for stride, expected in ((1, apart), (2, together)):
        x, _, last = expanded(40, 24, stride)
        assert kernels_for(target, x, op("nn.relu", last)) == expected
    x, _, last = expanded(16, 26)
    assert kernels_for(target, x, op("nn.relu", last)) == apart
    # Of several cores, each keeps its own channels, if there are enough for all.
    x, _, last = expanded(16, 128)
    for cores, expected in ((1, apart), (2, together), (4, apart)):
        assert kernels_for(target.replace(l2_bytes=1 << 20, cores=cores), x, op("nn.relu", last)) == expected


def test_an_open_number_of_images_joins_as_one_image_does():
    """Other sizes that are open do not."""
    target = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1").replace(l1_bytes=16 << 10, l2_bytes=32 << 10)
    batch = Symbol("n")
    for x, _, last in (separable(40, 24, batch), expanded(16, 24, batch=batch)):
        assert kernels_for(target, x, op("nn.relu", last)) == ["fused_nn_conv2d_nn_relu_nn_conv2d_nn_relu"]
    for x, _, last in (separable(Symbol("h"), 24), expanded(Symbol("h"), 24)):
        assert len(kernels_for(target, x, op("nn.relu", last))) == 2


def test_what_was_measured_goes_before_the_estimates():
    target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512")
    given = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    image, x = var("image", 1, 3, 6, 6), var("x", 1, 12, 12, 8)
    turned = op("transpose", image, span="turn", axes=(0, 2, 3, 1))
    layout = op("nn.conv2d", turned, constant(random(0, 3, 3, 3, 8)), span="conv", **given)
    depthwise = op("nn.conv2d", x, constant(random(0, 3, 3, 1, 8)), span="depth", groups=8, **given)
    last = op("nn.conv2d", op("nn.relu", depthwise), constant(random(1, 1, 1, 8, 24)), span="point", **given)
    for param, body, nodes, default in ((image, layout, ("turn", "conv"), 1), (x, last, ("depth", "point"), 2)):
        module, asking = typed([param], body), GraphChoices()
        assert len(primitive_functions(fuse(module, GraphOptions(target=target, choices=asking)))) == default
        (question,) = asking.asked.values()
        assert question.nodes == nodes and question.options == ("apart", "together")
        data = random(3, *param.annotation.static_shape)
        for answer, count in (("apart", 2), ("together", 1), ("elsewhere", default)):
            made = fuse(module, GraphOptions(target=target, choices=GraphChoices({question.key: answer})))
            assert len(primitive_functions(made)) == count
            np.testing.assert_allclose(evaluate(made, data), evaluate(module, data), rtol=1e-5, atol=1e-6)
        # For other targets there is nothing to ask.
        for other in (None, Target("cuda -arch=sm_90")):
            fuse(module, GraphOptions(target=other, choices=(unasked := GraphChoices({question.key: "apart"}))))
            assert not unasked.asked


def test_residual_add_is_part_of_the_second_convolution():
    first = op("nn.relu", conv(X, 4))
    second = conv(first, 4, seed=2)
    _, names = fused([X], op("nn.relu", op("add", second, first)))
    assert names == ["fused_nn_conv2d_nn_relu", "fused_nn_conv2d_add_nn_relu"]


def test_momentum_is_multiplied_where_it_is_added():
    """On CPUs. What something else reads too, or is a product of two values, has a kernel of its own."""
    a, b, v, w = var("a", 8, 6), var("b", 6, 5), var("v", 8, 5), var("w", 8, 5)
    scaled = op("multiply", v, constant(np.float32(0.5)))
    update = op("add", scaled, op("matmul", a, b))
    _, names = fused([a, b, v], update, Target("llvm"))
    assert names == ["fused_multiply_matmul_add"]
    assert sorted(fused([a, b, v], update)[1]) == ["fused_matmul_add", "multiply"]
    assert len(fused([a, b, v], Tuple((update, op("exp", scaled))), Target("llvm"))[1]) == 3
    assert len(fused([a, b, v, w], op("add", op("multiply", v, w), op("matmul", a, b)), Target("llvm"))[1]) == 2


def test_two_convolutions_meet_in_one_add():
    _, names = fused([X], op("add", conv(X, 4), conv(X, 4, seed=3)))
    assert sorted(names) == ["fused_nn_conv2d_add", "nn_conv2d"]


def test_two_products_of_bytes_that_are_added_share_registers():
    """On GPUs with warp groups, where there are tiles for all multiprocessors; elsewhere one goes to memory."""
    x = var("x", 1, 64, 64, 64, dtype="uint8")

    def product(seed: int):
        weights = np.random.default_rng(seed).integers(-127, 128, (1, 1, 64, 320)).astype(np.int8)
        sums = op("qnn.conv2d", x, constant(weights), constant(np.uint8(0)))
        return op("multiply", op("cast", sums, dtype=FLOAT32), constant(np.float32(0.01 * seed)))

    total = op("nn.relu", op("add", product(1), product(2)))
    names = {text: fused([x], total, Target(text))[1] for text in ("cuda -arch=sm_90a", "cuda -arch=sm_80", "llvm")}
    few = fused([x], total, Target("cuda -arch=sm_90a -num-cores=999"))[1]
    assert len(names["cuda -arch=sm_90a"]) == 1 and names["cuda -arch=sm_90a"][0].count("qnn_conv2d") == 2
    assert len(names["cuda -arch=sm_80"]) == len(names["llvm"]) == len(few) == 2


def test_branches_of_elementwise_operators_join():
    c = conv(X, 4)
    _, names = fused([X], op("multiply", c, op("sigmoid", c)))
    assert names == ["fused_nn_conv2d_sigmoid_multiply"]


def test_a_path_through_another_kernel_does_not_make_a_cycle():
    c = conv(X, 4)
    r = op("nn.relu", c)
    _, names = fused([X], op("add", r, conv(r, 4, seed=4)))
    assert sorted(names) == ["fused_nn_conv2d_add", "fused_nn_conv2d_nn_relu"]


def test_broadcasting_of_the_result_ends_the_group():
    x = var("x", 2, 3)
    product = op("matmul", x, constant(random(0, 3, 4)))
    _, names = fused([x], op("add", product, constant(random(0, 5, 2, 4))))
    assert names == ["matmul", "add"]


def test_injective_chains_and_reductions():
    x = var("x", 4, 6)
    chain = op("transpose", op("multiply", op("exp", x), constant(2.0, "float32")), axes=(1, 0))
    assert fused([x], chain)[1] == ["fused_exp_multiply_transpose"]
    assert fused([x], op("sum", chain, axes=(1,)))[1] == ["fused_exp_multiply_transpose_sum"]
    assert fused([x], op("nn.relu", op("sum", chain, axes=(1,))))[1] == ["fused_exp_multiply_transpose_sum", "nn_relu"]


def test_expensive_work_is_not_repeated():
    x = var("x", 4, 6)
    assert fused([x], op("nn.softmax", op("tanh", x), axis=1))[1] == ["tanh", "nn_softmax"]
    assert fused([x], op("nn.softmax", op("add", x, x), axis=1))[1] == ["fused_add_nn_softmax"]
    row = var("row", 1, 6)
    assert fused([x, row], op("multiply", x, op("sigmoid", row)))[1] == ["sigmoid", "multiply"]
    assert fused([x, row], op("multiply", x, op("nn.relu", row)))[1] == ["fused_nn_relu_multiply"]
    square = var("s", 4, 4)
    e = op("exp", square)
    assert fused([square], op("add", e, op("transpose", e, axes=(1, 0))))[1] == ["exp", "fused_transpose_add"]
    assert fused([square], op("add", e, op("multiply", e, e)))[1] == ["fused_exp_multiply_add"]
    image = var("image", 1, 2, 6, 6)
    pooled = op("nn.max_pool2d", op("sigmoid", image), kernel=(3, 3))
    assert fused([image], pooled)[1] == ["sigmoid", "nn_max_pool2d"]


def test_frames_are_not_taken_of_pieces():
    signal = var("signal", 10)
    frames = constant(np.arange(4)[:, None] * 2 + np.arange(8), "int64")
    padded = op("pad", signal, before=(2,), after=(2,))
    assert fused([signal], op("take", padded, frames, axis=0))[1] == ["pad", "take"]
    few = constant(np.arange(3), "int64")
    assert fused([signal], op("take", padded, few, axis=0))[1] == ["fused_pad_take"]
    assert fused([signal], op("take", op("nn.relu", signal), frames, axis=0))[1] == ["fused_nn_relu_take"]


def test_opaque_operators_are_alone():
    x = var("x", 4, 6)
    _, names = fused([x], op("nn.relu", op("cumsum", op("nn.relu", x), axis=0)))
    assert names == ["nn_relu", "cumsum", "nn_relu_1"]


def test_views_stay_outside():
    x = var("x", 4, 6)
    module, names = fused([x], op("reshape", op("nn.relu", op("reshape", x, shape=(24,))), shape=(2, 12)))
    assert names == ["nn_relu"]
    assert is_view(module["main"].body)
    _, names = fused([x], op("transpose", op("reshape", op("nn.relu", x), shape=(6, 4)), axes=(1, 0)))
    assert names == ["fused_nn_relu_reshape_transpose"]


def test_contiguous_slices_are_views_unless_they_are_results():
    x = var("x", 4, 6)
    doubled = op("add", x, x)
    rows = op("slice", doubled, begin=(1, 0), end=(3, 6), strides=(1, 1))
    other = op("slice", doubled, begin=(0, 0), end=(2, 6), strides=(1, 1))
    products = Tuple((op("matmul", rows, constant(random(0, 6, 2))), op("matmul", other, constant(random(0, 6, 2)))))
    assert fused([x], products)[1] == ["add", "matmul", "matmul_1"]
    assert sorted(fused([x], Tuple((rows, doubled)))[1]) == ["add", "reshape"]
    columns = op("slice", doubled, begin=(0, 1), end=(4, 3), strides=(1, 1))
    assert fused([x], Tuple((op("cumsum", columns, axis=0), doubled)))[1] == ["add", "slice", "cumsum"]


def test_results_have_storage_of_their_own():
    x = var("x", 4)
    r = op("nn.relu", x)
    weight = constant(random(0, 4))
    view = op("reshape", x, shape=(2, 2))
    module, names = fused([x], Tuple((x, weight, view, r, r, op("reshape", r, shape=(4, 1)))))
    assert names == ["reshape", "reshape_1", "reshape_2", "nn_relu", "reshape_3", "reshape_4"]
    assert all(isinstance(item, Call) for item in module["main"].body.items)
    assert fused([x], x)[1] == ["reshape"]


def test_kernels_that_differ_in_a_last_number_are_one():
    x, y = var("x", 1, 5, 5, dtype="int32"), var("y", 1, 5, 5, dtype="int32")

    def window_sum(x, zero_point):
        padded = op("pad", x, before=(0, 1, 1), after=(0, 1, 1))
        rows = [op("slice", padded, begin=(0, row, 0), end=(1, row + 5, 5), strides=(1, 1, 1)) for row in range(2)]
        return op("multiply", op("add", *rows), constant(np.int32(zero_point)))

    module, names = fused([x, y], Tuple((window_sum(x, 3), window_sum(y, 7))))
    assert len(names) == 2
    for primitive in primitive_functions(module):
        assert len(primitive.params) == 2
        assert not [item for item in post_order(primitive.body) if isinstance(item, Constant)]
    main = function([x, y], Tuple((window_sum(x, 3), window_sum(y, 7))))
    compilation = Compilation(infer_types(IRModule([main])), threads=1)
    assert len(compilation.kernels) == 1


@pytest.mark.parametrize("name", ["power", "maximum"])
def test_numbers_that_may_decide_how_a_kernel_computes_stay_inside(name):
    module, _ = fused([X], op(name, op("add", X, constant(np.float32(3.0))), constant(np.float32(2.0))))
    (primitive,) = primitive_functions(module)
    assert len(primitive.params) == 1


def test_numbers_stay_in_the_kernel_and_weights_are_parameters():
    x = var("x", 4)
    module, _ = fused([x], op("add", op("multiply", x, constant(3.0, "float32")), constant(random(0, 4))))
    (primitive,) = primitive_functions(module)
    assert len(primitive.params) == 2
    inside = [item for item in post_order(primitive.body) if isinstance(item, Constant)]
    assert [item.data.size for item in inside] == [1]
    half = var("h", 4, dtype="bfloat16")
    one = constant(to_bfloat16(np.float32(1)), "bfloat16")
    result = fuse(infer_types(IRModule([function([half], op("add", half, one))])), GraphOptions())
    assert len(primitive_functions(result)[0].params) == 2


def test_operators_with_several_results():
    x = var("x", 4, 6)
    parts = op("split", x, sizes=(2, 4), axis=1)
    _, names = fused([x], Tuple((TupleGet(parts, 0), op("nn.relu", TupleGet(parts, 1)))))
    assert names == ["split", "nn_relu"]
    assert fused([x], parts)[1] == ["split"]


def test_groups_are_limited():
    x = var("x", 4)
    value = x
    for index in range(3 * MAX_GROUP):
        value = op("add" if index % 2 else "multiply", value, x)
    _, names = fused([x], value)
    assert 3 <= len(names) <= 7


def test_nothing_moves_out_of_a_branch():
    c, x = var("c", dtype="bool"), var("x", 4)
    outside = op("exp", x)
    body = If(c, op("nn.relu", op("add", outside, x)), x)
    module = infer_types(IRModule([function([c, x], op("add", body, x))]))
    result = fuse(module, GraphOptions())
    names = [str(item.notes["name"]) for item in primitive_functions(result)]
    assert sorted(names) == ["add", "fused_exp_add_nn_relu"]
    data = random(0, 4)
    for condition in (True, False):
        expected = evaluate(module, np.asarray(condition), data)
        np.testing.assert_allclose(evaluate(result, np.asarray(condition), data), expected, rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_every_operator_is_in_a_kernel_or_a_view(seed):
    result = fuse(random_module(seed, size=20), GraphOptions())
    for item in post_order(result["main"], closures=False):
        if isinstance(item, Call):
            assert is_primitive(item.callee) or is_view(item)
        assert not isinstance(item, Function) or is_primitive(item) or item is result["main"]
    for primitive in primitive_functions(result):
        heavy = [
            item.callee.name
            for item in post_order(primitive.body)
            if isinstance(item, Call) and isinstance(item.callee, Operator) and item.callee.kind > 0
        ]
        assert len(heavy) <= 1
    again = fuse(result, GraphOptions())
    assert len(primitive_functions(again)) == len(primitive_functions(result))


@pytest.mark.parametrize("count", [3000])
def test_large_graphs_are_quick(count):
    x = var("x", 4, 4)
    value = x
    for index in range(count):
        value = op("nn.relu" if index % 3 else "matmul", value, *([] if index % 3 else [x]))
    module = infer_types(IRModule([function([x], value)]))
    assert len(primitive_functions(fuse(module, GraphOptions()))) == count // 3
