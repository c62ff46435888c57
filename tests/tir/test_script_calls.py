"""Script functions that call script functions: results, names and buffers of their own, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.function import IRModule
from tilewright.ir.structural import structural_equal
from tilewright.support.errors import UserError
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.verify import verify

TEXT = """
@script.function
def scale(A: Buffer[(n,), "float32"], B: Buffer[(n,), "float32"], factor: float32):
    T = alloc_buffer((n,), "float32")
    for i in range(n):
        with block("T"):
            v = spatial(n, i)
            T[v] = A[v] * factor
    for i in range(n):
        with block("B"):
            v = spatial(n, i)
            B[v] = T[v] + 1.0

@script.function
def twice(X: Buffer[(8,), "float32"], Y: Buffer[(8,), "float32"]):
    M = alloc_buffer((8,), "float32")
    scale(X, M, 2.0)
    scale(M, Y, 3.0)
"""


def last(text: str) -> PrimFunc:
    module = tw.script.parse(text)
    assert isinstance(module, IRModule)
    found = list(module.functions.values())[-1]
    assert isinstance(found, PrimFunc)
    return found


def test_a_function_may_be_called_several_times() -> None:
    func = last(TEXT)
    verify(func, "scheduled")
    names = [handle.name for handle in tw.Schedule(func).blocks()]
    assert names == ["T", "B", "scale_T", "scale_B"]
    assert structural_equal(tw.script.parse(str(func)), func)
    x, y = np.arange(8, dtype=np.float32), np.empty(8, np.float32)
    interpret(func, x, y)
    np.testing.assert_allclose(y, (2 * x + 1) * 3 + 1)
    compiled = np.empty(8, np.float32)
    tw.build(func)(x, compiled)
    np.testing.assert_allclose(compiled, y)


def test_what_was_called_can_be_scheduled() -> None:
    schedule = tw.Schedule(last(TEXT))
    schedule.compute_inline(schedule.get_block("T"))
    schedule.compute_inline(schedule.get_block("scale_T"))
    (loop,) = schedule.get_loops(schedule.get_block("scale_B"))
    schedule.vectorize(loop)
    x, y = np.arange(8, dtype=np.float32), np.empty(8, np.float32)
    tw.build(schedule.func)(x, y)
    np.testing.assert_allclose(y, (2 * x + 1) * 3 + 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("scale(X, M)", "scale takes 3 arguments, 2 are given"),
        ("scale(X, 2.0, 2.0)", "the parameter B of scale is a buffer, not a number"),
        ("scale(X, M, X)", "the parameter factor of scale is a number, not a buffer"),
        ("scale(X, I, 2.0)", "the parameter B of scale is float32, I is int32"),
        ("scale(X, W, 2.0)", "axis 0 of W has 4 elements, scale needs 8"),
        ("scale(X, D, 2.0)", "B of scale has 1 dimensions, D has 2"),
        ("scale(X, M, factor=2.0)", "are given by position"),
    ],
)
def test_arguments_that_do_not_fit(call: str, message: str) -> None:
    head = TEXT.partition("    scale(X")[0]
    buffers = (
        '    I = alloc_buffer((8,), "int32")\n    W = alloc_buffer((4,), "float32")\n'
        '    D = alloc_buffer((2, 4), "float32")\n'
    )
    with pytest.raises(UserError, match=message):
        tw.script.parse(f"{head}{buffers}    {call}\n")


def test_calls_stand_between_blocks() -> None:
    head = TEXT.partition("    scale(X")[0]
    with pytest.raises(UserError, match="cannot be called inside a block"):
        tw.script.parse(f'{head}    with block("outer"):\n        scale(X, M, 2.0)\n')
