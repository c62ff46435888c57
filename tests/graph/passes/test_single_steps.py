"""Single steps of recurrent layers: one product, the same results."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.graph.choices import GraphChoices
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Function, GraphExpr, Tuple, TupleGet, Var, constant
from tilewright.graph.ir.op import Operator, call, is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.pipeline import optimize
from tilewright.ir.dtype import FLOAT16
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.span import Span
from tilewright.target import Target

MANY = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell").replace(cores=8)
GPU = Target("cuda -arch=sm_90a")
PLAIN = (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0))
SIZE, INPUTS = 5, 3


def module(steps: int = 1, batch: int = 2, *, transposed: bool = True, **attributes: object) -> IRModule:
    """An LSTM layer whose results are the last states and all hidden ones."""
    random = np.random.default_rng(0)

    def weights(*shape: int) -> GraphExpr:
        return constant(random.standard_normal(shape).astype(np.float32))

    x = Var("x", tensor_type((steps * batch, INPUTS), "float32"))
    h, c = (Var(name, tensor_type((batch, SIZE), "float32")) for name in "hc")
    matrix = weights(4 * SIZE, INPUTS) if transposed else weights(INPUTS, 4 * SIZE)
    entered = call("add", call("matmul", x, matrix, transpose_b=transposed), weights(4 * SIZE))
    data = call("reshape", entered, shape=(steps, batch, 4, SIZE))
    lstm = call("nn.lstm", data, weights(4, SIZE, SIZE), h, c, **{"activations": PLAIN, **attributes})

    def last(item: int) -> GraphExpr:
        begin, end = (steps, 0, 0), (steps + 1, batch, SIZE)
        return call("slice", TupleGet(lstm, item), begin=begin, end=end, strides=(1, 1, 1))

    return IRModule([Function("main", (x, h, c), Tuple((last(0), last(1), TupleGet(lstm, 0))))])


def optimized(source: IRModule, target: Target = MANY) -> tuple[IRModule, list[str]]:
    """The module after all passes but fusion, checked against itself before, and its operators."""
    made = optimize(source, GraphOptions(target=target, fuse=False))
    random = np.random.default_rng(1)
    function = source["main"]
    assert isinstance(function, Function)
    arrays = [
        random.standard_normal(param.tensor_type.static_shape or ()).astype(np.float32) for param in function.params
    ]
    for ours, expected in zip(evaluate(made, *arrays), evaluate(source, *arrays), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
    names = [
        item.callee.name
        for item in post_order(made["main"])  # type: ignore[arg-type]
        if isinstance(item, Call) and isinstance(item.callee, Operator)
    ]
    return made, names


@pytest.mark.parametrize("transposed", [True, False])
def test_a_single_step_is_one_product(transposed: bool) -> None:
    _, names = optimized(module(transposed=transposed))
    assert names.count("matmul") == 1
    assert "nn.lstm" not in names
    # The rows of states are joined only where somebody wants them all.
    assert names.count("concatenate") == 2


@pytest.mark.parametrize("options", [{}, {"clip": 0.5}, {"coupled": True}], ids=["plain", "clipped", "coupled"])
@pytest.mark.parametrize("transposed", [True, False])
def test_on_a_gpu_a_single_step_is_one_operator(transposed: bool, options: dict[str, object]) -> None:
    _, names = optimized(module(transposed=transposed, **options), GPU)
    assert names.count("nn.lstm_step") == 1
    assert "matmul" not in names and "nn.lstm" not in names


def test_single_steps_in_half_precision_keep_their_states() -> None:
    source = module()
    made = optimize(source, GraphOptions(target=GPU, fuse=False, half=FLOAT16))
    (step,) = [item for item in post_order(made["main"]) if is_call_to(item, "nn.lstm_step")]  # type: ignore[arg-type]
    assert isinstance(step, Call)
    assert [str(arg.tensor_type.dtype) for arg in step.args] == ["float32"] * 3 + ["float16"] * 2
    function = source["main"]
    assert isinstance(function, Function)
    random = np.random.default_rng(1)
    shapes = [param.tensor_type.static_shape or () for param in function.params]
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    for ours, expected in zip(evaluate(made, *arrays), evaluate(source, *arrays), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (module(steps=3), MANY),
        (module(), MANY.replace(cores=1)),
        (module(clip=0.5), MANY),
        (module(coupled=True), MANY),
        (module(activations=(("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("relu", 0.0, 0.0))), MANY),
    ],
    ids=["several steps", "one core", "clipped", "coupled", "other activations"],
)
def test_other_layers_stay(source: IRModule, target: Target) -> None:
    _, names = optimized(source, target)
    assert "nn.lstm" in names


def test_what_was_measured_goes_before_the_number_of_cores() -> None:
    source = named(module())
    for target, estimated in ((MANY, "together"), (MANY.replace(cores=1), "apart")):
        asking = GraphOptions(target=target, fuse=False)
        optimize(source, asking)
        (question,) = asking.choices.asked.values()
        assert (question.default, question.nodes) == (estimated, ("product", "steps"))
        for answer in question.options:
            choices = GraphChoices({question.key: answer})
            made = optimize(source, GraphOptions(target=target, fuse=False, choices=choices))
            found = [item for item in post_order(made["main"]) if is_call_to(item, "nn.lstm")]  # type: ignore[arg-type]
            assert len(found) == (answer == "apart")


def named(source: IRModule) -> IRModule:
    """A module whose product and steps are nodes of a user's."""
    for item in post_order(source["main"]):  # type: ignore[arg-type]
        for operator, name in (("matmul", "product"), ("nn.lstm", "steps")):
            if is_call_to(item, operator):
                item.span = Span(name)
    return source
