"""While loops under schedules, through the lowering passes and on devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.compiled import HOST, assert_stages_agree
from tests.codegen.on_device import (
    OPENCL,
    VULKAN,
    WEBGPU,
    cuda_text,
    on_device,
    program_of,
    require_nvrtc,
    require_opencl,
)
from tests.tir.while_programs import (
    CASES,
    MORE,
    NEWTON,
    SEARCH,
    Check,
    bound,
    check_root,
    check_search,
    interpreted,
    program,
)
from tilewright.backends.backend import lower
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.backends.host import host_source
from tilewright.ir.expr import FALSE, const_value
from tilewright.ir.visit import pre_order
from tilewright.support.errors import UnsupportedError
from tilewright.target import Target
from tilewright.tir import stmt as s
from tilewright.tir.analysis.in_place import may_share
from tilewright.tir.interpreter import interpret
from tilewright.tir.passes.compact_buffers import compact_buffers
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.passes.simplify_loops import simplify_loops, simplify_stmt
from tilewright.tir.pipeline import gpu_pipeline
from tilewright.tir.rewrite.statements import all_statements, is_nothing
from tilewright.tir.schedule import Schedule
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.script import to_script
from tilewright.tune.features import describe

# ---------------------------------------------------------------- schedules and lowering

SCHEDULES = [("parallel", 8), ("vectorize", 8), ("vectorize", 7), ("unroll", 7)]


@pytest.mark.parametrize(("kind", "factor"), SCHEDULES)
@pytest.mark.parametrize(("text", "check"), [*CASES, MORE[0]])
def test_loops_around(text: str, check: Check, kind: str, factor: int) -> None:
    """A block with a while loop runs as a whole, whatever the loops around it are; lanes run one after another.

    The program is interpreted after every pass, too.
    """
    func = program(text)
    schedule = Schedule(func)
    (loop,) = schedule.get_loops(schedule.get_block(func.name))
    _, inner = schedule.split(loop, [None, factor])
    getattr(schedule, kind)(inner)

    def run(*arguments: Any) -> None:
        for array, found in zip(arguments, assert_stages_agree(schedule.func, *arguments, tolerance=1e-6), strict=True):
            array[...] = found

    check(run)
    loops = [item for item in all_statements(lower(schedule.func, HOST).body) if isinstance(item, s.While)]
    assert loops and all(item.condition.dtype.is_scalar for item in loops)


@pytest.mark.parametrize(("text", "check"), CASES)
def test_every_pass_for_devices(text: str, check: Check) -> None:
    lowered = bound(program(text))
    for _, item in gpu_pipeline(OPENCL):
        lowered = item(lowered)
        check(interpreted(lowered))


DEPENDENT = """
def dependent(A: Buffer[(8,), "int64"], B: Buffer[(8,), "int64"]):
    for i in range(8):
        with block("dependent"):
            v = spatial(8, i)
            while B[0] < A[v]:
                B[0] += 1
"""


@pytest.mark.parametrize("kind", ["parallel", "vectorize"])
def test_dependent_instances_stay_in_order(kind: str) -> None:
    schedule = Schedule(program(DEPENDENT))
    (loop,) = schedule.get_loops(schedule.get_block("dependent"))
    with pytest.raises(ScheduleError, match="several iterations may write the same elements of B"):
        getattr(schedule, kind)(loop)


def test_regions_are_whole_where_the_loop_moves_the_index() -> None:
    """The place of a store is read from what the loop changes."""
    func = program("""
def f(A: Buffer[(8, 16), "int64"], K: Buffer[(8,), "int64"]):
    for i in range(8):
        with block("fill"):
            v = spatial(8, i)
            K[v] = 0
            while K[v] < 16:
                A[v, K[v]] = v
                K[v] += 1
""")
    (block,) = [item for item in pre_order(func.body) if isinstance(item, s.Block) and item.name == "fill"]
    (region,) = [region for region in block.writes if region.buffer.name == "A"]
    assert [const_value(item.extent) for item in region.region] == [1, 16]
    schedule = Schedule(func)
    schedule.parallel(schedule.get_loops(schedule.get_block("fill"))[0])
    for run in (interpreted(schedule.func), tw.build(schedule.func)):
        a = np.full((8, 16), -1)
        run(a, np.full(8, -1))
        np.testing.assert_array_equal(a, np.repeat(np.arange(8), 16).reshape(8, 16))


STAGES = """
def stages(A: Buffer[(16,), "float32"], B: Buffer[(16,), "float32"]):
    T = alloc_buffer((16,), "float32")
    for i in range(16):
        with block("twice"):
            v = spatial(16, i)
            T[v] = A[v] * 2.0
    for i in range(16):
        with block("count"):
            v = spatial(16, i)
            B[v] = 0.0
            while B[v] < T[v]:
                B[v] = B[v] + 1.0
"""


def check_stages(run: Callable[..., None]) -> None:
    a, b = np.arange(16, dtype=np.float32) / 3, np.full(16, -1, np.float32)
    run(a, b)
    np.testing.assert_array_equal(b, np.ceil(a * 2))


def test_nothing_is_inlined_into_a_while_loop() -> None:
    schedule = Schedule(program(STAGES))
    with pytest.raises(ScheduleError, match="compute_inline: block count reads T in a while loop"):
        schedule.compute_inline(schedule.get_block("twice"))


def test_blocks_with_while_loops_are_scheduled_as_a_whole() -> None:
    """A producer goes under the loop around the block, and its inputs through other memory."""
    schedule = Schedule(program(STAGES))
    count = schedule.get_block("count")
    outer, _ = schedule.split(schedule.get_loops(count)[0], [None, 4])
    schedule.compute_at(schedule.get_block("twice"), outer)
    schedule.cache_read(schedule.get_block("twice"), 0, "local")
    schedule.parallel(outer)
    check_stages(interpreted(schedule.func))
    check_stages(tw.build(schedule.func))
    assert any("while" in line for line in to_script(schedule.func).splitlines())


def simplified(text: str) -> str:
    return to_script(simplify_loops(lower_blocks(program(text))))


def test_simplification_keeps_what_the_loop_decides() -> None:
    """A condition around a loop says nothing about the loop's own, even where they are the same."""
    text = simplified("""
def f(A: Buffer[(4,), "int64"]):
    for i in range(4):
        if A[i] < 5:
            while A[i] < 5:
                A[i] += 1
                if A[i] < 5:
                    A[i] += 1
""")
    assert text.count("if A[i] < 5") == 2 and "while A[i] < 5" in text
    never = s.While(FALSE, program(CARRIED).body)
    assert is_nothing(simplify_stmt(s.SeqStmt((never,))))


CARRIED = """
def carried(A: Buffer[(8,), "int64"], B: Buffer[(8,), "int64"]):
    T = allocate((8,), "int64")
    for i in range(8):
        while A[i] > 0:
            T[0] = A[i]
            A[i] -= 3
        B[i] = T[0]
"""


def test_values_from_loops_that_may_not_run_outlive_an_iteration() -> None:
    """A store in a while loop does not make sure that there is a value after it: the buffer stays around the loop."""
    func = program(CARRIED)
    changed = compact_buffers(func)
    text = to_script(changed)
    assert text.index("allocate") < text.index("for i in")
    for item in (func, changed):
        b = np.full(8, -1)
        interpret(item, np.array([5, 7, 0, 0, 3, 4, -2, 0]), b)
        np.testing.assert_array_equal(b, [2, 1, 1, 1, 3, 1, 1, 1])


def test_places_that_a_loop_moves_are_not_known() -> None:
    """`T[k[0]]` is another element in each iteration of a while loop: what was stored to it before does not count."""
    func = program("""
def f(A: Buffer[(8,), "int64"], B: Buffer[(8,), "int64"], k: Buffer[(1,), "int64"]):
    T = allocate((8,), "int64")
    for i in range(8):
        k[0] = i
        T[k[0]] = A[i]
        B[i] = 0
        while k[0] >= 0:
            B[i] += T[k[0]]
            k[0] -= 1
""")
    a = np.arange(8) * 3 + 1
    for item in (func, compact_buffers(func)):
        b = np.full(8, -1)
        interpret(item, a, b, np.zeros(1, np.int64))
        np.testing.assert_array_equal(b, np.cumsum(a))


def test_results_that_loops_store_never_share_memory_with_inputs() -> None:
    """Each iteration may read the input again, after the one before has stored."""
    text = """
def f(A: Buffer[(8,), "int64"], B: Buffer[(8,), "int64"], N: Buffer[(8,), "int64"]):
    for i in range(8):
        with block("f"):
            v = spatial(8, i)
            while N[v] > 0:
                B[v] = A[v] + 1
                N[v] -= 1
"""
    once = text.replace("            while N[v] > 0:\n", "").replace("                ", "            ")
    assert may_share(lower(program(once), HOST), (0, 1))
    assert not may_share(lower(program(text), HOST), (0, 1))


def test_the_body_counts_in_features() -> None:
    stored = {access.buffer.name for item in describe(program(SEARCH)) for access in item.accesses if access.is_write}
    assert stored == {"low", "high", "P"}


@pytest.mark.parametrize(
    ("name", "buffer", "how", "message"),
    [
        ("cache_write", "B", "local", "block count writes B only where a condition inside it holds"),
        ("reindex", "B", "write", "block count writes B only where a condition inside it holds"),
        ("cache_write", "N", "local", "block count reads N, which it writes"),
        ("cache_read", "N", "local", "block count also writes N"),
    ],
)
def test_what_a_loop_may_not_do_at_all(name: str, buffer: str, how: str, message: str) -> None:
    """A loop may run not at all: what it would write then stays. And it reads what it has written."""
    func = program("""
def f(A: Buffer[(8,), "int64"], B: Buffer[(8,), "int64"], N: Buffer[(8,), "int64"]):
    for i in range(8):
        with block("count"):
            v = spatial(8, i)
            while N[v] > 0:
                B[v] = A[v]
                N[v] -= 1
""")
    schedule = Schedule(func)
    with pytest.raises(ScheduleError, match=message):
        getattr(schedule, name)(schedule.get_block("count"), buffer, how)
    assert schedule.func is func


def test_sums_of_while_loops_keep_their_order() -> None:
    """Reductions alone are reassociated, also where a while loop stands in one."""
    text = """
def f(A: Buffer[(8,), "float32"], C: Buffer[(1,), "float32"], N: Buffer[(8,), "int64"]):
    for k in range(8):
        with block("f"):
            v = reduce(8, k)
            while N[v] > 0:
                C[0] = C[0] + A[v]
                N[v] -= 1
"""
    assert "reassoc" in host_source([program(text.replace("while N[v] > 0", "if N[v] > 0"))], HOST)
    assert "reassoc" not in host_source([program(text)], HOST)


# ---------------------------------------------------------------- devices


@pytest.mark.parametrize("target", [OPENCL, WEBGPU, VULKAN], ids=lambda target: target.kind)
def test_on_devices(target: Target) -> None:
    """Searches and roots; WebGPU and Vulkan have loops of their own form."""
    functions = [bound(program(SEARCH)), bound(program(NEWTON))]
    module = on_device(functions, target)
    check_search(module["search"])
    check_root(module["square_root"])


def test_build_for_opencl() -> None:
    require_opencl()
    check_search(tw.build(bound(program(SEARCH)), target="opencl"))


@pytest.mark.parametrize("target", ["cuda -arch=sm_80", "opencl", "rocm", "metal", "webgpu", "vulkan"])
def test_texts_of_loops(target: str) -> None:
    source = program_of([bound(program(SEARCH))], Target(target)).source
    loop = {"webgpu": "loop {", "vulkan": "OpLoopMerge"}.get(Target(target).kind, "for (;;) {")
    assert loop in source


def test_nvidia_compiles_the_loops() -> None:
    require_nvrtc()
    assert compile_cuda(cuda_text([bound(program(SEARCH)), bound(program(NEWTON))]), "sm_80")


def test_threads_do_not_meet_in_while_loops() -> None:
    meeting = SEARCH.replace(
        "                middle =", '                evaluate(barrier("shared"))\n                middle ='
    )
    with pytest.raises(UnsupportedError, match="kernels have no barrier inside a while loop"):
        program_of([bound(program(meeting))], OPENCL)
    threads = """
def f(A: Buffer[(8,), "int64"]):
    with block("all"):
        while A[0] < 5:
            for t in thread_binding("threadIdx.x", 8):
                A[t] += 1
"""
    with pytest.raises(UnsupportedError, match="While around thread loops"):
        program_of([program(threads)], OPENCL)


EXCHANGE = """
def exchange(A: Buffer[(64,), "int32"], B: Buffer[(64,), "int32"]):
    for b in thread_binding("blockIdx.x", 2):
        with block("outer"):
            vb = spatial(2, b)
            T = alloc_buffer((32,), "int32")
            for i in thread_binding("threadIdx.x", 32):
                with block("next"):
                    v = spatial(32, i)
                    T[v] = A[vb * 32 + v] % int32(32)
            for i in thread_binding("threadIdx.x", 32):
                with block("chase"):
                    v = spatial(32, i)
                    k = alloc_buffer((2,), "int32")
                    k[0] = int32(v)
                    k[1] = int32(0)
                    while k[1] < int32(5) and T[k[0]] != int32(7):
                        k[0] = T[k[0]]
                        k[1] += int32(1)
                    B[vb * 32 + v] = k[0]
"""


def test_threads_meet_in_front_of_a_loop_that_reads_what_others_wrote() -> None:
    func = program(EXCHANGE)
    a = np.random.default_rng(1).integers(0, 100, 64).astype(np.int32)
    expected = np.full(64, -1, np.int32)
    interpret(func, a, expected)
    text = to_script(lower(func, OPENCL))
    assert text.index('scope="shared"') < text.index('barrier("shared")') < text.index("while ")
    got = np.full(64, -1, np.int32)
    on_device([func], OPENCL)["exchange"](a, got)
    np.testing.assert_array_equal(got, expected)
