"""rolling_buffer: windows that slide are kept in circular buffers, and nothing is computed twice."""

from __future__ import annotations

from itertools import product

import pytest

from tests.tir.schedule.scripts import check_script, parse
from tilewright.ir.build import as_expr
from tilewright.ir.expr import const_value
from tilewright.ir.visit import substitute
from tilewright.tir.evaluate import evaluate
from tilewright.tir.schedule import BlockHandle, Schedule, ScheduleError

LINE = """
def f(A: Buffer[(34,), "int32"], C: Buffer[(32,), "int32"]):
    B = alloc_buffer((34,), "int32")
    for i in range(34):
        with block("B"):
            v = spatial(34, i)
            B[v] = A[v] * 2
    for i in range(32):
        with block("C"):
            v = spatial(32, i)
            C[v] = B[v] + B[v + 1] + B[v + 2]
"""
IMAGE = """
def f(A: Buffer[(2, 11, 12), "int32"], W: Buffer[(3, 3), "int32"], C: Buffer[(2, 9, 10), "int32"]):
    B = alloc_buffer((2, 11, 12), "int32")
    for n, i, j in grid(2, 11, 12):
        with block("B"):
            vn, v, w = spatial(2, n), spatial(11, i), spatial(12, j)
            B[vn, v, w] = A[vn, v, w] * 2
    for n, i, j, r, q in grid(2, 9, 10, 3, 3):
        with block("C"):
            vn, v, w, vr, vq = spatial(2, n), spatial(9, i), spatial(10, j), reduce(3, r), reduce(3, q)
            with init():
                C[vn, v, w] = 0
            C[vn, v, w] = C[vn, v, w] + B[vn, v + vr, w + vq] * W[vr, vq]
"""


def instances(schedule: Schedule, name: str) -> list[tuple[int, ...]]:
    """The iterator values of a block's instances, in the order in which they run."""
    block = schedule.block(BlockHandle(name))
    loops = [schedule.loop(handle) for handle in schedule.get_loops(BlockHandle(name))]
    found = []
    for values in product(*(range(const_value(loop.extent) or 0) for loop in loops)):
        place = {loop.var: as_expr(value, loop.var.dtype) for loop, value in zip(loops, values, strict=True)}
        if evaluate(substitute(block.predicate, place), {}):
            found.append(tuple(int(evaluate(substitute(item.value, place), {})) for item in block.iters))
    return found


def test_a_window_of_three() -> None:
    expected = """
def f(A: Buffer[(34,), "int32"], C: Buffer[(32,), "int32"]):
    B = alloc_buffer((3,), "int32")
    for i in range(32):
        for r in range(3):
            with block("B"):
                v = opaque(34, i + r)
                where(i <= 0 or 2 <= r)
                B[v % 3] = A[v] * 2
        with block("C"):
            v = spatial(32, i)
            C[v] = B[v % 3] + B[(v + 1) % 3] + B[(v + 2) % 3]
"""

    def apply(s: Schedule) -> None:
        producer = s.get_block("B")
        s.compute_at(producer, s.get_loops(s.get_block("C"))[0])
        s.rolling_buffer(producer, "B")

    schedule = check_script(LINE, apply, expected)
    assert instances(schedule, "B") == [(n,) for n in range(34)]


@pytest.mark.parametrize("tile", [2, 5, 8])
def test_tiles_of_a_line(tile: int) -> None:
    def apply(s: Schedule) -> None:
        producer, consumer = s.get_block("B"), s.get_block("C")
        outer, _ = s.split(s.get_loops(consumer)[0], [None, tile])
        s.compute_at(producer, outer)
        s.rolling_buffer(producer, 0)

    schedule = check_script(LINE, apply)
    assert instances(schedule, "B") == [(n,) for n in range(34)]


def test_strips_start_anew() -> None:
    """Where an outer loop moves the window too, it begins in each strip with the whole window."""

    def apply(s: Schedule) -> None:
        producer, consumer = s.get_block("B"), s.get_block("C")
        _, step, _ = s.split(s.get_loops(consumer)[0], [2, 4, 4])
        s.compute_at(producer, step)
        s.rolling_buffer(producer, 0)

    schedule = check_script(LINE, apply)
    assert instances(schedule, "B") == [(n,) for n in (*range(18), *range(16, 34))]
    strips, step, _ = schedule.get_loops(schedule.get_block("C"))
    with pytest.raises(ScheduleError, match="promises nothing about the order"):
        schedule.reorder(step, strips)


def test_windows_of_an_image_slide_both_ways() -> None:
    """Uneven tiles: rows roll, columns of the rows at hand are kept whole; every element is computed once."""

    def apply(s: Schedule) -> None:
        producer, consumer = s.get_block("B"), s.get_block("C")
        n, i, j, *_ = s.get_loops(consumer)
        _, j0, _, _ = s.tile(i, j, 5, 4)
        s.compute_at(producer, j0)
        s.rolling_buffer(producer, 0)
        s.parallel(n)  # images have buffers apart

    schedule = check_script(IMAGE, apply)
    assert schedule.func.root.allocations[0].static_shape == (2, 7, 12)
    found = instances(schedule, "B")
    assert len(found) == len(set(found)) == 2 * 11 * 12


def test_loops_that_move_no_window_repeat_nothing() -> None:
    """Each channel of the result reads the same window: it is computed for the first one alone."""
    text = """
def f(A: Buffer[(18,), "int32"], W: Buffer[(4, 3), "int32"], C: Buffer[(4, 16), "int32"]):
    B = alloc_buffer((18,), "int32")
    for i in range(18):
        with block("B"):
            v = spatial(18, i)
            B[v] = A[v] * 2
    for i, c, r in grid(16, 4, 3):
        with block("C"):
            v, vc, vr = spatial(16, i), spatial(4, c), reduce(3, r)
            with init():
                C[vc, v] = 0
            C[vc, v] = C[vc, v] + B[v + vr] * W[vc, vr]
"""

    def apply(s: Schedule) -> None:
        producer = s.get_block("B")
        s.compute_at(producer, s.get_loops(s.get_block("C"))[1])
        s.rolling_buffer(producer, 0)

    schedule = check_script(text, apply)
    assert instances(schedule, "B") == [(n,) for n in range(18)]


@pytest.mark.parametrize("stride", [1, 2])
def test_producers_that_reduce_and_pad(stride: int) -> None:
    """A chain of two windows over a padded line: both stages roll."""
    size = 12 // stride
    text = f"""
def f(A: Buffer[(12,), "int32"], W: Buffer[(3,), "int32"], D: Buffer[({size},), "int32"]):
    P = alloc_buffer((16,), "int32")
    C = alloc_buffer((14,), "int32")
    for i in range(16):
        with block("P"):
            v = spatial(16, i)
            P[v] = A[v - 2] if 2 <= v and v < 14 else 0
    for i, r in grid(14, 3):
        with block("C"):
            v, vr = spatial(14, i), reduce(3, r)
            with init():
                C[v] = 0
            C[v] = C[v] + P[v + vr] * W[vr]
    for i, r in grid({size}, 3):
        with block("D"):
            v, vr = spatial({size}, i), reduce(3, r)
            with init():
                D[v] = 0
            D[v] = D[v] + C[v * {stride} + vr] * W[vr]
"""

    def apply(s: Schedule) -> None:
        first, middle, last = (s.get_block(name) for name in "PCD")
        loop = s.get_loops(last)[0]
        s.compute_at(middle, loop)
        s.compute_at(first, loop)
        s.rolling_buffer(middle, 0)
        s.rolling_buffer(first, 0)

    schedule = check_script(text, apply)
    assert [buffer.static_shape for buffer in schedule.func.root.allocations] == [(5,), (3,)]
    assert len(instances(schedule, "P")) == 5 + (size - 1) * stride
    assert len(instances(schedule, "C")) == 3 * (3 + (size - 1) * stride)


def _rolled() -> Schedule:
    schedule = Schedule(parse(LINE))
    producer = schedule.get_block("B")
    schedule.compute_at(producer, schedule.get_loops(schedule.get_block("C"))[0])
    schedule.rolling_buffer(producer, 0)
    return schedule


def test_what_rolls_stays_in_order() -> None:
    schedule = _rolled()
    producer = schedule.get_block("B")
    loop, rows = schedule.get_loops(producer)
    for call in (schedule.parallel, schedule.vectorize):
        with pytest.raises(ScheduleError, match="opaque iterator v"):
            call(loop)
        with pytest.raises(ScheduleError, match="opaque iterator v"):
            call(rows)
    with pytest.raises(ScheduleError, match="not all written in the same iteration of loop i"):
        schedule.software_pipeline(loop, [0, 1])
    with pytest.raises(ScheduleError, match="opaque iterator"):
        schedule.compute_inline(producer)
    with pytest.raises(ScheduleError, match="do not visit exactly"):
        schedule.rolling_buffer(producer, 0)


def test_readers_stay_with_the_window() -> None:
    """Elsewhere they would find the last window only, wherever another primitive wants to put them."""
    for apply in (
        lambda s: s.compute_at(s.get_block("C"), s.get_loops(s.reindex(s.get_block("C"), 0, "write"))[0]),
        lambda s: s.compute_at(s.get_block("C"), s.get_loops(s.cache_write(s.get_block("C"), 0, "local"))[0]),
        lambda s: s.reverse_compute_at(s.get_block("C"), s.get_loops(s.get_block("B"))[1]),
    ):
        schedule = _rolled()
        with pytest.raises(ScheduleError, match="block C"):
            apply(schedule)


def _scheduled(text: str, *edits: tuple[str, str]) -> Schedule:
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return Schedule(parse(text))


def test_refused() -> None:
    schedule = Schedule(parse(LINE))
    producer, consumer = schedule.get_block("B"), schedule.get_block("C")
    (loop,) = schedule.get_loops(consumer)
    with pytest.raises(ScheduleError, match="block B shares no loop with its consumers"):
        schedule.rolling_buffer(producer, 0)
    with pytest.raises(ScheduleError, match="C is a parameter of the function"):
        schedule.rolling_buffer(consumer, 0)
    schedule.compute_at(producer, loop)
    late = schedule.copy()
    late.unroll(loop)
    late.rolling_buffer(producer, 0)  # in order all the same
    schedule.parallel(loop)
    with pytest.raises(ScheduleError, match="the iterations of loop i do not run one after another"):
        schedule.rolling_buffer(producer, 0)


def test_windows_that_do_not_overlap() -> None:
    schedule = _scheduled(LINE, ("B[v] + B[v + 1] + B[v + 2]", "B[v]"))
    producer = schedule.get_block("B")
    schedule.compute_at(producer, schedule.get_loops(schedule.get_block("C"))[0])
    with pytest.raises(ScheduleError, match="does not slide"):
        schedule.rolling_buffer(producer, 0)


def test_windows_that_move_in_two_dimensions_at_once() -> None:
    schedule = Schedule(
        parse("""
def f(A: Buffer[(18, 18), "int32"], C: Buffer[(16,), "int32"]):
    B = alloc_buffer((18, 18), "int32")
    for i, j in grid(18, 18):
        with block("B"):
            v, w = spatial(18, i), spatial(18, j)
            B[v, w] = A[v, w] * 2
    for i in range(16):
        with block("C"):
            v = spatial(16, i)
            C[v] = B[v, v] + B[v + 2, v + 2]
""")
    )
    producer = schedule.get_block("B")
    schedule.compute_at(producer, schedule.get_loops(schedule.get_block("C"))[0])
    with pytest.raises(ScheduleError, match="several dimensions of B move with loop i"):
        schedule.rolling_buffer(producer, 0)


def test_values_from_other_iterations() -> None:
    """A program that carries values from one iteration to the next itself: nothing is said to be in a window."""
    schedule = Schedule(
        parse("""
def f(A: Buffer[(18,), "int32"], C: Buffer[(16,), "int32"]):
    B = alloc_buffer((18,), "int32")
    for i in range(16):
        for r in range(2):
            with block("B"):
                v = spatial(17, i + r)
                B[v] = A[v] * 2
        with block("C"):
            v = spatial(16, i)
            C[v] = B[v] + B[max(v - 1, 0)]
""")
    )
    with pytest.raises(ScheduleError, match="not certainly all written in the same iteration of loop i"):
        schedule.rolling_buffer(schedule.get_block("B"), 0)


def test_producers_that_are_not_whole() -> None:
    reducing = LINE.replace("for i in range(34):", "for i, r in grid(34, 2):").replace(
        """            v = spatial(34, i)
            B[v] = A[v] * 2""",
        """            v, vr = spatial(34, i), reduce(2, r)
            with init():
                B[v] = 0
            B[v] = B[v] + A[v] * vr""",
    )
    schedule = Schedule(parse(reducing.replace("* vr", "* 2")))
    producer = schedule.get_block("B")
    schedule.compute_at(producer, schedule.get_loops(schedule.get_block("C"))[0])
    schedule.decompose_reduction(producer, schedule.get_loops(producer)[-1])
    with pytest.raises(ScheduleError, match="B is written by block B_init too"):
        schedule.rolling_buffer(producer, 0)
    schedule = _scheduled(LINE, ("C[v] = B[v] + B[v + 1] + B[v + 2]", "C[v] = A[v]"))
    with pytest.raises(ScheduleError, match="nothing reads what block B writes"):
        schedule.rolling_buffer(schedule.get_block("B"), 0)
    with pytest.raises(ScheduleError, match="has no such buffer 'Z'"):
        schedule.rolling_buffer(schedule.get_block("B"), "Z")
    schedule = _scheduled(LINE, ("B[v] = A[v] * 2", "B[v] = A[v] * 2 + B[v]"))
    schedule.get_loops(schedule.get_block("B"))
    with pytest.raises(ScheduleError, match="block B reads what it writes"):
        schedule.rolling_buffer(schedule.get_block("B"), 0)


def test_windows_as_long_as_the_buffer() -> None:
    text = """
def f(A: Buffer[(4,), "int32"], C: Buffer[(4,), "int32"]):
    B = alloc_buffer((4,), "int32")
    for i in range(4):
        for r in range(4):
            with block("B"):
                v = spatial(4, i + r)
                where(i + r < 4)
                B[v] = A[v] * 2
        with block("C"):
            v = spatial(4, i)
            C[v] = B[v]
"""
    schedule = Schedule(parse(text))
    with pytest.raises(ScheduleError, match="the window of B is all of its dimension 0"):
        schedule.rolling_buffer(schedule.get_block("B"), 0)
