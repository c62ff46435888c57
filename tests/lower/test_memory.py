"""Compiled models whose results lie over arguments and whose kernels get scratch memory, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.generate import random_module
from tests.graph.helpers import function, inputs_for, op, random, var
from tests.graph.passes.test_meaning import assert_close
from tilewright.compiler import Compilation
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import constant
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.function import IRModule
from tilewright.runtime.core.artifact import ArgKind


def residual_network(blocks=2, size=14, channels=16):
    """Convolutions whose sums with what came before are the next input, as in residual networks."""
    x = var("x", 1, channels, size, size)
    value = op("nn.relu", x)
    value = op("nn.max_pool2d", value, kernel=(3, 3), strides=(1, 1), padding=(1, 1, 1, 1))
    for number in range(blocks):
        weights = [constant(0.1 * random(2 * number + n, channels, channels, 3, 3)) for n in range(2)]
        inner = op("nn.relu", op("nn.conv2d", value, weights[0], padding=(1, 1, 1, 1)))
        inner = op("nn.conv2d", inner, weights[1], padding=(1, 1, 1, 1))
        value = op("nn.relu", op("add", inner, value))
    return infer_types(IRModule([function([x], op("mean", value, axes=(2, 3), keepdims=False))]))


def results(executable, arguments):
    found = executable(*arguments)
    return tuple(np.asarray(item) for item in (found if isinstance(found, (tuple, list)) else [found]))


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("winograd", [False, True])
def test_residual_sums_lie_over_what_they_add(threads, winograd):
    module = residual_network()
    compilation = Compilation(module, "native", threads, winograd=winograd)
    [plan] = compilation.lowered.plans
    sums = [step for step in plan.steps if step.results[0] in step.arguments]
    assert len(sums) == 2
    assert all(step.function.notes["name"].startswith("fused_nn_conv2d") for step in sums)
    arguments = inputs_for(module["main"])
    executable = compilation.executable()
    for _ in range(2):
        assert_close(results(executable, arguments), (evaluate(module, *arguments),))
    model = compilation.artifact().model
    assert model.workspace_bytes == plan.workspace_bytes
    first, *_ = compilation.lowered.segments
    assert plan.workspace_bytes < first.plan.workspace_bytes + sum(p.size for s in plan.steps for p in s.scratch)


def test_scratch_of_kernels_lies_in_the_workspace():
    module = residual_network(1, size=28)
    # Images are copied with their borders.
    compilation = Compilation(module, "native", 1, winograd=False)
    [plan] = compilation.lowered.plans
    scratch = [place for step in plan.steps for place in step.scratch]
    assert scratch and all(place.kind == "workspace" for place in scratch)
    model = compilation.artifact().model
    for step, planned in zip(model.steps, plan.steps, strict=True):
        assert len(step.args) == len(planned.arguments) + len(planned.results) + len(planned.scratch)
        for ref, place in zip(reversed(step.args), reversed(planned.scratch), strict=False):
            assert ref.kind is ArgKind.WORKSPACE and ref.offset == place.offset
    arguments = inputs_for(module["main"])
    assert_close(results(compilation.executable(), arguments), (evaluate(module, *arguments),))
    # Other values must survive what kernels write to their scratch: nothing alive overlaps it.
    for number, (a, first, last) in enumerate(plan.lifetimes):
        for b, other_first, other_last in plan.lifetimes[:number]:
            if first <= other_last and other_first <= last:
                assert a.offset + a.size <= b.offset or b.offset + b.size <= a.offset


@pytest.mark.parametrize("seed", range(4))
def test_random_models_compute_the_same(seed):
    module = random_module(seed, size=12)
    arguments = inputs_for(module["main"])
    wanted = evaluate(module, *arguments)
    found = results(Compilation(module, "native", 1).executable(), arguments)
    assert_close(found, wanted if isinstance(wanted, tuple) else (wanted,))


def test_kernels_that_may_share_are_kernels_of_their_own():
    x = var("x", 64)
    total = op("cumsum", x, axis=0)
    # The first exp's argument is needed again, the second's is not.
    one = op("cumsum", op("exp", total), axis=0)
    two = op("cumsum", op("exp", op("cumsum", total, axis=0)), axis=0)
    module = infer_types(IRModule([function([x], op("add", one, two))]))
    lowered = Compilation(module, "native", 1).lowered
    exps = [kernel for kernel in lowered.kernels if "exp" in kernel.symbol]
    assert len(exps) == 2 and len({kernel.symbol for kernel in exps}) == 2
    assert sorted(len(kernel.func.attributes) for kernel in exps) == [0, 1]
