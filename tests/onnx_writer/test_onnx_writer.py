"""Graphs written as ONNX: onnx's checker takes them, and onnxruntime computes what the interpreter does."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.integration.small_models import FLOAT, classifier, model
from tests.quantization.networks import exact_session
from tests.topi.samples import SAMPLES, Sample
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function, GraphExpr, Tuple, TupleGet, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.function import IRModule
from tilewright.ir.types import TupleType, tensor_type
from tilewright.onnx_writer import to_onnx
from tilewright.onnx_writer.writer import _TYPES, RULES
from tilewright.support.errors import UnsupportedError


def module_of(name: str, arrays: list[np.ndarray], attributes: dict[str, object]) -> IRModule:
    """One operator on inputs of the shapes of arrays."""
    params = tuple(Var(f"x{n}", tensor_type(array.shape, array.dtype.name)) for n, array in enumerate(arrays))
    body = call(name, *params, **attributes)
    module = infer_types(IRModule({"main": Function("main", params, body)}))
    main = module["main"]
    assert isinstance(main, Function)
    if not isinstance(main.body.type, TupleType):
        return module
    parts = Tuple(tuple(TupleGet(body, place) for place in range(len(main.body.type.items))))
    return infer_types(IRModule({"main": Function("main", params, parts)}))


_WRITTEN = [
    sample
    for sample in SAMPLES
    # Checks of data are the runtime's own in ONNX.
    if sample[0] in RULES and sample[0] != "check_values" and all(a.dtype.name in _TYPES for a in sample[1])
]


@pytest.mark.parametrize("sample", _WRITTEN, ids=[f"{n}-{sample[0]}" for n, sample in enumerate(_WRITTEN)])
def test_operators(sample: Sample) -> None:
    name, arrays, attributes = sample
    module = module_of(name, list(arrays), attributes)
    exported = to_onnx(module)
    onnx.checker.check_model(onnx.load_from_string(exported), full_check=True)
    session = onnxruntime.InferenceSession(exported)
    ours = evaluate(module, *arrays)
    theirs = session.run(None, {f"x{n}": array for n, array in enumerate(arrays)})
    for a, b in zip(ours if isinstance(ours, tuple) else (ours,), theirs, strict=True):
        tolerance = 2e-3 if b.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(np.asarray(a), b, rtol=tolerance, atol=tolerance / 10)


def test_large_constants_are_told_apart() -> None:
    """Arrays that are made on the way and freed leave their identity to later ones."""
    x = Var("x", tensor_type((1, 2048), "float32"))
    value: GraphExpr = x
    for number in range(6):
        codes = constant(np.full((2048, 2048), number % 3 - 1, np.int8))
        scale = constant(np.full((1, 2048), 2.0**-number, np.float32))
        weight = call("qnn.dequantize", codes, scale, constant(np.zeros((), np.int8)))
        value = call("add", call("matmul", value, weight), x)
    module = infer_types(IRModule({"main": Function("main", (x,), value)}))
    data = np.ones((1, 2048), np.float32) / 2048
    (theirs,) = onnxruntime.InferenceSession(to_onnx(module)).run(None, {"x": data})
    np.testing.assert_allclose(theirs, evaluate(module, data), rtol=1e-4)


def test_most_operators_have_samples() -> None:
    """A rule that no sample reaches is not tested."""
    untested = set(RULES) - {name for name, _, _ in SAMPLES}
    assert untested <= {"assume_shape", "dimensions", "check_values", "checked", "arange"}


def test_a_network() -> None:
    data = classifier().SerializeToString()
    exported = to_onnx(tw.frontend.from_onnx(data))
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    ours, theirs = (onnxruntime.InferenceSession(item).run(None, {"image": x})[0] for item in (exported, data))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_open_sizes_are_computed() -> None:
    """Shapes that depend on the inputs are computed by the written model, from the shapes of its own inputs."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "first"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    weights = {"first": np.asarray([0], np.int64), "rest": np.asarray([-1], np.int64)}
    source = model(nodes, {"x": (FLOAT, ("n", 3, "m"))}, {"y": (FLOAT, None)}, weights)
    session = onnxruntime.InferenceSession(to_onnx(tw.frontend.from_onnx(source)))
    for shape in ((2, 3, 4), (5, 3, 1)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.reshape(shape[0], -1))


def test_what_onnx_has_no_words_for_is_named() -> None:
    condition = model(
        [
            helper.make_node(
                "If",
                ["c"],
                ["y"],
                name="choice",
                then_branch=helper.make_graph(
                    [helper.make_node("Relu", ["x"], ["t"])],
                    "then",
                    [],
                    [helper.make_tensor_value_info("t", FLOAT, (3,))],
                ),
                else_branch=helper.make_graph(
                    [helper.make_node("Neg", ["x"], ["e"])],
                    "else",
                    [],
                    [helper.make_tensor_value_info("e", FLOAT, (3,))],
                ),
            )
        ],
        {"c": (TensorProto.BOOL, ()), "x": (FLOAT, (3,))},
        {"y": (FLOAT, (3,))},
    )
    with pytest.raises(UnsupportedError, match="control flow"):
        to_onnx(tw.frontend.from_onnx(condition))


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize(("shape", "turned"), [((128, 25), False), ((4, 32, 25), False), ((25, 4, 32), True)])
def test_weights_of_few_bits(name: str, shape: tuple[int, ...], turned: bool) -> None:
    """Packed, with a scale a column or a block; other runtimes and the importer give the same numbers."""
    dtype, random = DataType.of(name), np.random.default_rng(0)
    integers = random.integers(dtype.min_value(), dtype.max_value() + 1, shape)
    scales = tuple(1 if size in (128, 32) else size for size in shape)
    zeros = random.integers(0, 2, scales) if dtype.is_uint else np.zeros(scales)
    scale = constant(random.random(scales).astype(np.float32))
    weight: GraphExpr = call("qnn.dequantize", constant(integers, name), scale, constant(zeros, name))
    if len(shape) == 3:
        weight = call("reshape", weight, shape=(25, 128) if turned else (128, 25))
    x = Var("x", tensor_type((3, 128), "float32"))
    body = call("matmul", x, weight, transpose_b=turned)
    module = infer_types(IRModule({"main": Function("main", (x,), body)}))
    exported = to_onnx(module)
    written = onnx.load_from_string(exported)
    onnx.checker.check_model(written, full_check=True)
    (stored,) = [item for item in written.graph.initializer if len(item.dims) == 2 and 128 in item.dims]
    assert stored.data_type == _TYPES[name]
    assert len(stored.raw_data) == 128 * 25 * dtype.bits // 8
    (node,) = [item for item in written.graph.node if item.op_type == "DequantizeLinear"]
    blocks = [item.i for item in node.attribute if item.name == "block_size"]
    assert blocks == ([32] if len(shape) == 3 else [])
    data = random.standard_normal((3, 128)).astype(np.float32)
    ours = evaluate(module, data)
    (theirs,) = exact_session(exported).run(None, {"x": data})
    np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(tw.compile(exported, threads=1)(data), ours, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_quantised_models_keep_their_bits(bits: int) -> None:
    x = Var("x", tensor_type((5, 96), "float32"))
    weight = np.random.default_rng(1).standard_normal((96, 70)).astype(np.float32)
    module = infer_types(IRModule({"main": Function("main", (x,), call("matmul", x, constant(weight)))}))
    data = np.random.default_rng(2).standard_normal((5, 96)).astype(np.float32)
    quantized = tw.quantize(module, data, scheme="weights", weight_bits=bits, group=32)
    exported = to_onnx(quantized.module)
    stored = onnx.load_from_string(exported).graph.initializer
    kinds = {_TYPES["int2" if bits == 2 else "int4"], TensorProto.FLOAT}
    assert {item.data_type for item in stored} == kinds
    assert max(len(item.raw_data) for item in stored) == 96 * 70 * (2 if bits == 2 else 4) // 8
    ours = tw.compile(quantized.module, threads=1)(data)
    (theirs,) = exact_session(exported).run(None, {"x": data})
    np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(tw.compile(exported, threads=1)(data), ours)


_SMALL = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn", "float8_e8m0fnu"]


@pytest.mark.parametrize("name", [*_SMALL, "int4", "uint4", "int2", "uint2", "bfloat16"])
def test_conversions_of_small_types(name: str) -> None:
    """What is cast on the way, and constants of every type, come back as they were."""
    x = Var("x", tensor_type((65,), "float32"))
    codes = np.random.default_rng(3).integers(0, 2, 65)
    narrow = call("reshape", call("cast", x, dtype=DataType.of(name)), shape=(5, 13))
    parts = [call("cast", item, dtype=FLOAT32) for item in (narrow, constant(codes.reshape(5, 13), name))]
    module = infer_types(IRModule({"main": Function("main", (x,), call("add", *parts))}))
    exported = to_onnx(module)
    onnx.checker.check_model(onnx.load_from_string(exported), full_check=True)
    data = np.linspace(0.01, 500, 65).astype(np.float32)
    np.testing.assert_array_equal(evaluate(tw.frontend.from_onnx(exported), data), evaluate(module, data))


def test_types_that_onnx_lacks_are_named() -> None:
    x = Var("x", tensor_type((3,), "float32"))
    module = infer_types(IRModule({"main": Function("main", (x,), call("cast", x, dtype=DataType.of("int1")))}))
    with pytest.raises(UnsupportedError, match="values of int1 cannot be written"):
        to_onnx(module)
