"""Loops are cut where their guards change: main bodies without guards, and right tails."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir.passes.programs import agree, data, loops_of, script
from tilewright.ir.expr import IntImm, Select
from tilewright.ir.visit import find_all
from tilewright.tir.annotations import WHOLE
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.partition_loops import partition_loops
from tilewright.tir.stmt import BufferStore, For, IfThenElse, LoopKind, SeqStmt


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

    @pytest.mark.parametrize("kind", ["serial", "parallel"])
    def test_edges_of_windows_that_are_written_out_have_one_body(self, kind: str) -> None:
        """Inside, all rows of taps are in sight; at the first and the last line, a loop over those there are."""
        func = script(
            f"""
@script.function
def taps(A: Buffer[(9, 8), "float32"], W: Buffer[(3,), "float32"], B: Buffer[(9, 8), "float32"]):
    for y in {kind}(9):
        for x in range(8):
            B[y, x] = 0.0
            for k in unroll(3, annotations={{"reduction": True}}):
                if 1 <= y + k and y + k < 10:
                    B[y, x] = B[y, x] + A[y + k - 1, x] * W[k]
"""
        )
        after = partition_loops(func)
        assert isinstance(after.body, For)
        choice = after.body.body
        assert isinstance(choice, IfThenElse) and choice.else_body is not None
        kinds = [[loop.kind for loop in find_all(side, For)] for side in (choice.then_body, choice.else_body)]
        assert kinds == [[LoopKind.SERIAL, LoopKind.UNROLLED], [LoopKind.SERIAL, LoopKind.SERIAL]]
        assert not find_all(choice.then_body, IfThenElse) and not find_all(choice.else_body, IfThenElse)
        agree(func, after, data(9, 8), data(3), data(9, 8))

    def test_rows_of_taps_stay_written_out_where_other_loops_decide_too(self) -> None:
        func = script(
            """
@script.function
def taps(A: Buffer[(20,), "float32"], W: Buffer[(3,), "float32"], B: Buffer[(20,), "float32"]):
    for x in range(5):
        for i in unroll(4):
            B[x * 4 + i] = 0.0
        for k in unroll(3, annotations={"reduction": True}):
            for i in unroll(4):
                if 1 <= x * 4 + i + k and x * 4 + i + k < 21:
                    B[x * 4 + i] = B[x * 4 + i] + A[x * 4 + i + k - 1] * W[k]
"""
        )
        after = partition_loops(func)
        assert all(loop.kind is LoopKind.UNROLLED for loop in find_all(after.body, For) if loop.var.name == "k")
        agree(func, after, data(20), data(3), data(20))

    def test_a_group_of_tiles_chooses_where_its_last_tile_is_cut(self) -> None:
        """What comes before is not copied, and a tile of which nothing is kept is not computed."""
        func = script(
            """
@script.function
def groups(A: Buffer[(40, 64), "float32"], B: Buffer[(35, 64), "float32"]):
    for g in range(2):
        T = allocate((20, 64), "float32")
        for t in range(20):
            for u in unroll(64):
                T[t, u] = A[g * 20 + t, u] * 2.0
        for t in range(20):
            S = allocate((16,), "float32")
            for u in unroll(16):
                S[u] = T[t, u] + 1.0
            for u in unroll(16):
                if g * 20 + t < 35:
                    B[g * 20 + t, u] = S[u]
"""
        )
        after = partition_loops(func)
        assert [loop.extent for loop in find_all(after.body, For) if loop.var.name in ("g", "t")] == [
            IntImm(extent) for extent in (2, 20, 20, 15)
        ]
        agree(func, after, data(40, 64), data(35, 64))

    def test_whole_loops_are_split_inside(self) -> None:
        """A large body is not copied: the loop in it that has the conditions is cut, at ends that move."""
        func = script(
            """
@script.function
def windows(A: Buffer[(20,), "float32"], W: Buffer[(3,), "float32"], B: Buffer[(20,), "float32"]):
    for i in range(20):
        for k in range(3):
            W[k] = A[i + k - 1] if 1 <= i + k and i + k < 21 else 0.0
        B[i] = W[0] + W[1] + W[2]
"""
        )
        assert isinstance(func.body, For)
        whole = func.replace(body=WHOLE.put(func.body, True))
        after = partition_loops(whole)
        assert isinstance(after.body, For) and after.body.extent is IntImm(20)
        stores = [store for store in find_all(after.body, BufferStore) if store.buffer.name == "B"]
        assert len(stores) == 1 and any(not find_all(loop, Select) for loop in find_all(after.body.body, For))
        agree(func, after, data(20), data(3), data(20))

    @pytest.mark.parametrize("stages", [1, 2])
    def test_only_the_parts_with_conditions_are_copied(self, stages: int) -> None:
        """Rows of a window, then products of a whole row: the first and the last row differ in the windows alone."""
        window = """
        for x in range(6):
            for j in unroll(8):
                W[x * 8 + j] = 0.0
                for k in unroll(3):
                    W[x * 8 + j] = W[x * 8 + j] + (A[y + k - 1, x * 8 + j] if 1 <= y + k and y + k < 11 else 0.0)"""
        product = """
        for x in range(3):
            for j in unroll(16):
                B[y, x * 16 + j] = 0.0
            for k in range(48):
                for j in unroll(16):
                    B[y, x * 16 + j] = B[y, x * 16 + j] + W[k]"""
        func = script(
            f"""
@script.function
def separable(A: Buffer[(10, 48), "float32"], W: Buffer[(48,), "float32"], B: Buffer[(10, 48), "float32"]):
    for y in range(10):{(window + product) * stages}
"""
        )
        after = partition_loops(func)
        assert isinstance(after.body, For) and after.body.extent is IntImm(10)
        stores = [store.buffer.name for store in find_all(after.body, BufferStore)]
        assert stores.count("B") == 2 * stages
        # A body of the windows for rows inside, one for the first row and one for the last.
        choices = find_all(after.body, IfThenElse)
        assert len(choices) == 2 * stages and stores.count("W") == 2 * 3 * stages
        agree(func, after, data(10, 48), data(48), data(10, 48))

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
