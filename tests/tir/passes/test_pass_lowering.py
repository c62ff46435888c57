"""What each lowering pass leaves: the structure afterwards, and the same results when both are interpreted."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import te
from tilewright.ir import build, intrinsics
from tilewright.ir.expr import ZERO, Broadcast, IntImm, Ramp, Select, Var
from tilewright.ir.visit import find_all, pre_order
from tilewright.support.errors import UnsupportedError
from tilewright.tir.buffer import BufferLoad, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.compact_buffers import compact_buffers
from tilewright.tir.passes.flatten_buffers import flatten_buffers
from tilewright.tir.passes.legalize_types import legalize_types
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.passes.lower_threads import lower_threads
from tilewright.tir.passes.partition_loops import partition_loops
from tilewright.tir.passes.plan_storage import plan_storage
from tilewright.tir.passes.simplify_loops import simplify_loops
from tilewright.tir.passes.unroll_loops import unroll_loops
from tilewright.tir.passes.vectorize_loops import vectorize_loops
from tilewright.tir.schedule import Schedule
from tilewright.tir.script.parser import parse_script
from tilewright.tir.stmt import ROLLED, Allocate, Block, BufferStore, Evaluate, For, IfThenElse, LoopKind, SeqStmt, seq


def script(text: str) -> PrimFunc:
    func = parse_script(text)
    assert isinstance(func, PrimFunc)
    return func


def agree(before: PrimFunc, after: PrimFunc, *arrays: np.ndarray) -> None:
    one, other = [a.copy() for a in arrays], [a.copy() for a in arrays]
    interpret(before, *one)
    interpret(after, *other)
    for x, y in zip(one, other, strict=True):
        np.testing.assert_array_equal(x, y)


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype("float32")


def loops_of(func: PrimFunc) -> list[tuple[str, int]]:
    return [
        (loop.kind.value, loop.extent.value if isinstance(loop.extent, IntImm) else -1)
        for loop in find_all(func.body, For)
    ]


def row_sums(order: str) -> PrimFunc:
    loops = "for i, k in grid(4, 8):" if order == "ik" else "for k, i in grid(8, 4):"
    return script(
        f"""
@script.function
def sums(A: Buffer[(4, 8), "float32"], C: Buffer[(4,), "float32"]):
    {loops}
        with block("C"):
            vi, vk = spatial(4, i), reduce(8, k)
            with init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]
"""
    )


class TestLowerBlocks:
    @pytest.mark.parametrize("order", ["ik", "ki"])
    def test_init_moves_in_front_of_the_reduction(self, order: str) -> None:
        func = row_sums(order)
        lowered = lower_blocks(func)
        assert not find_all(lowered.body, Block)
        assert not find_all(lowered.body, IfThenElse)
        expected = [("serial", 4), ("serial", 8)] if order == "ik" else [("serial", 4), ("serial", 8), ("serial", 4)]
        assert loops_of(lowered) == expected
        agree(func, lowered, data(4, 8), data(4, seed=1))

    def test_init_stays_where_a_loop_is_spatial_and_reducing(self) -> None:
        func = script(
            """
@script.function
def sums(A: Buffer[(4, 8), "float32"], C: Buffer[(4,), "float32"]):
    for f in range(32):
        with block("C"):
            vi, vk = spatial(4, f // 8), reduce(8, f % 8)
            with init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]
"""
        )
        lowered = lower_blocks(func)
        assert len(find_all(lowered.body, IfThenElse)) == 1
        agree(func, lowered, data(4, 8), data(4, seed=1))

    def test_init_stays_when_something_else_uses_the_result(self) -> None:
        func = script(
            """
@script.function
def sums(A: Buffer[(8,), "float32"], C: Buffer[(1,), "float32"], D: Buffer[(8,), "float32"]):
    for k in range(8):
        with block("C"):
            vk = reduce(8, k)
            with init():
                C[0] = 0.0
            C[0] = C[0] + A[vk]
        with block("D"):
            vd = opaque(8, k)
            D[vd] = C[0]
"""
        )
        lowered = lower_blocks(func)
        assert len(find_all(lowered.body, IfThenElse)) == 1
        agree(func, lowered, data(8), data(1), data(8))

    def test_predicates_become_conditionals(self) -> None:
        a = te.placeholder((10,), name="A")
        s = Schedule(te.create_prim_func([a, te.compute((10,), lambda i: a[i] + 1.0, name="B")]))
        s.split(s.get_loops(s.get_block("B"))[0], [None, 4])
        lowered = lower_blocks(s.func)
        assert len(find_all(lowered.body, IfThenElse)) == 1
        agree(s.func, lowered, data(10), data(10))


class TestCompactBuffers:
    def chain(self, halo: int = 0) -> Schedule:
        a = te.placeholder((32 + 2 * halo, 64), name="A")
        b = te.compute(a.shape, lambda i, j: a[i, j] * 2.0, name="B")
        k = te.reduce_axis((0, 2 * halo + 1), name="k")
        c = te.compute((32, 64), lambda i, j: te.sum(b[i + k, j], axis=k), name="C")
        return Schedule(te.create_prim_func([a, c]))

    @pytest.mark.parametrize("halo", [0, 1])
    def test_the_buffer_shrinks_to_a_tile(self, halo: int) -> None:
        s = self.chain(halo)
        block = s.get_block("C")
        i, j = s.get_loops(block)[:2]
        outer, _ = s.split(i, [None, 4])
        s.compute_at(s.get_block("B"), outer)
        s.parallel(outer)
        del j
        before = simplify_loops(lower_blocks(s.func))
        after = compact_buffers(before)
        (allocation,) = find_all(after.body, Allocate)
        assert allocation.buffer.static_shape == (4 + 2 * halo, 64)
        outermost = after.body
        assert isinstance(outermost, For)
        assert outermost.kind is LoopKind.PARALLEL
        agree(before, after, data(32 + 2 * halo, 64), data(32, 64))

    def test_values_that_cross_iterations_keep_their_buffer(self) -> None:
        func = script(
            """
@script.function
def scan(A: Buffer[(8,), "float32"], B: Buffer[(8,), "float32"]):
    T = allocate((8,), "float32")
    T[0] = 0.0
    for i in range(7):
        T[i + 1] = T[i] + A[i]
        B[i] = T[i + 1]
"""
        )
        after = compact_buffers(func)
        (allocation,) = find_all(after.body, Allocate)
        assert allocation.buffer.static_shape == (8,)
        agree(func, after, data(8), data(8))

    @pytest.mark.parametrize(
        "body",
        [
            "if i % 2 == 0:\n            T[0] = A[i]\n        B[i] = T[0]",
            "for j in range(8):\n            T[j * 2 % 8] = A[i]\n        for k in range(8):\n            B[i] = T[k]",
            "B[i] = T[i]\n        T[i] = A[i]",
            "T[i] = A[i]\n        B[i] = T[7 - i]",
        ],
    )
    def test_a_loop_that_might_read_older_values_stays_inside(self, body: str) -> None:
        func = script(
            f"""
@script.function
def unsure(A: Buffer[(8,), "float32"], B: Buffer[(8,), "float32"]):
    T = allocate((8,), "float32")
    for z in range(8):
        T[z] = 1.0
    for i in range(8):
        {body}
"""
        )
        after = compact_buffers(func)
        loops = [loop for loop in find_all(after.body, For) if find_all(loop.body, Allocate)]
        assert not loops
        agree(func, after, data(8), data(8))

    def test_a_guard_that_shortens_an_index_hides_nothing(self) -> None:
        """`t < 1` turned `t * 4 + i` into `i` where it is read: that is still what the same iteration wrote."""
        func = script(
            """
@script.function
def guarded(A: Buffer[(3, 8), "float32"], B: Buffer[(3, 4), "float32"]):
    T = allocate((3, 8), "float32")
    for r, t in grid(3, 2):
        for i in range(4):
            T[r, t * 4 + i] = A[r, t * 4 + i]
        if t < 1:
            for i in range(4):
                B[r, i] = T[r, i] + T[r, 3 - i]
"""
        )
        after = compact_buffers(func)
        (allocation,) = find_all(after.body, Allocate)
        assert allocation.buffer.static_shape == (1, 4)
        agree(func, after, data(3, 8), data(3, 4))

    def test_a_guard_that_reads_other_elements_keeps_them(self) -> None:
        func = script(
            """
@script.function
def guarded(A: Buffer[(8,), "float32"], B: Buffer[(4,), "float32"]):
    T = allocate((8,), "float32")
    for t in range(2):
        for i in range(4):
            T[t * 4 + i] = A[t * 4 + i]
        if 0 < t:
            for i in range(4):
                B[i] = T[i]
"""
        )
        after = compact_buffers(func)
        (allocation,) = find_all(after.body, Allocate)
        assert allocation.buffer.static_shape == (8,)
        agree(func, after, data(8), data(4))

    def test_vectorized_loops_do_not_hold_allocations(self) -> None:
        func = script(
            """
@script.function
def lanes(A: Buffer[(64,), "float32"], B: Buffer[(64,), "float32"]):
    T = allocate((64,), "float32")
    for i in range(8):
        for v in vectorized(8):
            T[i * 8 + v] = A[i * 8 + v]
            B[i * 8 + v] = T[i * 8 + v]
"""
        )
        after = compact_buffers(func)
        (allocation,) = find_all(after.body, Allocate)
        assert allocation.buffer.static_shape == (8,)
        assert isinstance(after.body, For)
        assert isinstance(after.body.body, Allocate)
        agree(func, after, data(64), data(64))


class TestPartitionLoops:
    def test_tail_of_a_split(self) -> None:
        func = script(
            """
@script.function
def tail(A: Buffer[(100,), "float32"], B: Buffer[(100,), "float32"]):
    for i in range(13):
        for j in range(8):
            if i * 8 + j < 100:
                B[i * 8 + j] = A[i * 8 + j]
"""
        )
        after = partition_loops(func)
        assert loops_of(after) == [("serial", 12), ("serial", 8), ("serial", 4)]
        assert not find_all(after.body, IfThenElse)
        agree(func, after, data(100), data(100))

    def test_padding_of_a_convolution(self) -> None:
        func = script(
            """
@script.function
def blur(A: Buffer[(20,), "float32"], B: Buffer[(20,), "float32"]):
    for i in range(20):
        B[i] = 0.0
        for k in range(3):
            B[i] = B[i] + (A[i + k - 1] if 1 <= i + k and i + k < 21 else 0.0)
"""
        )
        after = partition_loops(func)
        assert isinstance(after.body, SeqStmt)
        (main,) = [stmt for stmt in after.body.stmts if isinstance(stmt, For) and stmt.extent is IntImm(18)]
        assert not find_all(main, Select)
        agree(func, after, data(20), data(20))

    def test_parallel_loops_choose_inside(self) -> None:
        func = script(
            """
@script.function
def tail(A: Buffer[(100,), "float32"], B: Buffer[(100,), "float32"]):
    for i in parallel(13):
        for j in vectorized(8):
            if i * 8 + j < 100:
                B[i * 8 + j] = A[i * 8 + j]
"""
        )
        after = partition_loops(func)
        assert isinstance(after.body, For)
        assert after.body.kind is LoopKind.PARALLEL
        choice = after.body.body
        assert isinstance(choice, IfThenElse)
        assert not find_all(choice.then_body, IfThenElse)
        agree(func, after, data(100), data(100))

    def test_the_edge_of_a_parallel_loop_is_cut_further_in(self) -> None:
        func = script(
            """
@script.function
def edge(A: Buffer[(100,), "float32"], B: Buffer[(100,), "float32"]):
    for c in parallel(3):
        for i in range(5):
            for j in range(8):
                if c * 40 + i * 8 + j < 100:
                    B[c * 40 + i * 8 + j] = A[c * 40 + i * 8 + j]
"""
        )
        after = partition_loops(func)
        assert isinstance(after.body, For)
        choice = after.body.body
        assert isinstance(choice, IfThenElse) and choice.else_body is not None
        # Most of the edge is free of guards as well.
        loops = [loop for loop in find_all(choice.else_body, For) if loop.var.name == "i"]
        assert len(loops) == 2
        assert not find_all(loops[0].body, IfThenElse)
        agree(func, after, data(100), data(100))

    def test_a_tail_is_a_shorter_vector(self) -> None:
        func = script(
            """
@script.function
def tail(A: Buffer[(100,), "float32"], B: Buffer[(100,), "float32"]):
    for i in range(13):
        for j in vectorized(8):
            if i * 8 + j < 100:
                B[i * 8 + j] = A[i * 8 + j]
"""
        )
        after = partition_loops(func)
        assert loops_of(after) == [("serial", 12), ("vectorized", 8), ("vectorized", 4)]
        agree(func, after, data(100), data(100))

    def test_a_vector_of_unknown_length_stays_masked(self) -> None:
        func = script(
            """
@script.function
def triangle(A: Buffer[(8, 8), "float32"], B: Buffer[(8, 8), "float32"]):
    for i in range(8):
        for j in vectorized(8):
            if j <= i:
                B[i, j] = A[i, j]
"""
        )
        after = partition_loops(func)
        assert all(kind != "vectorized" or isinstance(extent, int) for kind, extent in loops_of(after))
        agree(func, after, data(8, 8), data(8, 8))

    def test_triangles_are_trimmed(self) -> None:
        func = script(
            """
@script.function
def triangle(A: Buffer[(9, 9), "float32"], B: Buffer[(9, 9), "float32"]):
    for i in range(9):
        for j in range(9):
            if j <= i:
                B[i, j] = A[i, j]
"""
        )
        agree(func, partition_loops(func), data(9, 9), data(9, 9))

    def test_blocks_of_tiles_of_symbolic_extent(self) -> None:
        func = script(
            """
@script.function
def tail(n: int64, A: Buffer[(90,), "float32"], B: Buffer[(90,), "float32"]):
    for o in range((n + 31) // 32):
        for i in range(8):
            for j in unroll(4):
                if o * 32 + i * 4 + j < n:
                    B[o * 32 + i * 4 + j] = A[o * 32 + i * 4 + j]
"""
        )
        after = partition_loops(func)
        guarded = [loop for loop in find_all(after.body, For) if find_all(loop, IfThenElse)]
        # Whole blocks, whole tiles of the last block, then the only tile that needs guards.
        assert len(find_all(after.body, BufferStore)) == 3
        assert len(guarded) == 3
        for n in (0, 3, 4, 31, 32, 70, 90):
            one, other = data(90, seed=1), data(90, seed=1)
            interpret(func, n, data(90), one)
            interpret(after, n, data(90), other)
            np.testing.assert_array_equal(one, other)

    def test_a_parallel_loop_of_symbolic_extent(self) -> None:
        func = script(
            """
@script.function
def tail(n: int64, A: Buffer[(50,), "float32"], B: Buffer[(50,), "float32"]):
    for i in parallel((n + 7) // 8):
        for j in vectorized(8):
            if i * 8 + j < n:
                B[i * 8 + j] = A[i * 8 + j]
"""
        )
        after = partition_loops(func)
        assert isinstance(after.body, For)
        assert isinstance(after.body.body, IfThenElse)
        assert not find_all(after.body.body.then_body, IfThenElse)
        for n in (0, 5, 16, 50):
            one, other = data(50, seed=1), data(50, seed=1)
            interpret(func, n, data(50), one)
            interpret(after, n, data(50), other)
            np.testing.assert_array_equal(one, other)

    def test_symbolic_extents(self) -> None:
        func = script(
            """
@script.function
def tail(n: int64, A: Buffer[(50,), "float32"], B: Buffer[(50,), "float32"]):
    for i in range((n + 7) // 8):
        for j in range(8):
            if i * 8 + j < n:
                B[i * 8 + j] = A[i * 8 + j]
"""
        )
        after = partition_loops(func)
        assert isinstance(after.body, SeqStmt)
        assert len(after.body.stmts) == 2
        assert not find_all(after.body, IfThenElse)
        for n in (0, 1, 7, 8, 9, 50):
            one, other = data(50, seed=1), data(50, seed=1)
            interpret(func, n, data(50), one)
            interpret(after, n, data(50), other)
            np.testing.assert_array_equal(one, other)


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


class TestOtherPasses:
    def test_unroll_copies_and_renews(self) -> None:
        func = script(
            """
@script.function
def copies(A: Buffer[(12,), "float32"], B: Buffer[(12,), "float32"]):
    for i in unroll(3):
        T = allocate((4,), "float32")
        for j in range(4):
            T[j] = A[i * 4 + j]
        for k in range(4):
            B[i * 4 + k] = T[3 - k]
"""
        )
        after = unroll_loops(func)
        buffers = [item.buffer for item in find_all(after.body, Allocate)]
        variables = [loop.var for loop in find_all(after.body, For)]
        assert len(set(buffers)) == 3
        assert len(set(variables)) == 6
        agree(func, after, data(12), data(12))

    def test_register_arrays_are_unrolled_unasked(self) -> None:
        func = script(
            """
@script.function
def registers(A: Buffer[(4,), "float32"], B: Buffer[(4,), "float32"]):
    T = allocate((4,), "float32", scope="local")
    for i in range(4):
        T[i] = A[i]
    for j in range(4):
        B[j] = T[j]
"""
        )
        after = unroll_loops(func)
        assert not find_all(after.body, For)
        agree(func, after, data(4), data(4))

    def test_loops_that_are_noted_as_rolled_leave_arrays_in_memory(self) -> None:
        t, a, b = make_buffer("T", (4,), scope="local"), make_buffer("A", (4,)), make_buffer("B", (4,))
        i, j = Var("i"), Var("j")
        stores = BufferStore(t, (i,), BufferLoad(a, (i,))), BufferStore(b, (j,), BufferLoad(t, (j,)))
        first = For(i, ZERO, IntImm(4), LoopKind.SERIAL, stores[0])
        second = For(j, ZERO, IntImm(4), LoopKind.SERIAL, stores[1], annotations={ROLLED: 1})
        func = PrimFunc("f", (a, b), Allocate(t, seq(first, second)))
        after = unroll_loops(func)
        assert [loop.var for loop in find_all(after.body, For)] == [j]
        agree(func, after, data(4), data(4))

    def test_symbolic_unroll_becomes_serial(self) -> None:
        n, i, a = Var("n"), Var("i"), make_buffer("A", (8,))
        func = PrimFunc("f", (n, a), For(i, ZERO, n, LoopKind.UNROLLED, BufferStore(a, (i,), build.const(1.0))))
        assert loops_of(unroll_loops(func)) == [("serial", -1)]

    def test_simplify_drops_dead_code_and_unit_loops(self) -> None:
        func = script(
            """
@script.function
def dead(A: Buffer[(32,), "float32"], B: Buffer[(32,), "float32"]):
    for i in range(4):
        for u in range(1):
            for j in range(8):
                if i * 8 + j < 32:
                    B[(i * 8 + j) // 8 * 8 + (i * 8 + j) % 8] = A[i * 8 + j + u]
                if i * 8 + j > 40:
                    B[0] = 7.0
"""
        )
        after = simplify_loops(func)
        assert loops_of(after) == [("serial", 4), ("serial", 8)]
        assert not find_all(after.body, IfThenElse)
        agree(func, after, data(32), data(32))

    def test_simplify_does_not_take_a_loop_for_granted_after_it(self) -> None:
        """A loop of symbolic extent that ran says something inside it, and nothing behind it."""
        func = script(
            """
@script.function
def maybe(n: int64, A: Buffer[(8,), "float32"]):
    for i in range(n):
        A[i] = 1.0
    if n < 1:
        A[0] = 5.0
"""
        )
        after = simplify_loops(func)
        assert find_all(after.body, IfThenElse)

    def test_flatten_uses_strides_and_simplifies(self) -> None:
        func = script(
            """
@script.function
def flat(A: Buffer[(4, 8), "float32"], B: Buffer[(4, 8), "float32"]):
    for f in range(32):
        B[f // 8, f % 8] = A[f // 8, f % 8]
"""
        )
        after = flatten_buffers(func)
        (load,) = find_all(after.body, BufferLoad)
        assert isinstance(load.indices[0], Var)
        agree(func, after, data(32), data(32))

    def test_dead_temporaries_give_their_memory(self) -> None:
        a = te.placeholder((4000,), name="A")
        stages = [a]
        for number in range(5):
            last = stages[-1]
            stages.append(te.compute((4000,), lambda i: last[i] + float(number), name=f"T{number}"))  # noqa: B023
        func = flatten_buffers(lower_blocks(te.create_prim_func([a, stages[-1]])))
        after = plan_storage(func)
        assert len(find_all(func.body, Allocate)) == 4
        assert len(find_all(after.body, Allocate)) == 2
        agree(func, after, data(4000), data(4000))

    def test_threads_run_one_after_another(self) -> None:
        i, a = Var("i"), make_buffer("A", (32,))
        loop = For(i, ZERO, IntImm(32), LoopKind.THREAD, BufferStore(a, (i,), build.const(1.0)), "threadIdx.x")
        after = lower_threads(PrimFunc("f", (a,), loop))
        assert loops_of(after) == [("serial", 32)]

    def test_threads_that_share_memory_are_refused(self) -> None:
        i, a, shared = Var("i"), make_buffer("A", (32,)), make_buffer("S", (32,), scope="shared")
        body = Allocate(shared, seq(BufferStore(shared, (i,), a[i]), BufferStore(a, (i,), shared[31 - i])))
        loop = For(i, ZERO, IntImm(32), LoopKind.THREAD, body, "threadIdx.x")
        with pytest.raises(UnsupportedError, match="threads share the buffer S"):
            lower_threads(PrimFunc("f", (a,), loop))
        barrier = For(i, ZERO, IntImm(32), LoopKind.THREAD, Evaluate(intrinsics.barrier()), "threadIdx.x")
        with pytest.raises(UnsupportedError, match="wait at a barrier"):
            lower_threads(PrimFunc("f", (a,), barrier))

    def test_narrow_floats_are_computed_in_float32(self) -> None:
        i = Var("i")
        for dtype, native in (("float16", False), ("bfloat16", True)):
            a = make_buffer("A", (8,), dtype)
            store = BufferStore(a, (i,), a[i] * a[i] + build.const(1.0, dtype))
            func = PrimFunc("f", (a,), For(i, ZERO, IntImm(8), LoopKind.SERIAL, store))
            after = legalize_types(func, has_half=native)
            sums = [item for item in pre_order(after.body) if type(item).__name__ in ("Add", "Mul")]
            assert all(item.dtype.name != dtype for item in sums)  # type: ignore[attr-defined]
        a = make_buffer("A", (8,), "float16")
        func = PrimFunc("f", (a,), For(i, ZERO, IntImm(8), LoopKind.SERIAL, BufferStore(a, (i,), a[i] * a[i])))
        assert legalize_types(func, has_half=True) is not None
        assert not [
            item for item in pre_order(legalize_types(func, has_half=True).body) if type(item).__name__ == "Cast"
        ]
