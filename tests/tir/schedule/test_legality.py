"""What is built is proven as a whole: later calls, notes made by hand and written programs get round no premise."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw
from tests.tir.schedule.programs import check_compiled, elementwise, matmul, matmul_relu
from tilewright import te
from tilewright.lower.kernel import compile_scheduled
from tilewright.support.errors import CompilerBug
from tilewright.target import Target
from tilewright.tir.analysis.dependence import Conflict
from tilewright.tir.annotations import ANNOTATIONS, LATE, ORDER, WOVEN, Annotation
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import Schedule, ScheduleError, premises
from tilewright.tir.schedule.legality import require_legal
from tilewright.tir.schedule.state import ScheduleState
from tilewright.tir.script import parse_script, to_script
from tilewright.tir.stmt import LoopKind


def written(text: str) -> PrimFunc:
    func = parse_script("@script.function\n" + text.strip() + "\n")
    assert isinstance(func, PrimFunc)
    return func


# ---------------------------------------------------------------- calls that undo what earlier ones proved


@pytest.mark.parametrize("outer_first", [True, False])
def test_nested_loops_are_not_bound_to_one_axis_in_any_order(outer_first: bool) -> None:
    schedule = Schedule(elementwise((4, 4), 1))
    i, j = schedule.get_loops(schedule.get_block("B0"))
    first, second = (i, j) if outer_first else (j, i)
    schedule.bind(first, "threadIdx.x")
    with pytest.raises(ScheduleError, match="is bound to threadIdx") as caught:
        schedule.bind(second, "threadIdx.x")
    assert "side by side" in str(caught.value)
    schedule.bind(second, "threadIdx.y")
    require_legal(schedule.func)


def test_a_tile_with_threads_moved_under_threads_names_the_call() -> None:
    """Each call is legal by itself: a loop inside a tile is bound, and then the tile moves."""
    schedule = Schedule(elementwise((16,), 2))
    _, inner = schedule.split(schedule.get_loops(schedule.get_block("B0"))[0], [None, 4])
    tile = schedule.blockize(inner)
    schedule.bind(inner, "threadIdx.x")
    place, _ = schedule.split(schedule.get_loops(schedule.get_block("B1"))[0], [None, 4])
    schedule.bind(place, "threadIdx.x")
    schedule.compute_at(tile, place)
    for target in ("native", "opencl"):
        with pytest.raises(ScheduleError) as caught:
            tw.build(schedule, target=target)
        assert "is bound to threadIdx.x already (since call" in str(caught.value)
        assert "`sch.compute_at(" in str(caught.value) and "on block B0_o, loop i0_0" in str(caught.value)
        assert "# <-- here: bind: loop" in str(caught.value)
    with pytest.raises(ScheduleError, match="is bound to threadIdx"):
        tw.build(schedule.func, target="opencl")


def test_legal_schedules_stay_legal() -> None:
    func = matmul_relu(12, 8, 10)
    schedule = Schedule(func)
    c, d = schedule.get_block("C"), schedule.get_block("D")
    i, j = schedule.get_loops(d)
    i0, _ = schedule.split(i, [None, 4])
    schedule.compute_at(c, i0)
    schedule.decompose_reduction(c, schedule.get_loops(c)[1])
    schedule.parallel(i0)
    schedule.vectorize(j)
    tw.build(schedule)
    check_compiled(schedule, func)


def test_tiles_of_a_decomposed_reduction_are_known_exactly() -> None:
    """The regions of a block around tiles are those of the tiles that it runs, so that outer loops may be parallel."""
    func = matmul(8, 12, 10)
    schedule = Schedule(func)
    block = schedule.get_block("C")
    i, j, k = schedule.get_loops(block)
    i0, i1 = schedule.split(i, [2, 4])
    j0, j1 = schedule.split(j, [3, 4])
    k0, k1 = schedule.split(k, [2, 5])
    schedule.reorder(j0, i0, k0, i1, j1, k1)
    tile = schedule.blockize(i1)
    schedule.decompose_reduction(tile, k0)
    schedule.parallel(j0)
    tw.build(schedule)
    check_compiled(schedule, func)


@pytest.mark.parametrize("direct", [True, False])
def test_fused_parallel_loops_are_proven_by_their_parts(direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of a product under its consumer's; where fused indices hide that they are apart, the parts show it."""
    func = matmul_relu(12, 8, 10)
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("D"))
    i0, j0, _, _ = schedule.tile(i, j, 4, 2)
    schedule.compute_at(schedule.get_block("C"), j0)
    schedule.parallel(i0)
    schedule.parallel(j0)
    fused = schedule.fuse(i0, j0)
    if not direct:
        plain = premises.iteration_conflict

        def hidden(index, loop, analyzer, private, scheduled=False):  # type: ignore[no-untyped-def]
            if loop.var is fused.var:
                return Conflict("hidden", index.blocks_under(loop)[0])
            return plain(index, loop, analyzer, private)

        monkeypatch.setattr(premises, "iteration_conflict", hidden)
    require_legal(schedule.func)
    serial = matmul_relu(12, 8, 10)
    wrong = Schedule(serial)
    i, j, k = wrong.get_loops(wrong.get_block("C"))
    together = wrong.fuse(i, j, k)
    body = wrong.loop(together)
    marked = ScheduleState(wrong.func)
    marked.replace(body, body.replace(kind=LoopKind.PARALLEL))
    with pytest.raises(ScheduleError, match="for the reduce iterator"):
        require_legal(marked.func)


# ---------------------------------------------------------------- notes


@pytest.mark.parametrize("key", [key for key in ANNOTATIONS.values() if key.owner], ids=str)
@pytest.mark.parametrize("of_block", [False, True])
def test_notes_of_primitives_are_not_made_by_hand(key: Annotation[Any], of_block: bool) -> None:
    schedule = Schedule(elementwise((4, 4), 1))
    block = schedule.get_block("B0")
    before = schedule.func
    with pytest.raises(
        ScheduleError, match=f"annotate: the annotation '{key}' changes what the program does"
    ) as caught:
        schedule.annotate(block if of_block else schedule.get_loops(block)[0], key, True)
    assert caught.value.hint == key.owner and schedule.func is before


@pytest.mark.parametrize("key", [WOVEN, LATE], ids=str)
def test_notes_on_how_a_pipeline_runs(key: Annotation[int]) -> None:
    schedule = Schedule(elementwise((8, 4), 2))
    i, _ = schedule.get_loops(schedule.get_block("B1"))
    with pytest.raises(ScheduleError, match="needs 'software_pipeline' beside it"):
        schedule.annotate(i, key, 1)
    schedule.compute_at(schedule.get_block("B0"), i)
    schedule.software_pipeline(i, [0, 1])
    with pytest.raises(ScheduleError, match="is a number from 0 to 16, not 'x'"):
        schedule.annotate(i, key, "x")
    schedule.annotate(i, key, 1)
    part = schedule.get_loops(schedule.get_block("B0"))[1]
    with pytest.raises(ScheduleError, match="is a part of a software pipeline"):
        schedule.unannotate(part, "software_pipeline_stage")
    tw.build(schedule)


TWO = """
def f(A: Buffer[(8, 4), "float32"], C: Buffer[(8, 4), "float32"]):
    B = alloc_buffer((8, 4), "float32")
    for i in serial(8{notes}):
        for j in serial(4{first}):
            with block("B"):
                vi, vj = spatial(8, i), spatial(4, j)
                B[vi, vj] = A[vi, vj] * 2.0
        for k in serial(4{second}):
            with block("C"):
                vi, vk = spatial(8, i), spatial(4, k)
                C[vi, vk] = B[vi, vk] + 1.0
"""


def staged(first: object, second: object) -> PrimFunc:
    note = ', annotations={{"software_pipeline{}": {!r}}}'
    return written(
        TWO.format(notes=note.format("", 2), first=note.format("_stage", first), second=note.format("_stage", second))
    )


def test_stages_in_a_text_are_proven() -> None:
    tw.build(staged(0, 1))
    with pytest.raises(ScheduleError, match="B is touched in stage 1 and by a later statement in stage 0"):
        tw.build(staged(1, 0))
    swapped = to_script(staged(0, 0)).replace('"software_pipeline": 2', '"software_pipeline": 1')
    for place in (1, 0):
        swapped = swapped.replace(
            '{"software_pipeline_stage": 0}', f'{{"software_pipeline_stage": 0, "{ORDER}": {place}}}', 1
        )
    moved = parse_script(swapped)
    assert isinstance(moved, PrimFunc)
    with pytest.raises(ScheduleError, match="of two statements of stage 0 that touch B the later one would run first"):
        tw.build(moved)
    for wrong in (-1, "x", True):
        with pytest.raises(ScheduleError, match="is a number from 0 on, not"):
            tw.build(staged(0, wrong))


BLOCK = """
def f(A: Buffer[(8, 4), "float32"], B: Buffer[(8, 4), "float32"], C: Buffer[(8,), "float32"]):
    for i in {outer}:
        for j in {inner}:
            with block("B"):
                vi, vj = spatial(8, i), {iterator}
                {body}
"""


@pytest.mark.parametrize(
    ("outer", "inner", "iterator", "body", "message"),
    [
        ("range(8)", "parallel(4)", "spatial(4, j)", "C[vi] = A[vi, vj]", "may write the same elements of C"),
        ("range(8)", "vectorized(4)", "reduce(4, j)", "C[vi] = C[vi] + A[vi, vj]", "for the reduce iterator"),
        ("range(8)", "vthread(4)", "opaque(4, j)", "B[vi, vj] = A[vi, vj]", "for the opaque iterator"),
        (
            "range(8)",
            'serial(4, annotations={"zigzag": True})',
            "opaque(4, j)",
            "B[vi, vj] = B[vi, 0] + A[vi, vj]",
            "zigzag: the iterations of loop j are not independent",
        ),
        (
            'thread_binding("threadIdx.x", 8)',
            'thread_binding("threadIdx.x", 4)',
            "spatial(4, j)",
            "B[vi, vj] = A[vi, vj]",
            "loop j inside it is bound to threadIdx.x already",
        ),
        (
            "range(4)",
            'thread_binding("threadIdx.x", i)',
            "spatial(4, j)",
            "B[vi, vj] = A[vi, vj]",
            "the number of threads along threadIdx.x depends on a loop",
        ),
        ("range(4)", "vectorized(i)", "spatial(4, j)", "B[vi, vj] = A[vi, vj]", "vectorize: the extent of loop j"),
        ("range(4)", "unroll(i)", "spatial(4, j)", "B[vi, vj] = A[vi, vj]", "unroll: the extent of loop j"),
        (
            "range(8)",
            'serial(4, annotations={"reduction": True})',
            "opaque(4, j)",
            "B[vi, vj] = A[vi, vj]",
            "is .reduction., but does more than combine",
        ),
        (
            "range(8)",
            'serial(4, annotations={"software_pipeline_late": 1})',
            "opaque(4, j)",
            "B[vi, vj] = A[vi, vj]",
            "needs .software_pipeline. beside it",
        ),
    ],
)
def test_written_programs_are_proven(outer: str, inner: str, iterator: str, body: str, message: str) -> None:
    func = written(BLOCK.format(outer=outer, inner=inner, iterator=iterator, body=body))
    for target in ("native", "opencl"):
        with pytest.raises(ScheduleError, match=message) as caught:
            tw.build(func, target=target)
        assert "<-- here" in str(caught.value)


def test_a_tensor_intrinsic_in_a_text_is_matched() -> None:
    a = te.placeholder((4,), name="a")
    intrinsic = te.decl_tensor_intrin(
        te.compute((4,), lambda i: a[i] + 1.0, name="b").op,
        lambda inputs, outputs: outputs[0].store((0,), inputs[0][0]),
        name="legality_add_one",
    )
    text = """
def f(A: Buffer[(8,), "float32"], B: Buffer[(8,), "float32"]):
    for i in range(2):
        with block("B_o"):
            vo = spatial(2, i)
            annotations({"%s": "%s"})
            for j in range(4):
                with block("B"):
                    v = spatial(8, vo * 4 + j)
                    B[v] = A[v] + 2.0
"""
    schedule = Schedule(te.create_prim_func([a, te.compute((4,), lambda i: a[i] + 1.0, name="B")]))
    tensorized = schedule.tensorize(schedule.get_loops(schedule.get_block("B"))[0], intrinsic)
    (note,) = schedule.block(tensorized).annotations
    with pytest.raises(ScheduleError, match="block B_o is not what its tensor intrinsic computes"):
        require_legal(written(text % (note, "legality_add_one")))


def test_memory_of_warps_is_made_by_lowering() -> None:
    schedule = Schedule(elementwise((16,), 2))
    schedule.set_scope(schedule.get_block("B0"), 0, "warp")
    with pytest.raises(ScheduleError, match=r"buffer B0 has the scope 'warp'.*since call 2 .*sch.set_scope") as caught:
        tw.build(schedule)
    assert "use 'shared'" in str(caught.value)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"storage_align": {"B0": [-1, 0, 0]}}, "is not an axis"),
        ({"storage_align": {"B0": [0, 4, 1]}}, "is not an axis"),
        ({"storage_align": {"B0": "x"}}, "is not an axis"),
        ({"storage_swizzle": ["B0"]}, "the rows of B0 are not made of 128 bytes"),
    ],
)
def test_layouts_in_attributes_are_proven(attributes: dict[str, object], message: str) -> None:
    func = elementwise((16,), 2)
    tw.build(func.replace(attributes={"storage_align": {"B0": [-1, 4, 1]}}))
    with pytest.raises(ScheduleError, match=message):
        tw.build(func.replace(attributes=attributes))


def test_a_condition_must_not_read_what_other_iterations_write() -> None:
    text = """
def f(A: Buffer[(8,), "float32"], B: Buffer[(8,), "float32"]):
    for i in parallel(8):
        if {buffer}[0] > 0.0:
            with block("B"):
                v = spatial(8, i)
                B[v] = A[v] + 1.0
"""
    tw.build(written(text.format(buffer="A")))
    with pytest.raises(ScheduleError, match="a condition or a bound reads B, which block B writes"):
        tw.build(written(text.format(buffer="B")))


def test_what_templates_make_is_a_bug_when_it_is_illegal() -> None:
    func = written(BLOCK.format(outer="range(8)", inner="parallel(4)", iterator="spatial(4, j)", body="C[vi] = 1.0"))
    with pytest.raises(CompilerBug, match=r"the schedule of kernel f must not run: parallel: the iterations"):
        compile_scheduled(func, func, Target("native"), planned=False)
