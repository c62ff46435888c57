"""set_dtype: an intermediate buffer in another type, rounded at each store and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir.schedule.scripts import check_script, check_trace, parse, results_of
from tilewright.support.errors import UserError
from tilewright.tir.schedule import Schedule, ScheduleError


def two(kind: str, one: str = "1.0") -> str:
    """C = B + 1 where B = A * 2 (written without numbers that only some types have)."""
    return f"""
def f(A: Buffer[(6, 8), "{kind}"], C: Buffer[(6, 8), "{kind}"]):
    B = alloc_buffer((6, 8), "{kind}")
    for i, j in grid(6, 8):
        with block("B"):
            v, w = spatial(6, i), spatial(8, j)
            B[v, w] = A[v, w] + A[v, w]
    for i, j in grid(6, 8):
        with block("C"):
            v, w = spatial(6, i), spatial(8, j)
            C[v, w] = B[v, w] + {one}
"""


def test_every_access_converts() -> None:
    expected = two("float32").replace('B = alloc_buffer((6, 8), "float32")', 'B = alloc_buffer((6, 8), "float16")')
    expected = expected.replace("B[v, w] = A[v, w] + A[v, w]", "B[v, w] = float16(A[v, w] + A[v, w])")
    expected = expected.replace("B[v, w] + 1.0", "float32(B[v, w]) + 1.0")
    check_script(two("float32"), lambda s: s.set_dtype(s.get_block("B"), "B", "float16"), expected)


@pytest.mark.parametrize(
    ("old", "new"),
    [("float32", "float64"), ("float32", "bfloat16"), ("float64", "float16"), ("int8", "int32"), ("uint8", "int16")],
)
def test_small_integers_stay_exact(old: str, new: str) -> None:
    one = "1.0" if old.startswith("float") else "1"
    check_script(two(old, one), lambda s: s.set_dtype(s.get_block("B"), 0, new))


@pytest.mark.parametrize(("new", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_rounding_is_within_its_bound_and_a_reduction_rounds_each_step(new: str, bits: int) -> None:
    text = two("float32")
    schedule = Schedule(parse(text))
    schedule.set_dtype(schedule.get_block("B"), "B", new)
    check_trace(schedule, parse(text))
    a = np.random.default_rng(0).uniform(1, 2, (6, 8)).astype(np.float32)
    empty = np.zeros((6, 8), np.float32)
    interpreted = results_of(schedule.func, [a, empty])[1]
    np.testing.assert_array_equal(interpreted, results_of(schedule.func, [a, empty], compiled=True)[1])
    error = np.abs((interpreted - 1) - 2 * a) / (2 * a)
    assert 2.0 ** -(bits + 3) < error.max() <= 2.0**-bits
    total = """
def f(A: Buffer[(4, 64), "float32"], C: Buffer[(4,), "float32"]):
    B = alloc_buffer((4,), "float32")
    for i, k in grid(4, 64):
        with block("B"):
            v, vk = spatial(4, i), reduce(64, k)
            with init():
                B[v] = 0.0
            B[v] = B[v] + A[v, vk]
    for i in range(4):
        with block("C"):
            v = spatial(4, i)
            C[v] = B[v]
"""
    values = np.random.default_rng(0).uniform(0, 1, (4, 64)).astype(np.float32)
    zeros = np.zeros(4, np.float32)
    exact = results_of(parse(total), [values, zeros])[1]
    errors = []
    for once in (False, True):
        sum_of = Schedule(parse(total))
        block = sum_of.get_block("B")
        chosen = sum_of.cache_write(block, 0, "local") if once else block
        sum_of.set_dtype(chosen, "B", new)
        found = results_of(sum_of.func, [values, zeros], compiled=True)[1]
        errors.append(float((np.abs(found - exact) / exact).max()))
    assert errors[1] <= 2.0**-bits and errors[0] <= 64 * 2.0**-bits and errors[1] < errors[0]


def test_refused() -> None:
    schedule = Schedule(parse(two("float32")))
    with pytest.raises(ScheduleError, match="C is a parameter of the function: the caller decides its type"):
        schedule.set_dtype(schedule.get_block("C"), 0, "float16")
    block = schedule.get_block("B")
    for wrong in ("int32", "bool", "float16x4"):
        with pytest.raises(ScheduleError, match=f"B holds float32, and {wrong} does not hold all of its values"):
            schedule.set_dtype(block, 0, wrong)
    with pytest.raises(UserError, match="float17"):
        schedule.set_dtype(block, 0, "float17")
    whole = Schedule(parse(two("int32", "1")))
    for wrong in ("int8", "uint32", "float32", "bool"):
        with pytest.raises(ScheduleError, match="does not hold all of its values"):
            whole.set_dtype(whole.get_block("B"), 0, wrong)
    whole.set_dtype(whole.get_block("B"), 0, "float64")
    before = schedule.func
    schedule.set_dtype(block, 0, "float32")
    assert schedule.func is before
