"""Programs for the tests of lowering passes, and the check that a pass changes no result."""

from __future__ import annotations

import numpy as np

from tilewright.ir.expr import IntImm
from tilewright.ir.visit import find_all
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.script.parser import parse_script
from tilewright.tir.stmt import For


def script(text: str) -> PrimFunc:
    func = parse_script(text)
    assert isinstance(func, PrimFunc)
    return func


def agree(before: PrimFunc, after: PrimFunc, *arrays: np.ndarray) -> None:
    one, other = [a.copy() for a in arrays], [a.copy() for a in arrays]
    interpret(before, *one)
    interpret(after, *other)
    for x, y in zip(one, other, strict=True):
        np.testing.assert_array_equal(x, y)


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype("float32")


def loops_of(func: PrimFunc) -> list[tuple[str, int]]:
    return [
        (loop.kind.value, loop.extent.value if isinstance(loop.extent, IntImm) else -1)
        for loop in find_all(func.body, For)
    ]


def row_sums(order: str) -> PrimFunc:
    loops = "for i, k in grid(4, 8):" if order == "ik" else "for k, i in grid(8, 4):"
    return script(
        f"""
@script.function
def sums(A: Buffer[(4, 8), "float32"], C: Buffer[(4,), "float32"]):
    {loops}
        with block("C"):
            vi, vk = spatial(4, i), reduce(8, k)
            with init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]
"""
    )
