"""Every graph pass, and the whole pipeline, keeps the meaning of random graphs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.generate import random_module
from tests.graph.helpers import inputs_for
from tilewright.graph.choices import GraphChoices
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.convert_layout import convert_layout
from tilewright.graph.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from tilewright.graph.passes.eliminate_dead_code import eliminate_dead_code
from tilewright.graph.passes.fold_batch_norm import fold_batch_norm
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.recognize import recognize
from tilewright.graph.pipeline import optimize
from tilewright.target import Target

CPU = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=1)


def optimize_channels_last(module):
    return optimize(module, GraphOptions(layout="NHWC"))


class Contrary(GraphChoices):
    """Always another answer than the estimate's."""

    def choose(self, calls, options, default):
        return next((option for option in reversed(options) if option != default), default)


def optimize_against_the_estimates(module):
    return optimize(module, GraphOptions(layout="NHWC", target=CPU, choices=Contrary()))


def fuse_alone(module):
    return fuse(module, GraphOptions())


def channels_last_alone(module):
    return convert_layout(module, GraphOptions(layout="NHWC"))


PASSES = [
    canonicalize,
    fold_constants,
    eliminate_common_subexpressions,
    eliminate_dead_code,
    fold_batch_norm,
    fuse_alone,
    recognize,
    channels_last_alone,
    optimize,
    optimize_channels_last,
    optimize_against_the_estimates,
]


def assert_close(actual, expected):
    actual = actual if isinstance(actual, tuple) else (actual,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        scale = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4 * scale)


@pytest.mark.parametrize("one", PASSES, ids=lambda one: one.__name__)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_pass_keeps_meaning(one, seed):
    module = random_module(seed)
    arguments = inputs_for(module["main"])
    expected = evaluate(module, *arguments)
    result = one(module)
    for item in post_order(result["main"]):
        assert item.type is not None
    before = result["main"].type
    assert infer_types(result)["main"].type is before
    assert_close(evaluate(result, *arguments), expected)
