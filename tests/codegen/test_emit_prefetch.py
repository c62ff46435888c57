"""Loops that fetch ahead: together their iterations fetch the next panel, and the result does not change."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.codegen.compiled import HOST, assert_stages_agree, integers
from tilewright.arith.analyzer import Analyzer
from tilewright.backends.host import host_source
from tilewright.backends.llvm import emit_prefetch
from tilewright.backends.llvm.emit_prefetch import first_accesses, next_lines
from tilewright.ir.build import const
from tilewright.ir.expr import ZERO, IntImm, PrimExpr, Var
from tilewright.ir.visit import substitute
from tilewright.tir.annotations import PREFETCH, PREFETCH_NEAR, Annotation
from tilewright.tir.buffer import BufferLoad, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import BufferStore, For, LoopKind, Stmt, seq


def nest(extents: list[int], body: Stmt, names: str = "prk") -> list[For]:
    """Nested loops, outermost first, of which only variables and ranges matter."""
    return [For(Var(n), ZERO, IntImm(e), LoopKind.SERIAL, body) for n, e in zip(names, extents, strict=True)]


def fetched(loops: list[For], position: PrimExpr, count: int, panel: int) -> set[int]:
    """The first elements of the lines fetched in iteration `panel` of the outermost loop."""
    found: set[int] = set()
    inner = loops[1:]
    for values in product(*(range(loop.extent.value) for loop in inner)):  # type: ignore[attr-defined]
        mapping: dict[Var, PrimExpr] = {loop.var: IntImm(v) for loop, v in zip(inner, values, strict=True)}
        at = Analyzer().simplify(substitute(position, {**mapping, loops[0].var: IntImm(panel)}))
        assert isinstance(at, IntImm)
        found.update(at.value // 16 * 16 + 16 * number for number in range(count))
    return found


@pytest.mark.parametrize(("rows", "depth", "width"), [(7, 8, 64), (2, 16, 64), (1, 16, 32), (40, 8, 16), (3, 5, 48)])
def test_the_whole_next_panel_is_fetched(rows: int, depth: int, width: int) -> None:
    w = make_buffer("W", (10 * depth * width,))
    loops = nest([10, rows, depth], seq())
    p, _, k = (loop.var for loop in loops)
    length = depth * width
    found = next_lines(Analyzer(), loops, BufferLoad(w, ((p * depth + k) * width,)), length, length)
    assert found is not None
    for panel in (0, 3):
        start = (panel + 1) * length
        assert set(range(start, start + length, 16)) <= fetched(loops, *found, panel)


def test_iterations_of_unknown_number_share_what_is_fetched() -> None:
    """Rows of symbolic number: four tiles of them fetch the next panel, at a fourth of the pace of a single one."""
    w = make_buffer("W", (10 * 512,))
    first, outer, *inner = nest([10, 1, 8], seq())
    tiles = For(outer.var, first.var, Var("tiles"), LoopKind.SERIAL, seq())
    loops = [first, tiles, *inner]
    p, r, k = (loop.var for loop in loops)
    found = next_lines(Analyzer(), loops, BufferLoad(w, ((p * 8 + k) * 64,)), 512, 512)
    assert found is not None
    position, count = found
    assert count == 1, "32 lines in 4 x 8 steps"
    # The loop over tiles begins at the panel's number here; the rest of it repeats its first four.
    for begin in (2, 6):
        known = nest([10, 4, 8], seq())
        mapping: dict[Var, PrimExpr] = {r: known[1].var + begin, k: known[2].var}
        place = substitute(substitute(position, mapping), {p: IntImm(2)})
        assert fetched(known, place, count, 2) == set(range(3 * 512, 4 * 512, 16))


def test_panels_fused_with_rows() -> None:
    w = make_buffer("W", (4096,))
    loops = nest([10 * 7, 8], seq(), "fk")
    f, k = (loop.var for loop in loops)
    found = next_lines(Analyzer(), loops, BufferLoad(w, ((f // 7 * 8 + k) * 64,)), 512, 512)
    assert found is not None
    position, count = found
    assert count == 1
    lines = set().union(*(fetched(loops, position, count, 7 * 2 + row) for row in range(7)))
    assert set(range(3 * 512, 4 * 512, 16)) <= lines


def test_too_few_iterations_fetch_nothing() -> None:
    w = make_buffer("W", (1 << 16,))
    loops = nest([4, 1, 2], seq())
    assert next_lines(Analyzer(), loops, BufferLoad(w, (loops[0].var * 4096,)), 4096, 4096) is None


@pytest.mark.parametrize(("note", "level"), [(PREFETCH, 2), (PREFETCH_NEAR, 3)])
def test_a_program_that_fetches_ahead(note: Annotation[Any], level: int) -> None:
    w, out = make_buffer("W", (4 * 64,)), make_buffer("B", (4,))
    p, k = Var("p"), Var("k")
    add = BufferStore(out, (p,), BufferLoad(out, (p,)) + BufferLoad(w, (p * 64 + k,)))
    inner = For(k, ZERO, IntImm(64), LoopKind.SERIAL, add, annotations={note.name: {"W": 64}})
    func = PrimFunc("panels", (w, out), For(p, ZERO, IntImm(4), LoopKind.SERIAL, inner))
    (line,) = (line for line in host_source([func], HOST).splitlines() if "call void @llvm.prefetch.p0" in line)
    assert line.endswith(f"i32 0, i32 {level}, i32 1)"), "to be read, from that cache level, as data"
    assert_stages_agree(func, integers(4 * 64), np.zeros(4, "float32"))


def test_what_is_used_after_the_loop_is_fetched_while_it_runs() -> None:
    # Each p sums 64 elements of W into B[p * 32 ...]; the next place in B and the row after the next of X are fetched.
    w, x, out = make_buffer("W", (64,)), make_buffer("X", (16 * 32,)), make_buffer("B", (8 * 32,))
    total = make_buffer("S", (1,))
    p, k, j = Var("p"), Var("k"), Var("j")
    zero = BufferStore(total, (ZERO,), const(0.0, "float32"))
    add = BufferStore(total, (ZERO,), BufferLoad(total, (ZERO,)) + BufferLoad(w, (k,)))
    notes = {PREFETCH.name: {"B": 32, "X": [32, 64]}}
    inner = For(k, ZERO, IntImm(64), LoopKind.SERIAL, add, annotations=notes)
    place = p * 32 + j
    store = BufferStore(out, (place,), BufferLoad(total, (ZERO,)) + BufferLoad(x, (place,)))
    copy = For(j, ZERO, IntImm(32), LoopKind.SERIAL, store)
    func = PrimFunc("rows", (w, x, total, out), For(p, ZERO, IntImm(8), LoopKind.SERIAL, seq(zero, inner, copy)))
    calls = [line for line in host_source([func], HOST).splitlines() if "call void @llvm.prefetch" in line]
    # To be written, then to be read.
    assert [line.split("i32 ")[1][0] for line in calls] == ["1", "0"]
    assert_stages_agree(func, integers(64), integers(16 * 32), np.zeros(1, "float32"), np.zeros(8 * 32, "float32"))


def test_the_rows_of_a_tile() -> None:
    # Each p writes rows 3p to 3p + 2, of 64 elements, in the first 32 columns: their lines are fetched before.
    out = make_buffer("B", (4 * 3 * 64,))
    p, r, j = Var("p"), Var("r"), Var("j")
    store = BufferStore(out, ((p * 3 + r) * 64 + j,), const(1.0, "float32"))
    tile = For(r, ZERO, IntImm(3), LoopKind.SERIAL, For(j, ZERO, IntImm(32), LoopKind.SERIAL, store))
    notes = {PREFETCH.name: {"B": [32, 0, 3, 64]}}
    func = PrimFunc("tiles", (out,), For(p, ZERO, IntImm(4), LoopKind.SERIAL, tile, annotations=notes))
    lines = host_source([func], HOST).splitlines()
    assert sum("call void @llvm.prefetch" in line for line in lines) == 3 * 2
    steps = [int(line.split("i64 ")[1]) for line in lines if "getelementptr float, ptr %p" in line]
    assert steps == [16, 64, 80, 128, 144]
    assert_stages_agree(func, np.zeros(4 * 3 * 64, "float32"))


def test_rows_further_ahead() -> None:
    image = make_buffer("X", (4096,))
    loops = nest([8, 4, 8], seq())
    found = next_lines(Analyzer(), loops, BufferLoad(image, (loops[0].var * 256,)), 256, 768)
    assert found is not None
    assert set(range(2 * 256 + 768, 2 * 256 + 1024, 16)) <= fetched(loops, *found, 2)


def test_the_first_use_in_the_innermost_loop_that_uses_a_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, w = (make_buffer(name, (64,)) for name in "ABW")
    i, j, k, z = (Var(name) for name in "ijkz")
    deepest = For(z, IntImm(2), IntImm(3), LoopKind.SERIAL, BufferStore(a, (k + z,), BufferLoad(w, (j + k + z,))))
    inner = For(k, ZERO, IntImm(4), LoopKind.SERIAL, seq(deepest, BufferStore(a, (k,), BufferLoad(w, (k,)))))
    before = BufferStore(b, (j,), BufferLoad(w, (j,)))
    outer = For(j, ZERO, IntImm(4), LoopKind.SERIAL, seq(before, inner, BufferStore(b, (i + j,), BufferLoad(a, (i,)))))
    outermost = For(i, ZERO, IntImm(4), LoopKind.SERIAL, outer)
    looked_at: list[Stmt] = []
    accesses = emit_prefetch._accesses

    def counted(stmt: Stmt, seen: set[Any]) -> Any:
        looked_at.append(stmt)
        return accesses(stmt, seen)

    monkeypatch.setattr(emit_prefetch, "_accesses", counted)
    found = first_accesses([outermost, outer, inner], ["W", "B", "C"])
    assert set(found) == {"W", "B"}
    # A loop further inside begins; those around go on.
    assert Analyzer().prove_equal(found["W"].indices[0], j + k + 2)
    assert found["B"].buffer is b and found["B"].indices == (j,)
    assert isinstance(found["B"], BufferStore)
    assert len(looked_at) == len({id(stmt) for stmt in looked_at}), "every statement once"
