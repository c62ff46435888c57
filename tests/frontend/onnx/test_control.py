"""Branches and loops against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.frontend.onnx.helpers import compare, data, make_model, operators_of, run_onnxruntime, run_tilewright
from tilewright.frontend import from_onnx
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import If
from tilewright.graph.pipeline import optimize
from tilewright.support.errors import UnsupportedError, UserError


def _graph(name, nodes, outputs, inputs=()):
    return helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(i, t, s) for i, t, s in inputs],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
    )


def _branches(outputs=1):
    names = [f"r{index}" for index in range(outputs)]
    then_nodes = [helper.make_node("Exp" if index else "Neg", ["x"], [name]) for index, name in enumerate(names)]
    else_nodes = [helper.make_node("Tanh" if index else "Abs", ["x"], [name]) for index, name in enumerate(names)]
    return {"then_branch": _graph("then", then_nodes, names), "else_branch": _graph("else", else_nodes, names)}


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("outputs", [1, 2])
def test_if_of_a_computed_condition(value, outputs):
    names = [f"y{index}" for index in range(outputs)]
    node = helper.make_node("If", ["c"], names, **_branches(outputs))
    inputs = {"c": np.array(value), "x": data(3)}
    model = make_model([node], inputs, names)
    compare(model, inputs)
    body = from_onnx(model)["main"].body
    assert isinstance(body, If) or outputs == 2


def test_if_of_a_known_condition_is_its_branch():
    node = helper.make_node("If", ["c"], ["y"], **_branches())
    module = from_onnx(make_model([node], {"x": data(3)}, ["y"], {"c": np.array([False])}))
    assert operators_of(module) == ["abs"]


def test_if_refuses():
    node = helper.make_node("If", ["c"], ["y"], name="fork", **_branches())
    inputs = {"c": np.array(True), "x": data(3)}
    with pytest.raises(UserError, match="must be one truth value"):
        from_onnx(make_model([node], {"x": data(3)}, ["y"], {"c": np.array([True, False])}))
    other = _graph("else", [helper.make_node("Cast", ["x"], ["e"], to=TensorProto.INT64)], ["e"])
    node = helper.make_node("If", ["c"], ["y"], name="fork", then_branch=_branches()["then_branch"], else_branch=other)
    with pytest.raises(UnsupportedError, match=r"(?s)only a run decides the type of 'y', float32.*and int64.*fork"):
        from_onnx(make_model([node], inputs, ["y"]))


@pytest.mark.parametrize("value", [True, False])
def test_branches_of_different_shapes(value):
    then_graph = _graph("then", [helper.make_node("Concat", ["x", "x"], ["t"], axis=0)], ["t"])
    else_graph = _graph("else", [helper.make_node("NonZero", ["x"], ["n"]),
                                 helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
                                 helper.make_node("Squeeze", ["f", "zero"], ["e"])], ["e"])  # fmt: skip
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=then_graph, else_branch=else_graph),
        helper.make_node("Mul", ["y", "y"], ["z"]),
        helper.make_node("Shape", ["z"], ["s"]),
    ]
    inputs = {"c": np.array(value), "x": np.array([1, 0, 2], np.float32)}
    compare(make_model(nodes, inputs, ["z", "s"], {"zero": np.array([0])}), inputs)


def _loop_body(condition="c_in", extra=()):
    nodes = [
        helper.make_node("Identity" if condition == "c_in" else "Less", [condition, *extra], ["c_out"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["v", "f"], ["v_out"]),
        helper.make_node("Mul", ["v_out", "x"], ["s"]),
    ]
    inputs = [("i", TensorProto.INT64, []), ("c_in", TensorProto.BOOL, []), ("v", TensorProto.FLOAT, [3])]
    return _graph("body", nodes, ["c_out", "v_out", "s"], inputs)


def test_loop_of_a_known_number_of_turns():
    node = helper.make_node("Loop", ["m", "c", "v0"], ["v", "all"], body=_loop_body())
    inputs = {"v0": data(3), "x": data(3)}
    compare(make_model([node], inputs, ["v", "all"], {"m": np.array(4), "c": np.array(True)}), inputs)
    node = helper.make_node("Loop", ["m", "", "v0"], ["v", "all"], body=_loop_body())
    compare(make_model([node], inputs, ["v", "all"], {"m": np.array(2)}), inputs)


def test_loop_until_a_known_condition():
    node = helper.make_node("Loop", ["", "c", "v0"], ["v", "all"], body=_loop_body("i", ("limit",)))
    inputs = {"v0": data(3), "x": data(3)}
    stored = {"c": np.array(True), "limit": np.array(2)}
    compare(make_model([node], inputs, ["v", "all"], stored), inputs)


def both(model, inputs, symbolic=()):
    """Compare as imported, with some inputs of symbolic shape, and after the graph passes."""
    open_dims(model, symbolic)
    module = from_onnx(model)
    want = run_onnxruntime(model, inputs)
    for program in (module, optimize(module)):
        found = evaluate(program, *(inputs[param.name] for param in program["main"].params))
        for mine, other in zip(found if isinstance(found, tuple) else (found,), want, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)
    return module


def open_dims(model, names):
    for info in model.graph.input:
        if info.name in names:
            for axis, dim in enumerate(info.type.tensor_type.shape.dim):
                dim.dim_param = f"{info.name}_{axis}"


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_loop_of_a_computed_number_of_turns(turns):
    inputs = {"m": np.array(turns), "v0": data(3), "x": data(3)}
    node = helper.make_node("Loop", ["m", "", "v0"], ["v", "all"], body=_loop_body())
    module = both(make_model([node], inputs, ["v", "all"]), inputs)
    assert len(module.functions) == 2
    both(make_model([node], inputs, ["v", "all"]), inputs, ["v0", "x"])


@pytest.mark.parametrize("limit", [-1, 0, 4])
def test_loop_until_a_computed_condition(limit):
    inputs = {"limit": np.array(limit), "c": np.array(limit >= 0), "v0": data(3), "x": data(3)}
    node = helper.make_node("Loop", ["", "c", "v0"], ["v", "all"], body=_loop_body("i", ("limit",)))
    both(make_model([node], inputs, ["v", "all"]), inputs)
    stored = {"m": np.array(300)}
    node = helper.make_node("Loop", ["m", "c", "v0"], ["v", "all"], body=_loop_body("i", ("limit",)))
    both(make_model([node], inputs, ["v", "all"], stored), inputs)


@pytest.mark.parametrize("turns", [0, 3])
def test_a_carried_value_that_grows(turns):
    nodes = [
        helper.make_node("Identity", ["c_in"], ["c_out"]),
        helper.make_node("Concat", ["v", "x"], ["v_out"], axis=0),
        helper.make_node("ReduceSum", ["v_out"], ["s"], keepdims=0),
        helper.make_node("Shape", ["v"], ["n"]),
    ]
    inputs = [("i", TensorProto.INT64, []), ("c_in", TensorProto.BOOL, []), ("v", TensorProto.FLOAT, ["n", 2])]
    body = _graph("body", nodes, ["c_out", "v_out", "s", "n"], inputs)
    node = helper.make_node("Loop", ["m", "", "v0"], ["v", "all", "sizes"], body=body)
    given = {"m": np.array(turns), "v0": data(1, 2), "x": data(2, 2)}
    for symbolic in ([], ["x"], ["x", "v0"]):
        both(make_model([node], given, ["v", "all", "sizes"]), given, symbolic)


def test_loops_inside_loops_with_branches_and_sizes_from_outside():
    leaf = _graph(
        "leaf", [helper.make_node("Add", ["w", "x"], ["w2"]), helper.make_node("Add", ["w2", "ones"], ["w3"])], ["w3"]
    )
    other = _graph("other", [helper.make_node("Sub", ["w", "x"], ["w3"])], ["w3"])
    inner = _graph(
        "inner",
        [
            helper.make_node("Identity", ["cc"], ["cc2"]),
            helper.make_node("Greater", ["j", "i"], ["more"]),
            helper.make_node("If", ["more"], ["w_out"], then_branch=leaf, else_branch=other),
        ],
        ["cc2", "w_out"],
        [("j", TensorProto.INT64, []), ("cc", TensorProto.BOOL, []), ("w", TensorProto.FLOAT, [None])],
    )
    outer = _graph(
        "outer",
        [
            helper.make_node("Identity", ["c"], ["c2"]),
            helper.make_node("Expand", ["one", "size"], ["ones"]),
            helper.make_node("Loop", ["m", "", "v"], ["v_out"], body=inner, name="inner"),
        ],
        ["c2", "v_out"],
        [("i", TensorProto.INT64, []), ("c", TensorProto.BOOL, []), ("v", TensorProto.FLOAT, [None])],
    )
    nodes = [
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Loop", ["m", "", "v0"], ["v"], body=outer, name="outer"),
    ]
    inputs = {"m": np.array(3), "v0": data(4), "x": data(4)}
    stored = {"one": np.ones(1, np.float32)}
    for symbolic in ([], ["x", "v0"]):
        module = both(make_model(nodes, inputs, ["v"], stored), inputs, symbolic)
        assert len(module.functions) == 3


def test_loop_refuses():
    inputs = {"v0": data(3), "x": data(3)}
    node = helper.make_node("Loop", ["m", "", "v0"], ["v", "all"], body=_loop_body())
    with pytest.raises(UserError, match="must be one value"):
        from_onnx(make_model([node], inputs, ["v", "all"], {"m": np.array([1, 2])}))
    endless = helper.make_node("Loop", ["", "", "v0"], ["v", "all"], body=_loop_body())
    with pytest.raises(UnsupportedError, match="without an end"):
        from_onnx(make_model([endless], inputs, ["v", "all"]))


def test_a_long_loop_is_not_spelled_out():
    inputs = {"v0": data(3), "x": np.zeros(3, np.float32)}
    node = helper.make_node("Loop", ["m", "", "v0"], ["v", "all"], body=_loop_body())
    model = make_model([node], inputs, ["v", "all"], {"m": np.array(1000)})
    assert len(both(model, inputs).functions) == 2


def _scan_body():
    nodes = [helper.make_node("Add", ["state", "part"], ["next"]), helper.make_node("Neg", ["next"], ["out"])]
    inputs = [("state", TensorProto.FLOAT, [2]), ("part", TensorProto.FLOAT, [2])]
    return _graph("body", nodes, ["next", "out"], inputs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scan_input_directions": [1]},
        {"scan_output_directions": [1]},
        {"scan_input_axes": [1], "scan_output_axes": [1]},
    ],
)
def test_scan(options):
    node = helper.make_node("Scan", ["s0", "x"], ["s", "all"], body=_scan_body(), num_scan_inputs=1, **options)
    inputs = {"s0": data(2), "x": data(2, 4) if "scan_input_axes" in options else data(4, 2)}
    compare(make_model([node], inputs, ["s", "all"]), inputs)
    module = both(make_model([node], inputs, ["s", "all"]), inputs, ["x"])
    assert len(module.functions) == 2


def test_scan_refuses():
    node = helper.make_node("Scan", ["s0", "x"], ["s", "all"], body=_scan_body(), num_scan_inputs=3)
    with pytest.raises(UserError, match="num_scan_inputs is 3"):
        from_onnx(make_model([node], {"s0": data(2), "x": data(4, 2)}, ["s", "all"]))
    node = helper.make_node("Scan", ["s0", "x"], ["s", "all"], body=_scan_body(), num_scan_inputs=1)
    with pytest.raises(UnsupportedError, match="a Scan of 0 turns"):
        from_onnx(make_model([node], {"s0": data(2), "x": data(0, 2)}, ["s", "all"]))


@pytest.mark.parametrize("value", [True, False])
def test_branches_may_call_their_results_as_the_node_does(value):
    """Decoders with a key-value cache come like that: names of a branch are its own."""

    def side(operator):
        nodes = [helper.make_node(operator, ["x"], ["y"]), helper.make_node("Add", ["y", "x"], ["z"])]
        return _graph(operator, nodes, ["y", "z"])

    fork = helper.make_node("If", ["c"], ["y", "z"], then_branch=side("Neg"), else_branch=side("Abs"))
    after = helper.make_node("Mul", ["y", "z"], ["r"])
    inputs = {"c": np.array(value), "x": data(3)}
    compare(make_model([fork, after], inputs, ["r"]), inputs)
    compare(make_model([after, fork], inputs, ["r"]), inputs)  # and out of order


def test_initializers_and_inner_branches_have_names_of_their_own():
    inner = [_graph(name, [helper.make_node(name, ["w"], ["y"])], ["y"]) for name in ("Neg", "Abs")]
    fork = helper.make_node("If", ["c"], ["y"], then_branch=inner[0], else_branch=inner[1])
    then_graph = _graph("then", [fork], ["y"])
    then_graph.initializer.append(onnx.numpy_helper.from_array(np.array([2.0, -3.0], np.float32), "w"))
    else_graph = _graph("else", [helper.make_node("Exp", ["x"], ["y"])], ["y"])
    outer = helper.make_node("If", ["c"], ["y"], then_branch=then_graph, else_branch=else_graph)
    later = helper.make_node("Neg", ["y"], ["w"])
    inputs = {"c": np.array(True), "x": data(2)}
    (result,) = run_tilewright(make_model([outer, later], inputs, ["w"]), inputs)
    assert result.tolist() == [2.0, -3.0]


def test_names_inside_a_branch_do_not_leak():
    then_graph = _graph("then", [helper.make_node("Neg", ["x"], ["inner"])], ["inner"])
    else_graph = _graph("else", [helper.make_node("Abs", ["x"], ["inner"])], ["inner"])
    fork = helper.make_node("If", ["c"], ["y"], then_branch=then_graph, else_branch=else_graph)
    again = helper.make_node("Exp", ["inner"], ["z"], name="outside")
    with pytest.raises(UserError, match=r"(?s)nothing produces its input 'inner'.*outside"):
        from_onnx(make_model([fork, again], {"c": np.array(True), "x": data(3)}, ["z"]))


def test_initializers_of_a_branch():
    constant = onnx.numpy_helper.from_array(np.array([2.0], np.float32), "two")
    then_graph = _graph("then", [helper.make_node("Mul", ["x", "two"], ["t"])], ["t"])
    then_graph.initializer.append(constant)
    else_graph = _graph("else", [helper.make_node("Abs", ["x"], ["e"])], ["e"])
    fork = helper.make_node("If", ["c"], ["y"], then_branch=then_graph, else_branch=else_graph)
    inputs = {"c": np.array(True), "x": data(3)}
    (result,) = run_tilewright(make_model([fork], inputs, ["y"]), inputs)
    np.testing.assert_allclose(result, inputs["x"] * 2)
