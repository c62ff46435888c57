"""Low-rank adapters: the model starts as it was, only they are trained, and merging keeps what the model says."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.helpers import function, op, var
from tests.train.models import batch, perceptron, weight
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.traverse import post_order
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError
from tilewright.train import SGD, LoRA, Step


def swapped() -> IRModule:
    """A product that reads its weight as torch keeps it: outputs first."""
    x = var("x", 8, 6)
    result = op("matmul", x, weight("dense.weight", 1, 3, 6), transpose_b=True)
    return infer_types(IRModule([function([x], result)], attributes={"output_names": ("y",)}))


@pytest.mark.parametrize("make", [perceptron, swapped])
def test_only_adapters_are_trained_and_merging_changes_nothing(make) -> None:
    module = make()
    adapted = LoRA(module, rank=2, alpha=4.0)
    x, y = batch(0)
    np.testing.assert_array_equal(evaluate(adapted.module, x), evaluate(module, x))
    step = Step(adapted.module, "cross_entropy", SGD(0.5), trainable=adapted.is_adapter, threads=1)
    first = step(x, y).loss
    for _ in range(5):
        last = step(x, y).loss
    assert last < first
    assert set(step.parameters()) == {f"{name}.lora_{end}" for name in adapted.adapted for end in "ab"}
    merged = adapted.merged(step.parameters())
    expected = evaluate(step.module(), x)
    assert np.abs(expected - evaluate(module, x)).max() > 0.05
    np.testing.assert_allclose(evaluate(merged, x), expected, rtol=1e-5, atol=1e-6)


def test_layers_are_chosen_by_name() -> None:
    assert LoRA(perceptron(), layers="a").adapted == ("a",)
    assert LoRA(perceptron(), layers=["[ac]"]).adapted == ("a", "c")
    adapted = LoRA(perceptron(), layers=lambda name: name == "c")
    assert adapted.adapted == ("c",) and not adapted.is_adapter("a.lora_a") and not adapted.is_adapter("c")


def test_wrong_adapters_are_refused() -> None:
    for make, message in (
        (lambda: LoRA(perceptron(), rank=0), "the rank of adapters is a whole number"),
        (lambda: LoRA(perceptron(), layers="no such"), "no matrix product has a weight"),
        (lambda: LoRA(perceptron()).merged({}), "the parameters have no 'a.lora_a'"),
        (lambda: LoRA(twice()), "the weight 'w' is in two products"),
    ):
        with pytest.raises(UserError, match=message):
            make()


def twice() -> IRModule:
    x, shared = var("x", 4, 4), weight("w", 1, 4, 4)
    return infer_types(IRModule([function([x], op("matmul", op("matmul", x, shared), shared))]))


def test_adapters_start_as_the_seed_says() -> None:
    values = [LoRA(perceptron(), seed=seed) for seed in (0, 0, 1)]
    down = [next(item for item in _constants(one.module) if str(item.span) == "a.lora_a").data for one in values]
    np.testing.assert_array_equal(down[0], down[1])
    assert np.abs(down[0] - down[2]).max() > 0.01


def _constants(module: IRModule) -> list[Constant]:
    return [item for item in post_order(module["main"]) if isinstance(item, Constant) and item.span is not None]
