"""What follows integer products: biases in integers, clamps that casts do themselves, residuals read as bytes."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Var, constant
from tilewright.graph.ir.op import Operator, call
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import primitive_functions
from tilewright.graph.pipeline import optimize
from tilewright.ir.dtype import FLOAT32, INT8, INT32, UINT8, DataType
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.target import Target

VNNI = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server")
SCALE = np.float32(0.0123)


def names_of(module: IRModule) -> list[str]:
    function = module["main"]
    assert isinstance(function, Function)
    calls = [item for item in post_order(function) if isinstance(item, Call) and isinstance(item.callee, Operator)]
    return [item.callee.name for item in calls if isinstance(item.callee, Operator)]


def optimized(params: list[Var], body: GraphExpr, fuse: bool = False) -> tuple[IRModule, IRModule]:
    module = IRModule([Function("main", tuple(params), body)])
    return module, optimize(module, GraphOptions(layout="NHWC", target=VNNI, fuse=fuse))


def product(x: Var, zero: int = 3) -> GraphExpr:
    """A product of bytes, scaled."""
    wide = call("subtract", call("cast", x, dtype=INT32), constant(np.int32(zero)))
    weights = np.random.default_rng(1).integers(-128, 128, (8, 16))
    total = call("matmul", wide, constant(weights.astype(np.int32)))
    return call("multiply", call("cast", total, dtype=FLOAT32), constant(np.full(16, SCALE)))


def data(params: list[Var]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, 256, item.tensor_type.static_shape).astype(np.uint8) for item in params]


@pytest.mark.parametrize("whole", [True, False])
def test_biases_of_whole_steps_are_added_to_integers(whole: bool) -> None:
    x = Var("x", tensor_type((5, 8), "uint8"))
    steps = np.arange(-8, 8).astype(np.float32) * 1000 + (0 if whole else 0.25)
    before, after = optimized([x], call("add", product(x), constant(steps * SCALE)))
    names = names_of(after)
    assert names.count("add") == (1 if whole else 2) and "subtract" not in names
    np.testing.assert_allclose(evaluate(after, *data([x])), evaluate(before, *data([x])), rtol=1e-5, atol=1e-3)


def test_constants_that_are_added_to_a_sum_meet() -> None:
    """The correction for the zero point of the data and the bias are one constant."""
    x = Var("x", tensor_type((5, 8), "uint8"))
    wide = call("subtract", call("cast", x, dtype=INT32), constant(np.int32(3)))
    weights = np.random.default_rng(1).integers(-128, 128, (8, 16)).astype(np.int32)
    total = call("matmul", wide, constant(weights))
    before, after = optimized([x], call("add", total, constant(np.arange(16, dtype=np.int32) - np.int32(2**31 - 1))))
    assert names_of(after).count("add") == 1
    np.testing.assert_array_equal(evaluate(after, *data([x])), evaluate(before, *data([x])))


def test_biases_that_do_not_fit_stay_numbers() -> None:
    x = Var("x", tensor_type((5, 8), "uint8"))
    for bias in (np.full(16, 1e9, np.float32), np.full(16, np.inf, np.float32)):
        before, after = optimized([x], call("add", product(x), constant(bias)))
        assert names_of(after).count("add") == 2
        np.testing.assert_array_equal(evaluate(after, *data([x])), evaluate(before, *data([x])))


@pytest.mark.parametrize("dtype", [UINT8, INT8], ids=str)
@pytest.mark.parametrize("zero", [0.0, 10.0])
@pytest.mark.parametrize("bounds", [(0.0, 255.0), (0.0, 6.0), (-200.0, None), (None, 300.0), (0.4, 254.6)])
def test_clamps_that_a_cast_does_itself(
    dtype: DataType, zero: float, bounds: tuple[float | None, float | None]
) -> None:
    """All of these are exact: the same bytes, and no more clamps than bounds within the range of a byte."""
    x = Var("x", tensor_type((5, 8), "uint8"))
    low, high = (0.0, 255.0) if dtype is UINT8 else (-128.0, 127.0)
    inner = call("round", call("clip", product(x), minimum=bounds[0], maximum=bounds[1]))
    level: GraphExpr = call("add", inner, constant(np.float32(zero))) if zero else inner
    before, after = optimized([x], call("cast", call("clip", level, minimum=low, maximum=high), dtype=dtype))
    np.testing.assert_array_equal(evaluate(after, *data([x])), evaluate(before, *data([x])))
    inside = [bound for bound in bounds if bound is not None and low < np.rint(bound) + zero < high]
    assert names_of(after).count("clip") == (1 if inside else 0)


def test_relu_before_unsigned_bytes_is_a_clamp_too() -> None:
    x = Var("x", tensor_type((5, 8), "uint8"))
    rounded = call("round", call("nn.relu", product(x)))
    before, after = optimized([x], call("cast", call("clip", rounded, minimum=0.0, maximum=255.0), dtype=UINT8))
    assert not {"nn.relu", "clip"} & set(names_of(after))
    np.testing.assert_array_equal(evaluate(after, *data([x])), evaluate(before, *data([x])))
    shifted = call("add", rounded, constant(np.float32(5)))
    before, after = optimized([x], call("cast", call("clip", shifted, minimum=0.0, maximum=255.0), dtype=UINT8))
    assert "nn.relu" in names_of(after), "5 is the least value"
    np.testing.assert_array_equal(evaluate(after, *data([x])), evaluate(before, *data([x])))


def test_a_quantised_residual_is_read_as_bytes() -> None:
    x, other = Var("x", tensor_type((5, 8), "uint8")), Var("other", tensor_type((5, 16), "uint8"))
    numbers = call("subtract", call("cast", other, dtype=INT32), constant(np.int32(128)))
    residual = call("multiply", call("cast", numbers, dtype=FLOAT32), constant(np.float32(0.5)))
    before, after = optimized([x, other], call("nn.relu", call("add", product(x), residual)), fuse=True)
    (kernel,) = primitive_functions(after)
    assert UINT8 in [param.tensor_type.dtype for param in kernel.params[1:]]
    arrays = data([x, other])
    np.testing.assert_allclose(evaluate(after, *arrays), evaluate(before, *arrays), rtol=1e-6, atol=1e-4)
