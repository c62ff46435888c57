"""Moves and inlining of stages that read through views: reshapes, layouts, transposes, reversed, strided, partial.

Random views are tried as well as examples: what a primitive accepts must compute the same, and the plain cases must be
accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.tir.schedule.programs import block_of, check, check_compiled, loops_of
from tilewright import te
from tilewright.ir.expr import TRUE, PrimExpr, const_value
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import Schedule, ScheduleError

View = Callable[[Sequence[PrimExpr]], list[PrimExpr]]
"""From the indices of a view to those of what it shows."""


def reshaped(shape: Sequence[int], new: Sequence[int]) -> tuple[list[int], View]:
    """The elements in order, in another shape."""

    def places(indices: Sequence[PrimExpr]) -> list[PrimExpr]:
        flat: PrimExpr | int = 0
        for index, size in zip(indices, new, strict=True):
            flat = flat * size + index
        result: list[PrimExpr] = []
        for number in range(len(shape) - 1, -1, -1):
            result.append(flat % shape[number] if number else flat)  # type: ignore[arg-type]
            flat = flat // shape[number]
        return result[::-1]

    return list(new), places


def transposed(shape: Sequence[int], order: Sequence[int]) -> tuple[list[int], View]:
    return [shape[n] for n in order], lambda indices: [indices[list(order).index(n)] for n in range(len(shape))]


def one_axis(
    shape: Sequence[int], axis: int, size: int, place: Callable[[PrimExpr], PrimExpr]
) -> tuple[list[int], View]:
    new = [size if n == axis else length for n, length in enumerate(shape)]
    return new, lambda indices: [place(index) if n == axis else index for n, index in enumerate(indices)]


def tiled(shape: Sequence[int], axis: int, factor: int) -> tuple[list[int], View]:
    """NCHW -> NCHWc: an axis taken apart, its inner part last."""
    size, last = shape[axis] // factor, len(shape)
    new = [*(size if n == axis else length for n, length in enumerate(shape)), factor]
    return new, lambda i: [i[n] * factor + i[last] if n == axis else i[n] for n in range(last)]


def program(shape: Sequence[int], views: Sequence[tuple[list[int], View]]) -> PrimFunc:
    """B = A * 2 - 1, C = (a view of a view of ... B) + 3."""
    a = te.placeholder(shape, name="A", dtype="int32")
    b = te.compute(shape, lambda *i: a[i] * 2 - 1, name="B")

    def value(*indices: PrimExpr) -> PrimExpr:
        places: Sequence[PrimExpr] = indices
        for _, view in reversed(views):
            places = view(places)
        return b[tuple(places)] + 3

    c = te.compute(views[-1][0], value, name="C")
    return te.create_prim_func([a, c])


EXAMPLES = {
    "reshape": ((16, 16), [lambda s: reshaped(s, (8, 32))]),
    "flatten": ((4, 6), [lambda s: reshaped(s, (24,))]),
    "unflatten": ((24,), [lambda s: reshaped(s, (2, 3, 4))]),
    "NCHWc": ((2, 8, 3), [lambda s: tiled(s, 1, 4)]),
    "transpose": ((3, 5), [lambda s: transposed(s, (1, 0))]),
    "reversed": ((10, 4), [lambda s: one_axis(s, 0, 10, lambda i: 9 - i)]),
    "part": ((16,), [lambda s: one_axis(s, 0, 12, lambda i: i + 2)]),
    "every second": ((16,), [lambda s: one_axis(s, 0, 8, lambda i: i * 2 + 1)]),
    "NCHWc of a reversed transpose": (
        (6, 8),
        [
            lambda s: transposed(s, (1, 0)),
            lambda s: one_axis(s, 1, 6, lambda i: 5 - i),
            lambda s: tiled(s, 0, 4),
        ],
    ),
}


def _example(name: str) -> PrimFunc:
    shape, steps = EXAMPLES[name]
    views: list[tuple[list[int], View]] = []
    now: Sequence[int] = shape
    for step in steps:
        views.append(step(now))
        now = views[-1][0]
    return program(shape, views)


@pytest.mark.parametrize("name", EXAMPLES)
def test_consumers_of_views_go_into_their_producers(name: str) -> None:
    func = _example(name)
    schedule = Schedule(func)
    schedule.split(schedule.get_loops(schedule.get_block("B"))[0], [None, 2])
    schedule.reverse_compute_inline(schedule.get_block("C"))
    assert [block.name for block in schedule.blocks()] == ["B"]
    check_compiled(schedule, func)


@pytest.mark.parametrize("name", EXAMPLES)
def test_producers_move_under_consumers_of_views(name: str) -> None:
    func = _example(name)
    schedule = Schedule(func)
    schedule.compute_at(schedule.get_block("B"), schedule.get_loops(schedule.get_block("C"))[0])
    check(schedule, func)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "every second"])
def test_consumers_of_views_move_under_producers(name: str) -> None:
    func = _example(name)
    schedule = Schedule(func)
    schedule.reverse_compute_at(schedule.get_block("C"), schedule.get_loops(schedule.get_block("B"))[0])
    check(schedule, func)


def test_a_part_makes_the_domain_smaller() -> None:
    func = _example("part")
    schedule = Schedule(func)
    schedule.reverse_compute_inline(schedule.get_block("C"))
    (item,) = block_of(schedule, "B").iters
    assert (const_value(item.domain.min), const_value(item.domain.extent)) == (2, 12)
    # It visits its domain as before: it can be staged and moved.
    schedule.cache_write(schedule.get_block("B"), 0, "local")
    check_compiled(schedule, func)


def test_a_stride_makes_the_block_partial() -> None:
    func = _example("every second")
    schedule = Schedule(func)
    schedule.reverse_compute_inline(schedule.get_block("C"))
    assert block_of(schedule, "B").predicate is not TRUE
    with pytest.raises(ScheduleError, match="do not visit exactly the domains"):
        schedule.cache_write(schedule.get_block("B"), 0, "local")
    check(schedule, func)


def test_reads_past_what_is_written_are_refused() -> None:
    a = te.placeholder((8,), name="A", dtype="int32")
    b = te.compute((8,), lambda i: a[i] * 2, name="B")
    c = te.compute((10,), lambda i: te.select(te.all_of([i >= 1, i < 9]), b[i - 1], 0), name="C")
    schedule = Schedule(te.create_prim_func([a, c]))
    with pytest.raises(ScheduleError, match="does not certainly read only elements of B that block B writes"):
        schedule.reverse_compute_inline(schedule.get_block("C"))


def test_views_that_are_not_one_to_one_are_refused() -> None:
    a = te.placeholder((8, 8), name="A", dtype="int32")
    b = te.compute((8, 8), lambda i, j: a[i, j] * 2, name="B")
    c = te.compute((8,), lambda i: b[i, i] + 1, name="C")
    schedule = Schedule(te.create_prim_func([a, c]))
    with pytest.raises(ScheduleError, match="do not tell which instance of it they are of"):
        schedule.reverse_compute_inline(schedule.get_block("C"))


def test_blockized_producers_and_consumers_settle_one_another() -> None:
    a = te.placeholder((32, 32), name="A", dtype="int32")
    b = te.compute((32, 32), lambda i, j: a[i, j] * 2, name="B")
    c = te.compute((32, 32), lambda i, j: b[i, j] + 1, name="C")
    func = te.create_prim_func([a, c])
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("B"))
    _, outer, inner, _ = schedule.tile(i, j, 4, 8)
    schedule.blockize(inner)
    schedule.reverse_compute_at(schedule.get_block("C"), outer)
    assert loops_of(schedule, "C")[2:] == [("i", 4, "serial"), ("j", 8, "serial")]
    check_compiled(schedule, func)
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("B"))
    _, _, inner, _ = schedule.tile(i, j, 4, 8)
    tiles = schedule.blockize(inner)
    i, j = schedule.get_loops(schedule.get_block("C"))
    _, outer, _, _ = schedule.tile(i, j, 8, 16)
    schedule.compute_at(tiles, outer)
    # Just the tiles that are read, not all of them.
    assert [extent for _, extent, _ in loops_of(schedule, tiles.name)] == [4, 2, 2, 2]
    check_compiled(schedule, func)


@st.composite
def _views(draw: Callable[[st.SearchStrategy], object]) -> PrimFunc:
    shape = list(draw(st.sampled_from([(12,), (16,), (4, 6), (3, 8), (2, 3, 4), (8, 2)])))  # type: ignore[call-overload]
    views: list[tuple[list[int], View]] = []
    now = shape
    for _ in range(int(draw(st.integers(1, 3)))):  # type: ignore[call-overload]
        axis = int(draw(st.integers(0, len(now) - 1)))  # type: ignore[call-overload]
        size = now[axis]
        kind = draw(st.sampled_from(["reshape", "transpose", "reverse", "part", "every", "tile"]))
        if kind == "reshape":
            total = 1
            for length in now:
                total *= length
            first = draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
            views.append(reshaped(now, (first, total // first)))  # type: ignore[operator]
        elif kind == "transpose":
            views.append(transposed(now, draw(st.permutations(range(len(now))))))  # type: ignore[arg-type]
        elif kind == "reverse":
            views.append(one_axis(now, axis, size, lambda i, last=size - 1: last - i))  # type: ignore[misc]
        elif kind == "part" and size > 2:
            views.append(one_axis(now, axis, size - 2, lambda i: i + 1))
        elif kind == "every" and size > 2:
            views.append(one_axis(now, axis, (size - 1) // 2, lambda i: i * 2 + 1))
        elif kind == "tile" and size % 2 == 0:
            views.append(tiled(now, axis, 2))
        else:
            views.append(one_axis(now, axis, size, lambda i: i))
        now = views[-1][0]
    return program(shape, views)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_views_keep_the_meaning(data: st.DataObject) -> None:
    func = data.draw(_views())
    schedule = Schedule(func)
    b, c = schedule.get_block("B"), schedule.get_block("C")
    for block in (b, c):
        for loop in schedule.get_loops(block):
            if data.draw(st.booleans()):
                schedule.split(loop, [None, data.draw(st.integers(2, 4))])
    inner = schedule.get_loops(b)[1:]
    if inner and data.draw(st.booleans()):
        with suppress(ScheduleError):
            b = schedule.blockize(data.draw(st.sampled_from(inner)))
    kind = data.draw(st.sampled_from(["inline", "reverse inline", "compute_at", "reverse_compute_at"]))
    before = schedule.func
    try:
        if kind == "inline":
            schedule.compute_inline(b)
        elif kind == "reverse inline":
            schedule.reverse_compute_inline(c)
        elif kind == "compute_at":
            schedule.compute_at(b, data.draw(st.sampled_from(schedule.get_loops(c))))
        else:
            schedule.reverse_compute_at(c, data.draw(st.sampled_from(schedule.get_loops(b))))
    except ScheduleError:
        assert schedule.func is before
    check(schedule, func)
