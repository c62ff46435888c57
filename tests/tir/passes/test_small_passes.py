"""What the smaller lowering passes leave: unrolling, flattening, legal types, storage, threads."""

from __future__ import annotations

import pytest

from tests.tir.passes.programs import agree, data, loops_of, script
from tilewright import te
from tilewright.ir import build, intrinsics
from tilewright.ir.expr import ZERO, IntImm, Var
from tilewright.ir.structural import assert_same_ir
from tilewright.ir.visit import find_all, pre_order
from tilewright.support.errors import UnsupportedError
from tilewright.tir.annotations import PREFETCH, ROLLED
from tilewright.tir.buffer import BufferLoad, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.flatten_buffers import flatten_buffers
from tilewright.tir.passes.legalize_types import LegalizeTypesOptions, legalize_types
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.passes.lower_threads import lower_threads
from tilewright.tir.passes.plan_storage import plan_storage
from tilewright.tir.passes.simplify_loops import simplify_loops
from tilewright.tir.passes.unroll_loops import UnrollLoopsOptions, unroll_loops
from tilewright.tir.stmt import Allocate, BufferStore, Evaluate, For, IfThenElse, LoopKind, seq


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

    def test_as_many_statements_as_a_language_wants(self) -> None:
        """Languages that cannot ask for unrolled loops have more of them written out."""
        func = script(
            """
@script.function
def registers(A: Buffer[(96,), "float32"], B: Buffer[(96,), "float32"]):
    T = allocate((96,), "float32", scope="local")
    for i in range(6):
        for j in range(16):
            T[i * 16 + j] = A[i * 16 + j]
    for k in range(6):
        for l in range(16):
            B[k * 16 + l] = T[k * 16 + l]
"""
        )
        assert len(find_all(unroll_loops(func).body, For)) == 2
        after = unroll_loops(func, UnrollLoopsOptions(register_statements=96))
        assert not find_all(after.body, For)
        agree(func, after, data(96), data(96))

    def test_loops_over_memory_stay_where_text_is_to_be_short(self) -> None:
        """The inner loop indexes registers and is copied; the outer one would be long, and stays a loop."""
        func = script(
            """
@script.function
def sums(A: Buffer[(96,), "float32"], B: Buffer[(4,), "float32"]):
    T = allocate((4,), "float32", scope="local")
    for i in unroll(4):
        T[i] = 0.0
    for k in unroll(24):
        for j in unroll(4):
            T[j] = T[j] + A[k * 4 + j]
    for l in unroll(4):
        B[l] = T[l]
"""
        )
        assert not find_all(unroll_loops(func).body, For)
        after = unroll_loops(func, UnrollLoopsOptions(most_statements=64))
        [left] = find_all(after.body, For)
        assert left.kind is LoopKind.SERIAL and left.extent.value == 24
        agree(func, after, data(96), data(4))

    def test_loops_that_are_noted_as_rolled_leave_arrays_in_memory(self) -> None:
        t, a, b = make_buffer("T", (4,), scope="local"), make_buffer("A", (4,)), make_buffer("B", (4,))
        i, j = Var("i"), Var("j")
        stores = BufferStore(t, (i,), BufferLoad(a, (i,))), BufferStore(b, (j,), BufferLoad(t, (j,)))
        first = For(i, ZERO, IntImm(4), LoopKind.SERIAL, stores[0])
        second = For(j, ZERO, IntImm(4), LoopKind.SERIAL, stores[1], annotations={ROLLED.name: 1})
        func = PrimFunc("f", (a, b), Allocate(t, seq(first, second)))
        after = unroll_loops(func)
        assert [loop.var for loop in find_all(after.body, For)] == [j]
        agree(func, after, data(4), data(4))

    def test_copies_share_what_is_fetched_ahead(self) -> None:
        """Each of three rows fetches a third of the next part's weights in its innermost loop."""
        func = script(
            """
@script.function
def f(A: Buffer[(640,), "float32"], B: Buffer[(3,), "float32"]):
    for part in range(4):
        for row in unroll(3, annotations={"prefetch": {"A": 160}}):
            for step in range(2):
                for k in range(80):
                    B[row] = B[row] + A[part * 160 + step * 80 + k]
"""
        )
        loops = [item for item in find_all(unroll_loops(func).body, For) if PREFETCH.is_on(item)]
        assert [loop.annotations[PREFETCH.name] for loop in loops] == [
            {"A": [54, 160]},
            {"A": [54, 213]},
            {"A": [54, 266]},
        ]
        assert all(loop.var.name == "k" for loop in loops)

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

    def test_storage_is_shared_in_loops(self) -> None:
        """What a loop's body allocates is dead at the end of it; what lies outside lives on."""
        func = script(
            """
@script.function
def sums(A: Buffer[(3, 2000), "float32"], B: Buffer[(3, 2000), "float32"]):
    S = allocate((2000,), "float32")
    for z in range(2000):
        S[z] = 0.0
    for n in range(3):
        T = allocate((2000,), "float32")
        U = allocate((2000,), "float32")
        V = allocate((2000,), "float32")
        for i in range(2000):
            T[i] = A[n, i] * 2.0
        for j in range(2000):
            U[j] = T[1999 - j] + S[j]
        for k in range(2000):
            V[k] = U[1999 - k] + 1.0
        for m in range(2000):
            S[m] = V[1999 - m]
        for o in range(2000):
            B[n, o] = S[o]
"""
        )
        func = flatten_buffers(func)
        after = plan_storage(func)
        assert {item.buffer.name for item in find_all(after.body, Allocate)} == {"S", "T", "U"}
        agree(func, after, data(6000), data(6000))

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
            after = legalize_types(func, LegalizeTypesOptions(has_half=native))
            sums = [item for item in pre_order(after.body) if type(item).__name__ in ("Add", "Mul")]
            assert all(item.dtype.name != dtype for item in sums)  # type: ignore[attr-defined]
        a = make_buffer("A", (8,), "float16")
        func = PrimFunc("f", (a,), For(i, ZERO, IntImm(8), LoopKind.SERIAL, BufferStore(a, (i,), a[i] * a[i])))
        assert_same_ir(legalize_types(func, LegalizeTypesOptions(has_half=True)), func)
