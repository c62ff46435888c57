"""Half-precision arithmetic: which products and convolutions use it, in what blocks, and what comes of it."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.choices import GraphChoices
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator, call, is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.ops.half import HalfConv2dAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.half_products import half_products
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError
from tilewright.support.span import Span
from tilewright.target import Target

LAYOUT = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
HALVES = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids")


def convolution(weight: tuple[int, ...], dtype: str = "float16", groups: int = 1, known: bool = True) -> IRModule:
    channels = weight[2] * groups
    x, w = Var("x", tensor_type((1, 8, 8, channels), dtype)), Var("w", tensor_type(weight, dtype))
    weights: GraphExpr = constant(np.ones(weight, dtype)) if known else w
    body = call("nn.conv2d", x, weights, padding=(1, 1, 1, 1), strides=(2, 2), groups=groups, **LAYOUT)
    return infer_types(IRModule([Function("main", (x,) if known else (x, w), body)]))


def rewritten(module: IRModule, target: Target = HALVES) -> Call:
    """The last operator of a module after the pass."""
    main = half_products(module, GraphOptions(target=target, winograd=False))["main"]
    assert isinstance(main, Function) and isinstance(main.body, Call)
    return main.body


@pytest.mark.parametrize(
    ("weight", "block"),
    [
        ((3, 3, 64, 32), 192),
        ((3, 3, 256, 32), 256),
        ((1, 1, 96, 64), 96),
        ((3, 3, 32, 32), 96),  # A row of taps.
        ((5, 5, 16, 16), 80),
        ((3, 3, 128, 32), 192),  # Half of the channels of a row of taps.
        ((3, 3, 160, 32), 240),
        ((3, 3, 22, 32), 66),
    ],
)
def test_blocks_of_convolutions(weight: tuple[int, ...], block: int) -> None:
    found = rewritten(convolution(weight))
    assert isinstance(found.callee, Operator) and found.callee.name == "half.conv2d"
    attributes = found.attributes
    assert isinstance(attributes, HalfConv2dAttributes)
    assert attributes.block == block
    assert (tuple(attributes.strides), tuple(attributes.padding)) == ((2, 2), (1, 1, 1, 1))


@pytest.mark.parametrize(
    "module",
    [
        convolution((3, 3, 64, 32), "float32"),
        convolution((1, 1, 16, 32)),  # Blocks would be short.
        convolution((3, 3, 32, 64), groups=2),
        convolution((3, 3, 64, 32), known=False),
    ],
)
def test_other_convolutions_stay(module: IRModule) -> None:
    main = module["main"]
    assert isinstance(main, Function)
    before = [item.callee for item in post_order(main) if isinstance(item, Call)]
    assert [rewritten(module).callee] == before


@pytest.mark.parametrize("weight", [(3, 3, 64, 24), (3, 3, 23, 32), (7, 7, 3, 64)])
def test_windows_that_do_not_fill_vectors_are_converted_once(weight: tuple[int, ...]) -> None:
    module = convolution(weight)
    found = rewritten(module)
    assert isinstance(found.callee, Operator) and found.callee.name == "cast"
    inner = found.args[0]
    assert isinstance(inner, Call) and inner.tensor_type.dtype is FLOAT32
    random = np.random.default_rng(1)
    x = random.standard_normal((1, 8, 8, weight[2])).astype(np.float16)
    np.testing.assert_array_equal(
        evaluate(half_products(module, GraphOptions(target=HALVES, winograd=False)), x), evaluate(module, x)
    )


@pytest.mark.parametrize(
    ("size", "channels", "winograd", "name"),
    [
        (56, 64, True, "cast"),
        (28, 128, True, "cast"),
        (7, 512, True, "half.conv2d"),  # Weights would take longer to read.
        (56, 64, False, "half.conv2d"),
    ],
)
def test_convolutions_of_few_multiplications_are_converted(size: int, channels: int, winograd: bool, name: str) -> None:
    x = Var("x", tensor_type((1, size, size, channels), "float16"))
    weights = constant(np.ones((3, 3, channels, channels), "float16"))
    body = call("nn.conv2d", x, weights, padding=(1, 1, 1, 1), **LAYOUT)
    module = infer_types(IRModule([Function("main", (x,), body)]))
    target = HALVES.replace(cores=1, l1_bytes=48 << 10, l2_bytes=2 << 20)
    main = half_products(module, GraphOptions(target=target, winograd=winograd))["main"]
    assert isinstance(main, Function) and isinstance(main.body, Call) and isinstance(main.body.callee, Operator)
    assert main.body.callee.name == name
    if not winograd:
        return
    # What was measured goes before the estimate.
    body.span = Span("conv")
    half_products(module, GraphOptions(target=target, winograd=winograd, choices=(asking := GraphChoices())))
    (question,) = asking.asked.values()
    assert question.default == ("converted" if name == "cast" else "halves")
    for answer, other in (("converted", "cast"), ("halves", "half.conv2d"), ("thirds", name)):
        main = half_products(
            module, GraphOptions(target=target, winograd=winograd, choices=GraphChoices({question.key: answer}))
        )["main"]
        assert isinstance(main, Function) and is_call_to(main.body, other)


def test_processors_without_such_arithmetic_add_in_float32() -> None:
    found = rewritten(convolution((3, 3, 64, 32)), Target("llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server"))
    assert isinstance(found.callee, Operator) and found.callee.name == "nn.conv2d"


def test_blocks_must_fit_the_window() -> None:
    x, w = Var("x", tensor_type((1, 8, 8, 16), "float16")), Var("w", tensor_type((3, 3, 16, 32), "float16"))
    for block in (16, 8, 48, 24):
        infer_types(Function("main", (x, w), call("half.conv2d", x, w, block=block)))
    with pytest.raises(UserError, match="even number of products, not 3"):
        infer_types(Function("main", (x, w), call("half.conv2d", x, w, block=3)))
    with pytest.raises(UserError, match="blocks of 32 products do not divide 16 channels"):
        infer_types(Function("main", (x, w), call("half.conv2d", x, w, block=32)))
    y, v = (Var(item.name, tensor_type(item.tensor_type.static_shape, "float32")) for item in (x, w))
    with pytest.raises(UserError, match="must be float16"):
        infer_types(Function("main", (y, v), call("half.conv2d", y, v, block=16)))
