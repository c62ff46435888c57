"""Virtual threads, double buffering and software pipelines: latency hidden, results unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir.schedule.programs import check_compiled, convolution, elementwise, matmul, matmul_relu, run
from tilewright import te
from tilewright.ir.expr import Call
from tilewright.ir.visit import find_all
from tilewright.tir.annotations import WOVEN
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.bind_threads import BindThreadsOptions, bind_threads
from tilewright.tir.passes.inject_virtual_threads import inject_virtual_threads
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.passes.pipeline_loops import PipelineLoopsOptions, pipeline_loops
from tilewright.tir.schedule import LoopHandle, Schedule, ScheduleError
from tilewright.tir.script import to_script
from tilewright.tir.stmt import IfThenElse


def staged_matmul() -> tuple[PrimFunc, Schedule]:
    """A product whose operands are staged for each tile of the reduction."""
    func = matmul(8, 12, 10)
    schedule = Schedule(func)
    block = schedule.get_block("C")
    i, j, k = schedule.get_loops(block)
    k0, k1 = schedule.split(k, [None, 2])
    schedule.reorder(k0, i, j, k1)
    for name in ("A", "B"):
        schedule.compute_at(schedule.cache_read(block, name, "local"), k0)
    return func, schedule


def same_after(schedule: Schedule, func: PrimFunc, passes: list) -> str:
    """The program after lowering blocks and passes computes the same; gives its text."""
    lowered = lower_blocks(schedule.func)
    for step in passes:
        lowered = step(lowered)
    random = np.random.default_rng(0)
    arrays = [random.integers(-5, 6, b.static_shape or ()).astype(b.dtype.numpy()) for b in lowered.buffers]
    interpret(lowered, *arrays)
    for a, b in zip(run(func), arrays, strict=True):
        np.testing.assert_array_equal(a, b)
    return to_script(lowered)


def test_double_buffer_keeps_two_copies() -> None:
    func, schedule = staged_matmul()
    schedule.double_buffer(schedule.get_block("B_local"))
    check_compiled(schedule, func)
    text = same_after(schedule, func, [pipeline_loops])
    assert "A_local = allocate((2, 8, 2)" in text and "B_local = allocate((2, 2, 12)" in text


def test_software_pipeline_of_three_stages() -> None:
    func = elementwise((12, 20), 3)
    schedule = Schedule(func)
    last = schedule.get_block("B2")
    i, _ = schedule.get_loops(last)
    schedule.compute_at(schedule.get_block("B1"), i)
    schedule.compute_at(schedule.get_block("B0"), i)
    schedule.software_pipeline(i, [0, 1, 3])
    check_compiled(schedule, func)
    text = same_after(schedule, func, [pipeline_loops])
    assert "allocate((2, 1, 20)" in text and "allocate((3, 1, 20)" in text


@pytest.mark.parametrize(("rows", "steps"), [(8, 4), (9, 4), (3, 4), (4, 1), (1, 4)])
def test_stages_that_are_woven(rows: int, steps: int) -> None:
    """The second stage's rows are shared out over the first's steps; what is left over comes after them."""
    func = matmul_relu(3 * rows, 4, steps)
    schedule = Schedule(func)
    first, last = schedule.get_block("C"), schedule.get_block("D")
    outer, _ = schedule.split(schedule.get_loops(last)[0], [None, rows])
    schedule.compute_at(first, outer, preserve_unit_loops=True)
    *_, row, column, k = schedule.get_loops(first)
    schedule.reorder(k, row, column)
    schedule.unroll(row)
    schedule.software_pipeline(outer, [0, 1])
    schedule.annotate(outer, WOVEN, 1)
    check_compiled(schedule, func)
    text = same_after(schedule, func, [pipeline_loops])
    assert "allocate((2, " in text
    share = -(-rows // steps)
    main = text[text.index("serial(2, start=1)") :]
    assert ("if " in main) == (rows // share < steps and steps > 1)


@pytest.mark.parametrize("turned", ["steps", "columns"])
def test_woven_loops_that_turn(turned: str) -> None:
    """What is woven in counts the steps of a loop, in whichever direction that walks."""
    func = matmul_relu(24, 4, 4)
    schedule = Schedule(func)
    first, last = schedule.get_block("C"), schedule.get_block("D")
    outer, _ = schedule.split(schedule.get_loops(last)[0], [None, 8])
    schedule.compute_at(first, outer, preserve_unit_loops=True)
    *_, row, column, k = schedule.get_loops(first)
    schedule.reorder(k, row, column) if turned == "steps" else schedule.reorder(column, row, k)
    schedule.decompose_reduction(first, k if turned == "steps" else column)
    schedule.zigzag(k if turned == "steps" else column)
    schedule.software_pipeline(outer, [0, 0, 1])
    schedule.annotate(outer, WOVEN, 1)
    check_compiled(schedule, func)
    text = same_after(schedule, func, [pipeline_loops])
    assert "% 2 == 0 else 3 - " in text and "zigzag" not in text


def test_a_pipeline_longer_than_the_loop() -> None:
    func = elementwise((2, 5), 2)
    schedule = Schedule(func)
    i, _ = schedule.get_loops(schedule.get_block("B1"))
    schedule.compute_at(schedule.get_block("B0"), i)
    schedule.software_pipeline(i, [0, 4])
    check_compiled(schedule, func)
    same_after(schedule, func, [pipeline_loops])


@pytest.mark.parametrize("kind", ["parallel", "vectorize", "zigzag", "bind"])
def test_iterations_of_a_pipeline_are_not_independent(kind: str) -> None:
    """The blocks of one iteration need no other; once the loop is lowered, stages use what earlier iterations made."""
    schedule = Schedule(elementwise((10, 5), 2))
    i, _ = schedule.get_loops(schedule.get_block("B1"))
    schedule.compute_at(schedule.get_block("B0"), i)
    schedule.software_pipeline(i, [0, 2])
    with pytest.raises(ScheduleError, match=r"the iterations of loop .* overlap: it is a software pipeline"):
        getattr(schedule, kind)(i, *(["blockIdx.x"] if kind == "bind" else []))


def test_pipeline_of_a_convolution() -> None:
    func = convolution(channels=4, size=9)
    schedule = Schedule(func)
    k, h, *_ = schedule.get_loops(schedule.get_block("conv"))
    schedule.reorder(h, k)
    schedule.compute_at(schedule.get_block("pad"), h)
    schedule.double_buffer(schedule.get_block("pad"))
    check_compiled(schedule, func)


def test_pipeline_refusals() -> None:
    _, schedule = staged_matmul()
    k0 = schedule.get_loops(schedule.get_block("C"))[0]
    for stages in ([0, 1], [1, 1, 1], [0, 1, 1, 2]):
        with pytest.raises(ScheduleError, match="do not fit the 3 statements"):
            schedule.software_pipeline(k0, stages)
    with pytest.raises(ScheduleError, match="earlier stage than it is written"):
        schedule.software_pipeline(k0, [1, 1, 0])
    with pytest.raises(ScheduleError, match="nothing reads"):
        schedule.double_buffer(schedule.get_block("C"))
    schedule = Schedule(elementwise())
    with pytest.raises(ScheduleError, match="shares no loop with its consumers"):
        schedule.double_buffer(schedule.get_block("B0"))
    schedule = Schedule(matmul_relu())
    block = schedule.get_block("C")
    _, _, k = schedule.get_loops(block)
    schedule.decompose_reduction(block, k)
    j = schedule.get_loops(block)[1]
    with pytest.raises(ScheduleError, match="in several stages"):
        schedule.software_pipeline(j, [0, 1])


def test_virtual_threads_interleave() -> None:
    func = matmul(8, 12, 10)
    schedule = Schedule(func)
    block = schedule.get_block("C")
    i, j, k = schedule.get_loops(block)
    i0, i1 = schedule.split(i, [2, None])
    schedule.reorder(i0, k, i1, j)
    schedule.compute_at(schedule.cache_read(block, "A", "local"), k)
    schedule.bind(i0, "vthread")
    check_compiled(schedule, func)
    text = same_after(schedule, func, [inject_virtual_threads])
    assert "vthread" not in text
    assert text.index("for k in ") < text.index("for ax0, i_0 in grid(4, 2)")
    assert "A_local = allocate((2, 4, 1)" in text


def test_nested_virtual_threads() -> None:
    func = elementwise((12, 20), 2)
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("B1"))
    i0, j0, _, _ = schedule.tile(i, j, 6, 10)
    schedule.compute_at(schedule.get_block("B0"), j0)
    schedule.bind(i0, "vthread")
    schedule.bind(j0, "vthread")
    check_compiled(schedule, func)
    same_after(schedule, func, [inject_virtual_threads])


def _chain(rows: int = 6) -> tuple[PrimFunc, Schedule, LoopHandle]:
    """Three stages a row: B0, B1 and B2 in one loop over rows."""
    func = elementwise((rows, 20), 3)
    schedule = Schedule(func)
    row, _ = schedule.get_loops(schedule.get_block("B2"))
    schedule.compute_at(schedule.get_block("B1"), row)
    schedule.compute_at(schedule.get_block("B0"), row)
    return func, schedule, row


@pytest.mark.parametrize(
    ("rows", "stages", "order", "copies"),
    [
        (1, [0, 1, 2], [2, 1, 0], [1, 1]),
        (2, [0, 1, 2], [2, 1, 0], [1, 1]),
        (6, [0, 1, 2], [2, 1, 0], [1, 1]),  # users first: the row is free again when the next one comes
        (6, [0, 1, 2], [0, 1, 2], [2, 2]),
        (6, [0, 1, 2], [0, 2, 1], [2, 1]),
        (6, [0, 2, 3], [1, 0, 2], [2, 2]),
        (6, [0, 0, 1], [1, 2, 0], [1, 1]),
        (6, [0, 1, 1], [2, 0, 1], [1, 1]),
        (6, [0, 0, 0], [0, 1, 2], [1, 1]),
    ],
)
def test_the_order_of_statements_in_a_pipeline(
    rows: int, stages: list[int], order: list[int], copies: list[int]
) -> None:
    func, schedule, row = _chain(rows)
    schedule.software_pipeline(row, stages, order)
    check_compiled(schedule, func)
    text = same_after(schedule, func, [pipeline_loops])
    for name, count in zip(("B0", "B1"), copies, strict=True):
        assert f"{name} = allocate(({f'{count}, ' if count > 1 else ''}1, 20)" in text
    if rows > 1:
        assert _stored(text) == [f"B{n}" for n in sorted(range(3), key=lambda n: order[n])]


def test_nested_pipelines_with_an_order() -> None:
    func, schedule = staged_matmul()
    block = schedule.get_block("C")
    k0, i, j, k1 = schedule.get_loops(block)
    schedule.reorder(k1, i, j)
    inner = schedule.cache_read(block, "A_local", "register")
    schedule.compute_at(inner, k1)
    schedule.software_pipeline(k1, [0, 1], [1, 0])
    schedule.software_pipeline(k0, [0, 0, 1], [1, 2, 0])
    check_compiled(schedule, func)
    text = same_after(schedule, func, [pipeline_loops])
    assert "A_local = allocate((8, 2)" in text and "A_local_register = allocate((8, 1)" in text


def test_an_order_that_later_changes_break_is_not_followed() -> None:
    """X and Y may stand either way round; a stage moved in afterwards that both need goes with X, and Y after it."""
    a = te.placeholder((6, 20), "int32", "A")
    p = te.compute((6, 20), lambda i, j: a[i, j] * 2, name="P")
    x = te.compute((6, 20), lambda i, j: p[i, j] + 1, name="X")
    y = te.compute((6, 20), lambda i, j: p[i, j] * 3, name="Y")
    func = te.create_prim_func([a, te.compute((6, 20), lambda i, j: x[i, j] - y[i, j], name="Z")])
    schedule = Schedule(func)
    row, _ = schedule.get_loops(schedule.get_block("Z"))
    for name in ("X", "Y"):
        schedule.compute_at(schedule.get_block(name), row)
    schedule.software_pipeline(row, [0, 0, 1], [1, 0, 2])
    assert _stored(same_after(schedule, func, [pipeline_loops])) == ["P", "Y", "X", "Z"]
    schedule.compute_at(schedule.get_block("P"), row)
    check_compiled(schedule, func)
    assert _stored(same_after(schedule, func, [pipeline_loops])) == ["P", "X", "Y", "Z"]


def _stored(text: str) -> list[str]:
    """The buffers that the lines of a program store to, in order."""
    return [line.split("[")[0].strip() for line in text.splitlines() if "] = " in line]


def test_orders_that_are_refused() -> None:
    _, schedule, row = _chain()
    for wrong in ([0, 1], [0, 1, 1], [1, 2, 3]):
        with pytest.raises(ScheduleError, match="does not give each of the 3 statements in loop"):
            schedule.software_pipeline(row, [0, 1, 2], wrong)
    with pytest.raises(ScheduleError, match="statement 1 would pass statement 0 of the same stage, which shares B0"):
        schedule.software_pipeline(row, [0, 0, 1], [1, 0, 2])
    with pytest.raises(ScheduleError, match="statement 2 would pass statement 1 of the same stage, which shares B1"):
        schedule.software_pipeline(row, [0, 1, 1], [0, 2, 1])


def test_loops_that_run_back_and_forth() -> None:
    _, schedule, row = _chain()
    trial = schedule.copy()
    _, inner = trial.split(row, [2, None])
    trial.zigzag(inner)
    with pytest.raises(ScheduleError, match="runs back and forth"):
        trial.software_pipeline(inner, [0, 0, 1])
    trial = schedule.copy()
    _, inner = trial.split(row, [2, None])
    trial.software_pipeline(inner, [0, 0, 1])
    with pytest.raises(ScheduleError, match="it is a software pipeline"):
        trial.zigzag(inner)


def test_a_pipeline_whose_first_stage_went_away() -> None:
    """Only the last stage is left once the copy is inlined again: nothing to overlap, nothing to wait for."""
    func = elementwise((6, 20), 2)
    schedule = Schedule(func)
    last = schedule.get_block("B1")
    row, _ = schedule.get_loops(last)
    schedule.compute_at(schedule.get_block("B0"), row)
    schedule.software_pipeline(row, [0, 1])
    schedule.compute_inline(schedule.get_block("B0"))
    check_compiled(schedule, func)
    same_after(schedule, func, [pipeline_loops])


@pytest.mark.parametrize(
    ("stages", "order"), [([0, 0, 1], None), ([0, 0, 1], [1, 2, 0]), ([0, 0, 2], [2, 0, 1]), ([0, 1, 2], [2, 1, 0])]
)
def test_asynchronous_copies_are_one_group_in_any_order(stages: list[int], order: list[int] | None) -> None:
    """Whatever stands first: an iteration waits, threads meet, and all its copies are committed together after them."""
    func = matmul(8, 12, 10)
    schedule = Schedule(func)
    block = schedule.get_block("C")
    i, j, k = schedule.get_loops(block)
    step, _ = schedule.split(k, [None, 2])
    schedule.reorder(step, i, j)
    for name in ("A", "B"):
        copy = schedule.read_at(step, block, name, "shared")
        schedule.bind(schedule.get_loops(copy)[-1], "threadIdx.x")
    schedule.bind(j, "threadIdx.x")
    schedule.decompose_reduction(block, step)
    schedule.software_pipeline(step, stages, order)
    lowered = pipeline_loops(lower_blocks(schedule.func), PipelineLoopsOptions(asynchronous=True))
    main = to_script(lowered).split("async_wait")[-1]
    places = {word: main.index(word) for word in ("barrier", "A_shared[", "B_shared[", "async_commit", "C[")}
    assert places["barrier"] == min(places.values())
    assert main.count("async_commit") == 1
    assert main.rindex("async_copy") < places["async_commit"]
    wanted = range(3) if order is None else order
    first = min(range(3), key=lambda n: wanted[n])
    assert (places["C["] < main.index("async_copy")) == (first == 2)
    # As many copies as stages are under way: threads read during the whole iteration.
    assert f"allocate(({max(stages) - stages[0] + 1}, 8, 2)" in to_script(lowered)


@pytest.mark.parametrize("constants", [(1,), (0, 1)])
def test_groups_of_copies_are_those_of_all_threads(constants: tuple[int, ...]) -> None:
    """Of constants alone too, each iteration in front of the loop commits its copies, in every thread."""
    func = matmul(8, 12, 10).replace(attributes={CONSTANTS: constants})
    schedule = Schedule(func)
    block = schedule.get_block("C")
    i, j, k = schedule.get_loops(block)
    step, _ = schedule.split(k, [None, 2])
    schedule.reorder(step, i, j)
    for name in ("A", "B"):
        copy = schedule.read_at(step, block, name, "shared")
        schedule.bind(schedule.get_loops(copy)[-1], "threadIdx.x")
    schedule.bind(j, "threadIdx.x")
    schedule.decompose_reduction(block, step)
    schedule.software_pipeline(step, [0, 0, 2])
    lowered = pipeline_loops(lower_blocks(schedule.func), PipelineLoopsOptions(asynchronous=True))
    ahead = to_script(lowered).split("async_wait")[0]
    assert ahead.count("async_commit") == 1 and ahead.rindex("async_copy") < ahead.index("async_commit")
    bound = bind_threads(lowered, BindThreadsOptions(max_threads=1024))
    for guarded in find_all(bound.body, IfThenElse):
        commits = [item for item in find_all(guarded, Call) if item.name == "async_commit"]
        assert not commits
