"""Buffers shrink to what is used of them at a time, where they are used."""

from __future__ import annotations

import pytest

from tests.tir.passes.programs import agree, data, script
from tilewright import te
from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import const
from tilewright.ir.expr import Range, const_value
from tilewright.ir.visit import find_all
from tilewright.tir.analysis.flat_accesses import Access, Addresses, may_cross
from tilewright.tir.buffer import Buffer, BufferLoad, make_buffer
from tilewright.tir.passes.compact_buffers import compact_buffers
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.passes.simplify_loops import simplify_loops
from tilewright.tir.schedule import Schedule
from tilewright.tir.stmt import Allocate, For, LoopKind


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

    @pytest.mark.parametrize("guard", ["", "if A[i, j, k] < 0.5:\n                    "])
    def test_loops_around_a_value_are_asked_about_together(self, guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
        func = script(
            f"""
@script.function
def nest(A: Buffer[(2, 3, 4), "float32"], B: Buffer[(2, 3, 4), "float32"]):
    T = allocate((2, 3, 4), "float32")
    for i in range(2):
        for j in range(3):
            for k in range(4):
                T[i, j, k] = A[i, j, k] * 2.0
                {guard}B[i, j, k] = T[i, j, k]
"""
        )
        loops: list[For] = []

        def counted(buffer: Buffer, loop: For, analyzer: Analyzer, addresses: Addresses) -> bool:
            loops.append(loop)
            return may_cross(buffer, loop, analyzer, addresses)

        monkeypatch.setattr("tilewright.tir.passes.compact_buffers.may_cross", counted)
        after = compact_buffers(func)
        assert len(loops) == 1
        (allocation,) = find_all(after.body, Allocate)
        assert allocation.buffer.static_shape == (1, 1, 1)
        agree(func, after, data(2, 3, 4), data(2, 3, 4))

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

    @pytest.mark.parametrize("guard", ["i < 1", "i * 2 < 3 and i < 7", "i <= 0"])
    def test_what_only_some_iterations_write_stays_outside(self, guard: str) -> None:
        """A store under a condition of the loop around: later iterations read what an earlier one wrote."""
        func = script(f"""
def f(A: Buffer[(8,), "float32"], B: Buffer[(8,), "float32"]):
    with allocate((1,), "float32") as T:
        for i in range(8):
            if {guard}:
                T[0] = A[i] + 5.0
            B[i] = T[0]
""")
        agree(func, compact_buffers(func), data(8), data(8))

    def test_bounds_of_indices_still_cut_tiles(self) -> None:
        func = script("""
def f(A: Buffer[(10,), "float32"], B: Buffer[(10,), "float32"]):
    with allocate((10,), "float32") as T:
        for i in range(3):
            for j in range(4):
                if i * 4 + j < 10:
                    T[i * 4 + j] = A[i * 4 + j] * 2.0
            for j in range(4):
                if i * 4 + j < 10:
                    B[i * 4 + j] = T[i * 4 + j] + 1.0
""")
        after = compact_buffers(func)
        agree(func, after, data(10), data(10))
        (allocation,) = find_all(after.body, Allocate)
        assert allocation.buffer.static_shape == (4,)

    @pytest.mark.parametrize(("ends", "asked"), [(4, 2), (3, 3)])
    def test_what_stores_fill_is_not_asked_for_loads(
        self, ends: int, asked: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two stores from one end to the other say that nothing can be cut; else all accesses count."""
        func = script(
            f"""
@script.function
def halves(A: Buffer[(8,), "float32"], B: Buffer[({4 + ends},), "float32"]):
    T = allocate((8,), "float32")
    for i in range(4):
        T[i] = A[i]
    for i in range({ends}):
        T[4 + i] = A[4 + i]
    for i in range({4 + ends}):
        B[i] = T[i]
"""
        )
        boxes: list[Access] = []
        plain = Access.box

        def counted(access: Access, depth: int, analyzer: Analyzer, guarded: bool = True) -> list[Range | None]:
            boxes.append(access)
            return plain(access, depth, analyzer, guarded)

        monkeypatch.setattr(Access, "box", counted)
        after = compact_buffers(func)
        monkeypatch.undo()
        assert len({*map(id, boxes)}) == asked
        (allocation,) = find_all(after.body, Allocate)
        assert allocation.buffer.static_shape == (4 + ends,)
        agree(func, after, data(8), data(4 + ends))

    def test_the_same_corners_have_the_same_box(self) -> None:
        buffer = make_buffer("T", (4, 16), "int8")
        first, last = BufferLoad(buffer, (const(1), const(0))), BufferLoad(buffer, (const(1), const(15)))
        addresses = Addresses()
        (row, column), steps = addresses.box(first, last)
        assert const_value(row) == 1
        ((loop, _),) = steps
        assert isinstance(loop, For)
        assert const_value(loop.extent) == 16
        assert column is loop.var
        assert addresses.box(first, last) is addresses.box(first, last)
