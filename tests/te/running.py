"""Running tensor expressions through the reference interpreter, for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tilewright import te
from tilewright.ir.expr import Var
from tilewright.te.tensor import PlaceholderOp, Tensor
from tilewright.tir.evaluate import evaluate
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret

Array = npt.NDArray[np.generic]


def run(args: Sequence[Tensor | Var], *values: Array | int | float, func: PrimFunc | None = None) -> list[Array]:
    """The arrays of the computed tensors among `args`; `values` are of the others, in order."""
    given = iter(values)
    func = te.create_prim_func(args) if func is None else func
    dims: dict[Var, int] = {}
    arrays: list[Array | int | float] = []
    outputs: list[Array] = []
    for arg in args:
        if isinstance(arg, Tensor) and not isinstance(arg.op, PlaceholderOp):
            shape = tuple(int(evaluate(dim, dims)) for dim in arg.shape)
            outputs.append(np.full(shape, 77 if not arg.dtype.is_bool else 1, arg.dtype.numpy()))
            arrays.append(outputs[-1])
            continue
        value = next(given)
        if isinstance(arg, Tensor):
            assert isinstance(value, np.ndarray)
            dims.update((dim, size) for dim, size in zip(arg.shape, value.shape, strict=True) if isinstance(dim, Var))
        arrays.append(value)
    interpret(func, *arrays)
    return outputs
