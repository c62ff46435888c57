"""Small ONNX models built in code, run through the importer and the graph interpreter, and through onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented

from tilewright.frontend import from_onnx
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GraphExpr
from tilewright.graph.ir.op import Operator
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import optimize
from tilewright.ir.function import IRModule
from tilewright.ir.visit import post_order

OPSET = 21
RANDOM = np.random.default_rng(7)


def data(*shape: int, dtype: str = "float32", low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Random numbers of a shape."""
    if dtype == "bool":
        return RANDOM.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("int", "uint")):
        return RANDOM.integers(int(low), int(high) + 1, shape).astype(dtype)
    return RANDOM.uniform(low, high, shape).astype(dtype)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    initializers: Mapping[str, np.ndarray] | None = None,
    opset: int = OPSET,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model of some nodes."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in inputs.items()
    ]
    stored = [numpy_helper.from_array(value, name) for name, value in (initializers or {}).items()]
    graph = helper.make_graph(
        list(nodes), "test", infos, [helper.make_empty_tensor_value_info(name) for name in outputs], stored
    )
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(name, version) for name, version in (domains or {}).items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions))


def run_tilewright(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs by import and interpreter."""
    module = from_onnx(model)
    result = evaluate(module, *(inputs[param.name] for param in main_of(module).params))
    return list(result) if isinstance(result, tuple) else [result]


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs by onnxruntime, or by ONNX's own reference where onnxruntime lacks an operator for a type."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except NotImplemented:
        return ReferenceEvaluator(model).run(None, dict(inputs))
    return session.run(None, dict(inputs))


def compare(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], tolerance: float = 1e-5) -> None:
    """Both runs give the same."""
    ours, theirs = run_tilewright(model, inputs), run_onnxruntime(model, inputs)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        assert mine.shape == other.shape
        np.testing.assert_allclose(
            mine.astype(np.float64), other.astype(np.float64), rtol=tolerance, atol=tolerance, equal_nan=True
        )


def check(
    op_type: str,
    *values: np.ndarray | None,
    constants: Sequence[int] = (),
    outputs: int = 1,
    opset: int = OPSET,
    tolerance: float = 1e-5,
    **attributes: object,
) -> None:
    """One node: the values are its inputs (None is left out), those at the places in `constants` are initializers."""
    names = ["" if value is None else f"x{index}" for index, value in enumerate(values)]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, results, name=f"the_{op_type}", **attributes)
    given = {names[i]: value for i, value in enumerate(values) if value is not None and i not in constants}
    stored = {names[i]: value for i, value in enumerate(values) if value is not None and i in constants}
    compare(make_model([node], given, results, stored, opset), given, tolerance)


def import_one(
    op_type: str,
    *values: np.ndarray | None,
    constants: Sequence[int] = (),
    outputs: int = 1,
    opset: int = OPSET,
    **attributes: object,
) -> IRModule:
    """Import one node, as `check` builds it."""
    names = ["" if value is None else f"x{index}" for index, value in enumerate(values)]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, results, name=f"the_{op_type}", **attributes)
    given = {names[i]: value for i, value in enumerate(values) if value is not None and i not in constants}
    stored = {names[i]: value for i, value in enumerate(values) if value is not None and i in constants}
    return from_onnx(make_model([node], given, results, stored, opset))


def main_of(module: IRModule) -> Function:
    """The main function of a module."""
    found = module["main"]
    assert isinstance(found, Function)
    return found


def operators_of(module: IRModule) -> list[str]:
    """The names of the operators called in a module, in no particular order."""
    found: dict[int, str] = {}
    for item in post_order(main_of(module).body):
        if isinstance(item, Call) and isinstance(item.callee, Operator):
            found[id(item)] = item.callee.name
    return sorted(found.values())


def body_of(module: IRModule) -> GraphExpr:
    """The value that main gives."""
    return main_of(module).body


def open_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Sequence[str],
    stored: Mapping[str, object] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model whose inputs are given as name -> (element type, dimensions)."""
    infos = [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in (stored or {}).items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "open", infos, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def agree(model: onnx.ModelProto, *calls: Mapping[str, np.ndarray]) -> IRModule:
    """The imported and the optimized module give what onnxruntime gives for every call (name -> array)."""
    module = from_onnx(model)
    optimized = optimize(module, GraphOptions(layout="NHWC"))
    for inputs in calls:
        want = run_onnxruntime(model, inputs)
        for program in (module, optimized):
            found = evaluate(program, *(inputs[param.name] for param in main_of(program).params))
            found = found if isinstance(found, tuple) else (found,)
            for mine, other in zip(found, want, strict=True):
                assert mine.dtype == other.dtype
                assert mine.shape == other.shape
                np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)
    return module
