"""Orders of kernels: what frees memory comes early, operands first, state last, and never more is alive than before."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.generate import random_module
from tests.graph.passes.checking import program
from tilewright.graph.ir.expr import Call
from tilewright.graph.ir.traverse import children, post_order
from tilewright.graph.memory_order import Lifetimes, memory_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import fuse, is_primitive
from tilewright.graph.passes.plan_memory import plan_memory
from tilewright.graph.pipeline import optimize
from tilewright.graph.state import StatePair


def nodes_of(function):
    return [item for item in post_order(function, closures=False) if item is not function]


def kernels(order):
    return [item.callee.notes["name"] for item in order if isinstance(item, Call) and is_primitive(item.callee)]


def alive(order, function):
    return Lifetimes(order, function).alive(range(len(order)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_orders_are_valid_and_never_worse(seed):
    main = optimize(random_module(seed, size=20))["main"]
    before = nodes_of(main)
    after = memory_order(before, main, ())
    assert {id(item) for item in before} == {id(item) for item in after}
    places = {id(item): place for place, item in enumerate(after)}
    assert all(places[id(part)] < places[id(item)] for item in after for part in children(item) if id(part) in places)
    assert alive(after, main) <= alive(before, main)


BACKWARD = """
dy = exp(matmul(x, a))
dx = tanh(matmul(dy, b))
dz = tanh(matmul(dx, b))
total = sum(matmul(dz, c), axes=(0, 1), keepdims=False)
dw = matmul(dy, sin(x), transpose_a=True)
return (total, sum(dw, axes=(1,), keepdims=False))
"""
SHAPES = {"x": "f32[64, 4]", "a": "f32[4, 64]", "b": "f32[64, 64]", "c": "f32[64, 2]"}


def test_last_readers_run_with_what_they_wait_for():
    main = fuse(program(BACKWARD, **SHAPES), GraphOptions())["main"]
    before = nodes_of(main)
    after = memory_order(before, main, ())
    # `dy` is read last by a product of few columns, which waits for sin.
    assert kernels(before).index("sin") > kernels(before).index("fused_matmul_tanh_1")
    assert kernels(after).index("sin") < kernels(after).index("fused_matmul_tanh_1")
    assert alive(after, main)[0] < alive(before, main)[0]


def test_new_values_of_state_stay_behind_readers_of_the_old():
    text = """
    y = exp(matmul(x, w))
    after = subtract(w, matmul(x, y, transpose_a=True))
    return (sum(multiply(matmul(exp(y), v), matmul(x, w)), axes=(0, 1), keepdims=False), after)
    """
    shapes = {"x": "f32[8, 4]", "w": "f32[4, 4]", "v": "f32[4, 4]"}
    module = fuse(program(text, **shapes), GraphOptions())
    plan = plan_memory(module, state=(StatePair(1, 1),))
    readers = [
        number
        for number, step in enumerate(plan.steps)
        if any(p.index == 1 for p in step.arguments if p.kind == "input")
    ]
    writer = next(n for n, step in enumerate(plan.steps) if step.results[0].kind == "output" and step.results[0].index)
    assert len(readers) == 3 and writer == max(readers)
