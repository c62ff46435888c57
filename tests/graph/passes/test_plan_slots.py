"""Slots of symbolic plans: values that live together are apart, and every slot is large enough at every size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.helpers import function, op
from tilewright.arith.analyzer import Analyzer
from tilewright.graph.ir.expr import Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.plan_memory import plan_memory
from tilewright.graph.passes.plan_slots import SlotRequest, assign_slots, symbolic_bytes
from tilewright.ir.build import as_expr
from tilewright.ir.expr import IntImm
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import substitute
from tilewright.support.errors import UnsupportedError

N, M = Symbol("n"), Symbol("m")
SIZES = [N * 4, N * 8, M * 4, N * M, as_expr(256), N * 4 + 64, N * N]


def number(size, n, m):
    found = Analyzer().simplify(substitute(size, {N: IntImm(n), M: IntImm(m)}))
    assert isinstance(found, IntImm)
    return found.value


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=12))
def test_slots_keep_values_apart_and_hold_them(parts):
    values = [SlotRequest(SIZES[kind], first, first + length) for kind, first, length in parts]
    slots = assign_slots(values)
    for place, value in enumerate(values):
        for other in values[:place]:
            if value.slot == other.slot:
                assert value.last < other.first or other.last < value.first
        for n, m in ((0, 0), (1, 100), (100, 1), (33, 7)):
            assert number(slots[value.slot], n, m) >= number(value.size, n, m)


def test_equal_and_ordered_sizes_share_without_a_choice_at_run_time():
    values = [SlotRequest(N * 8, 0, 0), SlotRequest(N * 4, 1, 1), SlotRequest(N * 8, 2, 2)]
    assert assign_slots(values) == (N * 8,)


def test_a_chain_of_symbolic_kernels_needs_two_slots():
    x = Var("x", tensor_type((N, 8), "float32"))
    value = x
    for _ in range(5):
        value = op("cumsum", value, axis=0)
    plan = plan_memory(fuse(infer_types(IRModule([function([x], value)])), GraphOptions()))
    assert len(plan.slots) == 2
    assert all(number(size, 10, 0) == 320 for size in plan.slots)
    assert [place.kind for step in plan.steps for place in step.results] == ["workspace"] * 4 + ["output"]
    assert "2 slots for 4 values" in str(plan)


def test_unknown_dimensions_have_no_size():
    with pytest.raises(UnsupportedError, match="numbers or symbols"):
        symbolic_bytes(tensor_type((None, 4), "float32"))
