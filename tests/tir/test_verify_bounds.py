"""Accesses outside of buffers are found before a program is built; what stays inside is never refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.ir.expr import PrimExpr
from tilewright.lower.kernel import compile_kernel, make_kernel
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tir import verify_bounds
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.numbers import InterpreterError
from tilewright.tir.schedule import Schedule
from tilewright.tir.script import parse_script
from tilewright.tir.verify_bounds import refuse_outside, require_in_bounds

Body = Callable[..., PrimExpr]


def program(shape: tuple[object, ...], body: Body, extent: object = 8) -> PrimFunc:
    a = te.placeholder((extent,), "int32", name="A")
    names = ["i", "j"][: len(shape)]
    made = {1: lambda i: body(a, i), 2: lambda i, j: body(a, i, j)}[len(names)]
    return te.create_prim_func([a, te.compute(shape, made, name="B")])


OUTSIDE: list[tuple[tuple[int, ...], Body, str]] = [
    ((8,), lambda a, i: a[i + 1], r"block B reads A\[v_i \+ 1\] out of bounds: the index is 8 where i = 7, and A has"),
    ((8,), lambda a, i: a[i - 1], "the index is -1 where i = 0"),
    ((4,), lambda a, i: a[i * 3], "the index is 9 where i = 3"),
    ((8,), lambda a, i: a[i + 1000000000], "the index is 1000000000 where i = 0"),
    ((9,), lambda a, i: a[i // 1], "the index is 8 where i = 8"),
    ((8,), lambda a, i: te.select(i <= 7, a[i + 1], 0), "the index is 8"),
    ((8,), lambda a, i: te.select(i > 6, 0, a[i + 2]), "the index is 8 where i = 6"),
    ((5, 5), lambda a, i, j: te.select(((i + j) % 2).eq(0), a[i + j], 0), "the index is 8 where"),
    ((3, 5), lambda a, i, j: a[te.max_value("int32").astype("int64") * 0 + i * 4 + j], "the index is 8 where"),
]
INSIDE: list[tuple[tuple[int, ...], Body]] = [
    ((7,), lambda a, i: a[i + 1]),
    ((8,), lambda a, i: te.select(i < 7, a[i + 1], 0)),
    ((8,), lambda a, i: te.select(te.all_of([i >= 1, i < 8]), a[i - 1], 0)),
    ((9,), lambda a, i: te.select(i.eq(8), 0, a[i])),
    ((4, 5), lambda a, i, j: te.select(((i + j) % 2).eq(0), a[te.minimum(i * j, 7)], 0)),
    ((5, 5), lambda a, i, j: te.select(((i * j) % 5).eq(2), a[(i * j) // 2], 0)),
    ((8,), lambda a, i: a[a[i].astype("int64")]),
    ((8,), lambda a, i: te.select(a[i] > 0, a[i + 1], 0)),
    ((2, 4), lambda a, i, j: a[(i * 4 + j) % 8]),
]


@pytest.mark.parametrize(("shape", "body", "message"), OUTSIDE)
def test_what_leaves_its_buffer_is_refused(shape: tuple[int, ...], body: Body, message: str) -> None:
    func = program(shape, body)
    for target in ("native", "opencl"):
        with pytest.raises(UserError, match=message) as caught:
            tw.build(func, target=target)
    assert "guard the access" in str(caught.value)
    with pytest.raises(InterpreterError):
        interpret(func, np.zeros(8, np.int32), np.zeros(shape, np.int32))


@pytest.mark.parametrize(("shape", "body"), INSIDE)
def test_what_stays_inside_is_built(shape: tuple[int, ...], body: Body) -> None:
    """Indices that are read from memory, and conditions on data, are the program's own responsibility."""
    require_in_bounds(program(shape, body))
    interpret(program(shape, body), np.zeros(8, np.int32), np.zeros(shape, np.int32))


def test_schedules_are_refused_by_what_they_started_from() -> None:
    func = program((8,), lambda a, i: a[i + 1])
    schedule = Schedule(func)
    schedule.split(schedule.get_loops(schedule.get_block("B"))[0], [None, 3])
    with pytest.raises(UserError, match="the index is 8 where i = 7"):
        tw.build(schedule)
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i + 1], name="B")
    with pytest.raises(UserError, match="out of bounds"):
        tw.build(te.create_schedule(b.op), [a, b])


def test_symbolic_sizes() -> None:
    """Refused if it leaves whatever the sizes are; else the caller's sizes decide."""
    n, m = te.var("n"), te.var("m")
    require_in_bounds(program((n,), lambda a, i: a[i], n))
    require_in_bounds(program((n,), lambda a, i: te.select(i + 1 < n, a[i + 1], 0), n))
    require_in_bounds(program((m,), lambda a, i: a[i], n))
    for shape, body in [((n,), lambda a, i: a[i + 1]), ((n + 1,), lambda a, i: a[i])]:
        with pytest.raises(UserError, match="the index is n, and A has the extent n in dimension 0"):
            require_in_bounds(program(shape, body, n))
    with pytest.raises(UserError, match="the index is -1, and A"):
        require_in_bounds(program((n,), lambda a, i: a[i - 1], n))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("B[vi + 1] = A[vi]", r"writes B\[vi \+ 1\] out of bounds: the index is 8"),
        ("if vi < 7:\n                B[vi + 1] = A[vi]", None),
        ("if vi > 6:\n                pass\n            else:\n                B[vi + 1] = A[vi]", None),
        ("x: int64 = vi * 2\n            B[x // 2 + 1] = A[vi]", "the index is 8"),
        ("B[vi] = A[vi] if vi < 8 and A[vi + 1] > 0 else 0", "the index is 8"),
        ("B[vi] = A[vi] if vi < 7 and A[vi + 1] > 0 else 0", None),
        ("B[vi] = A[vi] if vi > 6 or A[vi + 1] > 0 else 0", None),
        ("for k in range(vi):\n                B[k + 1] = A[k]", None),
        ("for k in range(vi + 1):\n                B[k + 1] = A[k]", "the index is 8"),
        ("B[ramp(vi * 2, 1, 2)] = broadcast(A[vi], 2)", "the index is 8"),
    ],
)
def test_statements(body: str, message: str | None) -> None:
    func = parse_script(
        f"""
@script.function
def f(A: Buffer[(8,), "int32"], B: Buffer[(8,), "int32"]):
    for i in range(8):
        with block("b"):
            vi = opaque(8, i)
            {body}
"""
    )
    assert isinstance(func, PrimFunc)
    if message is None:
        require_in_bounds(func)
        interpret(func, np.zeros(8, np.int32), np.zeros(8, np.int32))
        return
    with pytest.raises(UserError, match=message):
        require_in_bounds(func)


def test_predicates_and_domains_of_blocks() -> None:
    text = """
@script.function
def f(A: Buffer[(10,), "int32"], B: Buffer[(10,), "int32"]):
    for i_0, i_1 in grid(3, 4):
        with block("b"):
            vi = spatial(10, i_0 * 4 + i_1)
            where({condition})
            B[vi] = A[vi{offset}]
"""

    def checked(condition: str, offset: str = "") -> None:
        func = parse_script(text.format(condition=condition, offset=offset))
        assert isinstance(func, PrimFunc)
        tw.build(func)

    checked("i_0 * 4 + i_1 < 10")
    checked("i_0 * 4 + i_1 < 9", " + 1")
    with pytest.raises(
        UserError, match=r"binds the iterator vi to i_0 \* 4 \+ i_1 out of bounds: .* domain is \[0, 10\)"
    ):
        checked("i_0 * 4 + i_1 < 11")
    with pytest.raises(UserError, match="the index is 10 where"):
        checked("i_0 * 4 + i_1 < 10", " + 1")


def test_operators_are_refused_for_what_is_certain() -> None:
    refuse_outside(program((5, 5000), lambda a, i, j: te.select(((i * j) % 5).eq(2), a[(i * j) // 2], 0)))
    with pytest.raises(UserError, match="the index is 8 where i = 7"):
        compile_kernel(make_kernel(program((8,), lambda a, i: a[i + 1]), "mine"), Target("native"))


def test_too_many_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    func = program((5, 5), lambda a, i, j: te.select(((i * j) % 5).eq(2), a[(i * j) // 2], 0))
    monkeypatch.setattr(verify_bounds, "MOST_SETTINGS", 10)
    with pytest.raises(UserError, match=r"not certainly inside \(25 settings of .* are too many\)"):
        require_in_bounds(func)
