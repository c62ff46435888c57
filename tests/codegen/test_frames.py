"""Where allocated buffers live: stack, heap, or memory that the caller gives."""

from __future__ import annotations

import numpy as np

from tests.codegen.compiled import HOST, call, integers, run
from tilewright.backends.backend import lower
from tilewright.backends.host import compile_lowered, lower_planned
from tilewright.backends.llvm.emit import emit_module
from tilewright.backends.llvm.jit import JitLibrary
from tilewright.backends.llvm.pool import runtime_imports
from tilewright.ir.dtype import INDEX
from tilewright.ir.expr import IntImm, Var
from tilewright.tir.analysis.frames import FRAME_BYTES, STACK_BYTES, stack_buffers
from tilewright.tir.buffer import make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.scratch_parameters import scratch_bytes, scratch_parameters
from tilewright.tir.stmt import Allocate, BufferStore, Evaluate, For, LoopKind, seq


def reversed_sums(size, kind=LoopKind.SERIAL, inside=False):
    """B = the reverse of twice A, through a buffer; in a loop of two iterations, with the buffer inside or outside."""
    source, result, between = make_buffer("A", (size,)), make_buffer("B", (size,)), make_buffer("T", (size,))
    i, j, outer = Var("i", INDEX), Var("j", INDEX), Var("o", INDEX)
    fill = For(i, IntImm(0), IntImm(size), LoopKind.SERIAL, BufferStore(between, (i,), source[i] + source[i]))
    take = For(j, IntImm(0), IntImm(size), LoopKind.SERIAL, BufferStore(result, (j,), between[IntImm(size - 1) - j]))
    body = seq(fill, take)
    if inside:
        body = For(outer, IntImm(0), IntImm(2), kind, Allocate(between, body))
    else:
        body = Allocate(between, For(outer, IntImm(0), IntImm(2), LoopKind.SERIAL, body))
    return PrimFunc("reversed_sums", (source, result), body)


LARGE = STACK_BYTES // 4 + 100


def test_large_scratch_is_a_parameter():
    func = lower(reversed_sums(LARGE), HOST)
    assert "tw_alloc" in emit_module([func], HOST)
    given = lower_planned(reversed_sums(LARGE), HOST)
    assert scratch_bytes(given) == (4 * LARGE,)
    assert "tw_alloc" not in emit_module([given], HOST)
    data = integers(LARGE)
    arguments = [data, np.zeros_like(data), np.full(LARGE, np.nan, np.float32)]
    assert call(JitLibrary([compile_lowered(given, HOST)], runtime_imports()), given, arguments) == 0
    np.testing.assert_array_equal(arguments[1], 2 * data[::-1])
    np.testing.assert_array_equal(run(reversed_sums(LARGE), data, arguments[1])[1], 2 * data[::-1])


def test_small_scratch_and_that_of_threads_stay():
    small = lower(reversed_sums(16), HOST)
    assert scratch_parameters(small) is small and scratch_bytes(small) == ()
    own = lower(reversed_sums(LARGE, LoopKind.PARALLEL, inside=True), HOST)
    assert scratch_parameters(own) is own
    assert "tw_alloc" in emit_module([own], HOST)


def test_the_stack_has_a_limit():
    count = FRAME_BYTES // STACK_BYTES
    nothing = Evaluate(IntImm(0))
    allocations = [Allocate(make_buffer(f"T{n}", (STACK_BYTES // 4,)), nothing) for n in range(count + 2)]
    assert stack_buffers(allocations) == {stmt.buffer for stmt in allocations[:count]}
    wide = Allocate(make_buffer("wide", (STACK_BYTES // 4 + 1,)), nothing)
    local = Allocate(make_buffer("local", (STACK_BYTES // 4 + 1,), scope="local"), nothing)
    symbolic = Allocate(make_buffer("symbolic", (Var("n", INDEX),)), nothing)
    assert stack_buffers([wide, local, symbolic]) == {local.buffer}
