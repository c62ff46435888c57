"""Rows of products in vectors: steps of a sum share a load of a row, and the result does not change."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.codegen.compiled import HOST, assert_stages_agree, integers
from tests.codegen.test_emit_cross import assembly
from tests.codegen.test_emit_programs import matmul
from tilewright.arith.analyzer import Analyzer
from tilewright.backends.host import host_source
from tilewright.backends.llvm.context import FunctionContext, ModuleContext
from tilewright.backends.llvm.emit_expr import DISPATCH
from tilewright.backends.llvm.emit_memory import run_around
from tilewright.ir.dtype import INDEX, INT8
from tilewright.ir.expr import IntImm, Range, Var
from tilewright.target.target import Target
from tilewright.tir.annotations import ROW_VECTORS
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule import Schedule

NEOVERSE = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")


def product(m: int, n: int, k: int, tile: tuple[int, int], steps: int, noted: bool = True) -> PrimFunc:
    """A product of matrices by tiles of rows and columns, some steps of a sum unrolled."""
    s = Schedule(matmul(m, n, k))
    block = s.get_block("C")
    written = s.cache_write(block, 0, "local")
    i, j = s.get_loops(written)
    io, ii = s.split(i, [None, tile[0]])
    jo, ji = s.split(j, [None, tile[1]])
    s.reorder(io, jo, ii, ji)
    s.compute_at(block, jo)
    ci, cj, ck = s.get_loops(block)[-3:]
    outer, inner = s.split(ck, [None, steps])
    s.reorder(outer, inner, ci, cj)
    s.decompose_reduction(block, outer)
    for column in (cj, ji):
        vector, lane = s.split(column, [None, 4])
        s.unroll(vector)
        s.vectorize(lane)
    for loop in (ci, ii, inner):
        s.unroll(loop)
    if noted:
        s.annotate(outer, ROW_VECTORS, True)
    return s.func


@pytest.mark.parametrize(
    ("depth", "steps", "loaded"),
    [
        (16, 4, 4),
        (16, 2, 2),
        (12, 3, 0),  # a step of three: an element may be any of its neighbours
        (16, 1, 0),
        (6, 2, 2),
        (18, 2, 2),
        (16, 8, 4),
    ],
)
def test_as_many_neighbours_are_loaded_as_steps_have(depth: int, steps: int, loaded: int) -> None:
    func = product(9, 8, depth, (3, 8), steps)
    a, b = integers(9, depth), integers(depth, 8, seed=1)
    result = assert_stages_agree(func, a, b, np.zeros((9, 8), "float32"))
    np.testing.assert_array_equal(result[2], a @ b)
    spread = re.findall(r"shufflevector <(\d) x float> %\w+, <\d x float> poison, <4 x i32> <i32 (\d)", _text(func))
    assert {int(lanes) for lanes, _ in spread} == ({loaded} if loaded else set())
    assert {int(lane) for _, lane in spread} == set(range(loaded))


def _text(func: PrimFunc) -> str:
    return host_source([func], HOST)


def test_elements_past_the_end_are_not_loaded() -> None:
    """Nine rows of nine elements are 81: neighbours of the last one would lie outside."""
    func = product(9, 4, 9, (3, 4), 1)
    assert "x float> poison, <4 x i32> <i32" not in _text(func)
    a, b = integers(9, 9), integers(9, 4, seed=1)
    np.testing.assert_array_equal(assert_stages_agree(func, a, b, np.zeros((9, 4), "float32"))[2], a @ b)


def test_multiply_adds_of_arm_take_lanes_and_nothing_spills() -> None:
    text = assembly(product(28, 24, 64, (7, 12), 4), NEOVERSE)
    assert set(re.findall(r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[(\d)\]", text)) == set("0123")
    assert not re.findall(r"(?:stp?|ldp?|str|ldr)\s+q\d+.*\[sp", text)
    plain = assembly(product(28, 24, 64, (7, 12), 4, noted=False), NEOVERSE)
    loads = [len(re.findall(r"\bld[rp1]\w*\s", item)) for item in (text, plain)]
    assert loads[0] < loads[1] * 2 / 3


@pytest.mark.parametrize(
    ("size", "first", "lane"),
    [
        (80, 0, 0),  # five lines of sixteen bytes: runs are lines
        (80, 12, 12),
        (80, 1, None),  # runs that begin at the second byte leave the buffer in the last line,
        (80, 7, None),
        (83, 7, 4),  # unless it has three bytes more
        (83, 30, None),
    ],
)
def test_a_run_holds_groups_that_begin_anywhere_and_stays_in_the_buffer(
    size: int, first: int, lane: int | None
) -> None:
    line = Var("line", INDEX)
    c = FunctionContext(ModuleContext(NEOVERSE, DISPATCH), Analyzer())
    c.analyzer.bind(line, Range(IntImm(0, INDEX), IntImm(5, INDEX)))
    c.variables[line] = "%line"
    buffer = Buffer("bytes", (IntImm(size, INDEX),), INT8)
    c.pointers[buffer] = "%bytes"
    found = run_around(c, buffer, line * 16 + first, 16, 4)
    assert (None if found is None else found[1]) == lane
