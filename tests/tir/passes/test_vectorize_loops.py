"""Vectorized loops become vector expressions, or loops again where they cannot."""

from __future__ import annotations

from tests.tir.passes.programs import agree, data, loops_of
from tilewright.ir import build, intrinsics
from tilewright.ir.expr import ZERO, Broadcast, IntImm, Ramp, Var
from tilewright.ir.visit import find_all
from tilewright.tir.buffer import make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.vectorize_loops import vectorize_loops
from tilewright.tir.stmt import Allocate, BufferStore, Evaluate, For, IfThenElse, LoopKind, seq


class TestVectorizeLoops:
    def one_loop(self, body, lanes: int = 8) -> PrimFunc:  # type: ignore[no-untyped-def]
        a, b = make_buffer("A", (64,)), make_buffer("B", (64,))
        v = Var("v")
        return PrimFunc("lanes", (a, b), For(v, ZERO, IntImm(lanes), LoopKind.VECTORIZED, body(a, b, v)))

    def test_contiguous_ramp(self) -> None:
        func = self.one_loop(lambda a, b, v: BufferStore(b, (v + 3,), a[v] * 2.0))
        after = vectorize_loops(func)
        store = after.body
        assert isinstance(store, BufferStore)
        assert store.indices == (Ramp(IntImm(3), IntImm(1), 8),)
        agree(func, after, data(64), data(64))

    def test_uniform_parts_stay_scalar(self) -> None:
        func = self.one_loop(lambda a, b, v: BufferStore(b, (v,), a[v] * intrinsics.exp(a[60])))
        after = vectorize_loops(func)
        (broadcast,) = find_all(after.body, Broadcast)
        assert broadcast.value.dtype.is_scalar

    def test_long_loops_become_loops_of_vectors(self) -> None:
        func = self.one_loop(lambda a, b, v: BufferStore(b, (v,), a[v]), 60)
        after = vectorize_loops(func, max_lanes=16)
        assert loops_of(after) == [("serial", 3)]
        agree(func, after, data(64), data(64))

    def test_store_to_one_place_runs_lane_by_lane(self) -> None:
        func = self.one_loop(lambda a, b, v: BufferStore(b, (ZERO,), a[v]))
        after = vectorize_loops(func)
        assert loops_of(after) == [("serial", 8)]
        agree(func, after, data(64), data(64))

    def test_lane_conditions_become_masks_and_uniform_ones_branches(self) -> None:
        def body(a, b, v):  # type: ignore[no-untyped-def]
            i = Var("i")
            inner = IfThenElse(build.logical_and(build.lt(i, 5), build.lt(v, 3)), BufferStore(b, (v,), a[v]))
            return For(i, ZERO, IntImm(7), LoopKind.SERIAL, inner)

        func = self.one_loop(body)
        after = vectorize_loops(func)
        lanes = [stmt.condition.dtype.lanes for stmt in find_all(after.body, IfThenElse)]
        assert lanes == [1, 8]
        agree(func, after, data(64), data(64))

    def test_scratch_inside_gets_a_place_for_each_lane(self) -> None:
        t = make_buffer("T", (2,))
        func = self.one_loop(
            lambda a, b, v: Allocate(
                t,
                seq(
                    BufferStore(t, (ZERO,), a[v]),
                    BufferStore(t, (IntImm(1),), a[v + 8]),
                    BufferStore(b, (v,), t[0] + t[1]),
                ),
            )
        )
        after = vectorize_loops(func)
        assert not find_all(after.body, For)
        agree(func, after, data(64), data(64))

    def test_conditions_read_before_the_body_changes_them(self) -> None:
        def body(a, b, v):  # type: ignore[no-untyped-def]
            return IfThenElse(
                build.lt(b[v], 0.0),
                seq(BufferStore(b, (v,), build.const(5.0)), BufferStore(b, (v + 8,), a[v])),
                BufferStore(b, (v,), build.const(-5.0)),
            )

        func = self.one_loop(body)
        agree(func, vectorize_loops(func), data(64), data(64, seed=2))

    def test_extern_calls_run_lane_by_lane(self) -> None:
        func = self.one_loop(lambda a, b, v: Evaluate(intrinsics.call_extern("int32", "touch", v)))
        assert loops_of(vectorize_loops(func)) == [("serial", 8)]
