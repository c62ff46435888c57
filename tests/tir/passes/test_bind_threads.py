"""Threads, shared memory and barriers: structure, meaning before and after, refusals, random schedules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tilewright import te
from tilewright.backends.backend import lower
from tilewright.ir.expr import ZERO, IntImm, Var
from tilewright.ir.visit import pre_order
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.target import Target
from tilewright.tir.buffer import make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.bind_threads import BindThreadsOptions, bind_threads
from tilewright.tir.passes.split_host_device import split_host_device
from tilewright.tir.pipeline import gpu_pipeline
from tilewright.tir.schedule import Schedule
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.stmt import Allocate, BufferStore, Evaluate, For, IfThenElse, LoopKind, Stmt, seq

TARGET = Target("opencl")


def _thread(var: Var, extent: int, body: Stmt, axis: str = "threadIdx.x") -> For:
    return For(var, ZERO, IntImm(extent), LoopKind.THREAD, body, axis)


def _barriers(func: PrimFunc) -> int:
    return sum(isinstance(item, Evaluate) for item in pre_order(func.body))


def _scopes(func: PrimFunc) -> dict[str, str]:
    return {item.buffer.name: item.buffer.scope for item in pre_order(func.body) if isinstance(item, Allocate)}


def _check(func: PrimFunc, *arrays: np.ndarray) -> PrimFunc:
    """Bind the threads of a function and run it before and after; the last array is the result."""
    bound = bind_threads(func, BindThreadsOptions(max_threads=256))
    wanted, got = arrays[-1].copy(), arrays[-1].copy()
    interpret(func, *arrays[:-1], wanted)
    interpret(bound, *arrays[:-1], got)
    np.testing.assert_array_equal(got, wanted)
    return bound


def _exchange(first: int, second: int, index: object = None) -> PrimFunc:
    """Each of 4 blocks fills a buffer with some threads and reads it with others."""
    b, t, u = Var("b"), Var("t"), Var("u")
    a, out = make_buffer("A", (4 * first,)), make_buffer("B", (4 * second,))
    shared = make_buffer("S", (first,), scope="shared")
    fill = _thread(t, first, BufferStore(shared, (t,), a[b * first + t]))
    place = u if index is None else first - 1 - u
    read = _thread(u, second, BufferStore(out, (b * second + u,), shared[place] + 1.0))
    body = _thread(b, 4, Allocate(shared, seq(fill, read)), "blockIdx.x")
    return PrimFunc("exchange", (a, out), body)


def test_threads_that_exchange_data_meet_once() -> None:
    a = np.arange(128, dtype=np.float32)
    bound = _check(_exchange(32, 16, "mirror"), a, np.zeros(64, np.float32))
    assert _barriers(bound) == 1
    assert _scopes(bound) == {"S": "shared"}
    (block,) = [item for item in pre_order(bound.body) if isinstance(item, For) and item.thread == "blockIdx.x"]
    threads = [item for item in pre_order(bound.body) if isinstance(item, For) and item.thread == "threadIdx.x"]
    assert len(threads) == 1 and threads[0].extent is IntImm(32), "one set of threads, as many as the longest loop has"
    for item in pre_order(block):
        if isinstance(item, IfThenElse):
            assert not any(isinstance(inner, Evaluate) for inner in pre_order(item)), "no barrier under a condition"


def test_memory_of_one_thread_is_private_and_needs_no_barrier() -> None:
    a = np.arange(128, dtype=np.float32)
    bound = _check(_exchange(32, 32), a, np.zeros(128, np.float32))
    assert _barriers(bound) == 0
    assert _scopes(bound) == {"S": "local"}


def test_loops_carry_data_from_one_iteration_to_the_next() -> None:
    """A tile that is filled anew in each step needs two barriers: before it is read, and before it is overwritten."""
    b, k, t, u = Var("b"), Var("k"), Var("t"), Var("u")
    a, out = make_buffer("A", (3, 8)), make_buffer("B", (2, 8))
    shared = make_buffer("S", (8,), scope="shared")
    fill = _thread(t, 8, BufferStore(shared, (t,), a[k, t]))
    add = _thread(u, 8, BufferStore(out, (b, u), out[b, u] + shared[7 - u]))
    steps = For(k, ZERO, IntImm(3), LoopKind.SERIAL, seq(fill, add))
    func = PrimFunc("steps", (a, out), _thread(b, 2, Allocate(shared, steps), "blockIdx.x"))
    bound = _check(func, np.arange(24, dtype=np.float32).reshape(3, 8), np.zeros((2, 8), np.float32))
    assert _barriers(bound) == 2


def test_what_no_thread_loop_encloses_is_done_once() -> None:
    b, u = Var("b"), Var("u")
    out, cell = make_buffer("B", (4, 8)), make_buffer("S", (1,), scope="local")
    first = BufferStore(cell, (ZERO,), b.astype("float32"))
    read = _thread(u, 8, BufferStore(out, (b, u), cell[0]))
    func = PrimFunc("once", (out,), _thread(b, 4, Allocate(cell, seq(first, read)), "blockIdx.x"))
    bound = _check(func, np.zeros((4, 8), np.float32))
    assert _scopes(bound) == {"S": "shared"}, "a register of one thread is no register of the others"
    assert _barriers(bound) == 1


def test_buffers_between_kernels_are_global() -> None:
    i, j = Var("i"), Var("j")
    a, out, middle = make_buffer("A", (8,)), make_buffer("B", (8,)), make_buffer("T", (8,), scope="shared")
    first = _thread(i, 8, BufferStore(middle, (i,), a[i] * 2.0), "blockIdx.x")
    second = _thread(j, 8, BufferStore(out, (j,), middle[7 - j]), "blockIdx.x")
    bound = _check(
        PrimFunc("two", (a, out), Allocate(middle, seq(first, second))), np.arange(8, dtype="f"), np.zeros(8, "f")
    )
    assert _scopes(bound) == {"T": "global"}
    assert _barriers(bound) == 0


def test_a_buffer_inside_an_outer_thread_loop_has_a_place_for_each() -> None:
    b, y, t, u = Var("b"), Var("y"), Var("t"), Var("u")
    a, out = make_buffer("A", (2, 4, 8)), make_buffer("B", (2, 4, 8))
    own = make_buffer("S", (8,), scope="shared")
    fill = _thread(t, 8, BufferStore(own, (t,), a[b, y, t]))
    read = _thread(u, 8, BufferStore(out, (b, y, u), own[7 - u]))
    rows = _thread(y, 4, Allocate(own, seq(fill, read)), "threadIdx.y")
    func = PrimFunc("rows", (a, out), _thread(b, 2, rows, "blockIdx.x"))
    bound = _check(func, np.arange(64, dtype=np.float32).reshape(2, 4, 8), np.zeros((2, 4, 8), np.float32))
    (buffer,) = [item.buffer for item in pre_order(bound.body) if isinstance(item, Allocate)]
    assert buffer.static_shape == (4, 8)
    assert _barriers(bound) == 1


def test_places_that_mix_axes_are_not_private() -> None:
    """Along each axis alone threads are apart, but not (0, 1) and (1, 0): one reads what the other wrote."""
    y, x, v, u = Var("y"), Var("x"), Var("v"), Var("u")
    a, out = make_buffer("A", (2, 2)), make_buffer("B", (2, 2))
    own = make_buffer("S", (16,), scope="local")
    fill = _thread(y, 2, _thread(x, 2, BufferStore(own, (y * 4 + x * 3,), a[y, x])), "threadIdx.y")
    value = own[v * 4 + u * 3] + own[v * 4 + u * 3 + 1] * 0.0 + own[v * 4 + u * 3 + 2] * 0.0
    read = _thread(v, 2, _thread(u, 2, BufferStore(out, (v, u), value)), "threadIdx.y")
    loop = For(Var("b"), ZERO, IntImm(1), LoopKind.THREAD, Allocate(own, seq(fill, read)), "blockIdx.x")
    bound = bind_threads(PrimFunc("mixed", (a, out), loop), BindThreadsOptions(max_threads=256))
    assert _scopes(bound) == {"S": "shared"}
    assert _barriers(bound) == 1


def test_places_by_division_are_not_private() -> None:
    t, u = Var("t"), Var("u")
    a, out, own = make_buffer("A", (8,)), make_buffer("B", (8,)), make_buffer("S", (32,), scope="shared")
    fill = _thread(t, 8, BufferStore(own, (t * 4 - t // 2 * 8,), a[t]))
    read = _thread(u, 8, BufferStore(out, (u,), own[u * 4 - u // 2 * 8]))
    loop = For(Var("b"), ZERO, IntImm(1), LoopKind.THREAD, Allocate(own, seq(fill, read)), "blockIdx.x")
    bound = bind_threads(PrimFunc("divided", (a, out), loop), BindThreadsOptions(max_threads=256))
    assert _scopes(bound) == {"S": "shared"}


def test_too_many_threads_are_refused() -> None:
    with pytest.raises(UserError, match="a block has 512 threads, the target allows 256"):
        bind_threads(_exchange(512, 512), BindThreadsOptions(max_threads=256))


def test_threads_of_symbolic_number_are_refused() -> None:
    n, i = Var("n"), Var("i")
    out = make_buffer("B", (n,))
    loop = For(i, ZERO, n, LoopKind.THREAD, BufferStore(out, (i,), i.astype("float32")), "threadIdx.x")
    with pytest.raises(UserError, match=r"a loop bound to threadIdx\.x has no constant extent"):
        bind_threads(PrimFunc("f", (out,), loop), BindThreadsOptions(max_threads=256))


def test_blocks_cannot_wait_for_each_other() -> None:
    i, k, n = Var("i"), Var("k"), Var("n")
    out = make_buffer("B", (8,))
    inner = _thread(i, 8, BufferStore(out, (i,), out[7 - i]), "blockIdx.x")
    with pytest.raises(UnsupportedError, match="blocks cannot wait for each other"):
        bind_threads(
            PrimFunc("f", (n, out), For(k, ZERO, n, LoopKind.SERIAL, inner)), BindThreadsOptions(max_threads=256)
        )


def test_loops_of_the_host_keep_the_order_of_kernels() -> None:
    """Two kernels in each of three steps; what goes from step to step is not private to a kernel."""
    i, j, k = Var("i"), Var("j"), Var("k")
    out, kept = make_buffer("B", (3, 8)), make_buffer("S", (8,))
    first = _thread(i, 8, BufferStore(kept, (i,), kept[i] + k.astype("float32")), "blockIdx.x")
    second = _thread(j, 8, BufferStore(out, (k, j), out[k, j] * 2.0), "blockIdx.x")
    loop = For(k, ZERO, IntImm(3), LoopKind.SERIAL, seq(first, second))
    bound = bind_threads(PrimFunc("f", (out,), Allocate(kept, loop)), BindThreadsOptions(max_threads=256))
    assert isinstance(bound.body, Allocate) and bound.body.buffer.scope == "global"
    assert isinstance(bound.body.body, For) and bound.body.body.var is k
    split = split_host_device(bound, Target("opencl"))
    assert [kernel.func.name for kernel in split.kernels] == ["f_kernel0", "f_kernel1"]
    assert split.order == ((0, (0,)), (1, (0,)), (0, (1,)), (1, (1,)), (0, (2,)), (1, (2,)))
    assert [param.name for param in split.kernels[1].func.params] == ["B", "k"]


def test_threads_that_meet_in_loops_of_different_length_are_refused() -> None:
    y, k, t, u = Var("y"), Var("k"), Var("t"), Var("u")
    out, own = make_buffer("B", (4, 8)), make_buffer("S", (8,), scope="shared")
    fill = _thread(t, 8, BufferStore(own, (t,), k.astype("float32")))
    read = _thread(u, 8, BufferStore(out, (y, u), own[7 - u]))
    loop = For(k, ZERO, y + 1, LoopKind.SERIAL, seq(fill, read))
    func = PrimFunc("f", (out,), _thread(y, 4, Allocate(own, loop), "threadIdx.y"))
    with pytest.raises(UnsupportedError, match="run a different number of times"):
        bind_threads(func, BindThreadsOptions(max_threads=256))


def tiled_product(m: int, n: int, depth: int, tile: tuple[int, int], per: tuple[int, int], step: int) -> PrimFunc:
    """A product on tiles: operands in shared memory, results in registers."""
    a, b = te.placeholder((m, depth), name="A"), te.placeholder((depth, n), name="B")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    sch = Schedule(te.create_prim_func([a, b, c], f"product_{m}_{n}_{depth}_{tile[0]}_{tile[1]}"))
    block = sch.get_block("C")
    out = sch.cache_write(block, 0, "local")
    i, j = sch.get_loops(out)
    i0, i1, i2 = sch.split(i, [None, tile[0], per[0]])
    j0, j1, j2 = sch.split(j, [None, tile[1], per[1]])
    sch.reorder(i0, j0, i1, j1, i2, j2)
    sch.compute_at(block, j0, preserve_unit_loops=True)
    sch.bind(i0, "blockIdx.y")
    sch.bind(j0, "blockIdx.x")
    sch.bind(i1, "threadIdx.y")
    sch.bind(j1, "threadIdx.x")
    ci, cj, ck = sch.get_loops(block)[2:]
    ci0, ci1 = sch.split(ci, [tile[0], per[0]])
    cj0, cj1 = sch.split(cj, [tile[1], per[1]])
    k0, k1 = sch.split(ck, [None, step])
    sch.reorder(k0, ci0, cj0, k1, ci1, cj1)
    for name in ("A", "B"):
        copy = sch.cache_read(block, name, "shared")
        sch.compute_at(copy, k0, preserve_unit_loops=True)
        fused = sch.fuse(*sch.get_loops(copy)[3:])
        _, y, x = sch.split(fused, [None, tile[0], tile[1]])
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
    sch.bind(ci0, "threadIdx.y")
    sch.bind(cj0, "threadIdx.x")
    return sch.func


@settings(max_examples=8)
@given(
    sizes=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    depth=st.sampled_from([4, 6, 9, 12]),
    tile=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    per=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_random_tiles_keep_the_meaning(
    sizes: tuple[int, int], depth: int, tile: tuple[int, int], per: tuple[int, int]
) -> None:
    """Tiles of any size, with and without remainders, through every pass of the list."""
    try:
        func = tiled_product(*sizes, depth, tile, per, 3 if depth % 3 == 0 else 2)
    except ScheduleError:
        reject()  # copies of one element by several threads
    rng = np.random.default_rng(0)
    a, b = rng.random((sizes[0], depth), np.float32), rng.random((depth, sizes[1]), np.float32)
    for _, step in gpu_pipeline(TARGET):
        func = step(func)
        c = np.full(sizes, np.nan, np.float32)
        interpret(func, a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=1e-5)


def test_a_missing_barrier_is_noticed() -> None:
    """The comparison above can fail: without its barriers the program is wrong."""
    func = lower(tiled_product(8, 8, 4, (4, 4), (2, 2), 2), TARGET)

    def without(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Evaluate):
            return seq()
        return stmt.rebuild(lambda child: without(child) if isinstance(child, Stmt) else child)

    rng = np.random.default_rng(0)
    a, b = rng.random((8, 4), np.float32), rng.random((4, 8), np.float32)
    c = np.zeros((8, 8), np.float32)
    interpret(func, a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    interpret(func.replace(body=without(func.body)), a, b, c)
    assert not np.allclose(c, a @ b)
