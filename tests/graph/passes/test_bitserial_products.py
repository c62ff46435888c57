"""Products of few bits are counted where that is quicker, and give the integers they gave."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.choices import GraphChoices
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call, is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.bitserial_products import bitserial_products, estimated_gain
from tilewright.ir.dtype import INT32, DataType
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.span import Span
from tilewright.target import Target

NEON = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1").replace(cores=1)
COUNTING = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server").replace(cores=1)
LOOKING_UP = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=cascadelake").replace(cores=1)
TILES = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids").replace(cores=1)
RANDOM = np.random.default_rng(2)
X = Var("x", tensor_type((2, 6, 7, 40), "float32"))


def levels(x: GraphExpr, low: int, high: int, dtype: str) -> GraphExpr:
    return call(
        "cast", call("clip", call("round", x), minimum=float(low), maximum=float(high)), dtype=DataType.of(dtype)
    )


def shifted(data: GraphExpr, zero: int) -> GraphExpr:
    wide = call("cast", data, dtype=INT32)
    return call("subtract", wide, constant(np.int32(zero))) if zero else wide


def convolution(data: GraphExpr, weight: np.ndarray, stride: int = 1) -> Call:
    window = {"strides": (stride, stride), "padding": (1, 1, 1, 0), "data_layout": "NHWC", "kernel_layout": "HWIO"}
    return call("nn.conv2d", data, constant(weight.astype(np.int32)), **window)


def rewritten(body: GraphExpr, target: Target = NEON, choices: GraphChoices | None = None) -> IRModule:
    module = infer_types(IRModule([Function("main", (X,), body)]))
    assert isinstance(module, IRModule)
    return bitserial_products(module, GraphOptions(layout="NHWC", target=target, choices=choices or GraphChoices()))


def counts_bits(module: IRModule) -> bool:
    return any(
        is_call_to(
            item,
            "nn.bitserial_conv2d",
        )
        or is_call_to(item, "nn.bitserial_dense")
        for item in post_order(module["main"].body)
    )


WEIGHTS = {
    "bipolar": RANDOM.choice([-1, 1], (3, 3, 40, 9)),
    "bits": RANDOM.integers(0, 2, (3, 3, 40, 9)),
    "ternary": RANDOM.integers(-1, 2, (3, 3, 40, 9)),
    "signed": RANDOM.integers(-2, 2, (3, 3, 40, 9)),
    "negative": -RANDOM.integers(0, 2, (3, 3, 40, 9)),
}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(
    ("low", "high", "dtype", "zero"), [(0, 1, "uint8", 0), (0, 3, "uint8", 2), (-2, 1, "int8", 0), (-1, 1, "int8", 0)]
)
def test_the_same_integers(weights: str, low: int, high: int, dtype: str, zero: int) -> None:
    """Whatever the levels of activations, their zero point and the weights are; outputs fill no vector."""
    body = convolution(shifted(levels(X, low, high, dtype), zero), WEIGHTS[weights], stride=2)
    forced = _answering(body, "bits")
    assert counts_bits(forced)
    x = RANDOM.normal(size=(2, 6, 7, 40)).astype(np.float32) * 2
    np.testing.assert_array_equal(evaluate(forced, x), evaluate(IRModule([Function("main", (X,), body)]), x))


@pytest.mark.parametrize("transpose", [False, True])
def test_matrix_products(transpose: bool) -> None:
    rows = call("reshape", levels(X, 0, 1, "uint8"), shape=(12, 280))
    weight = RANDOM.choice([-1, 1], (16, 280) if transpose else (280, 16)).astype(np.int32)
    body = call("matmul", shifted(rows, 0), constant(weight), transpose_b=transpose)
    module = rewritten(body)
    assert counts_bits(module)
    x = RANDOM.normal(size=(2, 6, 7, 40)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(module, x), evaluate(IRModule([Function("main", (X,), body)]), x))


def _answering(body: Call, answer: str) -> IRModule:
    """The module after the question is answered so; it is asked only of nodes that have a place in a model."""
    body.span = Span("conv") if body.span is None else body.span
    rewritten(body, choices=(asking := GraphChoices()))
    (key,) = asking.asked
    return rewritten(body, choices=GraphChoices({key: answer}))


def test_what_was_measured_goes_before_the_estimate() -> None:
    body = convolution(shifted(levels(X, 0, 1, "uint8"), 0), np.tile(WEIGHTS["bipolar"], 8))
    assert counts_bits(rewritten(body)) and not counts_bits(_answering(body, "bytes"))


@pytest.mark.parametrize(
    ("target", "gains"),
    [
        (NEON, (True, True, False)),
        (COUNTING, (True, True, False)),
        (LOOKING_UP, (False, False, False)),
        (TILES, (False, False, False)),
    ],
)
def test_estimate(target: Target, gains: tuple[bool, ...]) -> None:
    """W1A1, W1A2, W2A2: three instructions for 32 products a lane, eight where nibbles are looked up; tiles win."""
    found = [
        estimated_gain(target, bits, (3, 3, planes, 16, 256), (3, 3, 128, 256)) > 1.3
        for bits, planes in ((1, 1), (2, 1), (2, 2))
    ]
    assert tuple(found) == gains


@pytest.mark.parametrize(
    "body",
    [
        convolution(shifted(levels(X, 0, 31, "uint8"), 0), WEIGHTS["bipolar"]),  # Activations of five bits.
        convolution(shifted(levels(X, 0, 1, "uint8"), 0), 9 * WEIGHTS["signed"]),  # Weights of six.
        convolution(shifted(levels(X, 0, 1, "uint8"), 7), WEIGHTS["bipolar"]),  # A border that one bit does not hold.
        convolution(shifted(call("cast", X, dtype=DataType.of("uint8")), 0), WEIGHTS["bipolar"]),  # Any bytes.
    ],
)
def test_others_stay(body: Call) -> None:
    choices = GraphChoices()
    assert not counts_bits(rewritten(body, choices=choices)) and not choices.asked


def test_tensor_cores_multiply_bytes() -> None:
    body = convolution(shifted(levels(X, 0, 1, "uint8"), 0), np.tile(WEIGHTS["bipolar"], 8))
    choices = GraphChoices()
    assert not counts_bits(rewritten(body, Target("cuda -arch=sm_90a"), choices)) and not choices.asked
