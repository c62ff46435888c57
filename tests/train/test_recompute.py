"""Steps that keep less memory: the same numbers, a smaller plan."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tests.train.models import perceptron, weight
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError
from tilewright.train import SGD, Step
from tilewright.train.kept_values import Keeping, choose
from tilewright.train.losses import loss_of
from tilewright.train.model import ArithmeticBuilder, trainable_model
from tilewright.train.program import Rules, step_program
from tilewright.train.recompute import parse_bytes, recomputed


def deep(layers: int = 5, width: int = 64) -> IRModule:
    """Dense layers with GELU and a layer normalisation after each."""
    x = value = var("x", 32, width)
    for layer in range(layers):
        value = op("matmul", value, weight(f"w{layer}", layer, width, width, scale=0.1))
        value = op("nn.gelu", value)
        value = op("nn.layer_norm", value, weight(f"s{layer}", 9, width), weight(f"b{layer}", 8, width), axis=1)
    return infer_types(IRModule([function([x], value)]))


def program(layers: int = 5) -> IRModule:
    model = trainable_model(deep(layers), ArithmeticBuilder(), None)
    return step_program(model, loss_of("mse"), SGD(0.1), Rules()).module


def second_computations(module: IRModule) -> int:
    """How many values that are kept are read by second computations."""
    return sum(is_call_to(item, "after") for item in post_order(module["main"]))


def test_values_are_computed_again_and_memory_shrinks() -> None:
    before = program()
    after = recomputed(before, int(0.6 * keeping().simulate(frozenset()).peak))
    assert second_computations(after) >= 3
    values = [
        random(n, *param.type.static_shape) if param.type.static_shape else np.asarray(0.1, np.float32)
        for n, param in enumerate(before["main"].params)
    ]
    for found, expected in zip(evaluate(after, *values), evaluate(before, *values), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    plans = [Compilation(module, threads=1).lowered.segments[0].plan for module in (before, after)]
    # Numbers by themselves: a plan that pytest shows is a whole graph.
    (kept, _), (planned, bound) = ((plan.workspace_bytes, plan.lower_bound) for plan in plans)
    assert planned < 0.9 * kept
    assert bound <= planned <= 1.2 * bound


def test_a_step_fits_its_memory_or_says_what_it_needs() -> None:
    data = random(0, 32, 64), random(1, 32, 64)
    plain = Step(deep(), "mse", SGD(0.1), threads=1, memory="1GiB")
    report = plain.memory_report
    assert report.planned == report.kept
    tight = Step(deep(), "mse", SGD(0.1), threads=1, memory=0.6)
    assert tight.memory_report.planned <= 0.6 * report.kept and "keeping all" in str(tight.memory_report)
    for _ in range(2):
        assert tight(*data).loss == pytest.approx(plain(*data).loss, rel=1e-6)
    for name, value in plain.parameters().items():
        np.testing.assert_allclose(tight.parameters()[name], value, rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match="the step does not fit its memory"):
        Step(deep(), "mse", SGD(0.1), threads=1, memory="1KiB")


def test_amounts_of_memory() -> None:
    texts = ("2GiB", "1.5 MB", "300B", "2kib", 77, 0.5)
    assert [parse_bytes(text, 100) for text in texts] == [2 << 30, 1500000, 300, 2048, 77, 50]
    for wrong in ("much", "xGiB", 0, True, 2.5, 0.0, None):
        with pytest.raises(UserError, match="an amount of memory is a number of bytes, a text such as '2GiB'"):
            parse_bytes(wrong, 100)


def keeping(layers: int = 5) -> Keeping:
    main = program(layers)["main"]
    return Keeping(main, {param.name for param in main.params if param.name not in ("x", "target", "rate")})


def test_less_memory_costs_more_computation() -> None:
    values = keeping(8)
    whole = values.simulate(frozenset()).peak
    choices = [choose(values, int(share * whole)) for share in (1.0, 0.8, 0.6, 0.35)]
    assert not choices[0].given_up and choices[0].cost == 0
    for (share, choice), more in zip(zip((1.0, 0.8, 0.6), choices, strict=False), choices[1:], strict=True):
        assert choice.peak <= share * whole and choice.cost < more.cost
    # Products are computed again where activations are not enough, one part of the network at a time.
    names = {values.order[values.place[key]].callee.name for key in choices[-1].given_up}
    assert "matmul" in names and choices[-1].peak < 0.45 * whole


def test_what_is_simulated_is_what_is_planned() -> None:
    module = program(8)
    whole = keeping(8).simulate(frozenset()).peak
    for share in (1.0, 0.6):
        plan = Compilation(recomputed(module, int(share * whole)), threads=1).lowered.segments[0].plan
        size = plan.workspace_bytes
        assert 0.8 * share * whole < size < 1.25 * share * whole


def test_nothing_small_is_computed_again() -> None:
    model = trainable_model(perceptron(), ArithmeticBuilder(), None)
    module = step_program(model, loss_of("cross_entropy"), SGD(0.1), Rules()).module
    assert second_computations(recomputed(module, 0)) == 0


def test_a_value_comes_after_a_scalar() -> None:
    x = var("x", 3)
    with pytest.raises(UserError, match="a value comes after a scalar"):
        infer_types(IRModule([function([x], op("after", x, x))]))
