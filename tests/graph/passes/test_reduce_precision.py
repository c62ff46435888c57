"""Half precision: which operators take part, that meaning stays close, that inputs and results keep their types."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, TupleGet, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator, call
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.float_types import rounded
from tilewright.graph.passes.reduce_precision import reduce_precision
from tilewright.ir.dtype import BFLOAT16, FLOAT16, FLOAT32, DataType
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, tensor_type
from tilewright.support.errors import UserError
from tilewright.target import Target


def network() -> IRModule:
    """Two products, a sum, a quotient, parts of a value, and a comparison with integers between them."""
    random = np.random.default_rng(0)

    def weights(*shape: int) -> GraphExpr:
        return constant((random.standard_normal(shape) * 0.3).astype(np.float32))

    x = Var("x", tensor_type((4, 8), "float32"))
    rows = Var("rows", tensor_type((3,), "int64"))
    first = call("nn.relu", call("add", call("matmul", x, weights(8, 6)), weights(6)))
    parts = call("split", first, sizes=(2, 4), axis=1)
    wide = call("exp", call("negative", TupleGet(parts, 0)))
    second = call("matmul", TupleGet(parts, 1), weights(4, 2))
    mixed = call("nn.softmax", call("multiply", second, wide), axis=1)
    results = Tuple((call("take", mixed, rows, axis=0), TupleGet(parts, 0), TupleGet(parts, 1)))
    return infer_types(IRModule([Function("main", (x, rows), results)]))


def kinds(module: IRModule) -> list[tuple[str, DataType]]:
    """The operators of a module with the types of their results."""
    main = module["main"]
    assert isinstance(main, Function)
    return [
        (item.callee.name, item.type.dtype)
        for item in post_order(main)
        if isinstance(item, Call) and isinstance(item.callee, Operator) and isinstance(item.type, TensorType)
    ]


@pytest.mark.parametrize(
    ("steps", "batch", "target", "halved"),
    [
        (3, 4, "cuda", True),
        (1, 4, "cuda", False),
        (3, 1, "cuda", False),
        (3, 4, "opencl", False),
        (3, 4, "llvm", False),
    ],
)
def test_memories_of_several_sequences_multiply_halves_on_tensor_cores(
    steps: int, batch: int, target: str, halved: bool
) -> None:
    """Weights and hidden states are halves; cells are not, nor is what enters."""
    gates = (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0))
    shapes = ((steps, batch, 4, 8), (batch, 8), (batch, 8))
    params = [Var(f"p{n}", tensor_type(shape, "float32")) for n, shape in enumerate(shapes)]
    weights = constant(np.ones((4, 8, 8), np.float32))
    made = call("nn.lstm", params[0], weights, *params[1:], activations=gates)
    module = infer_types(IRModule([Function("main", tuple(params), Tuple((TupleGet(made, 0), TupleGet(made, 1))))]))
    options = GraphOptions(target=Target(target), half=FLOAT16)
    found = reduce_precision(module, options)["main"]
    assert isinstance(found, Function)
    (layer,) = [item for item in post_order(found) if isinstance(item, Call) and item.callee.name == "nn.lstm"]
    half = FLOAT16 if halved else FLOAT32
    assert [item.tensor_type.dtype for item in layer.args] == [FLOAT32, half, half, FLOAT32]
    assert [item.dtype for item in layer.type.items] == [half, FLOAT32]
    assert [item.dtype for item in found.body.type.items] == [FLOAT32, FLOAT32]


@pytest.mark.parametrize("others", [0, 1])
def test_sums_read_the_halves_that_products_read(others: int) -> None:
    """A value that only products and sums read is held in half precision; not where somebody needs all of it."""
    x, w = Var("x", tensor_type((6, 8), "float32")), Var("w", tensor_type((8, 4), "float32"))
    wide = call("exp", x)
    total = call("sum", call("reshape", wide, shape=(2, 3, 8)), axes=(0, 1))
    results = (call("matmul", wide, w), total, *[call("log", wide)] * others)
    made = infer_types(
        reduce_precision(infer_types(IRModule([Function("main", (x, w), Tuple(results))])), GraphOptions(half=FLOAT16))
    )
    (summed,) = [item for item in post_order(made["main"]) if isinstance(item, Call) and item.callee.name == "sum"]
    read = summed.args[0].args[0]
    assert (read.callee.name == "cast") is not bool(others)
    values = [np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((6, 8), (8, 4))]
    exact = np.exp(values[0].astype(np.float64))
    held = exact if others else exact.astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(evaluate(made, *values)[1], held.sum(axis=0), rtol=1e-5)


@pytest.mark.parametrize(("target", "dtype"), [("cuda -arch=sm_90a", FLOAT16), ("native", FLOAT32)])
def test_weight_gradients_are_halves_on_devices(target: str, dtype: DataType) -> None:
    x, g = Var("x", tensor_type((2, 3, 6, 6), "float32")), Var("g", tensor_type((2, 5, 4, 4), "float32"))
    main = Function("main", (x, g), call("nn.conv2d_weight_gradient", x, g, kernel=(3, 3)))
    made = reduce_precision(infer_types(IRModule([main])), GraphOptions(target=Target(target), half=FLOAT16))
    assert ("nn.conv2d_weight_gradient", dtype) in kinds(made)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_products_and_what_follows_them_are_halves(dtype: DataType) -> None:
    source = network()
    made = reduce_precision(source, GraphOptions(half=dtype))
    found = kinds(made)
    assert all(kind is dtype for name, kind in found if name in ("matmul", "add", "nn.relu", "negative"))
    assert ("exp", FLOAT32) in found
    # The product of a half with a float32 follows the half; the result of the model does not.
    assert ("multiply", dtype) in found
    main = made["main"]
    before = source["main"]
    assert isinstance(main, Function) and isinstance(before, Function)
    assert infer_types(made)["main"].body.type is before.body.type  # type: ignore[attr-defined]
    random = np.random.default_rng(1)
    arrays = [random.standard_normal((4, 8)).astype(np.float32), np.array([2, 0, 1])]
    ours, theirs = evaluate(made, *arrays), evaluate(source, *arrays)
    tolerance = 5e-3 if dtype is FLOAT16 else 5e-2
    np.testing.assert_allclose(ours[0], theirs[0], atol=tolerance)
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)


def test_a_result_of_several_parts_keeps_its_types() -> None:
    x = Var("x", tensor_type((4, 4), "float32"))
    body = call("split", call("matmul", x, x), sizes=(1, 3), axis=1)
    source = infer_types(IRModule([Function("main", (x,), body)]))
    values = np.random.default_rng(2).standard_normal((4, 4)).astype(np.float32)
    made = reduce_precision(source, GraphOptions(half=FLOAT16))
    for a, b in zip(evaluate(made, values), evaluate(source, values), strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=2e-2)


def test_models_without_products_stay() -> None:
    x = Var("x", tensor_type((4,), "float32"))
    module = infer_types(IRModule([Function("main", (x,), call("add", x, constant(np.float32(1))))]))
    assert kinds(reduce_precision(module, GraphOptions(half=FLOAT16))) == [("add", FLOAT32)]


def test_constants_beyond_the_range_become_the_largest_number() -> None:
    values = Constant(np.array([1e9, -1e9, np.inf, 0.1], np.float32), FLOAT32)
    np.testing.assert_array_equal(rounded(values, FLOAT16).data, np.array([65504, -65504, np.inf, 0.1], np.float16))
    assert rounded(values, BFLOAT16).data.dtype == np.uint16


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_compiled_models_keep_their_types(precision: str) -> None:
    source = network()
    random = np.random.default_rng(1)
    arrays = [random.standard_normal((4, 8)).astype(np.float32), np.array([2, 0, 1])]
    first, second, third = tw.compile(source, precision=precision)(*arrays)
    expected = evaluate(source, *arrays)
    assert first.dtype == second.dtype == third.dtype == np.float32
    assert 0 < np.abs(first - expected[0]).max() < 3e-2


def test_what_is_no_precision_is_said() -> None:
    with pytest.raises(UserError, match="no precision 'half'"):
        tw.compile(network(), precision="half")
    with pytest.raises(UserError, match="tf32 is a precision of NVIDIA GPUs"):
        tw.compile(network(), precision="tf32")
