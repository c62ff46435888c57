"""Helpers of the code generator's tests: run a function compiled; compare it with the interpreter at every stage."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from tilewright.backends.host import compile_functions
from tilewright.backends.llvm.jit import JitLibrary
from tilewright.backends.llvm.pool import runtime_imports
from tilewright.target.target import Target
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.pipeline import cpu_pipeline
from tilewright.tir.script.printer import to_script
from tilewright.tir.verify import verify

HOST = Target("native")
Array = np.ndarray


def call(
    library: JitLibrary, func: PrimFunc, arguments: Sequence[Array | int | float], dims: Sequence[int] = ()
) -> int:
    """Call the packed form of a compiled function; returns its code."""
    slots = np.zeros(max(len(arguments) + len(dims), 1), np.int64)
    for number, (param, value) in enumerate(zip(func.params, arguments, strict=True)):
        if isinstance(param, Buffer):
            assert isinstance(value, np.ndarray)
            slots[number] = value.ctypes.data
        else:
            raw = np.asarray(value, param.dtype.numpy()).tobytes().ljust(8, b"\0")
            slots[number] = np.frombuffer(raw, np.int64)[0]
    slots[len(arguments) : len(arguments) + len(dims)] = dims
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(library.symbol(f"{func.name}__packed"))
    return int(function(slots.ctypes.data))


def run(func: PrimFunc, *arguments: Array | int | float, target: Target = HOST, dims: Sequence[int] = ()) -> list[Any]:
    """The arguments after a run of the compiled function (arrays are copied first)."""
    library = JitLibrary([compile_functions([func], target)], runtime_imports())
    copies = copied(arguments)
    code = call(library, func, copies, dims)
    assert code == 0, f"the compiled function returned {code}"
    return copies


def copied(arguments: Sequence[Array | int | float]) -> list[Any]:
    """Arrays copied, scalars as they are."""
    return [item.copy() if isinstance(item, np.ndarray) else item for item in arguments]


def assert_close(func: PrimFunc, actual: Sequence[Any], expected: Sequence[Any], tolerance: float, stage: str) -> None:
    """Compare arguments after a run: equal, or within a relative tolerance; NaN equals NaN."""
    for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if not isinstance(a, np.ndarray):
            continue
        param = func.params[number]
        if param.dtype.name == "bfloat16":
            a, b = ((item.astype(np.uint32) << 16).view(np.float32) for item in (a, b))
        if tolerance == 0.0:
            np.testing.assert_array_equal(a, b, err_msg=f"argument {number} after {stage}")
        else:
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=f"argument {number} after {stage}")


def assert_stages_agree(
    func: PrimFunc,
    *arguments: Array | int | float,
    tolerance: float = 0.0,
    target: Target = HOST,
    dims: Sequence[int] = (),
) -> list[Any]:
    """Interpret a function before lowering and after every pass, and run it compiled: all must give the same."""
    expected = copied(arguments)
    interpret(func, *expected, *dims)
    lowered, stage = func, None
    for item in cpu_pipeline(target).passes:
        lowered = cast(PrimFunc, item(lowered))
        stage = item.leaves or stage
        actual = copied(arguments)
        try:
            if stage is not None:
                verify(lowered, stage)
            extra = dims if dims else ()
            interpret(lowered, *actual, *extra)
            assert_close(func, actual, expected, tolerance, item.name)
        except Exception as error:
            raise AssertionError(f"after {item.name}:\n{to_script(lowered)}\n{error}") from error
    assert_close(func, run(func, *arguments, target=target, dims=dims), expected, tolerance, "compiling")
    return expected


def integers(*shape: int, seed: int = 0, low: int = -9, high: int = 10, dtype: str = "float32") -> Array:
    """Small whole numbers: sums and products of them are exact in every type."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)
