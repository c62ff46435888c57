"""fuse_reduction_epilogue: a reduction does what its consumer does with the result."""

from __future__ import annotations

import pytest

from tests.tir.schedule.scripts import check_script, parse
from tilewright.tir.schedule import LoopHandle, Schedule, ScheduleError


def product(
    epilogue: str, kind: str = "int32", step: str = "C[vi, vj] + A[vi, vk] * B[vj, vk]", init: str = "0"
) -> str:
    """D = epilogue of the result C of a reduction over k."""
    return f"""
def f(
    A: Buffer[(8, 12), "{kind}"], B: Buffer[(4, 12), "{kind}"], b: Buffer[(4,), "{kind}"], D: Buffer[(8, 4), "{kind}"]
):
    C = alloc_buffer((8, 4), "{kind}")
    for i, j, k in grid(8, 4, 12):
        with block("C"):
            vi, vj, vk = spatial(8, i), spatial(4, j), reduce(12, k)
            with init():
                C[vi, vj] = {init}
            C[vi, vj] = {step}
    for i, j in grid(8, 4):
        with block("D"):
            vi, vj = spatial(8, i), spatial(4, j)
            D[vi, vj] = {epilogue}
"""


def fuse(schedule: Schedule) -> list[LoopHandle]:
    """Fuse D into C; gives the loops of C."""
    schedule.fuse_reduction_epilogue(schedule.get_block("C"), schedule.get_block("D"))
    return schedule.get_loops(schedule.get_block("C"))


def fused(init: str, step: str, notes: str, kind: str = "int32") -> str:
    """What the program with D in C looks like."""
    return f"""
def f(
    A: Buffer[(8, 12), "{kind}"], B: Buffer[(4, 12), "{kind}"], b: Buffer[(4,), "{kind}"], D: Buffer[(8, 4), "{kind}"]
):
    for i, j, k in grid(8, 4, 12):
        with block("C"):
            vi, vj, vk = spatial(8, i), spatial(4, j), reduce(12, k)
            {notes}
            with init():
                D[vi, vj] = {init}
            D[vi, vj] = {step}
"""


LAST = 'annotations({"last_step_epilogue": True})'


def test_bias_and_relu() -> None:
    step = "D[vi, vj] + A[vi, vk] * B[vj, vk]"
    expected = fused("b[vj]", f"max({step}, 0) if vk == 11 else {step}", LAST)
    schedule = check_script(product("max(C[vi, vj] + b[vj], 0)"), fuse, expected)
    assert not schedule.func.root.allocations


@pytest.mark.parametrize(
    ("epilogue", "step", "init", "expected"),
    [
        ("C[vi, vj] + b[vj]", "C[vi, vj] + A[vi, vk] * B[vj, vk]", "0", "b[vj]"),
        ("b[vj] + C[vi, vj]", "C[vi, vj] + A[vi, vk] * B[vj, vk]", "7", "7 + b[vj]"),
        ("max(C[vi, vj], 0)", "max(C[vi, vj], A[vi, vk] - B[vj, vk])", "-100", "max(-100, 0)"),
        ("min(b[vj], C[vi, vj])", "min(C[vi, vj], A[vi, vk] - B[vj, vk])", "100", "min(100, b[vj])"),
        ("C[vi, vj] * b[vj]", "C[vi, vj] * A[vi, vk]", "1", "b[vj]"),
        ("C[vi, vj]", "C[vi, vj] + A[vi, vk] * B[vj, vk]", "0", "0"),
    ],
)
def test_what_goes_to_the_init_leaves_steps_free(epilogue: str, step: str, init: str, expected: str) -> None:
    """The reduction's own operation: no step is special, any order of the steps stays legal."""
    check_script(product(epilogue, "int32", step, init), fuse, fused(expected, step.replace("C[", "D["), ""))

    def apply(s: Schedule) -> None:
        i, j, k = fuse(s)
        outer, inner = s.split(k, [None, 5])
        s.reorder(inner, i, outer, j)

    check_script(product(epilogue, "int32", step, init), apply)


def test_loops_that_keep_the_last_step_last() -> None:
    def apply(s: Schedule) -> None:
        i, j, k = fuse(s)
        outer, inner = s.split(k, [None, 5])
        s.reorder(outer, i, inner, j)
        s.vectorize(j)
        s.unroll(inner)
        s.decompose_reduction(s.get_block("C"), outer)

    check_script(
        product("max(C[vi, vj] + b[vj], 0) * 2", "float32", init="0.0")
        .replace(", 0) *", ", 0.0) *")
        .replace("* 2", "* 2.0"),
        apply,
    )

    def swapped(s: Schedule) -> None:
        i, j, k = fuse(s)
        outer, inner = s.split(k, [3, 4])
        s.reorder(j, i, inner, outer)  # no guard: the end of both loops is the last step
        s.parallel(j)

    check_script(product("max(C[vi, vj] * b[vj], 0)"), swapped)


def test_changes_that_would_put_another_step_last() -> None:
    text = product("max(C[vi, vj], 0)")
    schedule = Schedule(parse(text))
    i, j, k = fuse(schedule)
    message = "the last step of the reduction of block C would no longer come last"
    for apply in (
        lambda s: s.reorder(*reversed(s.split(k, [None, 5]))),
        lambda s: s.zigzag(k),
        lambda s: s.bind(k, "threadIdx.x"),
        lambda s: s.fuse(i, j, k),
        lambda s: s.blockize(s.split(k, [3, 4])[1]),
    ):
        trial = schedule.copy()
        if apply.__code__.co_names[0] == "zigzag":
            trial.decompose_reduction(trial.get_block("C"), k)
        with pytest.raises(ScheduleError, match=message):
            apply(trial)
    with pytest.raises(ScheduleError, match="rfactor"):
        schedule.rfactor(k)
    # A program that was printed and read again is watched as well.
    again = Schedule(schedule.func)
    with pytest.raises(ScheduleError, match=message):
        again.reorder(*reversed(again.split(again.get_loops(again.get_block("C"))[2], [None, 5])))


def test_transposed_results_residuals_and_later_readers() -> None:
    text = """
def f(A: Buffer[(8, 12), "int32"], R: Buffer[(4, 8), "int32"], E: Buffer[(4, 8), "int32"]):
    C = alloc_buffer((8, 4), "int32")
    S = alloc_buffer((4, 8), "int32")
    D = alloc_buffer((4, 8), "int32")
    for j, i in grid(4, 8):
        with block("S"):
            vj, vi = spatial(4, j), spatial(8, i)
            S[vj, vi] = R[vj, vi] - 1
    for i, j, k in grid(8, 4, 12):
        with block("C"):
            vi, vj, vk = spatial(8, i), spatial(4, j), reduce(12, k)
            with init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * vj
    for j, i in grid(4, 8):
        with block("D"):
            vj, vi = spatial(4, j), spatial(8, i)
            D[vj, vi] = min(max(C[vi, vj] + S[vj, vi], -3), 9) * 2
    for j, i in grid(4, 8):
        with block("E"):
            vj, vi = spatial(4, j), spatial(8, i)
            E[vj, vi] = D[vj, vi] + 1
""".replace("A[vi, vk] * vj", "A[vi, vk] * 3")

    def apply(s: Schedule) -> None:
        i, j, _ = fuse(s)
        s.reorder(j, i)
        s.reverse_compute_at(s.get_block("E"), j)
        s.compute_at(s.get_block("S"), j)
        s.parallel(j)

    schedule = check_script(text, apply)
    assert "D[vj, vi] = S[vj, vi]" in schedule.show()


def _refused(text: str, message: str, *, decompose: bool = False) -> None:
    schedule = Schedule(parse(text))
    if decompose:
        block = schedule.get_block("C")
        schedule.decompose_reduction(block, schedule.get_loops(block)[2])
    with pytest.raises(ScheduleError, match=message):
        fuse(schedule)


def test_refused() -> None:
    plain = product("max(C[vi, vj], 0)")
    _refused(plain, "is written by block C_init too", decompose=True)
    _refused(product("C[vi, vj] - C[7 - vi, vj]"), "block D reads C at 2 different indices")
    _refused(product("C[vi // 2, vj]"), r"the access of block D|does not read every result")
    _refused(product("b[vj]"), "block D reads C at 0 different indices")
    _refused(product("C[vi, vj]", step="C[vi, vj] - A[vi, vk] * C[vi, vj]"), "is not a reduction of one value")
    other = plain.replace('D: Buffer[(8, 4), "int32"]', 'D: Buffer[(8, 4), "float32"]').replace(
        "max(C[vi, vj], 0)", "float32(C[vi, vj])"
    )
    _refused(other, "D holds float32, the reduction is in int32")
    early = plain.replace(
        "    for i, j, k in grid",
        """    for i, j in grid(8, 4):
        with block("early"):
            vi, vj = spatial(8, i), spatial(4, j)
            b[vj] = D[vi, vj]
    for i, j, k in grid""",
    )
    _refused(early, "block early uses D before block D writes it")
    second = (
        plain.rstrip()
        + """
    for i, j in grid(8, 4):
        with block("late"):
            vi, vj = spatial(8, i), spatial(4, j)
            A[vi, vj] = C[vi, vj]
"""
    )
    _refused(second, "block D is not all that reads C")
    bare = plain.replace('    C = alloc_buffer((8, 4), "int32")\n', "").replace(
        'b: Buffer[(4,), "int32"]', 'b: Buffer[(4,), "int32"], C: Buffer[(8, 4), "int32"]'
    )
    _refused(bare, "C is a parameter of the function")
    between = plain.replace("max(C[vi, vj], 0)", "C[vi, vj] * b[vj]").replace(
        "    for i, j in grid(8, 4):",
        """    for j in range(4):
        with block("bias"):
            vj = spatial(4, j)
            b[vj] = A[0, vj]
    for i, j in grid(8, 4):""",
    )
    _refused(between, "it would run before block bias, which writes b")


def test_reductions_on_threads_and_of_unknown_length() -> None:
    schedule = Schedule(parse(product("max(C[vi, vj], 0)")))
    schedule.bind(schedule.get_loops(schedule.get_block("C"))[2], "threadIdx.x")
    with pytest.raises(ScheduleError, match="every thread of loop k would apply the epilogue"):
        fuse(schedule)
    text = """
def f(A: Buffer[(8, n), "int32"], D: Buffer[(8,), "int32"]):
    C = alloc_buffer((8,), "int32")
    for i, k in grid(8, n):
        with block("C"):
            vi, vk = spatial(8, i), reduce(n, k)
            with init():
                C[vi] = 0
            C[vi] = C[vi] + A[vi, vk]
    for i in range(8):
        with block("D"):
            vi = spatial(8, i)
            D[vi] = max(C[vi], 0)
"""
    with pytest.raises(ScheduleError, match="iterator vk may have no step at all"):
        fuse(Schedule(parse(text)))
    turned = Schedule(parse(product("max(C[vi, vj], 0)")))
    turned.reorder(*reversed(turned.split(turned.get_loops(turned.get_block("C"))[2], [None, 5])))
    with pytest.raises(ScheduleError, match="the last step of the reduction of block C may not run last"):
        fuse(turned)


def test_a_consumer_of_a_part_is_no_epilogue() -> None:
    schedule = Schedule(
        parse(
            """
@script.function
def part(A: Buffer[(8, 4), "int32"], D: Buffer[(6,), "int32"]):
    C = alloc_buffer((8,), "int32")
    for i, k in grid(8, 4):
        with block("C"):
            v, w = spatial(8, i), reduce(4, k)
            with init():
                C[v] = 0
            C[v] = C[v] + A[v, w]
    for i in range(6):
        with block("D"):
            v = spatial(6, i)
            D[v] = max(C[v + 1], 0)
"""
        )
    )
    with pytest.raises(ScheduleError, match="block D does not read every result of block C"):
        schedule.fuse_reduction_epilogue(schedule.get_block("C"), schedule.get_block("D"))
