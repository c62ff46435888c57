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
from tilewright.graph.ir.expr import Call, Function, GlobalVar, GraphExpr, If, Tuple, TupleGet, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.ir.dtype import FLOAT32, INT32, DataType
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import TupleType, tensor_type
from tilewright.onnx_writer import to_onnx
from tilewright.onnx_writer.writer import _TYPES, RULES
from tilewright.support.errors import UnsupportedError
from tilewright.support.span import Span


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
    # Checks of data are the runtime's own in ONNX; trees are constants there, and numbers drawn by a seed.
    if sample[0] in RULES
    and sample[0] not in ("check_values", "trees.forest", "random.normal", "random.uniform")
    and all(a.dtype.name in _TYPES for a in sample[1])
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
    """A rule that no sample reaches is not tested; what the host does is run by the node suite (`test_round_trip`)."""
    by_host = ("axes.", "host.", "optional.", "random.", "sequence.", "shape.", "text.")
    untested = {name for name in RULES if not name.startswith(by_host)} - {name for name, _, _ in SAMPLES}
    assert untested <= {"after", "assume_shape", "dimensions", "check_values", "checked", "arange"}


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
    x = Var("x", tensor_type((3, 3), "float32"))
    for name, hint in (("host.eigh", "no decompositions"), ("round_to_tf32", "passes of the compiler")):
        body = call(name, x)
        body.span = Span("middle")
        results = Tuple((TupleGet(body, 0), TupleGet(body, 1))) if name == "host.eigh" else body
        with pytest.raises(UnsupportedError, match=f"{name} at .*middle.* cannot be written") as found:
            to_onnx(IRModule({"main": Function("main", (x,), results)}))
        assert hint in str(found.value.hint)
    closure = Function("", (x,), call("nn.relu", x))
    y = Var("y", tensor_type((3, 3), "float32"))
    with pytest.raises(UnsupportedError, match="cannot be written"):
        to_onnx(IRModule({"main": Function("main", (y,), Call(closure, (y,)))}))


def session_of(module: IRModule) -> onnxruntime.InferenceSession:
    """A written module in onnxruntime, after onnx's checker and its shape inference took it."""
    exported = to_onnx(module)
    onnx.checker.check_model(onnx.load_from_string(exported), full_check=True)
    return onnxruntime.InferenceSession(exported)


def test_branches_loops_and_functions() -> None:
    """A function that calls itself is a Loop, one that does not is written where it is called, twice if need be."""
    scalar, kind = tensor_type((), "int64"), tensor_type((None,), "float32")
    count, value = Var("count", scalar), Var("value", kind)
    goes_on = call("less", count, constant(np.int64(3)))
    longer = call("concatenate", value, value, axis=0)
    again = Call(GlobalVar("doubled"), (call("add", count, constant(np.int64(1))), longer))
    loop = Function("doubled", (count, value), If(goes_on, again, value), kind)
    x = Var("x", tensor_type((2,), "float32"))
    twice = Function("twice", (v := Var("v", tensor_type((2,), "float32")),), call("add", v, v))
    first = Call(GlobalVar("twice"), (Call(GlobalVar("twice"), (x,)),))
    start = Var("start", scalar)
    body = Call(GlobalVar("doubled"), (start, first))
    functions = {"main": Function("main", (start, x), body), "doubled": loop, "twice": twice}
    session = session_of(IRModule(functions))
    data = np.float32([1, 2])
    for begin in (0, 2, 3, 9):
        (found,) = session.run(None, {"start": np.array(begin), "x": data})
        np.testing.assert_array_equal(found, np.tile(data * 4, 2 ** max(0, 3 - begin)))


def test_recursion_that_is_no_loop_is_refused() -> None:
    n = Var("n", tensor_type((), "int64"))
    less = Call(GlobalVar("f"), (call("subtract", n, constant(np.int64(1))),))
    body = If(call("less", n, constant(np.int64(1))), n, call("add", less, n))
    function = Function("f", (n,), body, tensor_type((), "int64"))
    main = Function("main", (m := Var("m", tensor_type((), "int64")),), Call(GlobalVar("f"), (m,)))
    with pytest.raises(UnsupportedError, match="the function f calls itself"):
        to_onnx(IRModule({"main": main, "f": function}))


def test_outputs_keep_their_names() -> None:
    written = onnx.load_from_string(to_onnx(tw.frontend.from_onnx(classifier())))
    source = classifier()
    assert [item.name for item in written.graph.output] == [item.name for item in source.graph.output]
    assert [item.name for item in written.graph.input] == [item.name for item in source.graph.input]
    assert written.graph.name == source.graph.name


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("aggregate", ["sum", "min", "max"])
def test_trees(name: str, aggregate: str) -> None:
    """Two trees of two targets, one of them a single leaf; missing values go to the side of their node."""
    x = Var("x", tensor_type((40, 2), name))
    features, branches = np.int32([0, 1, 0, 0, 0, 0]), np.int32([[1, 2], [3, 4], [2, 2], [3, 3], [4, 4], [5, 5]])
    thresholds = np.array([0.1, -0.2, 0, 0, 0, 0], name)
    leaves = np.random.default_rng(0).standard_normal((6, 2)).astype(name)
    missing = np.array([True, False, False, False, False, False])
    tables = (features, thresholds, branches, leaves, np.int32([0, 5]), np.int32([2, 0]), missing)
    body = call("trees.forest", x, *map(constant, tables), aggregate=aggregate)
    module = infer_types(IRModule({"main": Function("main", (x,), body)}))
    data = np.random.default_rng(1).standard_normal((40, 2)).astype(name)
    data[::5, 0] = np.nan
    (theirs,) = session_of(module).run(None, {"x": data})
    np.testing.assert_allclose(theirs, evaluate(module, data), rtol=1e-6)


@pytest.mark.parametrize("zeros", [(), (2, 1, 1, 1)])
def test_convolutions_of_bytes(zeros: tuple[int, ...]) -> None:
    x, w = Var("x", tensor_type((1, 3, 5, 5), "uint8")), Var("w", tensor_type((2, 3, 3, 3), "int8"))
    shift = constant(np.full(zeros, 3, np.int32))
    data = call("subtract", call("cast", x, dtype=INT32), constant(np.int32(7)))
    weight = call("subtract", call("cast", w, dtype=INT32), shift)
    body = call("nn.conv2d", data, weight, padding=(1, 1, 1, 1))
    module = infer_types(IRModule({"main": Function("main", (x, w), body)}))
    random = np.random.default_rng(0)
    arrays = (
        random.integers(0, 256, (1, 3, 5, 5)).astype(np.uint8),
        random.integers(-128, 128, (2, 3, 3, 3)).astype(np.int8),
    )
    (theirs,) = session_of(module).run(None, {"x": arrays[0], "w": arrays[1]})
    np.testing.assert_array_equal(theirs, evaluate(module, *arrays))
    y = Var("y", tensor_type((1, 3, 5, 5), "int32"))
    words = infer_types(IRModule({"main": Function("main", (y, w), call("nn.conv2d", y, weight))}))
    given = random.integers(-(2**15), 2**15, (1, 3, 5, 5)).astype(np.int32)
    (theirs,) = session_of(words).run(None, {"y": given, "w": arrays[1]})
    np.testing.assert_array_equal(theirs, evaluate(words, given, arrays[1]))


def test_writes_outside_are_left_out() -> None:
    """ONNX refuses places outside; the graph's own operators leave them out unless they were checked."""
    data, places = Var("data", tensor_type((4, 3), "float32")), Var("places", tensor_type((5,), "int64"))
    updates = Var("updates", tensor_type((5, 3), "float32"))
    body = call("scatter", data, places, updates, reduction="add")
    module = infer_types(IRModule({"main": Function("main", (data, places, updates), body)}))
    arrays = [np.ones((4, 3), np.float32), np.int64([0, 9, 3, -1, 0]), np.arange(15, dtype=np.float32).reshape(5, 3)]
    names = ("data", "places", "updates")
    (theirs,) = session_of(module).run(None, dict(zip(names, arrays, strict=True)))
    np.testing.assert_array_equal(theirs, evaluate(module, *arrays))


def test_a_run_that_must_end_ends() -> None:
    """A branch that could not be compiled, and a condition that must hold, end runs of the written model as well."""
    x = Var("x", tensor_type((2,), "float32"))
    kind = tensor_type((2,), "float32")
    fail = call("host.fail", dims=(Symbol("never"),), message="no", result=kind)
    condition = call("all", call("less", x, constant(np.float32(5))), axes=(0,))
    held = call("host.require", call("reshape", condition, shape=(1,)), dims=(Symbol("one"),), message="too much")
    flag = Var("flag", tensor_type((), "bool"))
    body = Tuple((If(flag, call("nn.relu", x), fail), held))
    session = session_of(IRModule({"main": Function("main", (flag, x), body)}))
    found, _ = session.run(None, {"flag": np.array(True), "x": np.float32([-1, 1])})
    assert found.tolist() == [0, 1]
    for flag_value, values in ((False, [0, 0]), (True, [0, 9])):
        with pytest.raises(Exception, match="out of data bounds"):
            session.run(None, {"flag": np.array(flag_value), "x": np.float32(values)})


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
