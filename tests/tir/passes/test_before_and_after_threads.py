"""Lowering passes for blocks of threads on small programs: before, and expected after."""

from __future__ import annotations

import re
from functools import partial

import pytest

from tests.tir.passes.checking import assert_becomes
from tests.tir.schedule.scripts import parse
from tilewright.support.errors import UnsupportedError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.bind_threads import BindThreadsOptions, bind_threads
from tilewright.tir.passes.hoist_guards import hoist_guards
from tilewright.tir.passes.inject_virtual_threads import inject_virtual_threads
from tilewright.tir.passes.lower_thread_reductions import ThreadReductionOptions, lower_thread_reductions
from tilewright.tir.passes.pipeline_loops import PipelineLoopsOptions, pipeline_loops
from tilewright.tir.passes.read_scalars_first import read_scalars_first
from tilewright.tir.passes.reuse_shared_memory import reuse_shared_memory
from tilewright.tir.passes.simplify_loops import simplify_loops
from tilewright.tir.passes.specialize_warps import specialize_warps
from tilewright.tir.passes.split_host_device import split_host_device
from tilewright.tir.passes.swizzle_storage import swizzle_storage
from tilewright.tir.script import to_script


def test_bind_threads() -> None:
    """Both loops over threads become one; a barrier stands between the writers and the readers of S."""
    assert_becomes(
        partial(bind_threads, options=BindThreadsOptions(max_threads=256)),
        """
        def f(A: Buffer[(128,), "float32"], B: Buffer[(64,), "float32"]):
            for b in thread_binding("blockIdx.x", 4):
                S = allocate((32,), "float32", "shared")
                for t in thread_binding("threadIdx.x", 32):
                    S[t] = A[b * 32 + t]
                for u in thread_binding("threadIdx.x", 16):
                    B[b * 16 + u] = S[u] + S[31 - u]
        """,
        """
        def f(A: Buffer[(128,), "float32"], B: Buffer[(64,), "float32"]):
            for b in thread_binding("blockIdx.x", 4):
                S = allocate((32,), "float32", "shared")
                for t in thread_binding("threadIdx.x", 32):
                    S[t] = A[b * 32 + t]
                    barrier("shared")
                    if t < 16:
                        B[b * 16 + t] = S[t] + S[31 - t]
        """,
    )


def test_hoist_guards() -> None:
    assert_becomes(
        hoist_guards,
        """
        def f(A: Buffer[(4, 16), "float32"], B: Buffer[(4,), "float32"]):
            for i in range(4):
                for k in unroll(16):
                    if i < 3:
                        B[i] = B[i] + A[i, k]
        """,
        """
        def f(A: Buffer[(4, 16), "float32"], B: Buffer[(4,), "float32"]):
            for i in range(4):
                if i < 3:
                    for k in unroll(16):
                        B[i] = B[i] + A[i, k]
        """,
    )


def test_inject_virtual_threads() -> None:
    assert_becomes(
        inject_virtual_threads,
        """
        def f(A: Buffer[(2, 4), "float32"], B: Buffer[(2, 4), "float32"]):
            for t in vthread(2):
                T = allocate((1,), "float32")
                for k in range(4):
                    T[0] = A[t, k] * 2.0
                    B[t, k] = T[0] + 1.0
        """,
        """
        def f(A: Buffer[(2, 4), "float32"], B: Buffer[(2, 4), "float32"]):
            for k in range(4):
                T = allocate((2, 1), "float32")
                for t in range(2):
                    T[t, 0] = A[t, k] * 2.0
                for t in range(2):
                    B[t, k] = T[t, 0] + 1.0
        """,
    )


def test_lower_thread_reductions() -> None:
    """Each thread sums its elements; in a warp of four, partial sums meet in two exchanges."""
    assert_becomes(
        partial(lower_thread_reductions, options=ThreadReductionOptions(warp_size=4)),
        """
        def f(A: Buffer[(2, 8), "float32"], C: Buffer[(2,), "float32"]):
            for i in thread_binding("blockIdx.x", 2):
                for j in range(2):
                    for t in thread_binding("threadIdx.x", 4):
                        with block("C"):
                            vi, vk = spatial(2, i), reduce(8, j * 4 + t)
                            with init():
                                C[vi] = 0.0
                            C[vi] = C[vi] + A[vi, vk]
        """,
        """
        def f(A: Buffer[(2, 8), "float32"], C: Buffer[(2,), "float32"]):
            partial_sums = alloc_buffer((4, 2), "float32")
            for i in thread_binding("blockIdx.x", 2):
                for t in thread_binding("threadIdx.x", 4):
                    for j in range(2):
                        with block("C_rf"):
                            vt, vi, vj = spatial(4, t), spatial(2, i), reduce(2, j)
                            with init():
                                partial_sums[vt, vi] = 0.0
                            partial_sums[vt, vi] = partial_sums[vt, vi] + A[vi, vj * 4 + vt]
                result = allocate((2, 4), "float32", "local")
                from_second = allocate((4,), "float32", "local")
                second = allocate((4,), "float32", "warp")
                from_first = allocate((4,), "float32", "local")
                first = allocate((4,), "float32", "warp")
                own = allocate((4,), "float32", "warp")
                for t in thread_binding("threadIdx.x", 4):
                    own[t] = partial_sums[t, i]
                for t in thread_binding("threadIdx.x", 4):
                    from_first[t] = own[t // 4 * 4 + (t + 2) % 4]
                    first[t] = own[t] + from_first[t]
                for t in thread_binding("threadIdx.x", 4):
                    from_second[t] = first[t // 2 * 2 + (t + 1) % 2]
                    second[t] = first[t] + from_second[t]
                for t in thread_binding("threadIdx.x", 4):
                    result[i, t] = second[t]
                for t in thread_binding("threadIdx.x", 4):
                    if likely(t == 0):
                        C[i] = result[i, t]
        """,
    )


def test_pipeline_loops_with_copies_under_way() -> None:
    """Threads copy to shared memory an iteration ahead; the barrier is behind the wait for the copies."""
    assert_becomes(
        partial(pipeline_loops, options=PipelineLoopsOptions(asynchronous=True)),
        """
        def f(A: Buffer[(8, 32), "float32"], B: Buffer[(8, 32), "float32"]):
            for b in thread_binding("blockIdx.x", 1):
                for i in serial(8, annotations={"software_pipeline": 1}):
                    S = allocate((32,), "float32", "shared")
                    for t in thread_binding("threadIdx.x", 32, annotations={"software_pipeline_stage": 0}):
                        S[t] = A[i, t]
                    for t in thread_binding("threadIdx.x", 32, annotations={"software_pipeline_stage": 1}):
                        B[i, t] = S[31 - t]
        """,
        """
        def f(A: Buffer[(8, 32), "float32"], B: Buffer[(8, 32), "float32"]):
            for b in thread_binding("blockIdx.x", 1):
                S = allocate((2, 32), "float32", "shared")
                for i in serial(1, annotations={"software_pipeline_buffers": ["S"]}):
                    if i < 8:
                        for t in thread_binding("threadIdx.x", 32):
                            S[i % 2, t] = call("async_copy", A[i, t], dtype="float32")
                    call("async_commit", int32(0), dtype="int32")
                for i in serial(8, start=1, annotations={"software_pipeline_buffers": ["S"]}):
                    call("async_wait", int32(0), dtype="int32")
                    barrier("shared")
                    if i < 8:
                        for t in thread_binding("threadIdx.x", 32):
                            S[i % 2, t] = call("async_copy", A[i, t], dtype="float32")
                    call("async_commit", int32(0), dtype="int32")
                    for t in thread_binding("threadIdx.x", 32):
                        B[i - 1, t] = S[(i - 1) % 2, 31 - t]
        """,
    )


def test_pipeline_loops_that_cannot_overlap() -> None:
    """What stages exchange lives longer than an iteration: nobody copies ahead either."""
    ahead = '"software_pipeline_producers": [24, 240], "software_pipeline_behind": ["S"]'
    notes = f'{{"software_pipeline": 1, {ahead}, "mine": 1}}'
    before = """
        def f(A: Buffer[(8, 32), "float32"], B: Buffer[(32,), "float32"]):
            S = allocate((32,), "float32", "shared")
            for i in serial(8, annotations={notes}):
                for t in thread_binding("threadIdx.x", 32, annotations={first}):
                    S[t] = S[t] + A[i, t]
                for t in thread_binding("threadIdx.x", 32, annotations={last}):
                    B[t] = S[31 - t]
            for t in thread_binding("threadIdx.x", 32):
                B[t] = S[t]
        """
    stages = before.replace("{first}", '{"software_pipeline_stage": 0}')
    stages = stages.replace("{last}", '{"software_pipeline_stage": 1}')
    assert_becomes(
        lambda func: pipeline_loops(func, PipelineLoopsOptions(asynchronous=True)),
        stages.replace("{notes}", notes),
        stages.replace("{notes}", '{"mine": 1}'),
    )


def test_pipeline_loops_with_constants_alone() -> None:
    """Copies for the first iterations are a group each, though all of them stand where constants are read."""
    assert_becomes(
        partial(pipeline_loops, options=PipelineLoopsOptions(asynchronous=True)),
        """
        def f(A: Buffer[(8, 32), "float32"], B: Buffer[(8, 32), "float32"]):
            attributes({"constant_params": (0,)})
            for b in thread_binding("blockIdx.x", 1):
                for i in serial(8, annotations={"software_pipeline": 2}):
                    S = allocate((32,), "float32", "shared")
                    for t in thread_binding("threadIdx.x", 32, annotations={"software_pipeline_stage": 0}):
                        S[t] = A[i, t]
                    for t in thread_binding("threadIdx.x", 32, annotations={"software_pipeline_stage": 2}):
                        B[i, t] = S[31 - t]
        """,
        """
        def f(A: Buffer[(8, 32), "float32"], B: Buffer[(8, 32), "float32"]):
            attributes({"constant_params": (0,)})
            for b in thread_binding("blockIdx.x", 1):
                S = allocate((3, 32), "float32", "shared")
                for i in serial(2, annotations={"software_pipeline_buffers": ["S"]}):
                    if i < 8:
                        for t in thread_binding("threadIdx.x", 32):
                            S[i % 3, t] = call("async_copy", A[i, t], dtype="float32")
                    call("async_commit", int32(0), dtype="int32")
                for i in serial(8, start=2, annotations={"software_pipeline_buffers": ["S"]}):
                    call("async_wait", int32(1), dtype="int32")
                    barrier("shared")
                    if i < 8:
                        for t in thread_binding("threadIdx.x", 32):
                            S[i % 3, t] = call("async_copy", A[i, t], dtype="float32")
                    call("async_commit", int32(0), dtype="int32")
                    for t in thread_binding("threadIdx.x", 32):
                        B[i - 2, t] = S[(i - 2) % 3, 31 - t]
        """,
    )


def test_read_scalars_first() -> None:
    """A number that no kernel writes is there before the first loop; one that may be another kernel's result is not."""
    assert_becomes(
        read_scalars_first,
        """
        def f(A: Buffer[(8, 32), "float32"], Z: Buffer[(1,), "float32"], Y: Buffer[(1,), "float32"],
              B: Buffer[(8, 32), "float32"]):
            attributes({"constant_params": (1,)})
            for b in thread_binding("blockIdx.x", 1):
                for t in thread_binding("threadIdx.x", 32):
                    for i in range(8):
                        B[i, t] = (A[i, t] - Z[0]) * Y[0] + Z[0]
        """,
        """
        def f(A: Buffer[(8, 32), "float32"], Z: Buffer[(1,), "float32"], Y: Buffer[(1,), "float32"],
              B: Buffer[(8, 32), "float32"]):
            attributes({"constant_params": (1,)})
            for b in thread_binding("blockIdx.x", 1):
                for t in thread_binding("threadIdx.x", 32):
                    Z_1 = Z[0]
                    for i in range(8):
                        B[i, t] = (A[i, t] - Z_1) * Y[0] + Z_1
        """,
    )


def test_read_scalars_first_whatever_they_are_indexed_with() -> None:
    assert_becomes(
        read_scalars_first,
        """
        def f(A: Buffer[(32,), "float32"], Z: Buffer[(1,), "float32"], B: Buffer[(32,), "float32"]):
            attributes({"constant_params": (1,)})
            for t in thread_binding("threadIdx.x", 32):
                for i in range(1):
                    B[t] = A[t] - Z[i]
        """,
        """
        def f(A: Buffer[(32,), "float32"], Z: Buffer[(1,), "float32"], B: Buffer[(32,), "float32"]):
            attributes({"constant_params": (1,)})
            for t in thread_binding("threadIdx.x", 32):
                Z_1 = Z[0]
                for i in range(1):
                    B[t] = A[t] - Z_1
        """,
    )


def test_reuse_shared_memory() -> None:
    """With a barrier in front of it, P may lie where S was."""
    assert_becomes(
        reuse_shared_memory,
        """
        def f(A: Buffer[(64,), "float32"], B: Buffer[(64,), "float32"]):
            for b in thread_binding("blockIdx.x", 1):
                S = allocate((64,), "float32", "shared")
                P = allocate((64,), "float32", "shared")
                for t in thread_binding("threadIdx.x", 64):
                    R = allocate((1,), "float32", "local")
                    S[t] = A[t] * 2.0
                    barrier("shared")
                    R[0] = S[63 - t]
                    P[t] = R[0] + 1.0
                    barrier("shared")
                    B[t] = P[63 - t]
        """,
        """
        def f(A: Buffer[(64,), "float32"], B: Buffer[(64,), "float32"]):
            for b in thread_binding("blockIdx.x", 1):
                S = allocate((64,), "float32", "shared")
                P = allocate((64,), "float32", "shared")
                for t in thread_binding("threadIdx.x", 64):
                    R = allocate((1,), "float32", "local")
                    S[t] = A[t] * 2.0
                    barrier("shared")
                    R[0] = S[63 - t]
                    barrier("shared")
                    P[t] = R[0] + 1.0
                    barrier("shared")
                    B[t] = P[63 - t]
        """,
    )


_PIPELINE = """
def f(A: Buffer[(8, 128), "float32"], B: Buffer[(256,), "float32"]):
    for b in thread_binding("blockIdx.x", 1):
        S = allocate((4, 128), "float32", "shared")
        for g in thread_binding("threadIdx.y", 2):
            for t in thread_binding("threadIdx.x", 128):
                T = allocate((1,), "float32", "local")
                T[0] = 0.0
                for k in serial(8, annotations={notes}):
                    if g == 0:
                        S[k % 4, t] = {copied}
                    T[0] = T[0] + S[k % 4, 127 - t]
                B[g * 128 + t] = T[0]
""".replace("{notes}", '{"software_pipeline_producers": [72, 216], "software_pipeline_buffers": ["S"]}')


def _without_words(text: str) -> str:
    """A script in which calls of instructions are short."""
    text = re.sub(r'call\("access_ptr", "rw", barriers\[0\], barriers\[\d+\], dtype="handle"\)', "barriers", text)
    return re.sub(
        r'evaluate\(call\("(?:cuda\.)?([a-z_.0-9]+)"(?:, )?(.*?)(?:, )?dtype="int32"\)\)', r"\1(\2)", text
    ).strip()


def test_specialize_warps() -> None:
    """The third group copies, and waits until all threads have read what it overwrites."""

    def described(func: PrimFunc) -> str:
        text = _without_words(to_script(specialize_warps(func)))
        return text[text.index("if g == 2") :].replace("\n" + 16 * " ", "\n")

    copied = 'call("async_copy", A[k, t], dtype="float32")'
    assert_becomes(
        described,
        _PIPELINE.replace("{copied}", copied),
        """
        if g == 2:
            registers.less.72()
            for k in range(8):
                mbarrier.wait(barriers, int32(k % 4 + 4), int32((k // 4 + 1) % 2))
                if int64(0) == int64(0):
                    S[k % 4, t] = call("async_copy", A[k, t], dtype="float32")
                mbarrier.copied(barriers, int32(k % 4))
        else:
            registers.more.216()
            T[0] = 0.0
            for k in range(8):
                mbarrier.wait(barriers, int32(k % 4), int32(k // 4 % 2))
                T[0] = T[0] + S[k % 4, 127 - t]
                mbarrier.arrive(barriers, int32(k % 4 + 4))
            B[g * 128 + t] = T[0]
        """,
    )
    whole = _without_words(to_script(specialize_warps(parse(_PIPELINE.replace("{copied}", copied)))))
    assert 'barriers = allocate((8,), "int64", scope="shared")' in whole and 'thread_binding("threadIdx.y", 3)' in whole
    starts = re.findall(r"mbarrier.start\(barriers, int32\((\d)\), int32\((\d+)\)\)", whole)
    assert starts == [(str(n), "128" if n < 4 else "256") for n in range(8)]
    assert whole.index("mbarrier.started()") < whole.index('barrier("shared")') < whole.index("if g == 2")
    # What threads compute and store themselves is there when they say so.
    stored = _without_words(to_script(specialize_warps(parse(_PIPELINE.replace("{copied}", "A[k, t] * 2.0")))))
    copying = stored[stored.index("if g == 2") : stored.index("else:")]
    order = ["S[k % 4, t] = ", "async_wait(int32(0))", "fence.async()", "mbarrier.arrive(barriers, int32(k % 4))"]
    assert sorted(order, key=copying.index) == order and "copied" not in copying


def test_rounds_of_different_lengths_are_counted() -> None:
    """Barriers and copies of the buffers go on from where the round before ended: as many as there are come again."""

    def described(func: PrimFunc) -> str:
        text = _without_words(to_script(specialize_warps(func))).replace("int64(steps[0])", "done")
        return text[text.index("if g == 2") :].replace("\n" + 16 * " ", "\n")

    program = _PIPELINE.replace("(4, 128)", "(2, 128)").replace("k % 4", "k % 2")
    start, end = program.index("                T[0] = 0.0"), program.index("                B[g")
    pipeline = program[start:end].replace("\n    ", "\n        ").replace("serial(8,", "serial(r + 1,")
    rounds = f"                for r in range(4):\n    {pipeline}"
    assert_becomes(
        described,
        f"{program[:start]}{rounds.rstrip()}\n    {program[end:]}".replace(
            "{copied}", 'call("async_copy", A[k, t], dtype="float32")'
        ),
        """
        if g == 2:
            registers.less.72()
            steps[0] = 0
            for r in serial(4, annotations={"rolled": True}):
                for k in range(r + 1):
                    mbarrier.wait(barriers, int32((done + k) % 2 + 2), int32(((done + k) // 2 + 1) % 2))
                    if int64(0) == int64(0):
                        S[(done + k) % 2, t] = call("async_copy", A[k, t], dtype="float32")
                    mbarrier.copied(barriers, int32((done + k) % 2))
                steps[0] = uint8((done + (r + 1)) % 4)
        else:
            registers.more.216()
            steps[0] = 0
            for r in serial(4, annotations={"rolled": True}):
                T[0] = 0.0
                for k in range(r + 1):
                    mbarrier.wait(barriers, int32((done + k) % 2), int32((done + k) // 2 % 2))
                    T[0] = T[0] + S[(done + k) % 2, 127 - t]
                    mbarrier.arrive(barriers, int32((done + k) % 2 + 2))
                B[g * 128 + t] = T[0]
                steps[0] = uint8((done + (r + 1)) % 4)
        """,
    )


def test_what_a_round_reads_before_its_pipeline_is_read_ahead() -> None:
    """Q is not needed when the loop is over: it is read for the next round then. R is, and what is stored stays."""

    def described(func: PrimFunc) -> str:
        text = _without_words(to_script(specialize_warps(func)))
        return text[text.index("else:") :].replace("\n" + 16 * " ", "\n")

    copied = 'call("async_copy", A[k, t], dtype="float32")'
    program = _PIPELINE.replace("(4, 128)", "(2, 128)").replace("k % 4", "k % 2").replace("{copied}", copied)
    start = program.index("                T[0] = 0.0")
    round_of_one = program[start:].replace("\n    ", "\n        ").replace("S[k % 2, 127 - t]", "S[k % 2, t] * Q[0]")
    reads = """
                R = allocate((1,), "float32", "local")
                Q = allocate((1,), "float32", "local")
                for r in range(4):
                    R[0] = A[r + 1, t]
                    Q[0] = A[r, t]
    """
    ends = round_of_one.replace("= T[0]\n", "= T[0] + R[0]\n")
    assert_becomes(
        described,
        f"{program[:start].rstrip()}{reads.rstrip()}\n    {ends}",
        """
        else:
            registers.more.216()
            Q[0] = A[0, t]
            for r in serial(4, annotations={"rolled": True}):
                R[0] = A[r + 1, t]
                T[0] = 0.0
                for k in range(8):
                    mbarrier.wait(barriers, int32((r * 8 + k) % 2), int32((r * 8 + k) // 2 % 2))
                    T[0] = T[0] + S[k % 2, t] * Q[0]
                    mbarrier.arrive(barriers, int32((r * 8 + k) % 2 + 2))
                Q[0] = A[min(r + 1, 3), t]
                B[g * 128 + t] = T[0] + R[0]
        """,
    )


def test_iterations_are_written_out_where_copies_of_buffers_are_no_power_of_two() -> None:
    """Two turns of three iterations, and two more: no copy is found by the rest of a division. No registers change
    hands where both sides are to have as many."""

    def described(func: PrimFunc) -> str:
        text = _without_words(to_script(simplify_loops(specialize_warps(func))))
        return text[text.index("if g == 1") :].replace("\n" + 16 * " ", "\n")

    program = _PIPELINE.replace("(4, 128)", "(3, 128)").replace("k % 4", "k % 3").replace("[72, 216]", "[248, 248]")
    program = program.replace('"threadIdx.y", 2', '"threadIdx.y", 1').replace("(256,)", "(128,)")
    assert_becomes(
        described,
        program.replace("{copied}", 'call("async_copy", A[k, t], dtype="float32")'),
        """
        if g == 1:
            for k_turn in range(2):
                for k_slot in unroll(3):
                    mbarrier.wait(barriers, int32(k_slot + 3), int32((k_turn + 1) % 2))
                    S[k_slot, t] = call("async_copy", A[k_turn * 3 + k_slot, t], dtype="float32")
                    mbarrier.copied(barriers, int32(k_slot))
            for k_slot in unroll(2):
                mbarrier.wait(barriers, int32(k_slot + 3), int32(1))
                S[k_slot, t] = call("async_copy", A[k_slot + 6, t], dtype="float32")
                mbarrier.copied(barriers, int32(k_slot))
        else:
            T[0] = 0.0
            for k_turn in range(2):
                for k_slot in unroll(3):
                    mbarrier.wait(barriers, int32(k_slot), int32(k_turn))
                    T[0] = T[0] + S[k_slot, 127 - t]
                    mbarrier.arrive(barriers, int32(k_slot + 3))
            for k_slot in unroll(2):
                mbarrier.wait(barriers, int32(k_slot), int32(0))
                T[0] = T[0] + S[k_slot, 127 - t]
                mbarrier.arrive(barriers, int32(k_slot + 3))
            B[t] = T[0]
        """,
    )


def test_buffers_that_are_read_one_after_the_other_have_barriers_of_their_own() -> None:
    """Threads of a group may have two axes. S is read before T is there; each has its own number of copies."""

    def described(func: PrimFunc) -> str:
        text = _without_words(to_script(specialize_warps(func)))
        return text[text.index("if g == 2") :].replace("\n" + 20 * " ", "\n")

    assert_becomes(
        described,
        """
        def f(A: Buffer[(8, 128), "float32"], B: Buffer[(256,), "float32"]):
            for b in thread_binding("blockIdx.x", 1):
                S = allocate((2, 128), "float32", "shared")
                T = allocate((3, 128), "float16", "shared")
                for g in thread_binding("threadIdx.z", 2):
                    for w in thread_binding("threadIdx.y", 4):
                        for t in thread_binding("threadIdx.x", 32):
                            R = allocate((2,), "float32", "local")
                            for k in serial(8, annotations={notes}):
                                if g == 0:
                                    S[k % 2, w * 32 + t] = call("async_copy", A[k, w * 32 + t], dtype="float32")
                                if g == 0:
                                    T[k % 3, w * 32 + t] = call("async_copy", float16(A[k, t]), dtype="float16")
                                R[0] = S[k % 2, t]
                                R[1] = R[0] + S[k % 2, t + w]
                                B[g * 128 + w * 32 + t] = R[1] * float32(T[k % 3, t])
        """.replace("{notes}", '{"software_pipeline_producers": [24, 240], "software_pipeline_buffers": ["S", "T"]}'),
        """
        if g == 2:
            registers.less.24()
            for k in range(8):
                mbarrier.wait(barriers, int32(k % 2 + 2), int32((k // 2 + 1) % 2))
                if int64(0) == int64(0):
                    S[k % 2, w * 32 + t] = call("async_copy", A[k, w * 32 + t], dtype="float32")
                mbarrier.copied(barriers, int32(k % 2))
                mbarrier.wait(barriers, int32(k % 3 + 7), int32((k // 3 + 1) % 2))
                if int64(0) == int64(0):
                    T[k % 3, w * 32 + t] = call("async_copy", float16(A[k, t]), dtype="float16")
                async_wait(int32(0))
                fence.async()
                mbarrier.arrive(barriers, int32(k % 3 + 4))
        else:
            registers.more.240()
            for k in range(8):
                mbarrier.wait(barriers, int32(k % 2), int32(k // 2 % 2))
                R[0] = S[k % 2, t]
                R[1] = R[0] + S[k % 2, t + w]
                mbarrier.arrive(barriers, int32(k % 2 + 2))
                mbarrier.wait(barriers, int32(k % 3 + 4), int32(k // 3 % 2))
                B[g * 128 + w * 32 + t] = R[1] * float32(T[k % 3, t])
                mbarrier.arrive(barriers, int32(k % 3 + 7))
        """,
    )


_BEHIND = """
def f(A: Buffer[(8, 128), "float16"], C: Buffer[(8, 128), "float16"], B: Buffer[(256,), "float32"]):
    for b in thread_binding("blockIdx.x", 1):
        S = allocate((2, 128), "float16", "shared")
        T = allocate((2, 128), "float16", "shared")
        for g in thread_binding("threadIdx.y", 2):
            for t in thread_binding("threadIdx.x", 128):
                X = allocate((16,), "float32", "local")
                Y = allocate((32,), "float32", "local")
                P = allocate((16,), "float16", "local")
                Q = allocate((32,), "float16", "local")
                for k in serial(8, annotations={notes}):
                    if g == 0:
                        for v in vectorized(2):
                            S[k % 2, t + v] = call("async_copy", A[k, t + v], dtype="float16")
                    if g == 0:
                        for v in vectorized(2):
                            T[k % 2, t + v] = call("async_copy", C[k, t + v], dtype="float16")
                    evaluate(call("cuda.wgmma.f16.held.turned.fresh.n32.k64", {w} X[0], X[15], {h}, \
                        {r} Q[0], Q[31], {h}, {r} S[k % 2, 0], S[k % 2, 127], {h}, dtype="int32"))
                    X[0] = X[0] + 1.0
                    P[0] = float16(X[0])
                    evaluate(call("cuda.wgmma.f16.held.panels.n64.k32", {w} Y[0], Y[31], {h}, {r} P[0], P[15], {h}, \
                        {r} T[k % 2, 0], T[k % 2, 127], {h}, int64(64), dtype="int32"))
                B[g * 128 + t] = Y[0]
""".replace(" \\\n                        ", " ")
_BEHIND = _BEHIND.replace("{w}", 'call("access_ptr", "rw",').replace("{r}", 'call("access_ptr", "r",')
_BEHIND = _BEHIND.replace("{h}", 'dtype="handle")')
_BEHIND = _BEHIND.replace(
    "{notes}",
    '{"software_pipeline_producers": [24, 240], "software_pipeline_buffers": ["S", "T"], '
    '"software_pipeline_behind": ["T"]}',
)


def test_products_that_go_on_during_the_next_iteration() -> None:
    """They are behind by one; what they need registers for waits, and nothing else."""

    def described(func: PrimFunc) -> str:
        text = _without_words(to_script(specialize_warps(func)))
        text = re.sub(r'call\("access_ptr", "rw?", (\w)\[.*?\], \w\[.*?\], dtype="handle"\)', r"\1", text)
        return text[text.index("registers.more") :].replace("\n" + 20 * " ", "\n")

    assert_becomes(
        described,
        _BEHIND,
        """
        registers.more.240()
        mbarrier.wait(barriers, int32(0), int32(0))
        fence.async()
        wgmma.f16.held.turned.fresh.n32.k64.started(X, Q, S)
        wgmma.held.wait.0.n32(X)
        if t % 32 == 0:
            mbarrier.arrive(barriers, int32(2))
        X[0] = X[0] + 1.0
        P[0] = float16(X[0])
        for k in serial(7, start=1):
            mbarrier.wait(barriers, int32(k % 2), int32(k // 2 % 2))
            fence.async()
            wgmma.f16.held.turned.fresh.n32.k64.started(X, Q, S)
            mbarrier.wait(barriers, int32((k - 1) % 2 + 4), int32((k - 1) // 2 % 2))
            fence.async()
            wgmma.f16.held.panels.n64.k32.started(Y, P, T, int64(64))
            wgmma.held.wait.1.n32(X)
            if t % 32 == 0:
                mbarrier.arrive(barriers, int32(k % 2 + 2))
            X[0] = X[0] + 1.0
            wgmma.held.wait.0.n64.k32(Y, P)
            if t % 32 == 0:
                mbarrier.arrive(barriers, int32((k - 1) % 2 + 6))
            P[0] = float16(X[0])
        mbarrier.wait(barriers, int32(5), int32(1))
        fence.async()
        wgmma.f16.held.panels.n64.k32.started(Y, P, T, int64(64))
        wgmma.held.wait.0.n64(Y)
        if t % 32 == 0:
            mbarrier.arrive(barriers, int32(7))
        B[g * 128 + t] = Y[0]
        """,
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('behind": ["T"]', 'behind": ["S"]', "products that are behind others do not come last"),
        ("Y[0], Y[31]", "Q[0], Q[31]", "products need what others compute in the next iteration"),
    ],
)
def test_products_that_are_not_behind_others(old: str, new: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        specialize_warps(parse(_BEHIND.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("B[g * 128 + t] = T[0]", 'evaluate(barrier("shared"))', "threads meet outside the pipeline"),
        ("if g == 0:", "if g < 2:", "several groups share the copies"),
        ("S[k % 4, t] = {copied}", "B[t] = A[k, t]", "nothing is copied"),
    ],
)
def test_what_no_warp_group_can_copy_for_others(old: str, new: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        specialize_warps(parse(_PIPELINE.replace(old, new).replace("{copied}", "A[k, t]")))


def test_split_host_device() -> None:
    """Two kernels with a workspace between them."""

    def described(func: PrimFunc) -> str:
        split = split_host_device(func, Target("opencl"))
        lines = [f"workspaces: {', '.join(buffer.name for buffer in split.workspaces)}"]
        for number, _ in split.order:
            kernel = split.kernels[number]
            grid = ", ".join(to_script(extent) for extent in kernel.grid)
            lines += [f"launch ({grid}) x {kernel.block}, {kernel.shared_bytes} bytes shared"]
            lines += [to_script(kernel.func).strip()]
        return "\n".join(lines)

    assert_becomes(
        described,
        """
        def f(A: Buffer[(128,), "float32"], B: Buffer[(128,), "float32"]):
            T = allocate((128,), "float32")
            for bx in thread_binding("blockIdx.x", 4):
                S = allocate((32,), "float32", "shared")
                for tx in thread_binding("threadIdx.x", 32):
                    S[tx] = A[bx * 32 + tx] * 2.0
                    barrier("shared")
                    T[bx * 32 + tx] = S[31 - tx]
            for bx in thread_binding("blockIdx.x", 2):
                for tx in thread_binding("threadIdx.x", 64):
                    B[bx * 64 + tx] = T[127 - bx * 64 - tx]
        """,
        """
        workspaces: T
        launch (4, 1, 1) x (32, 1, 1), 128 bytes shared
        @script.function
        def f_kernel0(A: Buffer[(128,), "float32"], T: Buffer[(128,), "float32"]):
            symbolic(tx="int64", bx="int64")
            S = free_buffer((32,), "float32", scope="shared")
            S[tx] = A[bx * 32 + tx] * 2.0
            evaluate(barrier("shared"))
            T[bx * 32 + tx] = S[31 - tx]
        launch (2, 1, 1) x (64, 1, 1), 0 bytes shared
        @script.function
        def f_kernel1(B: Buffer[(128,), "float32"], T: Buffer[(128,), "float32"]):
            symbolic(bx="int64", tx="int64")
            B[bx * 64 + tx] = T[127 - bx * 64 - tx]
        """,
    )


def test_swizzle_storage() -> None:
    """Runs of eight halves (16 bytes) change places within a row of 128 bytes, by the number of the row."""
    assert_becomes(
        swizzle_storage,
        """
        def f(A: Buffer[(256,), "float16"], B: Buffer[(256,), "float16"]):
            attributes({"storage_swizzle": ["S"]})
            S = allocate((256,), "float16", "shared")
            for i, j in grid(4, 64):
                S[i * 64 + j] = A[i * 64 + j]
            for i, j in grid(4, 64):
                B[i * 64 + j] = S[i * 64 + j]
        """,
        """
        def f(A: Buffer[(256,), "float16"], B: Buffer[(256,), "float16"]):
            attributes({"storage_swizzle": ["S"]})
            S = allocate((256,), "float16", "shared")
            for i, j in grid(4, 64):
                S[bitwise_xor(i * 8 + j // 8, i) * 8 + j % 8] = A[i * 64 + j]
            for i, j in grid(4, 64):
                B[i * 64 + j] = S[bitwise_xor(i * 8 + j // 8, i) * 8 + j % 8]
        """,
    )
