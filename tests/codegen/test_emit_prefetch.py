"""Loops that fetch ahead: together their iterations fetch the next panel, and the result does not change."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.codegen.compiled import HOST, assert_stages_agree, integers
from tilewright.arith.analyzer import Analyzer
from tilewright.codegen.llvm.build import functions_to_ir
from tilewright.codegen.llvm.emit_prefetch import next_lines
from tilewright.ir.expr import ZERO, IntImm, PrimExpr, Var
from tilewright.ir.visit import substitute
from tilewright.tir.buffer import BufferLoad, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import PREFETCH, BufferStore, For, LoopKind, Stmt, seq


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
    found = next_lines(Analyzer(), loops, BufferLoad(w, ((p * depth + k) * width,)), length)
    assert found is not None
    for panel in (0, 3):
        start = (panel + 1) * length
        assert set(range(start, start + length, 16)) <= fetched(loops, *found, panel)


def test_panels_fused_with_rows() -> None:
    w = make_buffer("W", (4096,))
    loops = nest([10 * 7, 8], seq(), "fk")
    f, k = (loop.var for loop in loops)
    found = next_lines(Analyzer(), loops, BufferLoad(w, ((f // 7 * 8 + k) * 64,)), 512)
    assert found is not None
    position, count = found
    assert count == 1
    lines = set().union(*(fetched(loops, position, count, 7 * 2 + row) for row in range(7)))
    assert set(range(3 * 512, 4 * 512, 16)) <= lines


def test_too_few_iterations_fetch_nothing() -> None:
    w = make_buffer("W", (1 << 16,))
    loops = nest([4, 1, 2], seq())
    assert next_lines(Analyzer(), loops, BufferLoad(w, (loops[0].var * 4096,)), 4096) is None


def test_a_program_that_fetches_ahead() -> None:
    w, out = make_buffer("W", (4 * 64,)), make_buffer("B", (4,))
    p, k = Var("p"), Var("k")
    add = BufferStore(out, (p,), BufferLoad(out, (p,)) + BufferLoad(w, (p * 64 + k,)))
    inner = For(k, ZERO, IntImm(64), LoopKind.SERIAL, add, annotations={PREFETCH: {"W": 64}})
    func = PrimFunc("panels", (w, out), For(p, ZERO, IntImm(4), LoopKind.SERIAL, inner))
    assert "call void @llvm.prefetch.p0" in functions_to_ir([func], HOST)
    assert_stages_agree(func, integers(4 * 64), np.zeros(4, "float32"))
