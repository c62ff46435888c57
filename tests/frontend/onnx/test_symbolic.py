"""Models with symbolic dimensions: the same as onnxruntime at several sizes, before and after the graph passes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from bench.zoo.bert import BertShape, dynamic_bert
from tests.frontend.onnx.helpers import agree, data, main_of, open_model, operators_of
from tilewright.frontend import from_onnx
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Constant
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.ir.unify import show_type
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import optimize
from tilewright.support.errors import UnsupportedError, UserError


def result_types(module):
    """The types of the results of main, as text."""
    body = main_of(module).body
    while hasattr(body, "body"):
        body = body.body
    items = getattr(body, "items", (body,))
    return [show_type(item.type) for item in items]


FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


@pytest.mark.parametrize("has_layer_norm_op", [True, False])
def test_bert_of_any_batch_and_length(has_layer_norm_op):
    model = dynamic_bert("tiny", 0, BertShape(2, 32, 4, 64, has_layer_norm_op, vocabulary=50))
    random = np.random.default_rng(3)

    def sentence(batch, length):
        return {
            "input_ids": random.integers(0, 50, (batch, length)),
            "attention_mask": (random.random((batch, length)) < 0.9).astype(np.int64),
            "token_type_ids": random.integers(0, 2, (batch, length)),
        }

    module = agree(model, sentence(1, 1), sentence(2, 7), sentence(3, 64))
    assert result_types(module) == ["float32[batch, sequence, 32]", "float32[batch, 32]"]
    names = operators_of(module)
    assert not any(name.startswith("shape.") for name in names)
    assert "dimensions" not in names
    too_long = sentence(1, 600)
    with pytest.raises(UserError, match="the model needs"):
        evaluate(module, *too_long.values())


def test_layer_norm_is_recognised_over_symbolic_dimensions():
    model = dynamic_bert("tiny", 0, BertShape(1, 32, 4, 64, has_layer_norm_op=False, vocabulary=50))
    module = optimize(from_onnx(model), GraphOptions(fuse=False))
    assert operators_of(module).count("nn.layer_norm") == 3


def test_shape_arithmetic_leaves_nothing_to_do():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["b"]),
        helper.make_node("Gather", ["s", "one"], ["n"]),
        helper.make_node("Mul", ["b", "n"], ["bn"]),
        helper.make_node("Unsqueeze", ["bn", "axis"], ["bn1"]),
        helper.make_node("Concat", ["bn1", "four"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
        helper.make_node("ConstantOfShape", ["s"], ["filled"], value=numpy_helper.from_array(np.array([1], np.int64))),
        helper.make_node("Mul", ["filled", "minus"], ["wild"]),
        helper.make_node("Equal", ["s", "wild_shape"], ["open"]),
        helper.make_node("Where", ["open", "ones", "s"], ["chosen"]),
        helper.make_node("Expand", ["small", "chosen"], ["big"]),
    ]
    stored = {"zero": 0, "one": 1, "axis": [0], "four": [4], "minus": -1, "wild_shape": [-1, -1, -1],
              "ones": [1, 1, 1], "small": np.ones((1, 1, 4), np.float32)}  # fmt: skip
    model = open_model(nodes, {"x": (FLOAT, ["b", "n", 4])}, ["y", "big"], stored)
    module = agree(model, {"x": data(2, 3, 4)}, {"x": data(1, 1, 4)})
    assert result_types(module) == ["float32[(b * n), 4]", "float32[b, n, 4]"]
    assert operators_of(module) == ["broadcast_to", "reshape"]


@pytest.mark.parametrize(
    ("shape", "result"),
    [
        ([-1, 12], "float32[(b * n), 12]"),
        ([0, -1], "float32[b, (n * 12)]"),
        ([0, 0, 3, 4], "float32[b, n, 3, 4]"),
        ([0, -1, 3, 2], "float32[b, (n * 2), 3, 2]"),
    ],
)
def test_reshape_with_copies_and_rests(shape, result):
    model = open_model(
        [helper.make_node("Reshape", ["x", "s"], ["y"])], {"x": (FLOAT, ["b", "n", 12])}, ["y"], {"s": shape}
    )
    module = agree(model, {"x": data(2, 5, 12)}, {"x": data(1, 1, 12)})
    assert result_types(module) == [result]


def test_a_reshape_that_may_not_fit_is_checked_when_it_runs():
    model = open_model([helper.make_node("Reshape", ["x", "s"], ["y"])], {"x": (FLOAT, ["n"])}, ["y"], {"s": [-1, 4]})
    module = agree(model, {"x": data(8)}, {"x": data(4)})
    with pytest.raises(UserError, match="cannot reshape"):
        evaluate(module, data(6))


@pytest.mark.parametrize(
    ("bounds", "result"),
    [
        (([1], [2**63 - 1], [1]), "float32[b, max((n - 1), 0)]"),
        (([0], [-1], [1]), "float32[b, max((n - 1), 0)]"),
        (([0], [3], [1]), "float32[b, min(n, 3)]"),
        (([-2], [2**31 - 1], [1]), None),
        (([0], [2**31 - 1], [2]), "float32[b, ((n + 1) // 2)]"),
        (([-1], [-(2**31)], [-1]), "float32[b, n]"),
        (([5], [1], [-2]), None),
    ],
)
def test_slices_of_symbolic_dimensions(bounds, result):
    starts, ends, steps = bounds
    stored = {"starts": starts, "ends": ends, "axes": [1], "steps": steps}
    node = helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"])
    model = open_model([node], {"x": (FLOAT, ["b", "n"])}, ["y"], stored)
    module = agree(model, *({"x": data(2, size)} for size in (1, 2, 3, 4, 7)))
    if result is not None:
        assert result_types(module) == [result]


def test_ranges_masks_and_one_hot_of_symbolic_length():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["n"]),
        helper.make_node("Range", ["zero", "n", "one"], ["r"]),
        helper.make_node("Unsqueeze", ["r", "last"], ["column"]),
        helper.make_node("LessOrEqual", ["r", "column"], ["causal"]),
        helper.make_node("Trilu", ["x"], ["upper"]),
        helper.make_node("OneHot", ["r", "n", "values"], ["hot"]),
        helper.make_node("Size", ["x"], ["count"]),
    ]
    stored = {"zero": 0, "one": 1, "last": [1], "values": np.array([0, 1], np.float32)}
    model = open_model(nodes, {"x": (FLOAT, ["b", "n"])}, ["causal", "upper", "hot", "count"], stored)
    agree(model, {"x": data(2, 3)}, {"x": data(4, 1)})


def test_split_tile_pad_and_topk_of_symbolic_dimensions():
    nodes = [
        helper.make_node("Split", ["x"], ["p", "q"], axis=1),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Tile", ["p", "s"], ["tiled"]),
        helper.make_node("Pad", ["x", "amounts"], ["padded"]),
        helper.make_node("Concat", ["q", "p"], ["joined"], axis=0),
    ]
    model = open_model(nodes, {"x": (FLOAT, ["b", 6])}, ["tiled", "padded", "joined"], {"amounts": [1, 0, 0, 2]})
    module = agree(model, {"x": data(2, 6)}, {"x": data(3, 6)})
    assert result_types(module) == ["float32[(b * b), 18]", "float32[(b + 1), 8]", "float32[(b * 2), 3]"]


def test_shapes_that_are_data():
    nodes = [
        helper.make_node("Reshape", ["x", "target"], ["y"]),
        helper.make_node("Expand", ["row", "wide"], ["e"]),
        helper.make_node("Tile", ["row", "times"], ["t"]),
        helper.make_node("Slice", ["x", "first", "last"], ["part"]),
        helper.make_node("Range", ["start", "stop", "step"], ["r"]),
        helper.make_node("Pad", ["row", "amounts"], ["p"]),
        helper.make_node("ConstantOfShape", ["target"], ["zeros"]),
        helper.make_node("Add", ["y", "zeros"], ["sum"]),
        helper.make_node("Split", ["x", "sizes"], ["s0", "s1"], axis=0),
    ]
    lists = {"target": 2, "wide": 2, "times": 1, "first": 1, "last": 1, "amounts": 2, "sizes": 2}
    inputs = {"x": (FLOAT, ["n"]), "row": (FLOAT, [3]), **{name: (INT, [count]) for name, count in lists.items()}}
    inputs.update({name: (INT, []) for name in ("start", "stop", "step")})
    model = open_model(nodes, inputs, ["sum", "e", "t", "part", "r", "p", "s0", "s1"])
    values = {"x": data(6), "row": data(3), "target": [2, -1], "wide": [2, 3], "times": [2], "first": [1], "last": [-1],
              "amounts": [1, 2], "sizes": [4, 2], "start": 1, "stop": 10, "step": 4}  # fmt: skip
    values["target"] = [2, 3]
    other = {**values, "x": data(8), "target": [4, 2], "wide": [1, 3], "sizes": [0, 8], "stop": 0}
    agree(model, *({name: np.asarray(value) for name, value in call.items()} for call in (values, other)))


def test_shapes_of_data_dependent_results_are_known_where_they_can_be():
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Shape", ["places"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["count"]),
        helper.make_node("Unsqueeze", ["count", "axis"], ["count1"]),
        helper.make_node("Concat", ["count1", "two"], ["target"], axis=0),
        helper.make_node("Expand", ["value", "target"], ["y"]),
    ]
    stored = {"one": 1, "axis": [0], "two": [2], "value": np.ones((1, 1), np.float32)}
    model = open_model(nodes, {"x": (FLOAT, ["n"])}, ["y"], stored)
    module = agree(model, {"x": np.array([1, 0, 2], np.float32)}, {"x": np.zeros(4, np.float32)})
    assert result_types(module) == ["float32[places_count, 2]"]


def test_sizes_that_must_fit_are_checked():
    nodes = [helper.make_node("Add", ["x", "y"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["z"])]
    inputs = {"x": (FLOAT, ["b", "n"]), "y": (FLOAT, ["m"])}
    model = open_model(nodes, inputs, ["z"], {"w": data(4, 2)})
    module = agree(model, {"x": data(3, 4), "y": data(4)})
    with pytest.raises(UserError, match="the model needs"):
        evaluate(module, data(3, 4), data(5))


def test_sizes_that_must_fit_are_checked_in_compiled_code():
    nodes = [helper.make_node("Add", ["x", "y"], ["z"])]
    model = open_model(nodes, {"x": (FLOAT, ["n"]), "y": (FLOAT, ["m"])}, ["z"])
    compiled = tw.compile(from_onnx(model))
    np.testing.assert_allclose(compiled(np.ones(3, np.float32), np.ones(3, np.float32)), np.full(3, 2))
    with pytest.raises(UserError, match="the model needs m and n to be equal"):
        compiled(np.ones(3, np.float32), np.ones(5, np.float32))


def test_convolutions_of_any_image_size():
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "k"], ["y"]),
    ]
    stored = {"w": data(4, 3, 3, 3), "b": data(4), "k": data(4, 5)}
    model = open_model(nodes, {"x": (FLOAT, ["n", 3, "h", "w"])}, ["p", "y"], stored)
    module = agree(model, {"x": data(2, 3, 8, 9)}, {"x": data(1, 3, 5, 4)})
    assert result_types(module)[1] == "float32[n, 5]"


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"])
def test_resize_of_any_image_size(mode, coordinates):
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode, coordinate_transformation_mode=coordinates),
        helper.make_node("Shape", ["like"], ["size"]),
        helper.make_node("Resize", ["x", "", "", "size"], ["z"], mode=mode, nearest_mode="floor",
                         coordinate_transformation_mode=coordinates),
        helper.make_node("Add", ["z", "like"], ["sum"]),
    ]  # fmt: skip
    stored = {"scales": np.array([1, 1, 2, 1.5], np.float32)}
    inputs = {"x": (FLOAT, ["n", 2, "h", "w"]), "like": (FLOAT, ["n", 2, "a", "b"])}
    model = open_model(nodes, inputs, ["y", "sum"], stored)
    calls = [{"x": data(1, 2, 4, 6), "like": data(1, 2, 7, 5)}, {"x": data(2, 2, 2, 2), "like": data(2, 2, 4, 6)}]
    agree(model, *calls)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_to_sizes_and_by_scales_that_are_data(mode):
    nodes = [
        helper.make_node("Concat", ["ones", "stretch"], ["scales"], axis=0),
        helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode),
        helper.make_node("Resize", ["x", "", "", "size"], ["z"], mode=mode, axes=[3, 2]),
    ]
    inputs = {"x": (FLOAT, ["n", 2, "h", "w"]), "stretch": (FLOAT, [2]), "size": (INT, [2])}
    model = open_model(nodes, inputs, ["y", "z"], {"ones": np.ones(2, np.float32)}, opset=19)
    calls = [
        {"x": data(*shape), "stretch": np.array(stretch, np.float32), "size": np.array(size, np.int64)}
        for shape, stretch, size in (
            ((1, 2, 4, 6), (2, 0.5), (7, 3)),
            ((2, 2, 5, 3), (1.25, 3), (1, 9)),
            ((1, 2, 10, 30), (0.7, 0.7), (1, 1)),
        )
    ]
    module = agree(model, *calls)
    assert [kind.split(", ")[:2] for kind in result_types(module)] == [["float32[n", "2"]] * 2


@pytest.mark.parametrize("scale", [0.7, 0.57, 1.3, 0.1])
def test_sizes_are_scaled_as_floats_are(scale):
    """10 times 0.7 is 7, though the float nearest to 0.7 lies below it; of 1.3 no fraction agrees for all sizes."""
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    stored = {"scales": np.array([1, scale], np.float32)}
    for sizes in ((1, "w"), (1, 10)):
        model = open_model([node], {"x": (FLOAT, sizes)}, ["y"], stored)
        agree(model, *({"x": data(1, size)} for size in (10, 30, 100, 163, 170) if sizes[1] in ("w", size)))


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_resize_of_any_image_size_that_keeps_its_shape(policy):
    node = helper.make_node(
        "Resize", ["x", "", "", "size"], ["y"], mode="linear", axes=[2, 3], keep_aspect_ratio_policy=policy
    )
    model = open_model(
        [node], {"x": (FLOAT, ["n", 2, "h", "w"])}, ["y"], {"size": np.array([7, 9], np.int64)}, opset=19
    )
    agree(model, {"x": data(1, 2, 4, 6)}, {"x": data(2, 2, 14, 5)})


@pytest.mark.parametrize("sizes", [(4, 6), (5, 3), (9, 10)])
@pytest.mark.parametrize("transformation", ["half_pixel_symmetric", "align_corners"])
def test_resize_of_any_image_size_is_that_of_fixed_ones(transformation, sizes):
    attributes = {"mode": "linear", "coordinate_transformation_mode": transformation}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    stored = {"scales": np.array([1, 1, 0.7, 1.4], np.float32)}
    image = data(1, 2, *sizes)
    open_sizes = from_onnx(open_model([node], {"x": (FLOAT, ["n", 2, "h", "w"])}, ["y"], stored))
    fixed = from_onnx(open_model([node], {"x": (FLOAT, image.shape)}, ["y"], stored))
    np.testing.assert_allclose(evaluate(open_sizes, image), evaluate(fixed, image), rtol=1e-4, atol=1e-5)


def test_einsum_and_quantisation_of_any_batch():
    nodes = [
        helper.make_node("Einsum", ["x", "w"], ["e"], equation="bnd,de->bne"),
        helper.make_node("Einsum", ["e", "e"], ["scores"], equation="bne,bme->bnm"),
        helper.make_node("DynamicQuantizeLinear", ["scores"], ["q", "scale", "zero"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
        helper.make_node("QuantizeLinear", ["x", "steps", "zeros"], ["xq"], axis=2),
        helper.make_node("DequantizeLinear", ["xq", "steps", "zeros"], ["xd"], axis=2),
    ]
    stored = {"w": data(4, 3), "steps": np.array([0.1, 0.2, 0.3, 0.4], np.float32), "zeros": np.zeros(4, np.int8)}
    model = open_model(nodes, {"x": (FLOAT, ["b", "n", 4])}, ["scores", "xd"], stored)
    module = agree(model, {"x": data(2, 3, 4)}, {"x": data(1, 5, 4)})
    assert result_types(module) == ["float32[b, n, n]", "float32[b, n, 4]"]


def test_a_decoder_with_a_key_value_cache():
    """Attention as GPT-2 is exported: a cache of past keys, the mask cut out of a constant by computed bounds."""
    width, heads, most = 8, 2, 32

    def sized(name, value, axis):
        return [
            helper.make_node("Shape", [value], [f"{name}_shape"]),
            helper.make_node("Gather", [f"{name}_shape", f"i{axis}"], [name]),
            helper.make_node("Unsqueeze", [name, "i0_list"], [f"{name}_1"]),
        ]

    nodes = [
        *sized("b", "x", 0), *sized("n", "x", 1),
        helper.make_node("MatMul", ["x", "wqkv"], ["qkv"]),
        helper.make_node("Split", ["qkv", "thirds"], ["q", "k", "v"], axis=2),
        helper.make_node("Concat", ["b_1", "n_1", "heads", "minus"], ["split"], axis=0),
    ]  # fmt: skip
    for part in "qkv":
        nodes.append(helper.make_node("Reshape", [part, "split"], [f"{part}s"]))
        nodes.append(helper.make_node("Transpose", [f"{part}s"], [f"{part}h"], perm=[0, 2, 1, 3]))
    nodes += [
        helper.make_node("Concat", ["past_k", "kh"], ["keys"], axis=2),
        helper.make_node("Concat", ["past_v", "vh"], ["values"], axis=2),
        *sized("total", "keys", 2),
        helper.make_node("Sub", ["total", "n"], ["first"]),
        helper.make_node("Unsqueeze", ["first", "i0_list"], ["first_1"]),
        helper.make_node("Slice", ["bias", "first_1", "total_1", "i2_list"], ["rows"]),
        helper.make_node("Slice", ["rows", "i0_list", "total_1", "i3_list"], ["mask"]),
        helper.make_node("Transpose", ["keys"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["qh", "kt"], ["scores"]),
        helper.make_node("Where", ["mask", "scores", "low"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "values"], ["context"]),
        helper.make_node("Transpose", ["context"], ["joined"], perm=[0, 2, 1, 3]),
        helper.make_node("Concat", ["b_1", "n_1", "width"], ["flat"], axis=0),
        helper.make_node("Reshape", ["joined", "flat"], ["y"]),
    ]
    stored = {"i0": 0, "i1": 1, "i2": 2, "i0_list": [0], "i2_list": [2], "i3_list": [3], "thirds": [width] * 3,
              "heads": [heads], "minus": [-1], "width": [width], "low": np.float32(-1e9),
              "wqkv": data(width, 3 * width),
              "bias": np.tril(np.ones((1, 1, most, most), bool))}  # fmt: skip
    cache = (FLOAT, ["batch", heads, "past", width // heads])
    inputs = {"x": (FLOAT, ["batch", "sequence", width]), "past_k": cache, "past_v": cache}
    model = open_model(nodes, inputs, ["y", "keys", "values"], stored)

    def step(batch, past, count):
        shape = (batch, heads, past, width // heads)
        return {"x": data(batch, count, width), "past_k": data(*shape), "past_v": data(*shape)}

    module = agree(model, step(1, 0, 4), step(2, 5, 1), step(1, 3, 6))
    assert result_types(module)[:2] == ["float32[batch, sequence, 8]", "float32[batch, 2, (past + sequence), 4]"]
    assert not any(name.startswith("shape.") for name in operators_of(module))
    with pytest.raises(UserError, match="the model needs"):
        evaluate(module, *step(1, 30, 5).values())


def test_cubic_resize_of_any_image_size_without_what_lies_outside():
    attributes = {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    stored = {"scales": np.array([1, 1, 1.5, 3], np.float32)}
    model = open_model([node], {"x": (FLOAT, ["n", 2, "h", "w"])}, ["y"], stored)
    agree(model, {"x": data(1, 2, 4, 6)}, {"x": data(2, 2, 2, 5)})


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("kernel", [[3, 3], [2, 4]])
def test_windows_of_any_image_size_that_keep_it(mode, kernel):
    window = {"kernel_shape": kernel, "auto_pad": mode}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], **window),
        helper.make_node("MaxPool", ["c"], ["m"], **window),
    ]
    model = open_model(nodes, {"x": (FLOAT, ["n", 2, "h", "w"])}, ["m"], {"w": data(3, 2, *kernel)})
    module = agree(model, {"x": data(1, 2, 9, 8)}, {"x": data(2, 2, 6, 7)})
    assert result_types(module) == ["float32[n, 3, h, w]"]
    strided = helper.make_node("MaxPool", ["x"], ["y"], strides=[2, 2], **window)
    model = open_model([strided], {"x": (FLOAT, ["n", 2, "h", "w"])}, ["y"])
    agree(model, {"x": data(1, 2, 9, 8)}, {"x": data(2, 2, 6, 7)})


WINDOWS = [
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [0, 1, 1, 0]},  # a window may start behind all data
    {"kernel_shape": [2, 3], "strides": [4, 3], "dilations": [2, 1]},
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "counted", "LpPool"])
def test_pooling_with_a_ceiling_of_any_image_size(operator, window):
    attributes = {**window, "ceil_mode": 1}
    if operator == "counted":
        operator, attributes["count_include_pad"] = "AveragePool", 1
    opset = 19 if operator == "AveragePool" else 18
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    module = from_onnx(open_model([node], {"x": (FLOAT, ["n", 2, "h", "w"])}, ["y"], opset=opset))
    for rows, columns in ((4, 7), (5, 9), (6, 8), (7, 6)):
        image = data(2, 2, rows, columns)
        fixed = from_onnx(open_model([node], {"x": (FLOAT, image.shape)}, ["y"], opset=opset))
        np.testing.assert_allclose(evaluate(module, image), evaluate(fixed, image), rtol=1e-6)


def test_convolutions_of_volumes_of_any_size():
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 0, 1, 1, 2], strides=[2, 1, 1]),
        helper.make_node("ConvTranspose", ["x", "t"], ["u"], strides=[3, 1, 2], output_padding=[1, 0, 0],
                         pads=[1, 0, 0, 0, 1, 0]),
    ]  # fmt: skip
    stored = {"w": data(4, 3, 3, 2, 2), "b": data(4), "t": data(3, 2, 3, 2, 2)}
    model = open_model(nodes, {"x": (FLOAT, ["n", 3, "d", "h", "w"])}, ["c", "u"], stored)
    agree(model, {"x": data(2, 3, 4, 5, 6)}, {"x": data(1, 3, 7, 3, 4)})


def test_spectra_of_frames_of_signals_of_any_length():
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"], onesided=1)
    stored = {"step": np.array(3), "window": np.hanning(8).astype(np.float32)}
    model = open_model([node], {"x": (FLOAT, ["n", "samples", 1])}, ["y"], stored)
    agree(model, {"x": data(2, 20, 1)}, {"x": data(1, 8, 1)})


@pytest.mark.parametrize("aligned", [0, 1])
def test_affine_grids_of_any_batch_and_size(aligned):
    nodes = [
        helper.make_node("Shape", ["like"], ["size"]),
        helper.make_node("AffineGrid", ["theta", "size"], ["y"], align_corners=aligned),
    ]
    inputs = {"theta": (FLOAT, ["n", 2, 3]), "like": (FLOAT, ["n", 3, "h", "w"])}
    model = open_model(nodes, inputs, ["y"], opset=20)
    agree(
        model,
        {"theta": data(1, 2, 3), "like": data(1, 3, 4, 5)},
        {"theta": data(2, 2, 3), "like": data(2, 3, 2, 7)},
    )


def test_what_a_slice_leaves_of_at_most_one_row_broadcasts():
    nodes = [
        helper.make_node("Slice", ["x", "zero", "one", "zero"], ["row"]),
        helper.make_node("Add", ["other", "row"], ["sum"]),
        helper.make_node("Shape", ["row"], ["shape"]),
        helper.make_node("Expand", ["other", "shape"], ["same"]),
        helper.make_node("Shape", ["other"], ["wide"]),
        helper.make_node("Expand", ["row", "wide"], ["rows"]),
        helper.make_node("Add", ["row", "row"], ["twice"]),
    ]
    inputs = {"x": (FLOAT, ["n", 2]), "other": (FLOAT, ["m", 2])}
    model = open_model(nodes, inputs, ["sum", "same", "rows", "twice"], {"zero": [0], "one": [1]})
    module = agree(model, {"x": data(3, 2), "other": data(4, 2)}, {"x": data(1, 2), "other": data(5, 2)})
    assert result_types(module)[:3] == ["float32[m, 2]"] * 3
    with pytest.raises(UserError, match="the model needs"):
        evaluate(module, data(0, 2), data(4, 2))


def test_zero_length_inputs():
    nodes = [helper.make_node("Concat", ["past", "x"], ["all"], axis=1), helper.make_node("Relu", ["all"], ["y"])]
    model = open_model(nodes, {"past": (FLOAT, ["b", "past", 2]), "x": (FLOAT, ["b", "n", 2])}, ["y"])
    agree(model, {"past": data(2, 0, 2), "x": data(2, 1, 2)}, {"past": data(1, 3, 2), "x": data(1, 2, 2)})


def test_what_needs_a_number_says_so():
    node = helper.make_node("Det", ["x"], ["y"], name="narrow")
    model = open_model([node], {"x": (FLOAT, ["n", "n"])}, ["y"])
    with pytest.raises(UnsupportedError, match=r"(?s)\(n, n\).*narrow"):
        from_onnx(model)


def test_squeeze_without_axes_takes_open_sizes_which_are_one():
    model = open_model([helper.make_node("Squeeze", ["x"], ["y"])], {"x": (FLOAT, ["n", 1, "m", 3, 1])}, ["y"])
    agree(model, {"x": data(2, 1, 4, 3, 1)}, {"x": data(0, 1, 5, 3, 1)}, {"x": data(1, 1, 4, 3, 1)})


def test_static_models_have_no_symbols():
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    module = from_onnx(open_model([node], {"x": (FLOAT, [2, 6])}, ["y"], {"s": [-1, 4]}))
    assert operators_of(module) == ["reshape"]
    (call,) = [item for item in post_order(main_of(module)) if item.type is main_of(module).body.type]
    assert call.attributes.shape == (3, 4)
    assert not any(isinstance(item, Constant) for item in post_order(main_of(module)))
