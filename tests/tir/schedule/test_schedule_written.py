"""Schedules of programs written by hand: what te never makes (odd dependences, loose statements, partial loops)."""

from __future__ import annotations

import pytest

from tests.tir.schedule.programs import check
from tilewright.support.errors import UserError
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import BlockHandle, LoopHandle, Schedule, ScheduleError
from tilewright.tir.script.parser import parse_script


def parse(text: str) -> PrimFunc:
    func = parse_script(text)
    assert isinstance(func, PrimFunc)
    return func


SKEWED = """
@script.function
def skewed(A: Buffer[(8, 8), "int32"], B: Buffer[(8, 8), "int32"]):
    T = alloc_buffer((9, 9), "int32")
    for i, j in grid(8, 8):
        with block("T"):
            vi, vj = spatial(8, i), spatial(8, j)
            T[vi, vj] = A[vi, vj] * 2
        with block("B"):
            vi, vj = spatial(8, i), spatial(8, j)
            B[vi, vj] = T[vi - 1, vj + 1] if vi >= 1 and vj < 7 else 0
"""


def test_dependences_across_iterations_stop_reorder_and_parallel() -> None:
    func = parse(SKEWED)
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("B"))
    with pytest.raises(ScheduleError, match="block B may read elements of T that block T writes in another iteration"):
        schedule.reorder(j, i)
    for loop in (i, j):
        with pytest.raises(ScheduleError, match="block B may read elements of T that another iteration writes"):
            schedule.parallel(loop)
    schedule.split(i, [None, 3])
    check(schedule, func)


IN_PLACE = """
@script.function
def in_place(A: Buffer[(16,), "int32"], B: Buffer[(16,), "int32"]):
    T = alloc_buffer((16,), "int32")
    for i in range(16):
        with block("T"):
            v = spatial(16, i)
            T[v] = A[v] + 1
    for i in range(16):
        with block("A"):
            v = spatial(16, i)
            A[v] = A[v] * 2
    for i in range(16):
        with block("B"):
            v = spatial(16, i)
            B[v] = T[v] + A[v]
"""


def test_what_is_overwritten_is_not_inlined_or_moved_past() -> None:
    func = parse(IN_PLACE)
    schedule = Schedule(func)
    block = schedule.get_block("T")
    with pytest.raises(ScheduleError, match="block A writes A after block T has read it"):
        schedule.compute_inline(block)
    (i,) = schedule.get_loops(schedule.get_block("B"))
    with pytest.raises(ScheduleError, match="it would run after block A, which writes A"):
        schedule.compute_at(block, i)
    (j,) = schedule.get_loops(schedule.get_block("A"))
    schedule.parallel(j)
    schedule.reverse_compute_at(schedule.get_block("B"), j)
    check(schedule, func)


def test_a_block_that_reads_what_it_writes_does_not_move() -> None:
    schedule = Schedule(parse(IN_PLACE))
    (i,) = schedule.get_loops(schedule.get_block("B"))
    with pytest.raises(ScheduleError, match="block A reads what it writes"):
        schedule.compute_at(schedule.get_block("A"), i)


def test_loose_statements_can_be_split_but_not_reordered() -> None:
    func = parse(
        """
@script.function
def loose(A: Buffer[(6, 7), "int32"], B: Buffer[(6, 7), "int32"]):
    for i, j in grid(6, 7):
        with block("A"):
            vi, vj = spatial(6, i), spatial(7, j)
            A[vi, vj] = A[vi, vj] + 1
        B[i, j] = A[i, j] * 2
"""
    )
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("A"))
    with pytest.raises(ScheduleError, match="statements under loop i stand outside any block"):
        schedule.reorder(j, i)
    with pytest.raises(ScheduleError, match="statements under loop j stand outside any block"):
        schedule.vectorize(j)
    schedule.split(j, [None, 3])
    schedule.split(i, [None, 4])
    check(schedule, func)


def test_a_block_must_use_its_own_iterators() -> None:
    func = parse(
        """
@script.function
def leaky(A: Buffer[(6,), "int32"]):
    for i in range(6):
        with block("A"):
            v = spatial(6, i)
            A[v] = int32(i)
"""
    )
    with pytest.raises(ScheduleError, match="block A uses the loop variable i inside"):
        Schedule(func)


def test_partial_loops_keep_a_block_in_place() -> None:
    func = parse(
        """
@script.function
def partial(A: Buffer[(8,), "int32"], B: Buffer[(8,), "int32"]):
    T = alloc_buffer((8,), "int32")
    for i in range(4):
        with block("T"):
            v = spatial(8, i)
            T[v] = A[v] * 2
    for i in range(4):
        with block("B"):
            v = spatial(8, i)
            B[v] = T[v]
"""
    )
    schedule = Schedule(func)
    (i,) = schedule.get_loops(schedule.get_block("B"))
    for move in (
        lambda: schedule.compute_at(schedule.get_block("T"), i),
        lambda: schedule.compute_inline(schedule.get_block("T")),
        lambda: schedule.cache_write(schedule.get_block("T"), 0, "local"),
    ):
        with pytest.raises(ScheduleError, match="do not visit exactly the domains of its iterators"):
            move()


def test_triangular_loops_split_but_do_not_fuse_or_reorder() -> None:
    func = parse(
        """
@script.function
def triangle(A: Buffer[(6, 6), "int32"], B: Buffer[(6, 6), "int32"]):
    for i in range(6):
        for j in range(i + 1):
            with block("B"):
                vi, vj = spatial(6, i), spatial(6, j)
                B[vi, vj] = A[vi, vj] + 1
"""
    )
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("B"))
    with pytest.raises(ScheduleError, match="the range of loop j depends on an outer one"):
        schedule.fuse(i, j)
    with pytest.raises(ScheduleError, match="the range of loop j depends on a loop that would be inside it"):
        schedule.reorder(j, i)
    outer, _ = schedule.split(i, [None, 4])
    schedule.split(j, [None, 2])
    schedule.parallel(outer)
    check(schedule, func)


def test_several_iterations_writing_one_element() -> None:
    func = parse(
        """
@script.function
def last(A: Buffer[(4, 6), "int32"], B: Buffer[(4,), "int32"]):
    for i, j in grid(4, 6):
        with block("B"):
            vi, vj = spatial(4, i), spatial(6, j)
            B[vi] = A[vi, vj]
"""
    )
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("B"))
    with pytest.raises(ScheduleError, match="several iterations may write the same elements of B"):
        schedule.parallel(j)
    schedule.parallel(i)


def test_scheduled_programs_can_be_scheduled_again() -> None:
    func = parse(IN_PLACE)
    first = Schedule(func)
    (i,) = first.get_loops(first.get_block("B"))
    first.split(i, [None, 5])
    again = Schedule(parse(first.show()))
    (j,) = again.get_loops(again.get_block("T"))
    again.split(j, [None, 3])
    (a,) = again.get_loops(again.get_block("A"))
    again.reverse_compute_at(again.get_block("B"), a)
    check(again, parse(first.show()))


def test_conditions_around_blocks() -> None:
    func = parse(
        """
@script.function
def halves(A: Buffer[(8,), "int32"], B: Buffer[(8,), "int32"]):
    for i in range(8):
        if i < 4:
            with block("low"):
                v = spatial(8, i)
                B[v] = A[v] + 1
        else:
            with block("high"):
                v = spatial(8, i)
                B[v] = A[v] - 1
"""
    )
    schedule = Schedule(func)
    (i,) = schedule.get_loops(schedule.get_block("low"))
    at_once = schedule.copy()
    at_once.parallel(i)
    check(at_once, func)
    schedule.split(i, [None, 3])
    check(schedule, func)


def test_conditions_around_blocks_that_meet() -> None:
    func = parse(
        """
@script.function
def meet(A: Buffer[(8,), "int32"], B: Buffer[(8,), "int32"]):
    for i in range(8):
        if i < 4:
            with block("low"):
                v = spatial(8, i)
                B[v] = A[v] + 1
        else:
            with block("high"):
                v = spatial(8, i)
                B[v - 4] = A[v] - 1
"""
    )
    schedule = Schedule(func)
    with pytest.raises(ScheduleError, match="blocks low and high both write B"):
        schedule.parallel(*schedule.get_loops(schedule.get_block("low")))


def test_fixed_order_inside_a_time_loop() -> None:
    func = parse(
        """
@script.function
def steps(A: Buffer[(4, 6), "int32"], X: Buffer[(5, 6), "int32"]):
    for i in range(6):
        with block("start"):
            v = spatial(6, i)
            X[0, v] = 0
    for t in range(4):
        for i in range(6):
            with block("step"):
                vt, v = opaque(4, t), spatial(6, i)
                X[vt + 1, v] = X[vt, v] + A[vt, v]
"""
    )
    schedule = Schedule(func)
    t, i = schedule.get_loops(schedule.get_block("step"))
    with pytest.raises(ScheduleError, match="opaque iterator"):
        schedule.parallel(t)
    outer, inner = schedule.split(i, [None, 4])
    schedule.parallel(outer)
    schedule.vectorize(inner)
    check(schedule, func)


NESTED = """
@script.function
def nested(A: Buffer[(4, 6), "int32"], B: Buffer[(4, 6), "int32"]):
    for i in range(4):
        with block("row"):
            v = spatial(4, i)
            for j in range(6):
                with block("element"):
                    w = spatial(6, j)
                    B[v, w] = A[v, w] * 2
"""


def test_blocks_inside_blocks_have_a_scope_of_their_own() -> None:
    func = parse(NESTED)
    schedule = Schedule(func)
    inner = schedule.get_block("element")
    (j,) = schedule.get_loops(inner)
    outer_loop = schedule.get_loops(schedule.get_block("row"))[0]
    with pytest.raises(ScheduleError, match="are not in the same scope"):
        schedule.compute_at(inner, outer_loop)
    with pytest.raises(ScheduleError, match="are not in the same scope"):
        schedule.cache_read(inner, "A", "local", [schedule.get_block("row")])
    _, last = schedule.split(j, [None, 4])
    schedule.vectorize(last)
    schedule.parallel(outer_loop)
    schedule.cache_read(inner, "A", "local")
    check(schedule, func)


def test_names_of_what_is_gone_or_cannot_be_named() -> None:
    func = parse(
        """
@script.function
def empty(A: Buffer[(6,), "int32"], B: Buffer[(6,), "int32"]):
    for i in range(6):
        A[i] = 1
    for i in range(6):
        with block("B"):
            v = spatial(6, i)
            B[v] = A[v]
"""
    )
    schedule = Schedule(func)
    var = next(iter(schedule._state.index.loops))
    with pytest.raises(UserError, match="has no block inside, so a trace cannot name it"):
        schedule.split(LoopHandle(var), [None, 2])
    other = Schedule(parse(IN_PLACE))
    block = other.get_block("B")
    other.cache_write(block, 0, "local")
    other.reverse_compute_inline(other.get_block("B_local"))
    with pytest.raises(ScheduleError, match="the block B_local is no longer in the program"):
        other.get_loops(BlockHandle("B_local"))
    with pytest.raises(UserError, match="is not a block"):
        other.compute_inline("B")  # type: ignore[arg-type]


def test_cache_write_needs_to_know_what_is_written() -> None:
    func = parse(
        """
@script.function
def folded(A: Buffer[(24,), "int32"], B: Buffer[(28,), "int32"]):
    for i, j in grid(4, 6):
        with block("B"):
            vi, vj = spatial(4, i), spatial(6, j)
            B[vi * 7 + vj] = A[vi * 6 + vj] + 1
"""
    )
    schedule = Schedule(func)
    with pytest.raises(ScheduleError, match="which elements of B block B writes cannot be told exactly"):
        schedule.cache_write(schedule.get_block("B"), 0, "local")
    check(schedule, func)


def test_folded_results_can_be_staged_and_run_in_parallel() -> None:
    func = parse(
        """
@script.function
def folded(A: Buffer[(24,), "int32"], B: Buffer[(24,), "int32"]):
    for i, j in grid(4, 6):
        with block("B"):
            vi, vj = spatial(4, i), spatial(6, j)
            B[vi * 6 + vj] = A[vi * 6 + vj] + 1
"""
    )
    schedule = Schedule(func)
    schedule.cache_write(schedule.get_block("B"), 0, "local")
    i, j = schedule.get_loops(schedule.get_block("B"))
    schedule.parallel(i)
    schedule.vectorize(j)
    check(schedule, func)


WRITTEN_LATER = """
@script.function
def written_later(A: Buffer[(8,), "int32"], B: Buffer[(8,), "int32"], C: Buffer[(8,), "int32"]):
    for t in range(4):
        for i in range(8):
            with block("B"):
                vt, v = opaque(4, t), spatial(8, i)
                B[v] = A[v] + 1
        for i in range(8):
            with block("A"):
                vt, v = opaque(4, t), spatial(8, i)
                A[v] = B[v] * 2
        for i in range(8):
            with block("C"):
                vt, v = opaque(4, t), spatial(8, i)
                C[v] = C[v] + A[v]
"""
WRITTEN_BESIDE = WRITTEN_LATER.replace(
    """                A[v] = B[v] * 2
        for i in range(8):
""",
    """                A[7 - v] = B[v] * 2
""",
).replace('block("A")', 'block("X")')


def test_cache_read_copies_what_is_written_once_it_was_read() -> None:
    func = parse(WRITTEN_LATER)
    schedule = Schedule(func)
    schedule.cache_read(schedule.get_block("B"), "A", "local")
    check(schedule, func)
    with pytest.raises(ScheduleError, match="block A writes A before others read it"):
        Schedule(func).cache_read(schedule.get_block("B"), "A", "local", [schedule.get_block("C")])


def test_cache_read_for_a_reader_among_the_iterations_of_a_writer() -> None:
    """The copy of all readers would be older than what the last of them reads."""
    func = parse(WRITTEN_BESIDE)
    schedule = Schedule(func)
    with pytest.raises(ScheduleError, match="block X writes A before others read it"):
        schedule.cache_read(schedule.get_block("B"), "A", "local", [schedule.get_block("C")])
    schedule.cache_read(schedule.get_block("C"), "A", "local")
    check(schedule, func)


MALFORMED = {
    "a write outside of what a block declares": (
        """
        with block("B"):
            v = spatial(16, i)
            reads(A[v])
            writes(B[v])
            B[v + 1] = A[v]
""",
        "B",
    ),
    "two blocks of one name": (
        """
        with block("B"):
            v = spatial(16, i)
            B[v] = A[v]
        with block("B"):
            v = spatial(16, i)
            B[v] = A[v] + 1
""",
        "B",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_functions_are_refused_at_once(name: str) -> None:
    body, mentioned = MALFORMED[name]
    head = '@script.function\ndef f(A: Buffer[(16,), "int32"], B: Buffer[(16,), "int32"]):\n    for i in range(16):'
    func = parse(head + body)
    with pytest.raises(UserError, match=mentioned):
        Schedule(func)


OVERWRITTEN = """
@script.function
def overwritten(A: Buffer[(4,), "int32"], O: Buffer[(4,), "int32"]):
    S = alloc_buffer((1,), "int32")
    B = alloc_buffer((4,), "int32")
    for j in range(4):
        with block("S"):
            v = spatial(4, j)
            S[0] = A[v] * 2
        with block("B"):
            v = spatial(4, j)
            B[v] = A[v] + S[0]
    for j in range(4):
        with block("O"):
            v = spatial(4, j)
            O[v] = B[v] - S[0]
"""


@pytest.mark.parametrize("move", ["reverse_compute_at", "reverse_compute_inline", "compute_inline", "merge"])
def test_elements_that_are_overwritten_are_read_when_they_were(move: str) -> None:
    """S holds another value in each iteration: neither may O read it earlier nor what B computes later."""
    schedule = Schedule(parse(OVERWRITTEN))
    b, o = schedule.get_block("B"), schedule.get_block("O")
    loops = [schedule.get_loops(block)[0] for block in (b, o)]
    arguments = {
        "reverse_compute_at": (o, loops[0]),
        "reverse_compute_inline": (o,),
        "compute_inline": (b,),
        "merge": tuple(loops),
    }
    with pytest.raises(ScheduleError, match="several instances of block S may write the same element of S"):
        getattr(schedule, move)(*arguments[move])


def test_elements_written_once_in_an_iteration_around_both() -> None:
    func = parse(
        """
@script.function
def rows(A: Buffer[(3, 4), "int32"], O: Buffer[(3, 4), "int32"]):
    S = alloc_buffer((4,), "int32")
    B = alloc_buffer((3, 4), "int32")
    for t in range(3):
        for j in range(4):
            with block("S"):
                vt, v = spatial(3, t), spatial(4, j)
                S[v] = A[vt, v] * 2
            with block("B"):
                vt, v = spatial(3, t), spatial(4, j)
                B[vt, v] = A[vt, v] + S[v]
        for j in range(4):
            with block("O"):
                vt, v = spatial(3, t), spatial(4, j)
                O[vt, v] = B[vt, v] - S[v]
"""
    )
    for move in ("compute_inline", "reverse_compute_inline", "merge"):
        schedule = Schedule(func)
        b, o = schedule.get_block("B"), schedule.get_block("O")
        if move == "compute_inline":
            schedule.compute_inline(b)
        elif move == "reverse_compute_inline":
            schedule.reverse_compute_inline(o)
        else:
            schedule.merge(schedule.get_loops(b)[1], schedule.get_loops(o)[1])
        check(schedule, func)


def test_reads_of_what_a_later_iteration_writes_stay_inside() -> None:
    """B reads an element before it is written: after the loop it would read the new value."""
    schedule = Schedule(
        parse(
            """
@script.function
def ahead(A: Buffer[(5,), "int32"], O: Buffer[(4,), "int32"]):
    B = alloc_buffer((4,), "int32")
    for j in range(4):
        with block("A"):
            v = spatial(4, j)
            A[v] = 7
        with block("B"):
            v = spatial(4, j)
            B[v] = A[v + 1]
    for j in range(4):
        with block("O"):
            v = spatial(4, j)
            O[v] = B[v]
"""
        )
    )
    with pytest.raises(ScheduleError, match="is not certainly all written by block A in that iteration"):
        schedule.compute_inline(schedule.get_block("B"))
