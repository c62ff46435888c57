"""Programs written without blocks: they build and can be scheduled, and promise no more than is true."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.support.errors import UserError
from tilewright.tir.enclose import enclose
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.schedule import Schedule, ScheduleError
from tilewright.tir.script import parse_script, to_script

HEAD = '@script.function\ndef f(A: Buffer[(6, 8), "int32"], B: Buffer[(6, 8), "int32"], C: Buffer[(8,), "int32"]):\n'


def written(body: str) -> PrimFunc:
    func = parse_script(HEAD + "".join(f"    {line}\n" for line in body.strip().splitlines()))
    assert isinstance(func, PrimFunc)
    return func


def check(func: PrimFunc) -> None:
    random = np.random.default_rng(0)
    start = [random.integers(-3, 4, shape).astype(np.int32) for shape in ((6, 8), (6, 8), (8,))]
    expected, found, compiled = ([array.copy() for array in start] for _ in range(3))
    interpret(func, *expected)
    interpret(enclose(func), *found)
    tw.build(func)(*compiled)
    for a, b, c in zip(expected, found, compiled, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


@pytest.mark.parametrize(
    ("body", "iterators"),
    [
        ("for i, j in grid(6, 8):\n    B[i, j] = A[i, j] + 1", "spatial(6, i), spatial(8, j)"),
        ("for i, j in grid(6, 8):\n    B[i, j] = B[i, j] + A[i, j]", "spatial(6, i), spatial(8, j)"),
        ("for i, j in grid(6, 8):\n    C[i] = C[i] + A[i, j]", "spatial(6, i), opaque(8, j)"),
        ("for i, j in grid(6, 7):\n    B[i, j + 1] = B[i, j] + A[i, j]", "spatial(6, i), opaque(7, j)"),
        ("for i, j in grid(6, 8):\n    C[0] = A[i, j]", "opaque(6, i), opaque(8, j)"),
        ("for i in range(6):\n    for j in range(i):\n        B[i, j] = A[i, j]", "spatial(6, i), spatial(i, j)"),
        ("for i, j in grid(6, 8):\n    if A[i, j] > 0:\n        B[i, j] = 1", "spatial(6, i), spatial(8, j)"),
        ("for i, j in grid(6, 8):\n    x: int32 = A[i, j]\n    B[i, j] = x * x", "spatial(6, i), spatial(8, j)"),
        ("for i in range(3, 6):\n    B[i, 0] = A[i, 1]", "spatial(3, i, start=3)"),
    ],
)
def test_iterators_promise_what_is_true(body: str, iterators: str) -> None:
    func = written(body)
    assert iterators in to_script(enclose(func)).replace("\n", " ")
    check(func)


@pytest.mark.parametrize(
    "body",
    [
        "for i in range(6):\n    C[i] = 0\n    for j in range(8):\n        C[i] = C[i] + A[i, j]",
        "C[0] = 5\nfor i in range(6):\n    B[i, 0] = C[0]",
        (
            "T = allocate((6, 8), 'int32')\nfor i, j in grid(6, 8):\n    T[i, j] = A[i, j] * 2\n"
            "for i, j in grid(6, 8):\n    B[i, j] = T[i, j] + 1"
        ),
        "for i in parallel(6):\n    for j in range(7):\n        B[i, j + 1] = B[i, j] + A[i, j]",
        "for i in parallel(6):\n    if A[i, 0] > 0:\n        for j in vectorized(8):\n            B[i, j] = A[i, j]",
        "n: int64 = 6\nfor i in parallel(n):\n    B[i, 0] = A[i, 1]",
        (
            "for i in range(6):\n    with block('b'):\n        v = spatial(6, i)\n        for j in vectorized(8):\n"
            "            B[v, j] = A[v, j]\n    C[i] = B[i, 0]"
        ),
        (
            "for i in range(6):\n    with block('b'):\n        v = spatial(6, i)\n        B[v, 0] = A[v, 0]\n"
            "    if C[i] > 0:\n        with block('c'):\n            v = spatial(6, i)\n            B[v, 1] = A[v, 1]"
        ),
    ],
)
def test_statements_keep_their_meaning(body: str) -> None:
    check(written(body))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for i in range(6):\n    for j in parallel(8):\n        C[i] = C[i] + A[i, j]", "same elements of C"),
        ("for i in parallel(5):\n    B[i + 1, 0] = B[i, 0] + 1", "may read elements of B that another iteration"),
        ("for i in vectorized(6):\n    C[0] = A[i, 0]", "several iterations may write the same elements of C"),
        (
            (
                "for i in range(6):\n    with block('b'):\n        v = spatial(6, i)\n        for j in vectorized(8):\n"
                "            C[v] = A[v, j]"
            ),
            "several iterations may write the same elements of C",
        ),
        ("for i in parallel(6):\n    C[A[i, 0]] = 1", "several iterations may write the same elements of C"),
    ],
)
def test_parallel_loops_are_proven(body: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        tw.build(written(body))


def test_scripts_without_blocks_can_be_scheduled() -> None:
    func = written("for i, j in grid(6, 8):\n    B[i, j] = A[i, j] + 1")
    schedule = Schedule(func)
    i, j = schedule.get_loops(schedule.get_block("B"))
    schedule.reorder(j, i)
    schedule.parallel(j)
    arrays = [np.arange(48, dtype=np.int32).reshape(6, 8), np.zeros((6, 8), np.int32), np.zeros(8, np.int32)]
    tw.build(schedule)(*arrays)
    np.testing.assert_array_equal(arrays[1], arrays[0] + 1)
    scan = Schedule(written("for i, j in grid(6, 7):\n    B[i, j + 1] = B[i, j] + A[i, j]"))
    with pytest.raises(ScheduleError, match="promises nothing about the order"):
        scan.reorder(*reversed(scan.get_loops(scan.get_block("B"))))


def test_a_loop_that_leaves_its_buffer() -> None:
    with pytest.raises(UserError, match=r"reads A\[v_i, v_j \+ 1\] out of bounds: the index is 8 where j = 7"):
        tw.build(written("for i, j in grid(6, 8):\n    B[i, j] = A[i, j + 1]"))
