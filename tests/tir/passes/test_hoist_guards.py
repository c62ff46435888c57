"""Conditions go around loops that do not change them."""

from __future__ import annotations

from tilewright.ir.build import all_of, const, lt
from tilewright.ir.expr import ZERO, Var
from tilewright.tir.buffer import make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.hoist_guards import hoist_guards
from tilewright.tir.stmt import BufferStore, For, IfThenElse, LoopKind


def _nest(condition: object) -> PrimFunc:
    a = make_buffer("A", (8, 8))
    store = BufferStore(a, (_I, _J), const(1.0, "float32"))
    inner = For(_J, ZERO, const(8), LoopKind.UNROLLED, IfThenElse(condition, store))  # type: ignore[arg-type]
    return PrimFunc("f", (a,), For(_I, ZERO, const(8), LoopKind.SERIAL, inner), {})


_I, _J = Var("i"), Var("j")


def test_a_condition_leaves_the_loops_it_does_not_depend_on() -> None:
    outer = hoist_guards(_nest(lt(_I, const(3)))).body
    assert isinstance(outer, For) and outer.var is _I
    guard = outer.body
    assert isinstance(guard, IfThenElse) and isinstance(guard.then_body, For) and guard.then_body.var is _J


def test_a_condition_on_the_loop_or_on_memory_stays() -> None:
    for condition in (lt(_J, const(3)), all_of([lt(_I, const(3)), lt(_J, const(3))])):
        outer = hoist_guards(_nest(condition)).body
        assert isinstance(outer, For) and isinstance(outer.body, For) and isinstance(outer.body.body, IfThenElse)
    a = make_buffer("A", (8, 8))
    outer = hoist_guards(_nest(lt(a[_I, _I], const(3.0, "float32")))).body
    assert isinstance(outer, For) and isinstance(outer.body, For) and isinstance(outer.body.body, IfThenElse)
