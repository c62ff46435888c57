"""Differential testing of operator computations: the loop program of an operator against its numpy reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import tilewright.graph.ops
import tilewright.topi.library  # noqa: F401  (registers the computations)
from tilewright.graph.ir.op import get_operator
from tilewright.ir.dtype import DataType
from tilewright.ir.types import TensorType, TupleType, tensor_type
from tilewright.te.language import placeholder
from tilewright.te.program import create_prim_func
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.topi.registry import apply_on_cpu, apply_operator, registered_on_cpus

Array = npt.NDArray[np.generic]

TOLERANCE = {"float16": 4e-3, "float32": 2e-6, "float64": 1e-13}
"""Relative to the value, or to 1 where the value is small."""


def operator_program(name: str, arrays: Sequence[Array], called: str = "kernel", /, **attributes: object) -> PrimFunc:
    """The loop program of an operator on such arrays: they are its first parameters, the results the others."""
    inputs = [placeholder(array.shape, array.dtype.name, f"in{n}") for n, array in enumerate(arrays)]
    return create_prim_func([*inputs, *apply_operator(name, inputs, **attributes)], called)


def cpu_program(name: str, arrays: Sequence[Array], /, **attributes: object) -> PrimFunc:
    """The same as CPUs compute it."""
    inputs = [placeholder(array.shape, array.dtype.name, f"in{n}") for n, array in enumerate(arrays)]
    return create_prim_func([*inputs, *apply_on_cpu(name, inputs, **attributes)], "kernel")


def results_of(func: PrimFunc, arrays: Sequence[Array]) -> list[Array]:
    """Arrays for the results of a program that takes some arrays: garbage, so that what is never written shows."""
    results = func.buffers[len(arrays) :]
    return [np.full(item.static_shape or (), 1 if item.dtype.is_bool else 77, item.dtype.numpy()) for item in results]


def run_compiled(name: str, arrays: Sequence[Array], **attributes: object) -> list[Array]:
    """Results of an operator's loop program, interpreted."""
    return _run(operator_program(name, arrays, **attributes), name, arrays, **attributes)


def _run(func: PrimFunc, name: str, arrays: Sequence[Array], /, **attributes: object) -> list[Array]:
    found = get_operator(name)
    types = [tensor_type(array.shape, DataType.of(array.dtype.name)) for array in arrays]
    declared = found.infer(types, found.attributes_class(**attributes))
    kinds = declared.items if isinstance(declared, TupleType) else (declared,)
    for buffer, kind in zip(func.buffers[len(arrays) :], kinds, strict=True):
        assert isinstance(kind, TensorType)
        assert buffer.dtype is kind.dtype, f"{name}: computes {buffer.dtype}, declared {kind.dtype}"
        assert buffer.shape == kind.shape, f"{name}: computes {buffer.shape}, declared {kind.shape}"
    results = results_of(func, arrays)
    interpret(func, *arrays, *results)
    return results


def run_reference(name: str, arrays: Sequence[Array], **attributes: object) -> list[Array]:
    """Results of an operator's numpy reference."""
    found = get_operator(name)
    result = found.reference(list(arrays), found.attributes_class(**attributes))
    return list(result) if isinstance(result, tuple) else [result]


def check(name: str, *arrays: Array, tolerance: float | None = None, **attributes: object) -> None:
    """Assert that an operator's loop program and its reference agree, NaN and infinities included.

    Operators that CPUs compute in a way of their own must agree both ways.
    """
    wanted = run_reference(name, arrays, **attributes)
    _agree(name, run_compiled(name, arrays, **attributes), wanted, tolerance, attributes)
    if name in registered_on_cpus():
        got = _run(cpu_program(name, arrays, **attributes), name, arrays, **attributes)
        _agree(name, got, wanted, tolerance, attributes)


def _agree(
    name: str,
    got: Sequence[Array],
    wanted: Sequence[Array],
    tolerance: float | None,
    attributes: dict[str, object],
) -> None:
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if a.dtype.kind == "f":
            allowed = TOLERANCE[a.dtype.name] if tolerance is None else tolerance
            np.testing.assert_allclose(
                a.astype(float), b.astype(float), rtol=allowed, atol=allowed, err_msg=f"{name} {attributes}"
            )
        else:
            np.testing.assert_array_equal(a, b, err_msg=f"{name} {attributes}")


def random_array(
    rng: np.random.Generator, shape: Sequence[int], dtype: str = "float32", low: float = -4, high: float = 4
) -> Array:
    """Random values of a type: bools, whole numbers or floats of [low, high]."""
    if dtype == "bool":
        return np.asarray(rng.random(tuple(shape)) < 0.5)
    if dtype.startswith("uint"):
        return np.asarray(rng.integers(max(0, int(low)), int(high) + 1, tuple(shape))).astype(dtype)
    if dtype.startswith("int"):
        return np.asarray(rng.integers(int(low), int(high) + 1, tuple(shape))).astype(dtype)
    return np.asarray(rng.uniform(low, high, tuple(shape))).astype(dtype)


SPECIALS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -3.5, 1e-6, -1e-6, 90.0, -90.0, np.inf, -np.inf, np.nan)
"""Values at which implementations differ."""


def specials(dtype: str) -> Array:
    """The special values as an array of a type."""
    with np.errstate(all="ignore"):
        return np.array(SPECIALS).astype(dtype)
