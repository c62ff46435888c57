"""Memory plans: run kernels at the planned places and compare; limits, text, messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.generate import random_module
from tests.graph.helpers import function, inputs_for, op, random, var
from tests.graph.passes.test_meaning import assert_close
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import If, Tuple, TupleGet, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.place_values import ALIGNMENT
from tilewright.graph.passes.plan_memory import KernelMemory, plan_memory
from tilewright.graph.pipeline import optimize
from tilewright.ir.function import ExternFunc, IRModule
from tilewright.ir.types import TupleType, tensor_type
from tilewright.support.errors import CompilerBug, UnsupportedError


def planned(params, body, **options):
    return plan_memory(fuse(infer_types(IRModule([function(params, body)])), GraphOptions()), **options)


def run_plan(module, plan, arguments):
    """Execute the steps of a plan in real memory, as compiled code does; results in output order."""
    main = module["main"]
    result = main.body.type
    types = result.items if isinstance(result, TupleType) else (result,)
    outputs = [np.full(t.static_shape, 7, t.dtype.numpy()) for t in types]
    workspace = np.full(plan.workspace_bytes, 0xA5, np.uint8)
    constants = np.zeros(plan.constant_bytes, np.uint8)
    for item, offset in zip(plan.constants, plan.constant_offsets, strict=True):
        constants[offset : offset + item.data.nbytes] = np.frombuffer(item.data.tobytes(), np.uint8)

    def memory(place):
        if place.kind == "input":
            return np.frombuffer(arguments[place.index].tobytes(), np.uint8)[place.offset :]
        if place.kind == "output":
            return outputs[place.index].reshape(-1).view(np.uint8)[place.offset :]
        return (workspace if place.kind == "workspace" else constants)[place.offset :]

    def read(place, kind):
        raw = memory(place)[: place.size].tobytes()
        return np.frombuffer(raw, kind.dtype.numpy()).reshape(kind.static_shape)

    for step in plan.steps:
        values = [read(place, param.type) for place, param in zip(step.arguments, step.function.params, strict=True)]
        value = evaluate(step.function, *values)
        for place, part in zip(step.results, value if isinstance(value, tuple) else (value,), strict=True):
            memory(place)[: place.size] = np.frombuffer(part.tobytes(), np.uint8)
    return tuple(outputs)


def all_in_place(plan, scratch=()):
    """Kernels that allow every result to lie over every argument: the ones below read all before they write."""
    pairs = [[(a, r) for a in range(len(s.arguments)) for r in range(len(s.results))] for s in plan.steps]
    return [KernelMemory(tuple(allowed), tuple(scratch)) for allowed in pairs]


@pytest.mark.parametrize("line", [64, 128, 256])
def test_values_begin_at_lines(line):
    """Values of a few bytes do not move those of many into the middle of what memory is read by."""
    x = var("x", 3, 50)
    values = [op("nn.relu", x), op("sum", x, axes=(1,)), op("nn.softmax", x)]
    body = Tuple([op("exp", op("nn.softmax", value)) for value in values])
    plan = planned([x], body, line=line)
    places = [place for place, _, _ in plan.lifetimes]
    assert len(places) > 3 and all(place.offset % line == 0 for place in places)
    assert {place.size for place in places} == {600, 12}


@pytest.mark.parametrize("in_place", [False, True])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_plans_compute_the_model(in_place, seed):
    module = random_module(seed, size=20)
    result = optimize(module)
    arguments = inputs_for(module["main"])
    plan = plan_memory(result)
    if in_place:
        plan = plan_memory(result, kernels=all_in_place(plan, [seed % 300, 64]))
    assert_close(run_plan(result, plan, arguments), evaluate(result, *arguments))
    assert plan.lower_bound <= plan.workspace_bytes <= max(plan.unshared_bytes, plan.lower_bound)
    for place, _, _ in plan.lifetimes:
        assert place.offset % ALIGNMENT == 0
    for number, (a, first, last) in enumerate(plan.lifetimes):
        for b, other_first, other_last in plan.lifetimes[:number]:
            together = first <= other_last and other_first <= last
            if together and a.size and b.size:
                assert a.offset + a.size <= b.offset or b.offset + b.size <= a.offset


def chain(length):
    x = var("x", 64)
    value = x
    for _ in range(length):
        value = op("cumsum", value, axis=0)
    return x, value


def test_a_chain_needs_two_buffers():
    x, value = chain(10)
    plan = planned([x], value)
    assert plan.workspace_bytes == plan.lower_bound == 2 * 256
    assert plan.unshared_bytes == 9 * 256
    assert plan.steps[0].arguments[0].kind == "input"
    assert plan.steps[-1].results[0].kind == "output"


def test_results_take_over_the_memory_of_arguments_that_die():
    x = var("x", 64)
    first = op("cumsum", x, axis=0)
    second = op("exp", first)
    third = op("cumsum", second, axis=0)
    before = planned([x], third)
    assert before.workspace_bytes == 512
    # Neither what users pass in nor what they get is shared.
    assert [step.ending for step in before.steps] == [(), ((0, 0),), ()]
    plan = planned([x], third, kernels=[KernelMemory(), KernelMemory(((0, 0),)), KernelMemory()])
    assert plan.workspace_bytes == plan.lower_bound == 256
    assert plan.steps[1].arguments[0] == plan.steps[1].results[0]
    assert "results over an argument: 1" in str(plan)
    # A kernel that does not allow it gets memory of its own, and so does one whose argument is needed later.
    assert planned([x], third, kernels=[KernelMemory()] * 3).workspace_bytes == 512
    both = Tuple((third, op("cumsum", op("negative", first), axis=0)))
    kept = planned([x], both, kernels=all_in_place(planned([x], both)))
    assert kept.steps[1].arguments[0] != kept.steps[1].results[0]


def test_arguments_that_share_memory_are_not_written_over():
    x = var("x", 8, 8)
    total = op("cumsum", x, axis=0)
    own = planned([x], op("cumsum", op("matmul", total, op("cumsum", total, axis=1)), axis=0))
    assert own.steps[2].ending == ((0, 0), (1, 0))
    both = planned([x], op("cumsum", op("matmul", total, op("reshape", total, shape=(1, 8, 8))), axis=1))
    assert [place.offset for place in both.steps[1].arguments] == [0, 0]
    assert both.steps[1].arguments[0].size == both.steps[1].results[0].size
    assert both.steps[1].ending == ()
    part = op("slice", total, begin=(4, 0), end=(8, 8), strides=(1, 1))
    sliced = planned([x], op("cumsum", op("exp", op("cumsum", part, axis=0)), axis=0))
    assert sliced.steps[1].arguments[0].size == sliced.steps[1].results[0].size
    assert sliced.steps[1].ending == () and sliced.steps[2].ending == ((0, 0),)


def test_scratch_lives_for_one_step():
    x, value = chain(3)
    needs = [KernelMemory(scratch=(1000,)), KernelMemory(scratch=(64, 100)), KernelMemory()]
    plan = planned([x], value, kernels=needs)
    assert [[place.size for place in step.scratch] for step in plan.steps] == [[1000], [64, 100], []]
    assert plan.lower_bound == 256 + 1024
    assert plan.workspace_bytes == plan.lower_bound
    assert "scratch of kernels in it: 1.14 KiB" in str(plan)


def test_views_share_memory():
    x = var("x", 4, 16)
    total = op("cumsum", x, axis=0)
    row = op("slice", total, begin=(2, 0), end=(3, 16), strides=(1, 1))
    again = op("cumsum", op("reshape", row, shape=(16,)), axis=0)
    flat = op("cumsum", op("reshape", total, shape=(64,)), axis=0)
    plan = planned([x], Tuple((again, flat)))
    assert plan.workspace_bytes == 256
    assert plan.steps[1].arguments[0].offset == plan.steps[0].results[0].offset + 2 * 64
    assert plan.steps[1].arguments[0].size == 64
    from_input = planned([x], op("cumsum", op("slice", x, begin=(1, 0), end=(2, 16), strides=(1, 1)), axis=0))
    assert str(from_input.steps[0].arguments[0]) == "input[0]+64"


def test_constants_are_aligned_and_listed_once():
    x = var("x", 3)
    a, b = constant(random(0, 3)), constant(random(1, 3))
    plan = planned([x], op("cumsum", op("add", op("multiply", op("add", x, a), b), a), axis=0))
    assert plan.constants == (a, b)
    assert plan.constant_offsets == (0, 64)
    assert plan.constant_bytes == 128


def test_several_results():
    x = var("x", 4, 6)
    parts = op("split", x, sizes=(2, 4), axis=1)
    plan = planned([x], parts)
    assert [str(place) for place in plan.steps[0].results] == ["output[0]", "output[1]"]
    plan = planned([x], op("cumsum", TupleGet(parts, 1), axis=0))
    assert [place.kind for place in plan.steps[0].results] == ["workspace", "workspace"]
    assert plan.steps[1].arguments[0] == plan.steps[0].results[1]


def test_empty_tensors_take_no_space():
    x = var("x", 0, 6)
    plan = planned([x], op("cumsum", op("cumsum", x, axis=0), axis=1))
    assert plan.workspace_bytes == plan.lower_bound == 0


def test_text():
    x, value = chain(3)
    text = str(planned([x], value))
    assert "cumsum_1" in text
    assert "workspace: 512 B, lower bound 512 B (x1.000), without sharing 512 B" in text
    assert "constants: 0, 0 B" in text


def test_messages():
    c, x = var("c", dtype="bool"), var("x", 4)
    with pytest.raises(UnsupportedError, match="calls to fused functions only, not If"):
        planned([c, x], If(c, x, op("nn.relu", x)))
    with pytest.raises(UnsupportedError, match=r"fused functions only, not nn\.relu"):
        plan_memory(infer_types(IRModule([function([x], op("nn.relu", x))])))
    with pytest.raises(UnsupportedError, match="is not a graph function"):
        plan_memory(IRModule([ExternFunc("main")]))
    unknown = Var("u", tensor_type((None,), "float32"))
    with pytest.raises(UnsupportedError, match="dimensions are numbers or symbols"):
        planned([unknown], op("nn.relu", unknown))
    with pytest.raises(CompilerBug, match="no storage of its own"):
        plan_memory(infer_types(IRModule([function([x], x)])))
