"""The tensor processor's lowering passes on small programs: before, and expected after; and the tokens of streams."""
# ruff: noqa: E501

from __future__ import annotations

from functools import partial
from textwrap import dedent

import numpy as np
import pytest

from tests.tir.passes.checking import assert_becomes
from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.instructions import Epi, Gemm, Load, Store
from tilewright.backends.accel.copies import CopiesOptions, copies_to_dma
from tilewright.backends.accel.fold_loops import fold_loops
from tilewright.backends.accel.micro_kernels import Loop, micro_kernel
from tilewright.backends.accel.order import in_good_order
from tilewright.backends.accel.residuals import residuals_in_place
from tilewright.backends.accel.steps import Step, Touched
from tilewright.backends.accel.tokens import with_tokens
from tilewright.support.errors import UnsupportedError
from tilewright.tir.passes.inject_virtual_threads import VirtualThreadsOptions, inject_virtual_threads
from tilewright.tir.script import parse_script

LANES = CopiesOptions((("accel.inp", 4), ("accel.out", 4)))


def test_fold_loops() -> None:
    """Two loops go on where each other ends, so they are one."""
    assert_becomes(
        fold_loops,
        """
        def f(A: Buffer[(96,), "int32"]):
            for t, y, x in grid(2, 3, 4):
                evaluate(call("accel.reset", call("access_ptr", "w", A[t * 48 + y * 16 + x * 4], A[t * 48 + y * 16 + x * 4 + 3], dtype="handle"), int64(4), dtype="int32"))
        """,
        """
        def f(A: Buffer[(96,), "int32"]):
            evaluate(call("accel.reset", call("access_ptr", "w", A[0], A[95], dtype="handle"), int64(4), int64(24), int64(1), dtype="int32"))
        """,
    )


def test_fold_loops_around_several_instructions() -> None:
    """Iterations keep to accumulators of their own, so that each instruction runs for all of them in turn."""
    assert_becomes(
        fold_loops,
        """
        def f(A: Buffer[(32,), "int32"], B: Buffer[(16,), "int32"]):
            for x in range(4):
                evaluate(call("accel.reset", call("access_ptr", "w", B[x * 4], B[x * 4 + 3], dtype="handle"), int64(4), dtype="int32"))
                evaluate(call("accel.alu", "add", call("access_ptr", "rw", B[x * 4], B[x * 4 + 3], dtype="handle"), call("access_ptr", "r", A[x * 8], A[x * 8 + 3], dtype="handle"), int64(4), dtype="int32"))
        """,
        """
        def f(A: Buffer[(32,), "int32"], B: Buffer[(16,), "int32"]):
            evaluate(call("accel.reset", call("access_ptr", "w", B[0], B[15], dtype="handle"), int64(4), int64(4), int64(1), dtype="int32"))
            evaluate(call("accel.alu", "add", call("access_ptr", "rw", B[0], B[15], dtype="handle"), call("access_ptr", "r", A[0], A[27], dtype="handle"), int64(4), int64(4), int64(1), int64(2), dtype="int32"))
        """,
    )


def test_instructions_that_read_what_others_write_are_not_folded() -> None:
    func = parse_script(
        dedent("""\
        def f(B: Buffer[(20,), "int32"]):
            for x in range(4):
                evaluate(call("accel.reset", call("access_ptr", "w", B[x * 4], B[x * 4 + 3], dtype="handle"), int64(4), dtype="int32"))
                evaluate(call("accel.alu", "add", call("access_ptr", "rw", B[x * 4], B[x * 4 + 3], dtype="handle"), call("access_ptr", "r", B[x * 4 + 4], B[x * 4 + 4 + 3], dtype="handle"), int64(4), dtype="int32"))
        """)
    )
    with pytest.raises(UnsupportedError, match="touch the same accumulators in several of its iterations"):
        fold_loops(func)


def test_copies_to_dma() -> None:
    """A row of padding above and an element on the left: the rest is a rectangle."""
    assert_becomes(
        partial(copies_to_dma, options=LANES),
        """
        def f(A: Buffer[(24,), "int8"], B: Buffer[(48,), "int8"]):
            S = allocate((48,), "int8", "accel.inp")
            for y, x, k in grid(3, 4, 4):
                S[y * 16 + x * 4 + k] = A[y * 12 + x * 4 + k - 16] if 1 <= y and 1 <= x else int8(7)
            for y, x, k in grid(3, 4, 4):
                B[y * 16 + x * 4 + k] = S[y * 16 + x * 4 + k]
        """,
        """
        def f(A: Buffer[(24,), "int8"], B: Buffer[(48,), "int8"]):
            S = allocate((48,), "int8", "accel.inp")
            evaluate(call("accel.load", call("access_ptr", "w", S[0], S[47], dtype="handle"), call("access_ptr", "r", A[0], A[39], dtype="handle"), int64(4), int64(2), int64(3), int64(3), int64(1), int64(0), int64(1), int64(0), int64(7), dtype="int32"))
            evaluate(call("accel.store", call("access_ptr", "w", B[0], B[47], dtype="handle"), call("access_ptr", "r", S[0], S[47], dtype="handle"), int64(4), int64(1), int64(12), int64(12), dtype="int32"))
        """,
    )


def test_residuals_in_place() -> None:
    assert_becomes(
        residuals_in_place,
        """
        def f(R: Buffer[(4,), "int8"], A: Buffer[(4,), "int32"], P: Buffer[(16,), "int32"], C: Buffer[(4,), "int8"]):
            S = allocate((4,), "int8", "accel.out")
            T = allocate((4,), "int8", "accel.out")
            for k in range(4):
                S[k] = R[k]
            evaluate(call("accel.epi_residual", call("access_ptr", "w", T[0], T[3], dtype="handle"), call("access_ptr", "r", S[0], S[3], dtype="handle"), call("access_ptr", "r", A[0], A[3], dtype="handle"), call("access_ptr", "r", P[0], P[15], dtype="handle"), int64(4), int64(1), int64(1), int64(0), int64(-128), int64(127), dtype="int32"))
            for k in range(4):
                C[k] = T[k]
        """,
        """
        def f(R: Buffer[(4,), "int8"], A: Buffer[(4,), "int32"], P: Buffer[(16,), "int32"], C: Buffer[(4,), "int8"]):
            T = allocate((4,), "int8", "accel.out")
            for k in range(4):
                T[k] = R[k]
            evaluate(call("accel.epi_residual", call("access_ptr", "w", T[0], T[3], dtype="handle"), call("access_ptr", "r", T[0], T[3], dtype="handle"), call("access_ptr", "r", A[0], A[3], dtype="handle"), call("access_ptr", "r", P[0], P[15], dtype="handle"), int64(4), int64(1), int64(1), int64(0), int64(-128), int64(127), dtype="int32"))
            for k in range(4):
                C[k] = T[k]
        """,
    )


def test_virtual_threads_of_whole_nests() -> None:
    """A thread loads and uses before the next one; nests stay whole, and buffers lie as far apart as is asked."""
    assert_becomes(
        partial(
            inject_virtual_threads,
            options=VirtualThreadsOptions(whole_nests=True, distances=(("accel.inp", 16),)),
        ),
        """
        def f(A: Buffer[(2, 3, 8), "int8"], B: Buffer[(2, 3, 8), "int8"]):
            for t in vthread(2):
                for c in range(3):
                    S = allocate((8,), "int8", "accel.inp")
                    for k in range(8):
                        S[k] = A[t, c, k]
                    for k in range(8):
                        B[t, c, k] = S[k]
        """,
        """
        def f(A: Buffer[(2, 3, 8), "int8"], B: Buffer[(2, 3, 8), "int8"]):
            for c in range(3):
                S = allocate((2, 8), "int8", "accel.inp", strides=(16, 1))
                for t in unroll(2):
                    for k in range(8):
                        S[t, k] = A[t, c, k]
                    for k in range(8):
                        B[t, c, k] = S[t, k]
        """,
    )


def test_several_buffers_of_a_scope_lie_side_by_side() -> None:
    """A distance is that of a scope's only buffer: two of them would meet."""
    assert_becomes(
        partial(
            inject_virtual_threads,
            options=VirtualThreadsOptions(whole_nests=True, distances=(("accel.acc", 64), ("accel.inp", 32))),
        ),
        """
        def f(A: Buffer[(2, 8), "int32"], B: Buffer[(2, 8), "int32"]):
            for t in vthread(2):
                I = allocate((8,), "int32", "accel.inp")
                S = allocate((8,), "int32", "accel.acc")
                T = allocate((8,), "int32", "accel.acc")
                for k in range(8):
                    I[k] = A[t, k]
                for k in range(8):
                    S[k] = I[k]
                for k in range(8):
                    T[k] = S[k]
                for k in range(8):
                    B[t, k] = T[k]
        """,
        """
        def f(A: Buffer[(2, 8), "int32"], B: Buffer[(2, 8), "int32"]):
            I = allocate((2, 8), "int32", "accel.inp", strides=(32, 1))
            S = allocate((2, 8), "int32", "accel.acc")
            T = allocate((2, 8), "int32", "accel.acc")
            for t in unroll(2):
                for k in range(8):
                    I[t, k] = A[t, k]
                for k in range(8):
                    S[t, k] = I[t, k]
                for k in range(8):
                    T[t, k] = S[t, k]
                for k in range(8):
                    B[t, k] = T[t, k]
        """,
    )


def test_the_largest_loops_are_the_instructions_own() -> None:
    kernel = micro_kernel((5, 6, 7), [Loop(3, (0, 10, 1)), Loop(4, (8, 10, 0)), Loop(8, (1, 1, 0))])
    assert (kernel.outer.extent, kernel.inner.extent, len(kernel.micro_ops)) == (8, 4, 3)
    assert [(item.acc, item.inp, item.wgt) for item in kernel.micro_ops] == [(5, 6, 7), (5, 16, 8), (5, 26, 9)]
    assert [overwrite.name for _, _, overwrite in kernel.ranges(begins=True)] == ["UOP"]


def test_first_products_of_several_sums_are_an_instruction_of_their_own() -> None:
    loops = [Loop(2, (0, 1, 1)), Loop(3, (0, 5, 7)), Loop(4, (4, 0, 2)), Loop(5, (1, 1, 0)), Loop(6, (20, 9, 0))]
    ranges = list(micro_kernel((0, 0, 0), loops).ranges(begins=True))
    assert [(begin, end, overwrite.name) for begin, end, overwrite in ranges] == [(0, 4, "ALWAYS"), (4, 24, "NEVER")]


def _touched(memory: Memory, *places: int) -> Touched:
    return Touched(memory, np.array(places, np.int64))


def _load(memory: Memory, place: int) -> Step:
    return Step(Load(memory=memory, sram=place, y_size=1, x_size=1), writes=(_touched(memory, place),))


def _steps(count: int) -> list[Step]:
    """Operands are loaded, multiplied, requantised and stored, again and again in the same places."""
    result = []
    for _ in range(count):
        acc, out = _touched(Memory.ACC, 0), _touched(Memory.OUT, 0)
        reads = (_touched(Memory.INP, 0), _touched(Memory.WGT, 0), acc)
        result += [_load(Memory.INP, 0), _load(Memory.WGT, 0), Step(Gemm(), reads, (acc,))]
        result += [Step(Epi(), (acc,), (out,)), Step(Store(), (out,))]
    return result


def test_one_token_orders_several_dependences() -> None:
    first, second, product, epi, store, end = (step.instruction for step in with_tokens(_steps(1), AccelConfig()))
    assert not first.push_next and second.push_next and product.pop_prev
    assert product.push_next and epi.pop_prev
    assert not (store.pop_prev or end.pop_prev or end.push_prev)


def test_what_is_written_again_waits_for_who_reads_it() -> None:
    items = [step.instruction for step in with_tokens(_steps(2), AccelConfig())]
    _, _, product, epi, _, load, _, again, *_ = items
    assert product.push_prev and load.pop_next
    assert epi.push_prev and again.pop_next


def test_load_and_store_meet_in_compute() -> None:
    """EPI waits for its parameters by way of the products before it: no instruction is added for that."""
    acc, out = _touched(Memory.ACC, 0), _touched(Memory.OUT, 0)
    steps = [
        _load(Memory.INP, 0),
        _load(Memory.PAR, 0),
        Step(Gemm(), (_touched(Memory.INP, 0),), (acc,)),
        Step(Epi(), (acc, _touched(Memory.PAR, 0)), (out,)),
    ]
    items = [step.instruction for step in with_tokens(steps, AccelConfig())]
    assert len(items) == 5 and items[1].push_next and items[2].pop_prev and items[3].pop_prev
    # Without products there is nobody to take the token: something that moves nothing does.
    lone = [step.instruction for step in with_tokens([steps[1], steps[3]], AccelConfig())]
    assert [type(item).__name__ for item in lone] == ["Load", "Load", "Epi", "Finish"]
    assert lone[1].pop_prev and lone[1].push_next


def test_loads_move_up_and_what_is_used_late_comes_late() -> None:
    steps = _steps(4)
    late = _load(Memory.PAR, 3)
    use = Step(Epi(), (_touched(Memory.PAR, 3),), (_touched(Memory.OUT, 9),))
    ordered = in_good_order([late, *steps, use], AccelConfig())
    kinds = [type(step.instruction).__name__ for step in ordered]
    assert ordered.index(late) > kinds.index("Gemm")
    assert sorted(kinds) == sorted(type(step.instruction).__name__ for step in [late, *steps, use])
