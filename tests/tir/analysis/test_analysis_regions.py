"""Tests of linear forms, accesses, relaxed regions and exact boxes: against enumeration."""

from __future__ import annotations

from itertools import product

import hypothesis.strategies as st
from hypothesis import given, settings

from tests.tir.schedule.programs import convolution, matmul_relu, stencil
from tilewright.arith.analyzer import Analyzer
from tilewright.ir.build import all_of, const, lt
from tilewright.ir.expr import ONE, ZERO, IntImm, PrimExpr, Range, Var
from tilewright.ir.visit import substitute
from tilewright.tir.analysis.accesses import detect_accesses
from tilewright.tir.analysis.bindings import (
    exact_box,
    form_tells_apart,
    is_domain_guard,
    is_injective,
    region_tells_apart,
    visits_domains,
)
from tilewright.tir.analysis.index import ProgramIndex
from tilewright.tir.analysis.linear import expression, linear, linear_substituted, mentions
from tilewright.tir.analysis.regions import hull, relax, spread, within
from tilewright.tir.buffer import BufferRegion, make_buffer
from tilewright.tir.schedule import Schedule
from tilewright.tir.script.parser import parse_script
from tilewright.tir.stmt import Block, BlockIter, BufferStore, Evaluate, For, IterKind, LoopKind

NOTHING = Evaluate(const(0))


def value(expr: PrimExpr, setting: dict[Var, int]) -> int:
    analyzer = Analyzer()
    result = analyzer.simplify(substitute(expr, {var: const(item) for var, item in setting.items()}))
    assert isinstance(result, IntImm)
    return result.value


def loop(name: str, extent: int, start: int = 0) -> For:
    return For(Var(name), const(start), const(extent), LoopKind.SERIAL, NOTHING)


def block_of(values: list[PrimExpr], extents: list[int]) -> Block:
    buffer = make_buffer("X", tuple(extents), "int32")
    iters = tuple(
        BlockIter(Var(f"v{n}"), Range(ZERO, const(extent)), IterKind.SPATIAL, item)
        for n, (item, extent) in enumerate(zip(values, extents, strict=True))
    )
    indices = tuple(item.var for item in iters)
    return Block(
        "B", iters, (), (BufferRegion.point(buffer, indices),), BufferStore(buffer, indices, const(0, "int32"))
    )


def test_linear_forms() -> None:
    i, j = Var("i"), Var("j")
    form = linear((i * 4 + j) * 2 - j + 3 + i // 3)
    assert form.constant == 3
    assert (form.terms[i], form.terms[j]) == (8, 1)
    assert i // 3 in form.terms
    assert expression(linear(i + 0)) is i
    assert mentions(i // 3 + j, {j})
    assert not mentions(i // 3, [j])
    assert linear_substituted(j * 2 + 1, {j: linear(i + 5)}).terms == {i: 2}  # type: ignore[union-attr]
    assert linear_substituted(j // 2, {j: linear(i)}) is None


SPREADS = st.lists(st.tuples(st.integers(-4, 8), st.integers(1, 5), st.integers(-2, 2)), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(SPREADS, st.integers(-3, 3))
def test_spread_and_exact_boxes_agree_with_enumeration(parts: list[tuple[int, int, int]], offset: int) -> None:
    loops = [loop(f"i{n}", extent, start) for n, (_, extent, start) in enumerate(parts)]
    total: PrimExpr = const(offset)
    for item, (coefficient, _, _) in zip(loops, parts, strict=True):
        total = total + item.var * coefficient
    domains = [range(start, start + extent) for _, extent, start in parts]
    points = [offset + sum(c * x for (c, _, _), x in zip(parts, xs, strict=True)) for xs in product(*domains)]
    box = spread(linear(total), loops)
    assert box is not None
    low, extent = value(box.min, {}), value(box.extent, {})
    assert (low, low + extent - 1) == (min(points), max(points))
    block = block_of([total], [100])
    (exact,) = exact_box(block, block.writes[0], loops, Analyzer()) or (None,)
    if exact is not None:
        start = value(exact.min, {})
        assert set(points) == set(range(start, start + value(exact.extent, {})))
    if is_injective(block, loops):
        assert len(set(points)) == len(points)
    for place, item in enumerate(loops):
        if form_tells_apart(linear(total), 1, item, loops):
            seen: dict[int, int] = {}
            for xs, point in zip(product(*domains), points, strict=True):
                assert seen.setdefault(point, xs[place]) == xs[place]


def test_exact_boxes_of_fused_loops() -> None:
    fused, fixed = loop("f", 24), Var("o")
    block = block_of([fixed * 4 + fused.var // 6, fused.var % 6], [100, 6])
    box = exact_box(block, block.writes[0], [fused], Analyzer())
    assert box is not None
    assert [value(item.extent, {}) for item in box if item is not None] == [4, 6]
    partly = block_of([fused.var // 6, fused.var % 5], [4, 5])
    assert exact_box(partly, partly.writes[0], [fused], Analyzer()) is None
    assert region_tells_apart(block, block.writes[0], fused, [fused], [])
    assert not region_tells_apart(partly, partly.writes[0], fused, [fused], [])


def test_guards_of_domains_do_not_cut_boxes() -> None:
    """Tiles of three in blocks of eight of thirteen rows: the box is a block's, as far as the rows reach."""
    tile, row, fixed = loop("tile", 3), loop("row", 3), Var("block")
    point = fixed * 8 + tile.var * 3 + row.var
    inside, whole = lt(tile.var * 3 + row.var, 8), lt(point, 13)
    block = block_of([point], [13]).replace(predicate=all_of([inside, whole]))
    box = exact_box(block, block.writes[0], [tile, row], Analyzer())
    assert box is not None and box[0] is not None
    assert [value(box[0].min, {fixed: 1}), value(box[0].extent, {})] == [8, 8]
    cut = block.replace(predicate=all_of([inside, whole, lt(row.var, 2)]))
    assert exact_box(cut, cut.writes[0], [tile, row], Analyzer()) is None


def test_fused_loops_of_symbolic_extents_are_told_apart() -> None:
    n, m = Var("n"), Var("m")
    fused = For(Var("f"), const(0), n * m, LoopKind.SERIAL, NOTHING)
    block = block_of([fused.var // m, fused.var % m], [100, 100])
    assert region_tells_apart(block, block.writes[0], fused, [fused], [])
    other = block_of([fused.var // m, fused.var % n], [100, 100])
    assert not region_tells_apart(other, other.writes[0], fused, [fused], [])


def test_digits_that_count_backwards_are_told_apart() -> None:
    """Tiles of three rows from the last of four on, for each of six heads; a guard may leave rows out."""
    fused, row = loop("f", 24), loop("row", 3)
    head, place = fused.var // 4, row.var - fused.var % 4 * 3 + 9
    for values, apart in (
        ([head, place], True),
        ([head, 9 - fused.var % 4 * 3 + row.var * 2], False),
        ([fused.var // 3, place], False),
        ([head - fused.var % 4 + 3], False),
        ([(row.var - fused.var * 3 + 69) // 2, (row.var - fused.var * 3 + 69) % 2], True),
        ([(row.var - fused.var * 3 + 69) // 2, (row.var - fused.var * 2 + 69) % 2], False),
    ):
        block = block_of(values, [72, 72][: len(values)])
        guarded = block.replace(predicate=lt(values[-1], 11))
        for item in (block, guarded):
            assert region_tells_apart(item, item.writes[0], fused, [fused, row], []) == apart


def test_unused_loops_repeat() -> None:
    i, j = loop("i", 4), loop("j", 3)
    block = block_of([i.var], [4])
    assert not is_injective(block, [i, j])
    assert is_injective(block, [i])
    assert not region_tells_apart(block, block.writes[0], j, [j], [i])
    assert region_tells_apart(block, block.writes[0], i, [i, j], [])


def test_domain_guards() -> None:
    i, j = loop("i", 7), loop("j", 16)
    block = block_of([i.var * 16 + j.var], [100])
    analyzer = Analyzer()
    for item in (i, j):
        analyzer.bind(item.var, Range(item.min, item.extent))
    assert is_domain_guard(block, i.var * 16 + j.var < 100, analyzer)
    assert is_domain_guard(block, i.var * 16 + j.var <= 99, analyzer)
    assert is_domain_guard(block, j.var < 16, analyzer)
    assert not is_domain_guard(block, i.var * 16 + j.var < 99, analyzer)
    assert not is_domain_guard(block, j.var.ne(3), analyzer)


def test_visited_domains() -> None:
    schedule = Schedule(matmul_relu())
    index = ProgramIndex(schedule.func)
    assert all(visits_domains(index, index.blocks[name], Analyzer()) for name in ("C", "D"))


def test_relaxed_regions_of_a_convolution() -> None:
    index = ProgramIndex(convolution(2, 8, 4, 2))
    conv = index.blocks["conv"]
    loops = index.loops_above(conv)
    (_, box), *_ = relax(conv, conv.reads, loops[3:], Analyzer())
    assert [value(item.extent, {}) for item in box if item is not None] == [2, 3, 3]
    (_, box), *_ = relax(conv, conv.reads, loops[1:], Analyzer())
    assert [value(item.extent, {}) for item in box if item is not None] == [2, 9, 9]


def test_hulls_and_containment() -> None:
    i, analyzer = Var("i"), Analyzer()
    a, b, c = Range(i, const(3)), Range(i + 2, const(3)), Range(i * 2, const(4))
    (joined,) = hull([(a,), (b,)], analyzer)
    assert joined is not None
    assert joined.min is i
    assert value(joined.extent, {}) == 5
    assert hull([(a,), (c,)], analyzer) == (None,)
    assert within(a, joined, analyzer)
    assert not within(joined, a, analyzer)
    assert not within(None, a, analyzer)
    assert not within(a, None, analyzer)


def test_accesses_of_stages() -> None:
    index = ProgramIndex(stencil())
    block = index.blocks["C"]
    reads, writes = detect_accesses(block.body)
    assert len(reads) == 3
    assert len(writes) == 1
    conv = ProgramIndex(convolution()).blocks["conv"]
    reads, _ = detect_accesses(conv.body, conv.init)
    assert [region.buffer.name for region in reads] == ["pad", "W"]
    reads, _ = detect_accesses(conv.body)
    assert [region.buffer.name for region in reads] == ["conv", "pad", "W"]


def test_accesses_with_inner_loops_lets_and_blocks() -> None:
    func = parse_script(
        """
@script.function
def rows(A: Buffer[(4, 9), "int32"], N: Buffer[(4,), "int32"], B: Buffer[(4, 9), "int32"]):
    for i in range(4):
        with block("row"):
            v = spatial(4, i)
            for j in range(3):
                for q in range(2):
                    B[v, j * 3 + q] = A[v, j * 3 + 1] + A[N[v], 0]
"""
    )
    block = ProgramIndex(func).blocks["row"]  # type: ignore[arg-type]
    reads, writes = detect_accesses(block.body)
    assert [[value(item.extent, {}) for item in region.region] for region in writes] == [[1, 8]]
    extents = {region.buffer.name: [value(item.extent, {}) for item in region.region] for region in reads}
    assert extents["N"] == [1]
    assert next(r for r in reads if r.buffer.name == "A").region[1].extent is not ONE
