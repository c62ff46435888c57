"""Schedules that would change what a program computes: each must be refused, and leave the program as it was."""

from __future__ import annotations

import pytest

from tests.fuzz.cases import Case, Runner, build_program
from tilewright.tir.schedule import ScheduleError

MATMUL = [
    "A = te.placeholder((6, 8), 'int32', name='A')",
    "B = te.placeholder((8, 10), 'int32', name='B')",
    "k = te.reduce_axis((0, 8), name='k')",
    "C = te.compute((6, 10), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name='C')",
    "D = te.compute((6, 10), lambda i, j: te.maximum(C[i, j], 0), name='D')",
    "func = te.create_prim_func([A, B, D])",
]
STENCIL = [
    "A = te.placeholder((18,), 'int32', name='A')",
    "B = te.compute((18,), lambda i: A[i] * 2, name='B')",
    "C = te.compute((16,), lambda i: B[i] + B[i + 2], name='C')",
    "func = te.create_prim_func([A, C])",
]
SCAN = [
    "X = te.placeholder((7, 5), 'int32', name='X')",
    "s = te.placeholder((7, 5), 'int32', name='s')",
    "first = te.compute((1, 5), lambda _, i: X[0, i], name='first')",
    "step = te.compute((7, 5), lambda t, i: s[t - 1, i] + X[t, i], name='step')",
    "Y = te.scan(first, step, s, inputs=[X], name='Y')",
    "func = te.create_prim_func([X, Y])",
]
PADDED = [
    "A = te.placeholder((6, 6), 'int32', name='A')",
    "inside = lambda i, j: te.all_of([i >= 1, i < 7, j >= 1, j < 7])",
    "P = te.compute((8, 8), lambda i, j: te.select(inside(i, j), A[i - 1, j - 1], 0), name='P')",
    "k = te.reduce_axis((0, 3), name='k')",
    "S = te.compute((6, 8), lambda i, j: te.sum(P[i + k, j], axis=k), name='S')",
    "func = te.create_prim_func([A, S])",
]
BIASED = [
    *MATMUL[:4],
    "E = te.compute((10,), lambda j: B[0, j] * 2, name='E')",
    "D = te.compute((6, 10), lambda i, j: te.maximum(E[j] + C[i, j], 0), name='D')",
    "func = te.create_prim_func([A, B, D])",
]
GATHER = [
    "A = te.placeholder((6, 4), 'int32', name='A')",
    "I6_0 = te.placeholder((5,), 'int32', name='I6_0')",
    "B = te.compute((6, 4), lambda i, j: A[i, j] + 1, name='B')",
    "C = te.compute((5, 4), lambda i, j: B[I6_0[i], j], name='C')",
    "func = te.create_prim_func([A, I6_0, C])",
]

CORPUS: list[tuple[list[str], list[str], str]] = [
    # Parallelism over what is not independent.
    (MATMUL, ["sch.parallel(loops('C')[2])"], "not independent"),
    (MATMUL, ["sch.vectorize(loops('C')[2])"], "not independent"),
    (MATMUL, ["sch.bind(loops('C')[2], 'vthread')"], "not independent"),
    (MATMUL, ["sch.bind(loops('C')[2], 'blockIdx.x')"], "not independent"),
    (MATMUL, ["sch.fuse(*loops('C')[1:3])", "sch.parallel(loops('C')[1])"], "not independent"),
    (MATMUL, ["sch.zigzag(loops('C')[1])", "sch.fuse(*loops('C')[1:3])"], "runs back and forth"),
    (MATMUL, ["sch.split(loops('C')[2], [None, 2])", "sch.vectorize(loops('C')[3])"], "not independent"),
    (STENCIL, ["sch.compute_at(block('B'), loops('C')[0])", "sch.vectorize(loops('C')[0])"], "not independent"),
    (SCAN, ["sch.parallel(loops('step')[0])"], "not independent"),
    # Orders that dependences forbid.
    (SCAN, ["sch.reorder(*loops('step')[::-1])"], "promises nothing about the order"),
    (
        MATMUL,
        ["sch.fuse(*loops('C')[1:3])", "sch.split(loops('C')[1], [None, 7])", "sch.reorder(*loops('C')[1:3][::-1])"],
        "no longer come first",
    ),
    (MATMUL, ["sch.reverse_compute_at(block('D'), loops('C')[2])"], "not finished in one iteration"),
    (
        MATMUL,
        ["sch.reorder(loops('C')[2], loops('C')[0])", "sch.reverse_compute_at(block('D'), loops('C')[0])"],
        "not finished",
    ),
    (MATMUL, ["sch.compute_at(block('D'), loops('C')[0])"], "writes the output D"),
    (STENCIL, ["sch.reverse_compute_at(block('C'), loops('B')[0])"], "reverse_compute_at"),
    (STENCIL, ["sch.merge(loops('B')[0], loops('C')[0])"], "different ranges"),
    (STENCIL, ["sch.partition(loops('B')[0], [16])", "sch.merge(loops('B_1')[0], loops('C')[0])"], "different ranges"),
    (MATMUL, ["sch.merge(loops('D')[0], loops('C')[0])"], "does not stand right after"),
    # Reductions taken apart wrongly.
    (
        MATMUL,
        ["sch.reorder(loops('C')[2], loops('C')[0])", "sch.decompose_reduction(block('C'), loops('C')[1])"],
        "is a reduction loop outside",
    ),
    (
        MATMUL,
        ["sch.decompose_reduction(block('C'), loops('C')[2])", "sch.decompose_reduction(block('C'), loops('C')[0])"],
        "not a reduction with an init",
    ),
    (MATMUL, ["sch.rfactor(loops('C')[0])"], "rfactor"),
    (
        MATMUL,
        ["sch.decompose_reduction(block('C'), loops('C')[2])", "sch.compute_at(block('C'), loops('D')[0])"],
        "written by block C_init too",
    ),
    (
        MATMUL,
        ["sch.decompose_reduction(block('C'), loops('C')[2])", "sch.cache_write(block('C'), 0, 'local')"],
        "written by block C_init too",
    ),
    (
        MATMUL,
        ["sch.partition(loops('C')[2], [3])", "sch.decompose_reduction(block('C_1'), loops('C_1')[2])"],
        "does not start in the loops around it",
    ),
    (
        MATMUL,
        ["sch.partition(loops('C')[2], [3])", "sch.rfactor(loops('C_1')[2])"],
        "does not start in the loops around it",
    ),
    (
        PADDED,
        [
            "sch.reorder(*[loops('S')[n] for n in [2, 0, 1]])",
            "sch.partition(loops('P')[0], [3])",
            "sch.merge(loops('P')[0], loops('S')[0])",
        ],
        "does not stand right after",
    ),
    # Sums that begin at an addend.
    (MATMUL, ["sch.start_at_addend(block('C'))"], "does more with C than add to it"),
    (MATMUL, ["sch.start_at_addend(block('D'))"], "is not a sum with an init"),
    (
        BIASED,
        ["sch.compute_at(block('C'), loops('D')[0])", "sch.compute_at(block('E'), loops('D')[1])"]
        + ["sch.start_at_addend(block('C'))"],
        "it would run before block E, which writes E",
    ),
    (
        BIASED,
        ["sch.start_at_addend(block('C'))", "sch.rfactor(loops('C')[2])"],
        "would begin where the whole one does",
    ),
    (
        BIASED,
        ["sch.start_at_addend(block('C'))", "sch.bind(loops('C')[2], 'threadIdx.x')"],
        "not independent",
    ),
    (
        BIASED,
        ["sch.start_at_addend(block('C'))", "sch.pad_einsum(block('C'), [4, 4, 4])"],
        "does not start at a constant that changes nothing",
    ),
    (
        BIASED,
        ["sch.start_at_addend(block('C'))", "sch.compute_at(block('E'), loops('C')[2])"]
        + ["sch.decompose_reduction(block('C'), loops('C')[2])"],
        "it would run before block E, which writes E",
    ),
    # Inlining what is not one expression.
    (MATMUL, ["sch.compute_inline(block('C'))"], "is a reduction"),
    (MATMUL, ["sch.compute_inline(block('D'))"], "is a parameter"),
    (MATMUL, ["sch.reverse_compute_inline(block('D'))"], "no producer that it alone reads"),
    (STENCIL, ["sch.reverse_compute_inline(block('C'))"], "2 different indices"),
    # Memory.
    (MATMUL, ["sch.set_scope(block('D'), 0, 'local')"], "is a parameter"),
    (MATMUL, ["sch.storage_align(block('D'), 0, 0, 8, 1)"], "is a parameter"),
    (STENCIL, ["sch.transform_layout(block('C'), 'B', lambda i: (i // 2,))"], "keep the elements of B apart"),
    (MATMUL, ["sch.transform_layout(block('C'), 'C', lambda i, j: (i + j,))"], "keep the elements of C apart"),
    (GATHER, ["sch.reindex(block('C'), 'B')"], "read from memory"),
    (PADDED, ["sch.reindex(block('P'), 'A')"], "only where a condition holds"),
    (STENCIL, ["sch.reindex(block('C'), 'B')"], "at 2 different places"),
    (STENCIL, ["sch.pad_einsum(block('C'), [5])"], "is not one iterator"),
    (PADDED, ["sch.pad_einsum(block('S'), [4, 1, 2])"], "is not one iterator"),
    (MATMUL, ["sch.decompose_padding(block('D'), loops('D')[0])"], "does not store a choice"),
    # Tiles.
    (MATMUL, ["sch.split(loops('C')[1], [None, 4])", "sch.blockize(loops('C')[2])"], "guarded inside the tile"),
    (MATMUL, ["sch.tensorize(loops('C')[0], 'must_raise')"], "no tensor intrinsic"),
    (
        MATMUL,
        ["sch.tile(*loops('C')[:2], 3, 5)", "sch.blockize(loops('C')[2])", "sch.compute_at(block('C'), loops('D')[0])"],
        "not in the same scope|do not visit",
    ),
    # Pipelines.
    (STENCIL, ["sch.double_buffer(block('B'))"], "shares no loop"),
    (
        STENCIL,
        ["sch.compute_at(block('B'), loops('C')[0])", "sch.software_pipeline(loops('C')[0], [1, 0])"],
        "earlier stage",
    ),
    (STENCIL, ["sch.compute_at(block('B'), loops('C')[0])", "sch.software_pipeline(loops('C')[0], [0])"], "do not fit"),
    (
        MATMUL,
        ["sch.decompose_reduction(block('C'), loops('C')[2])", "sch.software_pipeline(loops('C')[1], [0, 1])"],
        "in several stages",
    ),
    # Loops that are spoken for, or are not what they should be.
    (MATMUL, ["sch.parallel(loops('C')[0])", "sch.split(loops('C')[0], [None, 2])"], "is parallel"),
    (MATMUL, ["sch.vectorize(loops('C')[1])", "sch.fuse(*loops('C')[:2])"], "is vectorized"),
    (MATMUL, ["sch.fuse(loops('C')[0], loops('C')[2])"], "is not directly inside"),
    (MATMUL, ["sch.reorder(loops('C')[0], loops('D')[0])"], "is not nested"),
    (MATMUL, ["sch.split(loops('C')[0], [2, 2])"], "make 4 iterations"),
    (MATMUL, ["sch.split(loops('C')[0], [None, 0])"], "is not a factor"),
    (MATMUL, ["sch.partition(loops('C')[0], [6])"], "do not divide the range"),
    (MATMUL, ["sch.bind(loops('C')[0], 'threadIdx.w')"], "no thread axis"),
]


@pytest.mark.parametrize(("program", "steps", "message"), CORPUS, ids=[f"{n}-{c[1][-1]}" for n, c in enumerate(CORPUS)])
def test_must_raise(program: list[str], steps: list[str], message: str) -> None:
    runner = Runner(build_program(Case(0, program)))
    for step in steps[:-1]:
        assert runner.apply(step), step
    before = runner.schedule.func
    with pytest.raises((ScheduleError, Exception), match=message) as error:
        runner.execute(steps[-1])
    assert isinstance(error.value, ScheduleError) or "no tensor intrinsic" in str(error.value)
    assert runner.schedule.func is before
