"""Caffe2's files: nets in bytes and texts, kinds of weights, inputs, pairs of files, and what is wrong with some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from bench.caffe2_cases import net, operator
from tilewright.frontend.caffe2 import from_caffe2
from tilewright.frontend.caffe2.files import SCHEMA, read_weights
from tilewright.frontend.formats import identify, model_files
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "caffe2"


def weights(*operators: Any) -> Any:
    return read_weights(SCHEMA.read("NetDef", net(list(operators)), "init"), "init")


def test_kinds_of_weights() -> None:
    found = weights(
        operator("GivenTensorFill", "", "f", shape=[2], values=[1.0, 2.0]),
        operator("GivenTensorInt64Fill", "", "i", shape=[1, 2], values=[3, 4]),
        operator("GivenTensorBoolFill", "", "t", shape=[2], values=[0, 1]),
        operator("ConstantFill", "", "c", shape=[2, 2], value=5.0),
        operator("ConstantFill", "", "n", shape=[3], value=7, dtype=2),
        operator("Int8GivenTensorFill", "", "q", shape=[2], values=b"\x01\x02", Y_scale=0.5, Y_zero_point=1),
    )
    kinds = {name: (str(item.values.dtype), item.values.tolist()) for name, item in found.items()}
    assert kinds == {
        "f": ("float32", [1, 2]),
        "i": ("int64", [[3, 4]]),
        "t": ("bool", [False, True]),
        "c": ("float32", [[5, 5], [5, 5]]),
        "n": ("int32", [7, 7, 7]),
        "q": ("uint8", [1, 2]),
    }
    assert found["q"].levels == (0.5, 1) and found["f"].levels is None


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (operator("XavierFill", "", "w", shape=[2]), "fills a blob by XavierFill"),
        (operator("GivenTensorFill", "", "w", shape=[3], values=[1.0]), "1 numbers do not fit the shape"),
        (operator("GivenTensorFill", "", "w", shape=[-3], values=[1.0]), "a blob of shape"),
        (operator("GivenTensorFill", "", "w v", shape=[1], values=[1.0]), "fills 2 blobs"),
        (operator("ConstantFill", "", "w", shape=[1], dtype=99), "type number 99"),
    ],
)
def test_weights_that_are_none(made: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        weights(made)
    assert "'w'" in str(error.value.where)


def test_nets_are_recognised_in_bytes_and_texts() -> None:
    content = net([operator("Relu", "x", "y")], "x")
    text = str(SCHEMA.read("NetDef", content, "net")).encode()
    for form in (content, text, net([operator("Relu", "x", "y")], "x", name="")):
        assert identify(form).key == "caffe2"
        assert evaluate(tw.load_model(form, shapes={"x": (2,)}), np.float32([-1, 2])).tolist() == [0, 2]


def test_which_files_belong_together(tmp_path: Path) -> None:
    path = tmp_path / "a_predict_net.pb"
    path.write_bytes((FOLDER / "predict_net.pb").read_bytes())
    with pytest.raises(UserError, match="does not say the shape of its input 'data'") as error:
        tw.load_model(path)
    assert "init_net" in str(error.value.hint)
    init = tmp_path / "a_init_net.pb"
    init.write_bytes((FOLDER / "init_net.pb").read_bytes())
    assert model_files(path, identify(path)) == [path, init] and identify(init).key == "caffe2"
    assert [param.name for param in tw.load_model(init)["main"].params] == ["data"]
    path.unlink()
    with pytest.raises(UserError, match="no net that computes beside"):
        tw.load_model(init)
    with pytest.raises(UserError, match="a net of weights alone"):
        from_caffe2(init.read_bytes())


def test_outputs_that_a_net_does_not_name() -> None:
    content = net([operator("Relu", "x", "a"), operator("Exp", "a", "b"), operator("Log", "a", "c")], "x", "")
    assert tw.load_model(content, shapes={"x": (1,)}).attributes["output_names"] == ("b", "c")


@pytest.mark.parametrize(
    ("operators", "said"),
    [
        ([operator("Mystery", "x")], "the operator Mystery of Caffe2 is not supported"),
        ([operator("Relu", "x z q")], ""),
        ([operator("Softmax", "x", axis=9)], "axis 9 is out of range"),
        ([operator("Reshape", "x", shape=[5, -1])], "cannot have the shape"),
        ([operator("Split", "x", "y z", axis=1, split=[1, 9])], "are not 2 parts"),
        ([operator("MaxPool", "x", kernel=9)], "does not fit"),
        ([operator("MaxPool", "x")], "all must be positive"),
        ([operator("MaxPool", "x", kernel=2, order="CHWN")], "the order 'CHWN' is not known"),
        ([operator("Int8Relu", "x")], "says no scale"),
        ([operator("Int8Dequantize", "x")], "without a scale"),
        ([operator("Relu", "x", "z")], "gives 'y', which no operator computes"),
        ([], "the net has no operators"),
    ],
)
def test_errors_say_the_operator(operators: list[Any], said: str) -> None:
    content = net(operators, "x")
    if not said:
        with pytest.raises(UserError, match="does not say the shape of its input 'z'"):
            tw.load_model(content, format="caffe2", shapes={"x": (1, 4, 4, 3)})
        return
    with pytest.raises(UserError) as error:
        tw.load_model(content, format="caffe2", shapes={"x": (1, 4, 4, 3)} if operators else None)
    assert said in error.value.message
    assert error.value.where is not None or isinstance(error.value, UnsupportedError)
