"""What exporters write of the size of images is what open heights and widths are likely to be; the rest is nothing."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.frontend import from_onnx
from tilewright.graph.likely_sizes import likely_size, likely_sizes
from tilewright.ir.build import floordiv
from tilewright.ir.expr import Var


def relu(*dims: int | str, metadata: dict[str, str], inputs: int = 1) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", [f"x{n}"], [f"y{n}"]) for n in range(inputs)]
    given = [helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, dims) for n in range(inputs)]
    results = [helper.make_empty_tensor_value_info(f"y{n}") for n in range(inputs)]
    model = helper.make_model(helper.make_graph(nodes, "g", given, results))
    helper.set_model_props(model, metadata)
    return model


def test_the_size_of_images_is_likely() -> None:
    found = from_onnx(relu("batch", 3, "height", "width", metadata={"imgsz": "[64, 48]", "task": "classify"}))
    assert likely_sizes(found) == {"height": 64, "width": 48}
    assert likely_sizes(from_onnx(relu(1, 3, 64, "width", metadata={"imgsz": "[64, 48]"}))) == {"width": 48}


@pytest.mark.parametrize(
    "text", ["", "64", "[64]", "[64, 48, 3]", "[64, -1]", "[64, 4.5]", "[true, 64]", "{", "[1e9, 3]"]
)
def test_what_cannot_be_read_says_nothing(text: str) -> None:
    assert likely_sizes(from_onnx(relu("n", 3, "h", "w", metadata={"imgsz": text}))) == {}


def test_only_one_image_has_a_size() -> None:
    size = {"imgsz": "[64, 48]"}
    assert likely_sizes(from_onnx(relu("n", 3, "h", "w", metadata=size, inputs=2))) == {}
    assert likely_sizes(from_onnx(relu("n", 3, "h", metadata=size))) == {}
    assert likely_sizes(from_onnx(relu("n", 3, "h", "w", metadata={}))) == {}


def test_sizes_that_are_computed() -> None:
    height = Var("h")
    assert likely_size(7, {}) == 7
    assert likely_size(floordiv(height + 31, 32), {"h": 65}) == 3
    assert likely_size(height + Var("w"), {"h": 65}) is None
