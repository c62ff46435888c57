"""Random programs under random legal schedules compute what they computed before; their traces replay."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis import given, settings

from tests.tir.schedule.programs import check
from tilewright import te
from tilewright.te.tensor import Tensor
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import BlockHandle, LoopHandle, Schedule, ScheduleError

Draw = Callable[[st.SearchStrategy], object]


def _stage(draw: Draw, number: int, sources: list[Tensor]) -> Tensor:
    """One more stage on top of earlier ones: elementwise, broadcast, stencil, padding, transposition or reduction."""
    source = draw(st.sampled_from(sources[-2:]))
    assert isinstance(source, Tensor)
    shape = [int(dim.value) for dim in source.shape]  # type: ignore[attr-defined]
    name = f"S{number}"
    kinds = [
        "map",
        "join",
        "stencil",
        "pad",
        "transpose",
        "broadcast",
        "reduce",
        "window",
        "flatten",
        "repeat",
        "every",
    ]
    kind = draw(st.sampled_from(kinds))
    if kind == "join":
        others = [t for t in sources if [int(d.value) for d in t.shape] == shape]  # type: ignore[attr-defined]
        other = draw(st.sampled_from(others))
        return te.compute(shape, lambda *i: source[i] * 2 - other[i], name=name)  # type: ignore[index]
    if kind == "stencil" and shape[0] > 3:
        return te.compute([shape[0] - 2, *shape[1:]], lambda i, *r: source[(i, *r)] + source[(i + 2, *r)], name=name)
    if kind == "pad":
        low, size = draw(st.integers(0, 2)), shape[0]
        padded = [size + low + 1, *shape[1:]]

        def value(i, *rest):
            return te.select(te.all_of([i >= low, i < size + low]), source[(i - low, *rest)], 7)

        return te.compute(padded, value, name=name)
    if kind == "transpose" and len(shape) == 2:
        return te.compute(shape[::-1], lambda i, j: source[j, i] + 1, name=name)
    if kind == "broadcast" and len(shape) == 1:
        return te.compute([shape[0], 3], lambda i, j: source[i] + j, name=name)
    if kind == "reduce" and len(shape) == 2:
        k = te.reduce_axis((0, shape[1]), name="k")
        reducer = draw(st.sampled_from([te.sum, te.max]))
        return te.compute(shape[:1], lambda i: reducer(source[i, k], axis=k), name=name)  # type: ignore[operator]
    if kind == "reduce":
        k = te.reduce_axis((0, shape[0]), name="k")
        return te.compute((1,), lambda i: te.sum(source[k] * (i + 2), axis=k), name=name)
    if kind == "flatten" and len(shape) == 2:
        width = shape[1]
        return te.compute((shape[0] * width,), lambda i: source[i // width, i % width] + i, name=name)
    if kind == "repeat" and shape[0] < 10:
        return te.compute([shape[0] * 2, *shape[1:]], lambda i, *r: source[(i // 2, *r)] - 1, name=name)
    if kind == "every" and shape[0] > 2:
        return te.compute([shape[0] // 2, *shape[1:]], lambda i, *r: source[(i * 2 + 1, *r)] - 1, name=name)
    if kind == "window" and shape[0] > 4:
        k = te.reduce_axis((0, 3), name="k")
        step = draw(st.integers(1, 2))
        if draw(st.booleans()):
            # Past the ends, where nothing is.
            return te.compute(
                shape,
                lambda i, *r: te.sum(
                    source[(i + k - 1, *r)] * (k + 1), axis=k, where=te.all_of([i + k >= 1, i + k <= shape[0]])
                ),
                name=name,
            )
        size = (shape[0] - 3) // step + 1
        return te.compute(
            [size, *shape[1:]],
            lambda i, *r: te.sum(source[(i * step + k, *r)] * (k + 1), axis=k),
            name=name,
        )
    return te.compute(shape, lambda *i: te.maximum(source[i] * 3 + 1, -4), name=name)


@st.composite
def programs(draw: Draw) -> PrimFunc:
    shape = draw(st.sampled_from([(7,), (12,), (6, 8), (5, 7), (9, 4)]))
    first = te.placeholder(shape, name="A", dtype="int32")
    tensors = [first]
    count = draw(st.integers(1, 4))
    assert isinstance(count, int)
    for number in range(count):
        tensors.append(_stage(draw, number, tensors))
    return te.create_prim_func([first, tensors[-1]])


def _step(draw: Draw, schedule: Schedule) -> None:
    """One random primitive; those that do not apply are refused."""
    index = schedule._state.index
    blocks = [BlockHandle(name) for name in index.blocks if name != "root"]
    block = draw(st.sampled_from(blocks))
    own = [LoopHandle(loop.var) for loop in index.loops_above(index.blocks[block.name])]  # type: ignore[attr-defined]
    every = [LoopHandle(var) for var in index.loops]
    kind = draw(
        st.sampled_from(
            ["split", "split", "fuse", "reorder", "compute_at", "compute_at", "compute_at", "reverse_compute_at"]
            + ["reverse_compute_at", "compute_inline", "reverse_compute_inline", "cache_read", "cache_write"]
            + ["decompose_reduction", "rfactor", "parallel", "vectorize", "unroll", "set_scope", "tile"]
            + ["start_at_addend", "skip_neutral"]
        )
    )
    if kind in ("compute_at", "reverse_compute_at"):
        mine = {handle.var for handle in own}
        getattr(schedule, kind)(block, draw(st.sampled_from([loop for loop in every if loop.var not in mine] or every)))
    elif kind in ("compute_inline", "reverse_compute_inline", "start_at_addend", "skip_neutral"):
        getattr(schedule, kind)(block)
    elif kind in ("cache_read", "cache_write", "set_scope"):
        getattr(schedule, kind)(block, 0, "local")
    elif not own:
        schedule.get_loops(block)
    elif kind == "split":
        factors = draw(st.sampled_from([[None, 2], [None, 3], [None, 4], [2, None], [None, 2, 2], [None, 5]]))
        schedule.split(draw(st.sampled_from(own)), factors)  # type: ignore[arg-type]
    elif kind == "fuse":
        start = draw(st.integers(0, len(own) - 1))
        schedule.fuse(*own[start : start + 2])  # type: ignore[operator]
    elif kind == "reorder":
        schedule.reorder(*draw(st.lists(st.sampled_from(own), min_size=1, max_size=4, unique=True)))  # type: ignore[misc]
    elif kind == "tile":
        if len(own) > 1:
            schedule.tile(own[0], own[1], 3, 2)
    elif kind == "decompose_reduction":
        schedule.decompose_reduction(block, draw(st.sampled_from(own)))  # type: ignore[arg-type]
    elif kind == "rfactor":
        schedule.rfactor(draw(st.sampled_from(own)), draw(st.integers(0, 1)))  # type: ignore[arg-type]
    else:
        getattr(schedule, kind)(draw(st.sampled_from(own)))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_random_schedules_keep_the_meaning(data: st.DataObject) -> None:
    func = data.draw(programs())
    schedule = Schedule(func)
    wanted = data.draw(st.integers(1, 8))
    for _ in range(wanted * 4):
        if wanted == 0:
            break
        before = schedule.func
        try:
            _step(data.draw, schedule)
            wanted -= 1
        except ScheduleError:
            # A tile is three primitives: only what was refused leaves no mark.
            if not str(schedule.trace).splitlines()[-1].startswith(("l", "sch.reorder")):
                assert schedule.func is before
    check(schedule, func)
