"""Lowering passes for all targets on small programs: before, and expected after."""

from __future__ import annotations

from functools import partial

import numpy as np

from tests.tir.passes.checking import assert_becomes
from tests.tir.schedule.scripts import parse
from tilewright import te
from tilewright.ir.structural import assert_same_ir
from tilewright.runtime.core.packing import pack
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.align_storage import align_storage
from tilewright.tir.passes.compact_buffers import compact_buffers
from tilewright.tir.passes.flatten_buffers import flatten_buffers
from tilewright.tir.passes.keep_in_place import keep_in_place
from tilewright.tir.passes.legalize_small_types import legalize_small_types
from tilewright.tir.passes.legalize_types import LegalizeTypesOptions, legalize_types
from tilewright.tir.passes.limit_steps import LimitStepsOptions, limit_steps
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.passes.lower_intrinsics import LowerIntrinsicsOptions, lower_intrinsics
from tilewright.tir.passes.lower_tensor_intrinsics import lower_tensor_intrinsics
from tilewright.tir.passes.lower_threads import lower_threads
from tilewright.tir.passes.lower_words import LowerWordsOptions, lower_words
from tilewright.tir.passes.nest_guards import nest_guards
from tilewright.tir.passes.partition_loops import partition_loops
from tilewright.tir.passes.pipeline_loops import pipeline_loops
from tilewright.tir.passes.plan_storage import plan_storage
from tilewright.tir.passes.roll_epilogues import roll_epilogues
from tilewright.tir.passes.scratch_parameters import ScratchOptions, scratch_parameters
from tilewright.tir.passes.serialize_loops import serialize_loops
from tilewright.tir.passes.shorten_loops import shorten_loops
from tilewright.tir.passes.simplify_loops import simplify_loops
from tilewright.tir.passes.unroll_loops import unroll_loops
from tilewright.tir.passes.vectorize_loops import vectorize_loops
from tilewright.tir.passes.widen_loops import widen_loops
from tilewright.tir.passes.zigzag_loops import zigzag_loops


def test_align_storage() -> None:
    assert_becomes(
        align_storage,
        """
        def f(A: Buffer[(16, 32), "float32"], B: Buffer[(32, 16), "float32"]):
            attributes({"storage_align": {"T": [-2, 32, 1]}})
            T = allocate((16, 32), "float32")
            for i, j in grid(16, 32):
                T[i, j] = A[i, j]
            for i, j in grid(32, 16):
                B[i, j] = T[j, i]
        """,
        """
        def f(A: Buffer[(16, 32), "float32"], B: Buffer[(32, 16), "float32"]):
            attributes({"storage_align": {"T": [-2, 32, 1]}})
            T = allocate((16, 32), "float32", strides=(33, 1))
            for i, j in grid(16, 32):
                T[i, j] = A[i, j]
            for i, j in grid(32, 16):
                B[i, j] = T[j, i]
        """,
    )


def test_compact_buffers() -> None:
    assert_becomes(
        compact_buffers,
        """
        def f(A: Buffer[(4, 8), "float32"], B: Buffer[(4, 8), "float32"]):
            T = allocate((4, 8), "float32")
            for i in parallel(4):
                for j in range(8):
                    T[i, j] = A[i, j] * 2.0
                for j in range(8):
                    B[i, j] = T[i, j] + T[i, 7 - j]
        """,
        """
        def f(A: Buffer[(4, 8), "float32"], B: Buffer[(4, 8), "float32"]):
            for i in parallel(4):
                T = allocate((1, 8), "float32")
                for j in range(8):
                    T[0, j] = A[i, j] * 2.0
                for j in range(8):
                    B[i, j] = T[0, j] + T[0, 7 - j]
        """,
    )


def test_flatten_buffers() -> None:
    assert_becomes(
        flatten_buffers,
        """
        def f(A: Buffer[(4, 8), "float32"], B: Buffer[(4, 7), "float32"]):
            for i, j in grid(4, 7):
                B[i, j] = A[i, j + 1]
        """,
        """
        def f(A: Buffer[(32,), "float32"], B: Buffer[(28,), "float32"]):
            for i, j in grid(4, 7):
                B[i * 7 + j] = A[i * 8 + j + 1]
        """,
    )


def test_keep_in_place() -> None:
    """B may lie over A, element by element; D over C would overwrite what is read later."""
    body = """
            for i in range(8):
                B[i] = A[i] * 2.0
            for i in range(8):
                D[i] = C[7 - i]
        """
    signature = "def f({}):".format(", ".join(f'{name}: Buffer[(8,), "float32"]' for name in "ABCD"))
    assert_becomes(
        keep_in_place,
        f"""
        {signature}
            attributes({{"in_place": ((0, 1), (2, 3))}}){body}""",
        f"""
        {signature}
            attributes({{"in_place": ((0, 1),)}}){body}""",
    )


def test_legalize_small_types() -> None:
    """Bytes take the place of integers of few bits, which wrap around; upper bits of what callers give do not count."""
    assert_becomes(
        legalize_small_types,
        """
        def f(A: Buffer[(8,), "int4"], B: Buffer[(8,), "int4"], C: Buffer[(8,), "uint2"]):
            T = allocate((1,), "int4", "local")
            for i in range(8):
                T[0] = A[i] + int4(3)
                B[i] = T[0]
                C[i] = uint2(T[0])
        """,
        """
        def f(A: Buffer[(8,), "int8"], B: Buffer[(8,), "int8"], C: Buffer[(8,), "uint8"]):
            T = allocate((1,), "int8", "local")
            for i in range(8):
                T[0] = shift_right(
                    shift_left(shift_right(shift_left(A[i], int8(4)), int8(4)) + int8(3), int8(4)), int8(4)
                )
                B[i] = T[0]
                C[i] = bitwise_and(uint8(T[0]), uint8(3))
        """,
    )


def test_packed_constants() -> None:
    """As many elements of a constant as fit are in each byte, the first in the lowest bits."""
    before = parse("""
        def f(A: Buffer[(7,), "uint4"], B: Buffer[(7,), "int32"]):
            attributes({"constant_params": [0]})
            for i in range(7):
                B[i] = int32(A[i])
        """)
    after = legalize_small_types(before)
    assert_same_ir(
        after,
        parse("""
        def f(A: Buffer[(4,), "uint8"], B: Buffer[(7,), "int32"]):
            attributes({"constant_params": [0]})
            for i in range(7):
                B[i] = int32(bitwise_and(shift_right(A[i // 2], uint8(i % 2) * uint8(4)), uint8(15)))
        """),
    )
    values = np.arange(9, 16, dtype=np.uint8)
    expected, found = np.zeros(7, np.int32), np.zeros(7, np.int32)
    interpret(before, values, expected)
    interpret(after, pack(values, "uint4"), found)
    np.testing.assert_array_equal(found, expected)


def test_legalize_types() -> None:
    """Each operation is rounded: the bits are those of float16 arithmetic."""
    assert_becomes(
        partial(legalize_types, options=LegalizeTypesOptions(has_half=False)),
        """
        def f(A: Buffer[(8,), "float16"], B: Buffer[(8,), "float16"]):
            for i in range(8):
                B[i] = A[i] * A[i] + A[i]
        """,
        """
        def f(A: Buffer[(8,), "float16"], B: Buffer[(8,), "float16"]):
            for i in range(8):
                B[i] = float16(float32(float16(float32(A[i]) * float32(A[i]))) + float32(A[i]))
        """,
    )


def test_legalize_types_keeps_precision() -> None:
    """Values are rounded where they are stored, and 1 + erf is one function where the processor has it."""
    options = LegalizeTypesOptions(False, keeps_precision=True, half_functions=frozenset({"erf", "erf_plus_one"}))
    assert_becomes(
        partial(legalize_types, options=options),
        """
        def f(A: Buffer[(8,), "float16"], B: Buffer[(8,), "float16"], C: Buffer[(8,), "float32"]):
            for i in range(8):
                B[i] = float16(C[i]) * A[i] + A[i]
                A[i] = B[i] * (erf(B[i]) + float16(1.0))
                C[i] = float32(float16(C[i])) + erf(C[i])
        """,
        """
        def f(A: Buffer[(8,), "float16"], B: Buffer[(8,), "float16"], C: Buffer[(8,), "float32"]):
            for i in range(8):
                B[i] = float16(C[i] * float32(A[i]) + float32(A[i]))
                A[i] = float16(float32(B[i]) * half_erf_plus_one(float32(B[i])))
                C[i] = float32(float16(C[i])) + erf(C[i])
        """,
    )


def test_lower_blocks() -> None:
    assert_becomes(
        lower_blocks,
        """
        def f(A: Buffer[(4, 8), "float32"], C: Buffer[(4,), "float32"]):
            for i, k in grid(4, 8):
                with block("C"):
                    vi, vk = spatial(4, i), reduce(8, k)
                    with init():
                        C[vi] = 0.0
                    C[vi] = C[vi] + A[vi, vk]
        """,
        """
        def f(A: Buffer[(4, 8), "float32"], C: Buffer[(4,), "float32"]):
            for i in range(4):
                C[i] = 0.0
                for k in serial(8, annotations={"reduction": True}):
                    C[i] = C[i] + A[i, k]
        """,
    )


def test_lower_intrinsics() -> None:
    """Powers with small exponents; the polynomials of other functions are measured in `test_emit_math`."""
    assert_becomes(
        lower_intrinsics,
        """
        def f(A: Buffer[(8,), "float32"], B: Buffer[(8,), "float32"]):
            for i in range(8):
                B[i] = pow(A[i], 3.0) + pow(A[i], -1.0)
        """,
        """
        def f(A: Buffer[(8,), "float32"], B: Buffer[(8,), "float32"]):
            for i in range(8):
                B[i] = A[i] * A[i] * A[i] + 1.0 / A[i]
        """,
        rtol=1e-6,
    )


def test_lower_intrinsics_of_words() -> None:
    """Rounded products and shifts are arithmetic of more digits where no instruction rounds them."""
    before = """
        def f(A: Buffer[(8,), "int32"], B: Buffer[(8,), "int32"]):
            B[ramp(0, 1, 8)] = call("high_product", A[ramp(0, 1, 8)], broadcast(1 << 30, 8), dtype="int32x8")
        """
    kept = LowerIntrinsicsOptions(has_rounded_products=True)
    assert_becomes(partial(lower_intrinsics, options=kept), before, before)
    assert_becomes(
        lower_intrinsics,
        """
        def f(A: Buffer[(8,), "int32"], B: Buffer[(8,), "int32"]):
            for i in range(8):
                B[i] = call("rounded_shift", A[i], B[i], dtype="int32")
        """,
        """
        def f(A: Buffer[(8,), "int32"], B: Buffer[(8,), "int32"]):
            for i in range(8):
                B[i] = (A[i] >> ((0 - B[i]) & 31)) + (
                    (A[i] >> max(((0 - B[i]) & 31) - 1, 0)) & min((0 - B[i]) & 31, 1)
                )
        """,
    )


def test_lower_tensor_intrinsics() -> None:
    """A block that the instruction `add4` computes gets the loops of its software implementation."""
    x, y = te.placeholder((4,), name="x"), te.placeholder((4,), name="y")
    z = te.compute((4,), lambda i: x[i] + y[i], name="z")

    def rule(inputs, outputs):  # type: ignore[no-untyped-def]
        return te.hardware_intrin("add4", *(item.access_ptr("r") for item in inputs), outputs[0].access_ptr("w"))

    te.decl_tensor_intrin(z.op, rule, name="before_and_after_add4")
    te.implement_intrin(
        "add4",
        parse(
            """
            def add4(x: Buffer[(4,), "float32"], y: Buffer[(4,), "float32"], z: Buffer[(4,), "float32"]):
                for v in vectorized(4):
                    z[v] = x[v] + y[v]
            """
        ),
    )
    assert_becomes(
        lower_tensor_intrinsics,
        """
        def f(A: Buffer[(8,), "float32"], B: Buffer[(8,), "float32"], C: Buffer[(8,), "float32"]):
            for i in range(2):
                with block("C"):
                    vi = spatial(2, i)
                    annotations({"tensor_intrin": "before_and_after_add4"})
                    for j in range(4):
                        with block("C_inner"):
                            vj = spatial(4, j)
                            C[vi * 4 + vj] = A[vi * 4 + vj] + B[vi * 4 + vj]
        """,
        """
        def f(A: Buffer[(8,), "float32"], B: Buffer[(8,), "float32"], C: Buffer[(8,), "float32"]):
            for i in range(2):
                with block("C"):
                    vi = spatial(2, i)
                    reads(A[vi * 4 : vi * 4 + 4], B[vi * 4 : vi * 4 + 4])
                    writes(C[vi * 4 : vi * 4 + 4])
                    annotations({"tensor_intrin": "before_and_after_add4"})
                    for v in vectorized(4):
                        C[vi * 4 + v] = A[vi * 4 + v] + B[vi * 4 + v]
        """,
    )


def test_lower_threads() -> None:
    assert_becomes(
        lower_threads,
        """
        def f(A: Buffer[(4, 8), "float32"]):
            for b in thread_binding("blockIdx.x", 4):
                for t in thread_binding("threadIdx.x", 8):
                    A[b, t] = A[b, t] + 1.0
        """,
        """
        def f(A: Buffer[(4, 8), "float32"]):
            for b, t in grid(4, 8):
                A[b, t] = A[b, t] + 1.0
        """,
    )


def test_partition_loops() -> None:
    """Padding at both ends: the main loop does not ask."""
    assert_becomes(
        partition_loops,
        """
        def f(A: Buffer[(10,), "float32"], B: Buffer[(12,), "float32"]):
            for i in range(12):
                B[i] = A[i - 1] if i >= 1 and i < 11 else 0.0
        """,
        """
        def f(A: Buffer[(10,), "float32"], B: Buffer[(12,), "float32"]):
            B[0] = 0.0
            for i in range(1, 11):
                B[i] = A[i - 1]
            B[11] = 0.0
        """,
    )


def test_pipeline_loops() -> None:
    assert_becomes(
        pipeline_loops,
        """
        def f(A: Buffer[(8, 4), "float32"], B: Buffer[(8, 4), "float32"]):
            for i in serial(8, annotations={"software_pipeline": 1}):
                T = allocate((4,), "float32")
                for j in serial(4, annotations={"software_pipeline_stage": 0}):
                    T[j] = A[i, j]
                for j in serial(4, annotations={"software_pipeline_stage": 1}):
                    B[i, j] = T[j] + T[3 - j]
        """,
        """
        def f(A: Buffer[(8, 4), "float32"], B: Buffer[(8, 4), "float32"]):
            T = allocate((2, 4), "float32")
            for i in range(9):
                if i < 8:
                    for j in range(4):
                        T[i % 2, j] = A[i, j]
                if 1 <= i:
                    for j in range(4):
                        B[i - 1, j] = T[(i - 1) % 2, j] + T[(i - 1) % 2, 3 - j]
        """,
    )


def test_plan_storage() -> None:
    """T is dead when V is written: V takes its memory."""
    assert_becomes(
        plan_storage,
        """
        def f(A: Buffer[(2000,), "float32"], B: Buffer[(2000,), "float32"]):
            T = allocate((2000,), "float32")
            U = allocate((2000,), "float32")
            V = allocate((2000,), "float32")
            for i in range(2000):
                T[i] = A[i] * 2.0
            for i in range(2000):
                U[i] = T[1999 - i] + 1.0
            for i in range(2000):
                V[i] = U[1999 - i] * 3.0
            for i in range(2000):
                B[i] = V[1999 - i] - 1.0
        """,
        """
        def f(A: Buffer[(2000,), "float32"], B: Buffer[(2000,), "float32"]):
            U = allocate((2000,), "float32")
            T = allocate((2000,), "float32")
            for i in range(2000):
                T[i] = A[i] * 2.0
            for i in range(2000):
                U[i] = T[1999 - i] + 1.0
            for i in range(2000):
                T[i] = U[1999 - i] * 3.0
            for i in range(2000):
                B[i] = T[1999 - i] - 1.0
        """,
    )


def test_roll_epilogues() -> None:
    assert_becomes(
        roll_epilogues,
        """
        def f(A: Buffer[(4, 8), "float32"], B: Buffer[(4, 8), "float32"]):
            acc = allocate((4, 8), "float32", scope="local")
            for i in unroll(4):
                for j in vectorized(8):
                    acc[i, j] = A[i, j] * 2.0
            for i in unroll(4):
                for h in unroll(2):
                    for j in vectorized(4):
                        B[i, h * 4 + j] = exp(acc[i, h * 4 + j])
        """,
        """
        def f(A: Buffer[(4, 8), "float32"], B: Buffer[(4, 8), "float32"]):
            acc = allocate((4, 8), "float32", scope="local")
            for i in unroll(4):
                for j in vectorized(8):
                    acc[i, j] = A[i, j] * 2.0
            acc_rows = allocate((4, 8), "float32", scope="local")
            for i in unroll(4):
                for h in unroll(2):
                    for j in vectorized(4):
                        acc_rows[i, h * 4 + j] = acc[i, h * 4 + j]
            for i in serial(4, annotations={"rolled": True}):
                for h in unroll(2):
                    for j in vectorized(4):
                        B[i, h * 4 + j] = exp(acc_rows[i, h * 4 + j])
        """,
    )


def test_roll_epilogues_of_tiles_that_are_smaller_than_their_loops() -> None:
    """A guard keeps the last vector of a row inside the tile: without it the copy would write past its end."""
    assert_becomes(
        roll_epilogues,
        """
        def f(A: Buffer[(4, 6), "float32"], B: Buffer[(4, 6), "float32"]):
            acc = allocate((4, 6), "float32", scope="local")
            for i in unroll(4):
                for j in vectorized(6):
                    acc[i, j] = A[i, j] * 2.0
            for i in unroll(4):
                for h in unroll(2):
                    for j in vectorized(4):
                        if h * 4 + j < 6:
                            B[i, h * 4 + j] = exp(acc[i, h * 4 + j])
        """,
        """
        def f(A: Buffer[(4, 6), "float32"], B: Buffer[(4, 6), "float32"]):
            acc = allocate((4, 6), "float32", scope="local")
            for i in unroll(4):
                for j in vectorized(6):
                    acc[i, j] = A[i, j] * 2.0
            acc_rows = allocate((4, 6), "float32", scope="local")
            for i in unroll(4):
                for h in unroll(2):
                    for j in vectorized(4):
                        if h * 4 + j < 6:
                            acc_rows[i, h * 4 + j] = acc[i, h * 4 + j]
            for i in serial(4, annotations={"rolled": True}):
                for h in unroll(2):
                    for j in vectorized(4):
                        if h * 4 + j < 6:
                            B[i, h * 4 + j] = exp(acc_rows[i, h * 4 + j])
        """,
    )


def test_scratch_parameters() -> None:
    """What is too large for the stack comes from the caller; a tile stays where it is."""
    before = """
        def f(A: Buffer[(100000,), "float32"], B: Buffer[(100000,), "float32"]):
            T = allocate((100000,), "float32")
            R = allocate((8,), "float32", "local")
            for i in range(100000):
                T[i] = A[i] * 2.0
            for i in range(100000):
                R[0] = T[99999 - i]
                B[i] = R[0] + 1.0
        """
    expected = """
        def f(A: Buffer[(100000,), "float32"], B: Buffer[(100000,), "float32"], T: Buffer[(100000,), "float32"]):
            attributes({"scratch": 1})
            R = allocate((8,), "float32", "local")
            for i in range(100000):
                T[i] = A[i] * 2.0
            for i in range(100000):
                R[0] = T[99999 - i]
                B[i] = R[0] + 1.0
        """
    assert_becomes(scratch_parameters, before, expected)


def test_scratch_parameters_of_small_stacks() -> None:
    """Where there is little stack, a tile comes from the caller too."""
    before = """
        def f(A: Buffer[(64,), "float32"], B: Buffer[(64,), "float32"]):
            T = allocate((64,), "float32")
            R = allocate((8,), "float32", "local")
            for i in range(64):
                T[i] = A[i] * 2.0
            for i in range(64):
                R[0] = T[63 - i]
                B[i] = R[0] + 1.0
        """
    expected = """
        def f(A: Buffer[(64,), "float32"], B: Buffer[(64,), "float32"], T: Buffer[(64,), "float32"]):
            attributes({"scratch": 1})
            R = allocate((8,), "float32", "local")
            for i in range(64):
                T[i] = A[i] * 2.0
            for i in range(64):
                R[0] = T[63 - i]
                B[i] = R[0] + 1.0
        """
    assert_becomes(lambda func: scratch_parameters(func, ScratchOptions(frame_bytes=32)), before, expected)


def test_serialize_loops() -> None:
    """Parallel loops, wherever they are; loops of other kinds stay."""
    before = """
        def f(A: Buffer[(4, 8), "float32"], B: Buffer[(4, 8), "float32"]):
            for i in parallel(4):
                for j in vectorized(8):
                    B[i, j] = A[i, j]
            for i in range(4):
                for j in parallel(8):
                    B[i, j] = B[i, j] + 1.0
        """
    expected = """
        def f(A: Buffer[(4, 8), "float32"], B: Buffer[(4, 8), "float32"]):
            for i in range(4):
                for j in vectorized(8):
                    B[i, j] = A[i, j]
            for i in range(4):
                for j in range(8):
                    B[i, j] = B[i, j] + 1.0
        """
    assert_becomes(serialize_loops, before, expected)


def test_simplify_loops() -> None:
    """What is always true and what never runs go, and so does a loop of one iteration."""
    assert_becomes(
        simplify_loops,
        """
        def f(A: Buffer[(32,), "float32"], B: Buffer[(32,), "float32"]):
            for i in range(4):
                for u in range(1):
                    for j in range(8):
                        if i * 8 + j < 32:
                            B[(i * 8 + j) // 8 * 8 + (i * 8 + j) % 8] = A[i * 8 + j + u]
                        if i * 8 + j > 40:
                            B[0] = 7.0
        """,
        """
        def f(A: Buffer[(32,), "float32"], B: Buffer[(32,), "float32"]):
            for i, j in grid(4, 8):
                B[i * 8 + j] = A[i * 8 + j]
        """,
    )


def test_simplify_loops_that_others_copy_for() -> None:
    """Threads that copy for others do so once, too: the loop stays until they do."""
    notes = 'annotations={"software_pipeline_producers": [24, 240]}'
    assert_becomes(
        simplify_loops,
        f"""
        def f(A: Buffer[(4,), "float32"], B: Buffer[(4,), "float32"]):
            for i in serial(1, {notes}):
                B[i + 2] = A[i]
            for i in range(1):
                B[i + 3] = A[i]
        """,
        f"""
        def f(A: Buffer[(4,), "float32"], B: Buffer[(4,), "float32"]):
            for i in serial(1, {notes}):
                B[2] = A[0]
            B[3] = A[0]
        """,
    )


def test_simplify_loops_and_lanes_past_an_end() -> None:
    """A mask whose lanes are all alike is none; one that tells lanes apart stays."""
    assert_becomes(
        simplify_loops,
        """
        def f(A: Buffer[(16,), "float32"], B: Buffer[(16,), "float32"]):
            if ramp(0, 1, 4) < broadcast(int64(6), 4):
                B[ramp(0, 1, 4)] = A[ramp(0, 1, 4)]
            if ramp(4, 1, 4) < broadcast(int64(6), 4):
                B[ramp(4, 1, 4)] = A[ramp(4, 1, 4)]
            if ramp(8, 1, 4) < broadcast(int64(6), 4):
                B[ramp(8, 1, 4)] = A[ramp(8, 1, 4)]
        """,
        """
        def f(A: Buffer[(16,), "float32"], B: Buffer[(16,), "float32"]):
            B[ramp(0, 1, 4)] = A[ramp(0, 1, 4)]
            if ramp(4, 1, 4) < broadcast(int64(6), 4):
                B[ramp(4, 1, 4)] = A[ramp(4, 1, 4)]
        """,
    )


def test_unroll_loops() -> None:
    assert_becomes(
        unroll_loops,
        """
        def f(A: Buffer[(6,), "float32"], B: Buffer[(6,), "float32"]):
            for i in range(2):
                for j in unroll(3):
                    B[i * 3 + j] = A[i * 3 + j]
        """,
        """
        def f(A: Buffer[(6,), "float32"], B: Buffer[(6,), "float32"]):
            for i in range(2):
                B[i * 3] = A[i * 3]
                B[i * 3 + 1] = A[i * 3 + 1]
                B[i * 3 + 2] = A[i * 3 + 2]
        """,
    )


def test_unroll_loops_that_are_rolled() -> None:
    """What the passes before were to take as one tile is a loop again, and what it indexes stays in memory."""
    assert_becomes(
        unroll_loops,
        """
        def f(A: Buffer[(6,), "float32"], B: Buffer[(6,), "float32"]):
            rows = allocate((6,), "float32", scope="local")
            for i in unroll(3, annotations={"rolled": True}):
                for j in unroll(2):
                    rows[i * 2 + j] = A[i * 2 + j]
            for i in unroll(2):
                for j in unroll(3, annotations={"rolled": True}):
                    B[i * 3 + j] = rows[i * 3 + j]
        """,
        """
        def f(A: Buffer[(6,), "float32"], B: Buffer[(6,), "float32"]):
            rows = allocate((6,), "float32", scope="local")
            for i in serial(3, annotations={"rolled": True}):
                rows[i * 2] = A[i * 2]
                rows[i * 2 + 1] = A[i * 2 + 1]
            for j in serial(3, annotations={"rolled": True}):
                B[j] = rows[j]
            for j in serial(3, annotations={"rolled": True}):
                B[3 + j] = rows[3 + j]
        """,
    )


def test_vectorize_loops() -> None:
    """A condition that differs between lanes is a mask; what is the same in all of them is broadcast."""
    assert_becomes(
        vectorize_loops,
        """
        def f(A: Buffer[(32,), "float32"], s: Buffer[(4,), "float32"], B: Buffer[(32,), "float32"]):
            for i in range(4):
                for v in vectorized(8):
                    if i * 8 + v < 30:
                        B[i * 8 + v] = A[i * 8 + v] * s[i]
        """,
        """
        def f(A: Buffer[(32,), "float32"], s: Buffer[(4,), "float32"], B: Buffer[(32,), "float32"]):
            for i in range(4):
                if ramp(i * 8, 1, 8) < broadcast(int64(30), 8):
                    B[ramp(i * 8, 1, 8)] = A[ramp(i * 8, 1, 8)] * broadcast(s[i], 8)
        """,
    )


def test_widen_loops() -> None:
    assert_becomes(
        widen_loops,
        """
        def f(A: Buffer[(8,), "float32"]):
            for i in serial(int32(8), dtype="int32"):
                A[i] = float32(i)
        """,
        """
        def f(A: Buffer[(8,), "float32"]):
            for i in range(8):
                A[int32(i)] = float32(int32(i))
        """,
    )


def test_zigzag_loops() -> None:
    assert_becomes(
        zigzag_loops,
        """
        def f(W: Buffer[(8,), "float32"], B: Buffer[(4,), "float32"]):
            for t in range(4):
                for p in serial(8, annotations={"zigzag": 1}):
                    B[t] = B[t] + W[p]
        """,
        """
        def f(W: Buffer[(8,), "float32"], B: Buffer[(4,), "float32"]):
            for t, p in grid(4, 8):
                B[t] = B[t] + W[p if t % 2 == 0 else 7 - p]
        """,
    )


def test_unrolled_loops_turn_with_the_unrolled_loop_around_them() -> None:
    """The product behind the last one of a column is in the same row: what it reads of A is in a register."""
    assert_becomes(
        zigzag_loops,
        """
        def f(A: Buffer[(4,), "float32"], B: Buffer[(2,), "float32"], C: Buffer[(4, 2), "float32"]):
            for k in range(8):
                for j in unroll(2):
                    for i in unroll(4, annotations={"zigzag": 1}):
                        C[i, j] = C[i, j] + A[i] * B[j]
        """,
        """
        def f(A: Buffer[(4,), "float32"], B: Buffer[(2,), "float32"], C: Buffer[(4, 2), "float32"]):
            for k in range(8):
                for j in unroll(2):
                    for i in unroll(4):
                        C[i if j % 2 == 0 else 3 - i, j] = (
                            C[i if j % 2 == 0 else 3 - i, j] + A[i if j % 2 == 0 else 3 - i] * B[j]
                        )
        """,
    )


def test_shorten_loops() -> None:
    """A block of an open number of rows ends where the rows do; what has something to do at each step stays."""
    body = """
                    if b * 30 + t * 6 + 5 < n:
                        Y[b] = 1.0
                    else:
                        if b * 30 + t * 6 < n:
                            Y[b] = 2.0
    """
    head = """
        def f(Y: Buffer[(n,), "float32"]):
            for b in range((n + 29) // 30):
    """
    before = f"{head}            for t in range(5):{body}"
    after = f"{head}            for t in range(max(min(5, (b * -30 + n + 5) // 6), 0)):{body}"
    assert_becomes(shorten_loops, before, after)
    for kept in (
        before.replace("if b * 30 + t * 6 < n", "if t < 3"),
        before.replace("if b * 30 + t * 6 < n", "if n < b * 30 + t * 6"),
        before.replace("for t in range(5)", "for t in parallel(5)"),
        before.replace("if b * 30 + t * 6 < n:", "if b * 30 + t * 5 < n:"),
    ):
        assert_becomes(shorten_loops, kept, kept)
    alone = """
                    T = allocate((8,), "float32")
                    if b * 30 + t < n:
                        T[0] = 1.0
                        Y[b * 30 + t] = T[0]
    """
    assert_becomes(
        shorten_loops,
        f"{head}            for t in range(30):{alone}",
        f"{head}            for t in range(max(min(30, b * -30 + n), 0)):{alone}",
    )


def test_nest_guards() -> None:
    assert_becomes(
        nest_guards,
        """
        def f(Y: Buffer[(n,), "float32"], A: Buffer[(4,), "float32"]):
            for t in range((n + 2) // 3):
                A[0] = 1.0
                if t * 3 < n:
                    Y[t * 3] = 1.0
                if t * 3 + 1 < n:
                    Y[t * 3 + 1] = 2.0
                if t * 3 + 1 < n:
                    A[1] = 3.0
                if t * 3 + 2 < n:
                    Y[t * 3 + 2] = 4.0
                if t * 3 < n:
                    A[2] = 5.0
                if t < n - 5:
                    A[3] = 6.0
        """,
        """
        def f(Y: Buffer[(n,), "float32"], A: Buffer[(4,), "float32"]):
            for t in range((n + 2) // 3):
                A[0] = 1.0
                if t * 3 < n:
                    Y[t * 3] = 1.0
                    if t * 3 + 1 < n:
                        Y[t * 3 + 1] = 2.0
                        A[1] = 3.0
                        if t * 3 + 2 < n:
                            Y[t * 3 + 2] = 4.0
                if t * 3 < n:
                    A[2] = 5.0
                if t < n - 5:
                    A[3] = 6.0
        """,
    )


def test_limit_steps() -> None:
    """Kernels of one thread take at most so many steps; all loops together count, and the host runs what is around."""
    assert_becomes(
        partial(limit_steps, options=LimitStepsOptions(100)),
        """
        def f(A: Buffer[(250,), "float32"], B: Buffer[(5, 90), "float32"], C: Buffer[(9, 10), "float32"]):
            for i in range(250):
                A[i] = 1.0
            for i in range(5):
                for j in range(90):
                    B[i, j] = 2.0
            for i in range(9):
                for j in range(10):
                    C[i, j] = 3.0
        """,
        """
        def f(A: Buffer[(250,), "float32"], B: Buffer[(5, 90), "float32"], C: Buffer[(9, 10), "float32"]):
            for i_part in range(3):
                for bx in thread_binding("blockIdx.x", 1):
                    for i in range(84):
                        if likely(i_part * 84 + i < 250):
                            A[i_part * 84 + i] = 1.0
            for i_part in range(5):
                for bx in thread_binding("blockIdx.x", 1):
                    for i in range(1):
                        for j in range(90):
                            B[i_part + i, j] = 2.0
            for i in range(9):
                for j in range(10):
                    C[i, j] = 3.0
        """,
    )
    assert_becomes(
        partial(limit_steps, options=LimitStepsOptions(100)),
        """
        def f(B: Buffer[(2, 300), "float32"]):
            for i in range(2):
                for j in range(300):
                    B[i, j] = 2.0
        """,
        """
        def f(B: Buffer[(2, 300), "float32"]):
            for i in range(2):
                for j_part in range(3):
                    for bx in thread_binding("blockIdx.x", 1):
                        for j in range(100):
                            B[i, j_part * 100 + j] = 2.0
        """,
    )
    bound = """
        def f(B: Buffer[(2, 300), "float32"]):
            for i in thread_binding("threadIdx.x", 2):
                for j in range(300):
                    B[i, j] = 2.0
        """
    assert_becomes(partial(limit_steps, options=LimitStepsOptions(100)), bound, bound)


def test_nest_guards_of_the_edges_of_an_image() -> None:
    """Taps of one row of a window are asked once whether the row is inside; other branches stay as they are."""
    assert_becomes(
        nest_guards,
        """
        def f(X: Buffer[(8,), "float32"], A: Buffer[(4,), "float32"]):
            for y in range(8):
                if 2 <= y:
                    A[0] = A[0] + X[y - 2]
                if 2 <= y:
                    A[1] = A[1] + X[y - 2]
                if 1 <= y:
                    A[0] = A[0] + X[y - 1]
                if 0 < y:
                    A[1] = A[1] + X[y - 1]
                if 2 <= y:
                    A[2] = 1.0
                else:
                    A[2] = 2.0
                if 2 <= y:
                    A[3] = 1.0
        """,
        """
        def f(X: Buffer[(8,), "float32"], A: Buffer[(4,), "float32"]):
            for y in range(8):
                if 2 <= y:
                    A[0] = A[0] + X[y - 2]
                    A[1] = A[1] + X[y - 2]
                if 1 <= y:
                    A[0] = A[0] + X[y - 1]
                    A[1] = A[1] + X[y - 1]
                if 2 <= y:
                    A[2] = 1.0
                else:
                    A[2] = 2.0
                if 2 <= y:
                    A[3] = 1.0
        """,
    )


def test_lower_words() -> None:
    """A product of bytes that is added to a sum is one instruction; elsewhere bytes are multiplied one by one."""
    before = """
        def f(A: Buffer[(4,), "int8"], B: Buffer[(1,), "int32"], C: Buffer[(1,), "int32"]):
            C[0] = C[0] + dot4(call("word", A[0], A[1], A[2], A[3], dtype="int32"), B[0])
        """
    assert_becomes(
        partial(lower_words, options=LowerWordsOptions(has_dot4=True, reads_words=True)),
        before,
        """
        def f(A: Buffer[(4,), "int8"], B: Buffer[(1,), "int32"], C: Buffer[(1,), "int32"]):
            C[0] = call("gpu.dot4", C[0], call("word", A[0], A[1], A[2], A[3], dtype="int32"), B[0], dtype="int32")
        """,
    )
    assert_becomes(
        lower_words,
        """
        def f(A: Buffer[(2,), "int32"], C: Buffer[(1,), "int32"]):
            C[0] = dot4(A[0], A[1])
        """,
        """
        def f(A: Buffer[(2,), "int32"], C: Buffer[(1,), "int32"]):
            C[0] = (((A[0] << 24 >> 24) * (A[1] << 24 >> 24) + (A[0] << 16 >> 24) * (A[1] << 16 >> 24))
                + (A[0] << 8 >> 24) * (A[1] << 8 >> 24)) + (A[0] >> 24) * (A[1] >> 24)
        """,
    )
