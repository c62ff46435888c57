"""Programs with while loops, and checks of what they compute: searches, iterations to a bound, loops in loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.schedule import Schedule
from tilewright.tir.script import parse_script

Check = Callable[[Callable[..., None]], None]
"""Runs what it is given and compares the results."""
SIZE, COUNT = 37, 24

SEARCH = f"""
def search(A: Buffer[({SIZE},), "float32"], V: Buffer[({COUNT},), "float32"], P: Buffer[({COUNT},), "int32"]):
    for i in range({COUNT}):
        with block("search"):
            v = spatial({COUNT}, i)
            low = alloc_buffer((1,), "int32")
            high = alloc_buffer((1,), "int32")
            low[0] = int32(0)
            high[0] = int32({SIZE})
            while low[0] < high[0]:
                middle = (low[0] + high[0]) // int32(2)
                if A[middle] < V[v]:
                    low[0] = middle + int32(1)
                else:
                    high[0] = middle
            P[v] = low[0]
"""

NEWTON = f"""
def square_root(X: Buffer[({COUNT},), "float32"], Y: Buffer[({COUNT},), "float32"]):
    for i in range({COUNT}):
        with block("square_root"):
            v = spatial({COUNT}, i)
            y = alloc_buffer((1,), "float32", "local")
            y[0] = max(X[v], 1.0)
            while y[0] * y[0] > X[v] * 1.000001 and abs(y[0] * y[0] - X[v]) > 1e-6:
                y[0] = (y[0] + X[v] / y[0]) * 0.5
            Y[v] = y[0]
"""


def program(text: str) -> PrimFunc:
    func = parse_script("@script.function\n" + text.strip())
    assert isinstance(func, PrimFunc)
    return func


def search_arguments() -> list[Any]:
    random = np.random.default_rng(1)
    values = np.sort(random.integers(0, 40, SIZE)).astype(np.float32)
    wanted = np.concatenate([[-1, 41, values[0], values[-1]], random.integers(0, 41, COUNT - 4)]).astype(np.float32)
    return [values, wanted, np.full(COUNT, -7, np.int32)]


def check_search(run: Callable[..., None]) -> None:
    """Run a search and compare it with numpy's."""
    arguments = search_arguments()
    run(*arguments)
    np.testing.assert_array_equal(arguments[2], np.searchsorted(arguments[0], arguments[1]))


def check_root(run: Callable[..., None]) -> None:
    """Run Newton's iteration and compare it with numpy's square root."""
    x = np.concatenate([[0.0, 1.0, 4.0], np.geomspace(1e-3, 1e6, COUNT - 3)]).astype(np.float32)
    y = np.full(COUNT, np.nan, np.float32)
    run(x, y)
    np.testing.assert_allclose(y, np.sqrt(x), rtol=1e-5, atol=2e-3)


CASES = [pytest.param(SEARCH, check_search, id="search"), pytest.param(NEWTON, check_root, id="root")]


def interpreted(func: PrimFunc) -> Callable[..., None]:
    return lambda *arguments: interpret(func, *arguments)


def bound(func: PrimFunc) -> PrimFunc:
    """The function with its loop over blocks and threads of a device."""
    schedule = Schedule(func)
    (loop,) = schedule.get_loops(schedule.get_block(func.name))
    outer, inner = schedule.split(loop, [None, 8])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    return schedule.func


COLLATZ = """
def collatz(N: Buffer[(40,), "int64"], S: Buffer[(40,), "int64"], M: Buffer[(40,), "int64"]):
    for i in range(40):
        with block("collatz"):
            v = spatial(40, i)
            n = alloc_buffer((1,), "int64")
            n[0] = N[v]
            S[v] = 0
            M[v] = n[0]
            while n[0] != 1:
                odd = n[0] % 2 == 1
                while n[0] % 2 == 0:
                    n[0] = n[0] // 2
                    S[v] += 1
                if odd:
                    n[0] = n[0] * 3 + 1
                    S[v] += 1
                    M[v] = max(M[v], n[0])
"""


def collatz(start: int) -> tuple[int, int]:
    """The steps to 1, and the greatest number on the way."""
    steps, most = 0, start
    while start != 1:
        start = start // 2 if start % 2 == 0 else 3 * start + 1
        steps, most = steps + 1, max(most, start)
    return steps, most


def check_collatz(run: Callable[..., None]) -> None:
    """Loops in loops, which store to parameters."""
    n = np.arange(1, 41)
    steps, most = np.full(40, -1), np.full(40, -1)
    run(n, steps, most)
    np.testing.assert_array_equal(np.stack([steps, most], 1), [collatz(int(item)) for item in n])


PRIMES = """
def primes(P: Buffer[(64,), "int32"], K: Buffer[(1,), "int32"]):
    with block("primes"):
        next = alloc_buffer((2,), "int64")
        for k in vectorized(64):
            P[k] = int32(1)
        K[0] = int32(0)
        next[0] = 2
        while next[0] < 64:
            with allocate((64,), "int32") as T:
                for j in vectorized(64):
                    T[j] = select(j % next[0] == 0 and j > next[0], int32(0), int32(1))
                for j in vectorized(64):
                    P[j] = P[j] * T[j]
            K[0] = K[0] + int32(1)
            next[1] = next[0] + 1
            while next[1] < 64 and P[next[1]] == int32(0):
                next[1] = next[1] + 1
            next[0] = next[1]
"""


def check_primes(run: Callable[..., None]) -> None:
    """Vectors and allocations inside a while loop; the second part of a condition reads where the first holds only."""
    p, k = np.full(64, -1, np.int32), np.full(1, -1, np.int32)
    run(p, k)
    expected = [number for number in range(2, 64) if all(number % d for d in range(2, number))]
    assert np.flatnonzero(p)[2:].tolist() == expected
    assert k[0] == len(expected)


MORE = [pytest.param(COLLATZ, check_collatz, id="collatz"), pytest.param(PRIMES, check_primes, id="primes")]
