"""Whether two programs of the same parameters compute the same on random inputs, within a tolerance."""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from tilewright.ir.expr import Var, const_value
from tilewright.ir.visit import find_all
from tilewright.tir import numbers
from tilewright.tir.analysis.index import ProgramIndex
from tilewright.tir.buffer import Buffer
from tilewright.tir.evaluate import evaluate
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.numbers import Array
from tilewright.tir.stmt import BufferStore, For

_SYMBOL: Final = 5
"""What the first symbolic size is; the next ones are greater by one each."""


def disagreement(before: PrimFunc, after: PrimFunc, tolerance: float, seed: int = 0) -> str | None:
    """Where the results of two programs differ by more than a tolerance (relative and absolute), or None.

    Floats are drawn from a normal distribution, integers from 0 to 4; symbolic sizes are small.
    """
    random = np.random.default_rng(seed)
    symbols = {var: _SYMBOL + number for number, var in enumerate(before.symbolic_dims())}
    inputs = [_random_value(param, symbols, random) for param in before.params]
    results: list[list[Array | int]] = []
    for func in (before, after):
        values = [value.copy() if isinstance(value, np.ndarray) else value for value in inputs]
        interpret(func, *values, *symbols.values())
        results.append(values)
    written = {store.buffer for store in find_all(before.body, BufferStore)}
    for number, param in enumerate(before.params):
        if isinstance(param, Buffer) and param in written:
            expected, actual = (_plain(values[number], param) for values in results)
            wrong = ~np.isclose(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
            if wrong.any():
                place = tuple(int(index) for index in np.argwhere(wrong)[0])
                text = ", ".join(map(str, place))
                return f"{param.name}[{text}] is {actual[place]:.6g}, not {expected[place]:.6g}"
    return None


def instances(func: PrimFunc) -> int | None:
    """How often blocks of a program run, in all; None where sizes are symbolic."""
    index = ProgramIndex(func)
    total = 0
    for block in index.blocks.values():
        extents = [const_value(item.extent) for item in index.ancestors(block) if isinstance(item, For)]
        if None in extents:
            return None
        total += prod(extent for extent in extents if extent is not None)
    return total


def _random_value(param: Buffer | Var, symbols: dict[Var, int], random: np.random.Generator) -> Array | int:
    if isinstance(param, Var):
        return int(random.integers(1, 5))
    shape = tuple(int(evaluate(dim, symbols)) for dim in param.shape)
    dtype = param.dtype
    if dtype.is_float:
        drawn = [numbers.to_scalar(float(value), dtype) for value in random.standard_normal(prod(shape))]
    else:
        most = 2 if dtype.is_bool else 5
        drawn = [numbers.to_scalar(int(value), dtype) for value in random.integers(0, most, prod(shape))]
    return numbers.from_list(drawn, dtype).reshape(shape)


def _plain(array: object, buffer: Buffer) -> Array:
    """The values of an array as float64."""
    assert isinstance(array, np.ndarray)
    return np.array(numbers.to_list(array, buffer.dtype), np.float64).reshape(array.shape)
