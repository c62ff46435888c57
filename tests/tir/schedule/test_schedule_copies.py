"""read_at and write_at: copies of just what one iteration of a loop touches."""

from __future__ import annotations

import pytest

from tests.tir.schedule.scripts import check_script, parse
from tilewright.tir.schedule import Schedule, ScheduleError

WINDOW = """
def f(A: Buffer[(34,), "int32"], C: Buffer[(32,), "int32"]):
    for i, j in grid(4, 8):
        with block("C"):
            v = spatial(32, i * 8 + j)
            C[v] = A[v] + A[v + 1] + A[v + 2]
"""
PRODUCT = """
def f(A: Buffer[(16, 16), "float32"], B: Buffer[(16, 16), "float32"], C: Buffer[(16, 16), "float32"]):
    for i, j, k in grid(16, 16, 16):
        with block("C"):
            vi, vj, vk = spatial(16, i), spatial(16, j), reduce(16, k)
            with init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vj, vk]
"""


def _loops(schedule: Schedule, block: str) -> list:
    return schedule.get_loops(schedule.get_block(block))


def test_read_at_copies_the_window_of_an_iteration() -> None:
    expected = """
def f(A: Buffer[(34,), "int32"], C: Buffer[(32,), "int32"]):
    A_local = alloc_buffer((34,), "int32", scope="local")
    for i in range(4):
        for ax0 in range(10):
            with block("A_local"):
                v_ax0 = spatial(34, i * 8 + ax0)
                A_local[v_ax0] = A[v_ax0]
        for j in range(8):
            with block("C"):
                v = spatial(32, i * 8 + j)
                C[v] = A_local[v] + A_local[v + 1] + A_local[v + 2]
"""
    check_script(WINDOW, lambda s: s.read_at(_loops(s, "C")[0], s.get_block("C"), "A", "local"), expected)


def test_write_at_copies_out_what_an_iteration_wrote() -> None:
    expected = """
def f(A: Buffer[(34,), "int32"], C: Buffer[(32,), "int32"]):
    C_local = alloc_buffer((32,), "int32", scope="local")
    for i in range(4):
        for j in range(8):
            with block("C"):
                v = spatial(32, i * 8 + j)
                C_local[v] = A[v] + A[v + 1] + A[v + 2]
        for ax0 in range(8):
            with block("C_local"):
                v_ax0 = spatial(32, i * 8 + ax0)
                C[v_ax0] = C_local[v_ax0]
"""
    check_script(WINDOW, lambda s: s.write_at(_loops(s, "C")[0], s.get_block("C"), 0, "local"), expected)


@pytest.mark.parametrize("rows", [4, 5])
def test_tiles_of_a_product(rows: int) -> None:
    """Uneven tiles, an init of its own, parallel tiles: copies keep to the borders."""

    def apply(s: Schedule) -> None:
        c = s.get_block("C")
        i, j, k = s.get_loops(c)
        i0, j0, i1, j1 = s.tile(i, j, rows, 4)
        k0, k1 = s.split(k, [None, 4])
        s.reorder(i0, j0, k0, i1, j1, k1)
        s.decompose_reduction(c, k0)
        s.read_at(k0, c, "A", "shared")
        s.read_at(k0, c, "B", "shared")
        copy = s.write_at(j0, c, "C", "local")
        s.vectorize(s.get_loops(copy)[-1])
        s.parallel(i0)

    check_script(PRODUCT, apply)


def test_every_reader_in_the_loop_reads_the_copy() -> None:
    text = """
def f(A: Buffer[(8, 8), "int32"], C: Buffer[(8, 8), "int32"], D: Buffer[(8,), "int32"]):
    B = alloc_buffer((8, 8), "int32")
    for i, j in grid(8, 8):
        with block("B"):
            vi, vj = spatial(8, i), spatial(8, j)
            B[vi, vj] = A[vj, vi]
    for i in range(8):
        for j in range(8):
            with block("C"):
                vi, vj = spatial(8, i), spatial(8, j)
                C[vi, vj] = B[vi, vj] + 1
        with block("D"):
            vi = spatial(8, i)
            D[vi] = B[vi, 7 - vi]
"""
    schedule = check_script(text, lambda s: s.read_at(_loops(s, "C")[0], s.get_block("D"), "B", "local"))
    assert "B[v" not in schedule.show().split('block("B_local")')[1].split("B_local[v_ax0, v_ax1] = ")[1][14:]


def test_what_is_written_later_in_an_iteration_may_be_copied_at_its_start() -> None:
    text = """
def f(A: Buffer[(4, 8), "int32"], B: Buffer[(4, 8), "int32"]):
    for i in range(4):
        for j in range(8):
            with block("B"):
                vi, vj = spatial(4, i), spatial(8, j)
                B[vi, vj] = A[vi, 7 - vj]
        for j in range(8):
            with block("A"):
                vi, vj = spatial(4, i), spatial(8, j)
                A[vi, vj] = B[vi, vj] * 2
"""
    check_script(text, lambda s: s.read_at(_loops(s, "B")[0], s.get_block("B"), "A", "local"))


def test_where_a_buffer_is_written_among_its_reads_no_copy_is_made() -> None:
    text = """
def f(A: Buffer[(4, 8), "int32"], B: Buffer[(4, 8), "int32"]):
    for i, j in grid(4, 8):
        with block("B"):
            vi, vj = spatial(4, i), spatial(8, j)
            B[vi, vj] = A[vi, 7 - vj]
        with block("A"):
            vi, vj = spatial(4, i), spatial(8, j)
            A[vi, vj] = B[vi, vj] * 2
"""
    schedule = Schedule(parse(text))
    with pytest.raises(ScheduleError, match="read_at: block A writes A before others read it"):
        schedule.read_at(_loops(schedule, "B")[0], schedule.get_block("B"), "A", "local")
    swapped = text.replace("B[vi, vj] = A[vi, 7 - vj]", "B[vi, vj] = 1").replace(
        "A[vi, vj] = B[vi, vj]", "A[vi, vj] = B[vi, 7 - vj]"
    )
    schedule = Schedule(parse(swapped))
    with pytest.raises(ScheduleError, match="it would run before block B, which writes B"):
        schedule.read_at(_loops(schedule, "A")[0], schedule.get_block("A"), "B", "local")


def test_a_block_elsewhere() -> None:
    schedule = Schedule(parse(WINDOW))
    block = schedule.get_block("C")
    inner = schedule.get_loops(block)[1]
    tile = schedule.blockize(inner)
    outer = schedule.get_loops(tile)[0]
    for call in (schedule.read_at, schedule.write_at):
        with pytest.raises(ScheduleError, match="block C is not under loop i"):
            call(outer, block, 0, "local")


def test_in_place_updates_are_refused() -> None:
    schedule = Schedule(
        parse("""
def f(A: Buffer[(16,), "int32"]):
    for i in range(16):
        with block("A"):
            v = spatial(16, i)
            A[v] = A[v] + 1
""")
    )
    block = schedule.get_block("A")
    (loop,) = schedule.get_loops(block)
    with pytest.raises(ScheduleError, match="read_at: block A also writes A"):
        schedule.read_at(loop, block, "A", "local")
    with pytest.raises(ScheduleError, match="write_at: block A reads what A held before loop i"):
        schedule.write_at(loop, block, "A", "local")


def test_reductions_that_go_on_outside() -> None:
    schedule = Schedule(parse(PRODUCT))
    block = schedule.get_block("C")
    i, _, k = schedule.get_loops(block)
    with pytest.raises(ScheduleError, match="the reduction of block C is not finished in one iteration of loop k"):
        schedule.write_at(k, block, "C", "local")
    schedule.decompose_reduction(block, i)
    with pytest.raises(ScheduleError, match="block C_init writes C outside loop i"):
        schedule.write_at(i, block, "C", "local")


def test_writers_that_go_beyond_the_first() -> None:
    schedule = Schedule(
        parse("""
def f(A: Buffer[(4, 8), "int32"], B: Buffer[(4, 8), "int32"]):
    for i in range(4):
        for j in range(4):
            with block("half"):
                vi, vj = spatial(4, i), spatial(4, j)
                B[vi, vj] = A[vi, vj]
        for j in range(8):
            with block("all"):
                vi, vj = spatial(4, i), spatial(8, j)
                B[vi, vj] = A[vi, 7 - vj]
""")
    )
    loop = _loops(schedule, "half")[0]
    with pytest.raises(ScheduleError, match="block all may write more of B than the blocks before it"):
        schedule.write_at(loop, schedule.get_block("all"), "B", "local")


def test_parts_that_are_not_known_exactly() -> None:
    schedule = Schedule(
        parse("""
def f(A: Buffer[(8,), "int32"], B: Buffer[(16,), "int32"]):
    for i, j in grid(2, 4):
        with block("B"):
            vi, vj = spatial(2, i), spatial(4, j)
            B[vi * 8 + vj * 2] = A[vi * 4 + vj]
""")
    )
    block = schedule.get_block("B")
    with pytest.raises(ScheduleError, match="which elements of B block B writes cannot be told exactly"):
        schedule.write_at(schedule.get_loops(block)[0], block, "B", "local")
