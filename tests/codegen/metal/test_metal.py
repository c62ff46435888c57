"""Metal kernels: the text is compiled against a shim of Metal's library and run on threads (no Mac is needed)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest

import tilewright as tw
from tests.codegen import portable, portable_kernels
from tests.codegen.c.test_c_expressions import TYPES
from tests.codegen.on_threads import ThreadDevice, require_clang
from tests.topi.test_scheduled import CASES
from tilewright import te
from tilewright.codegen.c.program import device_program
from tilewright.codegen.metal.dialect import MetalDialect
from tilewright.compiler import _function_info
from tilewright.runtime.device_program import DeviceModule, DeviceProgram
from tilewright.support.errors import UnsupportedError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc

METAL = Target("metal")


def _program(funcs: Sequence[PrimFunc]) -> DeviceProgram:
    return device_program(funcs, [_function_info(func) for func in funcs], METAL, MetalDialect())


@functools.cache
def _device() -> ThreadDevice:
    shared = {"threadgroup __attribute__": "static __attribute__"}
    return ThreadDevice(r"kernel void (\w+)\((.*)\) {", "", shared)


def on_metal(funcs: Sequence[PrimFunc]) -> DeviceModule:
    """Functions as Metal kernels, run on threads."""
    require_clang()
    return DeviceModule(_program(funcs), _device())


def test_integers() -> None:
    portable.check_integers(on_metal)


def test_floats() -> None:
    portable.check_floats(on_metal, (*TYPES, "float16", "bfloat16"))
    portable.check_integers_to_floats(on_metal, ("float16", "bfloat16", "float32"))


def test_halves() -> None:
    portable.check_halves(on_metal)


def test_tiles_with_barriers() -> None:
    portable_kernels.check_tiles(on_metal)


def test_operators() -> None:
    portable_kernels.check_operators(on_metal, METAL, CASES[::5])


def test_float64_is_refused_by_name() -> None:
    a = te.placeholder((4,), "float64", name="A")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="B")
    with pytest.raises(UnsupportedError, match="Metal kernels do not compute in float64"):
        _program([te.create_prim_func([a, b], "double")])


def test_metal_programs_do_not_run_here() -> None:
    a = te.placeholder((4,), name="A")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="B")
    with pytest.raises(UnsupportedError, match="does not run programs for Metal"):
        tw.build(te.create_schedule(b.op), [a, b], target="metal")
