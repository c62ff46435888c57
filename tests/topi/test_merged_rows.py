"""Kernels over rows on GPUs whose rows several axes count: they are one axis, where nothing reads these apart."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.topi.test_schedule_tensor_core import HOPPER, arrays
from tilewright import te
from tilewright.ir.expr import Var
from tilewright.te.program import create_prim_func
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.gpu.strategy import schedule_gpu


def norm(*shape: int) -> PrimFunc:
    """A normalisation over the last axis."""
    x = te.placeholder(shape, "float16", "x")
    scale, shift = te.placeholder(shape[-1:], "float16", "scale"), te.placeholder(shape[-1:], "float16", "shift")
    (y,) = apply_operator("nn.layer_norm", [x, scale, shift], axis=len(shape) - 1, epsilon=1e-5)
    return create_prim_func([x, scale, shift, y], "norm")


def masked(*shape: int, mask: tuple[int, ...]) -> PrimFunc:
    """A softmax of scores with a mask that some of their axes have."""
    x, m = te.placeholder(shape, "float32", "x"), te.placeholder(mask, "float32", "m")
    (added,) = apply_operator("add", [x, m])
    (y,) = apply_operator("nn.softmax", [added], axis=len(shape) - 1)
    return create_prim_func([x, m, y], "masked")


CASES = {
    "norm of prime rows": norm(3, 7, 256),
    "norm of four axes": norm(2, 3, 5, 64),
    "a mask of all axes": masked(3, 5, 64, mask=(3, 5, 64)),
    "a mask of the last axis": masked(3, 5, 64, mask=(64,)),
    "a mask of a row of axes": masked(3, 5, 64, mask=(3, 1, 64)),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_are_one_axis(case: str) -> None:
    func = CASES[case]
    scheduled = schedule_gpu(func, HOPPER)
    assert [choice.name for choice in scheduled.templates] == ["rows"]
    assert [param.shape for param in scheduled.func.params] == [param.shape for param in func.params]
    given = arrays(func)
    wanted = [array.copy() for array in given]
    interpret(func, *wanted)
    interpret(scheduled.func, *given)
    np.testing.assert_allclose(given[-1].astype(np.float32), wanted[-1].astype(np.float32), rtol=2e-3, atol=2e-3)


def test_blocks_have_several_rows_whatever_the_axes() -> None:
    """Eight of 7 x 197 rows, where one of 197 alone is a box that lies in a row."""
    assert 'thread_binding("threadIdx.y", 8)' in str(schedule_gpu(norm(7, 197, 256), HOPPER).func)


def test_open_sizes_stay() -> None:
    x = te.placeholder((Var("batch"), Var("tokens"), 64), "float32", "x")
    (y,) = apply_operator("nn.softmax", [x], axis=2)
    scheduled = schedule_gpu(create_prim_func([x, y], "open"), HOPPER)
    assert scheduled.templates and not any(choice.name == "rows" for choice in scheduled.templates)
