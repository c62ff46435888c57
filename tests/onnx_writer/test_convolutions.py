"""Convolutions written as ONNX: of floats in both layouts, of bytes with zero points, and of other whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from bench import tflite_cases_control, tflite_cases_float, tflite_cases_quantized
from bench.tflite_cases import CASES
from tilewright.frontend import from_tflite
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, tensor_type
from tilewright.onnx_writer import to_onnx
from tilewright.support.errors import UnsupportedError

assert tflite_cases_control and tflite_cases_float and tflite_cases_quantized  # they register the cases
QUANTIZED = [name for name in CASES if any(word in name for word in ("CONV", "int8", "int16", "int4", "hybrid"))]
CHOSEN = sorted(set(QUANTIZED[::3]) | {name for name in QUANTIZED if "CONV" in name} | {"UNIQUE"})


def both(module: IRModule, inputs: list[Any]) -> list[tuple[Any, Any]]:
    """What onnxruntime gives for a module as ONNX, beside what the graph interpreter gives."""
    written = to_onnx(module)
    onnx.checker.check_model(onnx.load_from_string(written), full_check=True)
    session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
    theirs = session.run(None, {item.name: value for item, value in zip(session.get_inputs(), inputs, strict=True)})
    found = evaluate(module, *inputs)
    ours = found if isinstance(found, tuple) else (found,)
    return [(np.asarray(a), b) for a, b in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize("name", CHOSEN)
def test_quantised_models_of_tflite(name: str) -> None:
    case = CASES[name]()
    for ours, theirs in both(from_tflite(case.model), [np.asarray(value) for value in case.inputs]):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        if ours.dtype.kind in "iub":
            assert np.array_equal(ours, theirs)
        else:
            np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-4)


_LAYOUTS = {
    "nn.conv2d": (("NCHW", "OIHW"), ("NHWC", "HWIO")),
    "nn.conv2d_transpose": (("NCHW", "IOHW"), ("NHWC", "HWIO")),
}


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "float32"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", _LAYOUTS)
def test_convolutions_of_random_windows(name: str, last: bool, dtype: str) -> None:
    random = np.random.default_rng([last, len(name), len(dtype)])
    for _ in range(4):
        groups, inside, outside = (int(value) for value in random.integers(1, 4, 3))
        kernel, strides, dilation = (tuple(map(int, random.integers(1, 4, 2))) for _ in range(3))
        padding = tuple(map(int, random.integers(0, 3, 4)))
        attributes: dict[str, Any] = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
        data_layout, kernel_layout = _LAYOUTS[name][last]
        sizes = {"N": 2, "C": groups * inside, "H": 11, "W": 9}
        transposed = name == "nn.conv2d_transpose"
        outputs = outside if transposed else groups * outside
        ends = {"O": outputs, "I": groups * inside if transposed else inside, "H": kernel[0], "W": kernel[1]}
        if transposed:
            attributes["output_padding"] = tuple(int(random.integers(0, step)) for step in strides)
        arrays = [
            random.integers(-9, 9, [table[axis] for axis in layout]).astype(dtype)
            for layout, table in ((data_layout, sizes), (kernel_layout, ends))
        ]
        params = tuple(Var(f"x{n}", tensor_type(array.shape, dtype)) for n, array in enumerate(arrays))
        body = call(name, *params, data_layout=data_layout, kernel_layout=kernel_layout, **attributes)
        module = infer_types(IRModule({"main": Function("main", params, body)}))
        for ours, theirs in both(module, arrays):
            assert np.array_equal(ours, theirs), attributes


def test_kernels_of_open_size_are_refused() -> None:
    data = Var("data", tensor_type((1, 1, 4, 4), "int32"))
    weight = Var("weight", TensorType((None,) * 4, data.tensor_type.dtype))
    module = infer_types(IRModule({"main": Function("main", (data, weight), call("nn.conv2d", data, weight))}))
    with pytest.raises(UnsupportedError, match="by a kernel of open size"):
        to_onnx(module)
