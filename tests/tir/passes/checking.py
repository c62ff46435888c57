"""Tests of lowering passes as pairs of scripts: the program before, and the program expected after."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable

import numpy as np

from tests.tir.schedule.scripts import parse
from tilewright.ir.structural import assert_same_ir
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret


def assert_becomes(transform: Callable[[PrimFunc], object], before: str, expected: str, *, rtol: float = 0.0) -> object:
    """Assert what a pass makes of a program, and that the new program computes what the old one did.

    Of a pass that makes no program, the printed result is compared.
    """
    source = parse(before)
    result = transform(source)
    if not isinstance(result, PrimFunc):
        assert str(result) == textwrap.dedent(expected).strip(), f"expected otherwise:\n{result}"
        return result
    assert_same_ir(result, parse(expected))
    # A pass may add parameters (scratch memory), behind those that there were.
    for ours, theirs in zip(_results(result), _results(source), strict=False):
        np.testing.assert_allclose(ours, theirs, rtol=rtol)
    return result


def _results(func: PrimFunc) -> list[np.ndarray]:
    """Every parameter after a run. Arrays are flat: passes may change shapes, and not the order of elements."""
    random = np.random.default_rng(0)
    sizes = [(math.prod(buffer.static_shape or ()), buffer.dtype.numpy()) for buffer in func.buffers]
    arrays = [random.integers(1, 9, size).astype(dtype) for size, dtype in sizes]
    interpret(func, *arrays)
    return arrays
