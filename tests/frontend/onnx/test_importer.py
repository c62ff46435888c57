"""The importer as a whole: conventions, names, functions, order, folding, and every message about bad models."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontend.onnx.helpers import (
    body_of,
    compare,
    data,
    import_one,
    main_of,
    make_model,
    operators_of,
    run_tilewright,
)
from tilewright.frontend import from_onnx
from tilewright.graph.ir.expr import Call, Constant, Tuple
from tilewright.graph.ir.unify import show_type
from tilewright.graph.text.parser import parse_text
from tilewright.graph.text.printer import to_text
from tilewright.ir.structural import structural_equal
from tilewright.ir.types import tensor_type
from tilewright.support.errors import MissingDependencyError, UnsupportedError, UserError


def _open_model(dims_x, dims_y=None, dtype=TensorProto.FLOAT):
    inputs = [helper.make_tensor_value_info("x", dtype, dims_x)]
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="act")]
    outputs = ["a"]
    if dims_y is not None:
        inputs.append(helper.make_tensor_value_info("y", dtype, dims_y))
        nodes.append(helper.make_node("Neg", ["y"], ["b"]))
        outputs.append("b")
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info(o) for o in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_conventions_of_the_module():
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], name="stem"),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Shape", ["r"], ["s"], name="shape"),
    ]
    module = from_onnx(make_model(nodes, {"image": data(1, 3, 5, 5)}, ["r", "s"], {"w": data(4, 3, 3, 3)}))
    main = main_of(module)
    assert [param.name for param in main.params] == ["image"]
    assert main.params[0].annotation is tensor_type((1, 3, 5, 5), "float32")
    assert module.attributes == {"model_name": "test", "output_names": ("r", "s")}
    body = main.body
    assert isinstance(body, Tuple)
    relu, shape = body.items
    assert isinstance(relu, Call)
    assert str(relu.span) == "Relu:r"
    assert str(relu.args[0].span) == "stem"
    assert isinstance(shape, Constant)


def test_a_file_bytes_and_a_model_are_the_same(tmp_path):
    model = make_model([helper.make_node("Exp", ["x"], ["y"])], {"x": data(3)}, ["y"])
    before = model.SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(before)
    for source in (model, before, path, str(path)):
        assert operators_of(from_onnx(source)) == ["exp"]
    assert model.SerializeToString() == before


def test_outputs_may_be_inputs_constants_or_repeated():
    node = helper.make_node("Neg", ["x"], ["y"])
    inputs = {"x": data(3)}
    ours = run_tilewright(make_model([node], inputs, ["y", "x", "w"], {"w": np.array([4.0], np.float32)}), inputs)
    np.testing.assert_array_equal(ours[1], inputs["x"])
    assert ours[2].tolist() == [4.0]


def test_initializers_listed_as_inputs_are_constants():
    model = make_model(
        [helper.make_node("Add", ["x", "w"], ["y"])], {"x": data(3), "w": data(3)}, ["y"], {"w": data(3)}
    )
    assert [param.name for param in main_of(from_onnx(model)).params] == ["x"]


def test_weights_may_be_nan():
    weight = np.array([np.nan, np.inf, 1.0], np.float32)
    inputs = {"x": data(3)}
    compare(make_model([helper.make_node("Add", ["x", "w"], ["y"])], inputs, ["y"], {"w": weight}), inputs)


def test_shape_arithmetic_of_exporters_disappears():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "zeros"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    stored = {"zero": np.array(0), "zeros": np.array([0]), "rest": np.array([-1])}
    module = from_onnx(make_model(nodes, {"x": data(2, 3, 4)}, ["y"], stored))
    assert operators_of(module) == ["reshape"]
    assert body_of(module).type is tensor_type((2, 12), "float32")


def test_float_arithmetic_on_shapes_disappears():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Slice", ["s", "two", "four"], ["hw"]),
        helper.make_node("Cast", ["hw"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "factor"], ["g"]),
        helper.make_node("Floor", ["g"], ["h"]),
        helper.make_node("Cast", ["h"], ["i"], to=TensorProto.INT64),
        helper.make_node("Concat", ["ones", "i"], ["sizes"], axis=0),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest"),
    ]
    stored = {
        "two": np.array([2]),
        "four": np.array([4]),
        "factor": np.array([2.0], np.float32),
        "ones": np.array([1, 1]),
    }
    inputs = {"x": data(1, 1, 3, 4)}
    model = make_model(nodes, inputs, ["y"], stored)
    compare(model, inputs)
    assert operators_of(from_onnx(model)) == ["take", "take"]


def test_unsorted_graphs_are_sorted():
    nodes = [helper.make_node("Exp", ["a"], ["y"]), helper.make_node("Neg", ["x"], ["a"])]
    inputs = {"x": data(3)}
    (result,) = run_tilewright(make_model(nodes, inputs, ["y"]), inputs)
    np.testing.assert_allclose(result, np.exp(-inputs["x"]), rtol=1e-6)


def test_cycles_are_refused():
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="one"),
        helper.make_node("Neg", ["a"], ["b"], name="two"),
    ]
    with pytest.raises(UserError, match="a cycle through the nodes 'one', 'two'"):
        from_onnx(make_model(nodes, {"x": data(3)}, ["b"]))


def test_deep_graphs_need_no_deep_stack():
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(5000)]
    module = from_onnx(make_model(nodes, {"v0": data(3)}, ["v5000"]))
    assert len(main_of(module).params) == 1


# Functions


def _scale_function(opset=21):
    nodes = [
        helper.make_node("Constant", [], ["c"]),
        helper.make_node("Mul", ["a", "c"], ["m"], name="product"),
        helper.make_node("Add", ["m", "b"], ["r"]) if opset else helper.make_node("Neg", ["m"], ["r"]),
    ]
    reference = onnx.AttributeProto(name="value_float", ref_attr_name="factor", type=onnx.AttributeProto.FLOAT)
    nodes[0].attribute.append(reference)
    return helper.make_function(
        "local", "Scale", ["a", "b"], ["r"], nodes, [helper.make_opsetid("", 21)], attributes=["factor"]
    )


def test_local_functions_are_inlined():
    node = helper.make_node("Scale", ["x", "x"], ["y"], domain="local", name="call", factor=3.0)
    inputs = {"x": data(3)}
    model = make_model([node], inputs, ["y"], functions=[_scale_function()], domains={"local": 1})
    compare(model, inputs)
    spans = {str(arg.span) for arg in body_of(from_onnx(model)).args}
    assert "call/product" in spans


def test_local_functions_refuse():
    function = _scale_function()
    inputs = {"x": data(3)}
    wrong = helper.make_node("Scale", ["x", "x"], ["y"], domain="local", factors=3.0)
    with pytest.raises(UserError, match="has no attribute 'factors'"):
        from_onnx(make_model([wrong], inputs, ["y"], functions=[function], domains={"local": 1}))
    many = helper.make_node("Scale", ["x", "x", "x"], ["y"], domain="local", factor=3.0)
    with pytest.raises(UserError, match="takes 2 inputs, 3 are given"):
        from_onnx(make_model([many], inputs, ["y"], functions=[function], domains={"local": 1}))
    endless = helper.make_function(
        "local", "Again", ["a"], ["r"], [helper.make_node("Again", ["a"], ["r"], domain="local")],
        [helper.make_opsetid("local", 1)],
    )  # fmt: skip
    call = helper.make_node("Again", ["x"], ["y"], domain="local")
    with pytest.raises(UserError, match="does a function call itself"):
        from_onnx(make_model([call], inputs, ["y"], functions=[endless], domains={"local": 1}))


def test_operators_that_onnx_defines_by_others_are_expanded_under_their_own_name():
    module = import_one("NegativeLogLikelihoodLoss", data(3, 5), np.array([1, 0, 4]), reduction="none")
    from tilewright.ir.visit import post_order

    calls = [item for item in post_order(body_of(module)) if isinstance(item, Call)]
    assert calls
    assert {str(item.span) for item in calls} == {"the_NegativeLogLikelihoodLoss"}


# Shapes of inputs


def shapes_of(module):
    return [show_type(param.annotation) for param in main_of(module).params]


def test_open_dimensions_are_symbols():
    module = from_onnx(_open_model(["batch", 3, None], ["batch", "time"]))
    assert shapes_of(module) == ["float32[batch, 3, x_2]", "float32[batch, time]"]
    x, y = main_of(module).params
    assert x.annotation.shape[0] is y.annotation.shape[0]
    text = to_text(module)
    assert structural_equal(parse_text(text, constants=text.constants), module)


@pytest.mark.parametrize("name", ["?", "", " ", "*", "-1", "None", "??"])
def test_names_that_only_say_open_are_not_one_size(name):
    module = from_onnx(_open_model([name, name], [name]))
    assert shapes_of(module) == ["float32[x_0, x_1]", "float32[y_0]"]
    fixed = from_onnx(_open_model([name, name], [name]), shapes={"x": (2, 3)})
    assert shapes_of(fixed) == ["float32[2, 3]", "float32[y_0]"]


def test_names_of_dimensions_may_be_arithmetic():
    module = from_onnx(_open_model(["batch", "batch*2"], ["past + batch - 1", "past"]))
    assert shapes_of(module) == ["float32[batch, (batch * 2)]", "float32[((batch + past) - 1), past]"]
    # A name that no input has as a whole dimension would never get a value.
    module = from_onnx(_open_model(["2*n", "2*n"], ["what ?!"]))
    assert shapes_of(module) == ["float32[2*n, 2*n]", "float32[what ?!]"]


def test_shapes_may_name_dimensions():
    module = from_onnx(_open_model([None, 3], ["b", 5]), shapes={"x": ("rows", 3), "y": ("rows", None)})
    assert shapes_of(module) == ["float32[rows, 3]", "float32[rows, 5]"]
    module = from_onnx(_open_model(["b", 3], ["b", 5]), shapes={"x": (None, 3)})
    assert shapes_of(module) == ["float32[b, 3]", "float32[b, 5]"]


def test_shapes_fill_open_dimensions():
    module = from_onnx(_open_model(["batch", 3], ["batch", 5]), shapes={"x": (4, 3)})
    assert [param.annotation.static_shape for param in main_of(module).params] == [(4, 3), (4, 5)]


def test_unknown_rank_may_be_said():
    model = _open_model([1])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert main_of(from_onnx(model)).params[0].type is tensor_type(None, "float32")
    module = from_onnx(model, shapes={"x": (2, 2)})
    assert body_of(module).type is tensor_type((2, 2), "float32")


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (1,)}, "shapes names 'z', which is no input of the model"),
        ({"x": (1, 2)}, "the model fixes dimension 1 of 'x' at 3, not 2"),
        ({"x": (1,)}, "the input has 2 dimensions"),
        ({"x": (-1, 3)}, "negative dimension"),
        ({"x": "a"}, "is not a shape"),
        ({"x": ((), 3)}, "is not a shape"),
        ({"x": 3}, "is not a shape"),
        ({"x": (1, 3), "y": (2, 5)}, "the dimension 'batch' is 1 in 'x' but 2 in 'y'"),
    ],
)
def test_shapes_are_checked(shapes, message):
    with pytest.raises(UserError, match=message):
        from_onnx(_open_model(["batch", 3], ["batch", 5]), shapes=shapes)


# Bad models


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        from_onnx(tmp_path / "none.onnx")
    with pytest.raises(UserError, match="cannot read"):
        from_onnx(tmp_path)


@pytest.mark.parametrize("content", [b"this is no model at all, only a text", b"\x08\x0a\x3a\xff\xff\xff\xff\x0f"])
def test_not_an_onnx_file(tmp_path, content):
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"bad.onnx is not an ONNX model"):
        from_onnx(path)


def test_empty_and_truncated_files(tmp_path):
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"")
    with pytest.raises(UserError, match="the file is empty"):
        from_onnx(path)
    whole = make_model(
        [helper.make_node("Exp", ["x"], ["y"])], {"x": data(3)}, ["y"], {"w": data(99)}
    ).SerializeToString()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="damaged or cut short"):
        from_onnx(path)


def test_other_objects_are_refused():
    with pytest.raises(UserError, match="cannot import a model from an int"):
        from_onnx(3)


def test_models_without_a_graph_or_opset():
    with pytest.raises(UserError, match="it has no graph"):
        from_onnx(onnx.ModelProto(ir_version=8))
    model = _open_model([1])
    model.ClearField("opset_import")
    with pytest.raises(UserError, match="names no operator set"):
        from_onnx(model)


@pytest.mark.parametrize(("version", "message"), [(0, "the oldest supported is 1"), (99, "the newest supported is 28")])
def test_opsets_out_of_range(version, message):
    model = _open_model([1])
    model.opset_import[0].version = version
    with pytest.raises(UnsupportedError, match=message):
        from_onnx(model)


def test_unknown_operators_name_everything(tmp_path):
    node = helper.make_node("Magic", ["x"], ["y"], name="trick")
    path = tmp_path / "m.onnx"
    path.write_bytes(make_model([node], {"x": data(3)}, ["y"]).SerializeToString())
    with pytest.raises(UnsupportedError) as caught:
        from_onnx(path)
    text = str(caught.value)
    assert "unknown operator Magic in the domain ai.onnx" in text
    assert f"{path}, node 'trick' (Magic, domain ai.onnx, opset 21)" in text


def test_known_but_unsupported_operators():
    with pytest.raises(UnsupportedError, match="the operator ImageDecoder is not supported: decode images before"):
        import_one("ImageDecoder", data(3, dtype="uint8"))


def test_unknown_domains():
    node = helper.make_node("Fancy", ["x"], ["y"], name="f", domain="com.example")
    with pytest.raises(UserError, match=r"imports no operator set for the domain com.example"):
        from_onnx(make_model([node], {"x": data(3)}, ["y"]))
    with pytest.raises(UnsupportedError, match=r"unknown operator Fancy in the domain com.example"):
        from_onnx(make_model([node], {"x": data(3)}, ["y"], domains={"com.example": 1}))


def test_attributes_of_the_wrong_kind():
    with pytest.raises(UserError, match="attribute 'axis' of Softmax must be a whole number, it is a number"):
        import_one("Softmax", data(3), axis=1.5)
    with pytest.raises(UserError, match="attribute 'alpha' of Elu must be a number, it is a whole number"):
        import_one("Elu", data(3), alpha=1)
    with pytest.raises(UserError, match=r"attribute 'perm' of Transpose must be a list of whole numbers.*\(numbers\)"):
        import_one("Transpose", data(3, 3), perm=[1.0, 0.5])
    with pytest.raises(UserError, match="attribute 'direction' of BitShift must be a text"):
        import_one("BitShift", data(3, dtype="uint8", low=0), data(3, dtype="uint8", low=0), direction=1)
    with pytest.raises(UserError, match="attribute 'value' of Constant must be a tensor, it is a text"):
        import_one("Constant", value="x")
    with pytest.raises(UserError, match="must be a graph"):
        import_one("If", np.array(True), then_branch=1, else_branch=2)
    with pytest.raises(UserError, match="must be a list of texts"):
        import_one("RNN", data(1, 1, 1), data(1, 1, 1), data(1, 1, 1), hidden_size=1, activations=[1])
    with pytest.raises(UserError, match="must be a list of numbers, it is a text"):
        import_one("Constant", value_floats="x")
    with pytest.raises(UserError, match="is not a text"):
        import_one("Gelu", data(3), approximate=b"\xff\xfe")


def test_attributes_that_nobody_knows():
    with pytest.raises(UnsupportedError, match="Relu of opset 21 with the attribute 'strength' is not supported"):
        import_one("Relu", data(3), strength=3)


def test_missing_inputs_and_attributes():
    with pytest.raises(UserError, match="Add needs an input number 2"):
        import_one("Add", data(3))
    with pytest.raises(UserError, match="Concat needs the attribute 'axis'"):
        import_one("Concat", data(3))
    with pytest.raises(UserError, match="Max needs at least one input"):
        import_one("Max")
    with pytest.raises(UserError, match="output number 2 of Relu is not supported"):
        import_one("Relu", data(3), outputs=2)


def test_inputs_from_nowhere_and_outputs_from_nowhere():
    with pytest.raises(UserError, match=r"(?s)nothing produces its input 'ghost'.*node 'n'"):
        from_onnx(make_model([helper.make_node("Neg", ["ghost"], ["y"], name="n")], {"x": data(3)}, ["y"]))
    with pytest.raises(UserError, match="nothing produces the output 'z'"):
        from_onnx(make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": data(3)}, ["z"]))
    with pytest.raises(UserError, match="the model has no outputs"):
        from_onnx(make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": data(3)}, []))


def test_names_given_twice():
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y"], name="second")]
    with pytest.raises(UserError, match=r"(?s)'y' is given to two values.*second"):
        from_onnx(make_model(nodes, {"x": data(3)}, ["y"]))
    with pytest.raises(UserError, match="'x' is given to two values"):
        from_onnx(make_model([helper.make_node("Neg", ["x"], ["x"])], {"x": data(3)}, ["x"]))
    model = _open_model([3])
    model.graph.input.append(model.graph.input[0])
    with pytest.raises(UserError, match="two inputs are named 'x'"):
        from_onnx(model)


def test_initializers_whose_data_does_not_fit():
    model = make_model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": data(3)}, ["y"], {"w": data(3)})
    model.graph.initializer[0].dims[0] = 5
    with pytest.raises(UserError, match=r"the data of the initializer 'w' does not fit its shape \(5,\)"):
        from_onnx(model)
    model.graph.initializer[0].dims[0] = -5
    with pytest.raises(UserError, match="negative dimension"):
        from_onnx(model)


def test_initializers_of_unsupported_types():
    model = make_model([helper.make_node("Identity", ["w"], ["y"])], {"x": data(3)}, ["y"])
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.COMPLEX64, [1], [1j]))
    with pytest.raises(UnsupportedError, match="the initializer 'w' has the element type complex64"):
        from_onnx(model)


def test_inputs_that_are_no_tensors():
    pairs = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    for kind, message in (
        (pairs, "the input 's' is a map, which is not supported"),
        (helper.make_sequence_type_proto(pairs), "'s' holds a map, which is not supported"),
    ):
        graph = helper.make_graph(
            [helper.make_node("Identity", ["s"], ["n"])],
            "g",
            [helper.make_value_info("s", kind)],
            [helper.make_empty_tensor_value_info("n")],
        )
        with pytest.raises(UnsupportedError, match=message):
            from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def test_type_errors_name_the_node():
    with pytest.raises(UserError, match=r"(?s)the data types differ: a is float32, b is int64.*node 'the_Add'"):
        import_one("Add", data(3), data(3, dtype="int64"))
    with pytest.raises(UserError, match=r"shapes \(2, 3\) and \(4,\) do not broadcast: dimensions 3 and 4"):
        import_one("Add", data(2, 3), data(4))


# Weights in other files


def _external_model(tmp_path, name="m.onnx"):
    weight = data(64)
    model = make_model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": data(64)}, ["y"], {"w": weight})
    path = tmp_path / name
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return weight, path


def test_external_data_is_read_beside_the_model(tmp_path):
    weight, path = _external_model(tmp_path)
    module = from_onnx(path)
    stored = [arg for arg in body_of(module).args if isinstance(arg, Constant)]
    np.testing.assert_array_equal(stored[0].data, weight)


def test_external_data_that_is_missing_or_short(tmp_path):
    _, path = _external_model(tmp_path)
    with pytest.raises(UserError, match="pass the path of the model"):
        from_onnx(path.read_bytes())
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(UserError, match="the initializer 'w'"):
        from_onnx(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(UserError, match=r"its external data file 'weights.bin' is missing"):
        from_onnx(path)


def test_sparse_initializers():
    values = numpy_helper.from_array(np.array([5.0], np.float32), "w")
    places = numpy_helper.from_array(np.array([2], np.int64), "i")
    model = make_model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": data(3)}, ["y"])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3]))
    inputs = {"x": np.zeros(3, np.float32)}
    assert run_tilewright(model, inputs)[0].tolist() == [0, 0, 5]


def test_bfloat16_weights_keep_their_storage():
    weight = helper.make_tensor("w", TensorProto.BFLOAT16, [2], [1.0, -2.0])
    model = make_model([helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)], {"x": data(1)}, ["y"])
    model.graph.initializer.append(weight)
    assert run_tilewright(model, {"x": data(1)})[0].tolist() == [1.0, -2.0]


def test_without_the_onnx_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingDependencyError, match=r"(?s)needs the package 'onnx'.*tilewright\[onnx\]"):
        from_onnx("model.onnx")


def test_the_frontend_package_has_nothing_else():
    import tilewright.frontend

    with pytest.raises(AttributeError, match="from_nowhere"):
        tilewright.frontend.from_nowhere  # noqa: B018
