"""Scalar semantics that every device must have, checked by running kernels against the interpreter.

`Build` makes a module of functions for one kind of device. Kernels have few buffers each, as small devices allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from tests.codegen.c.test_c_expressions import CLOSE_CALLS, COUNT, EXACT_CALLS, SPECIAL, TYPES, _integers, _program
from tests.tir.programs import expressions
from tilewright.ir import build, intrinsics
from tilewright.ir import expr as e
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import ZERO, IntImm, PrimExpr, Var
from tilewright.ir.visit import pre_order, substitute
from tilewright.runtime.device.program import DeviceModule
from tilewright.support.errors import UserError
from tilewright.tir.buffer import Buffer, make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.stmt import BufferStore, For, LoopKind, Stmt, seq

Build = Callable[[Sequence[PrimFunc]], DeviceModule]
MOST_RESULTS = 12


_Check = tuple[PrimFunc, list[np.ndarray], list[PrimExpr], list[Buffer], float]


@dataclass
class Checks:
    """Values of loops over `i`, to be computed on the device and interpreted: one program for all of them."""

    device: Build
    functions: list[_Check] = field(default_factory=list)

    def add(
        self, name: str, inputs: list[Buffer], arrays: list[np.ndarray], values: list[PrimExpr], i: Var, rtol: float
    ) -> None:
        """Some values of the same inputs. `rtol` is for floats; 0 is equality."""
        for start in range(0, len(values), MOST_RESULTS):
            part = values[start : start + MOST_RESULTS]
            func, results = _program(f"{name}{start}", inputs, part, i)
            self.functions.append((func, arrays, part, results, rtol))

    def run(self) -> None:
        """Compare everything."""
        module = self.device([func for func, *_ in self.functions])
        for func, arrays, values, results, rtol in self.functions:
            wanted = [np.zeros(COUNT, buffer.dtype.numpy()) for buffer in results]
            got = [np.ones(COUNT, buffer.dtype.numpy()) for buffer in results]
            interpret(func, *arrays, *wanted)
            module[func.name](*arrays, *got)
            for value, one, other in zip(values, got, wanted, strict=True):
                if rtol and other.dtype.kind == "f":
                    np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-30, err_msg=str(value))
                else:
                    np.testing.assert_array_equal(one, other, err_msg=str(value))


def check_random_integers(device: Build, data: st.DataObject) -> None:
    """Expressions over all types of integers."""
    i = Var("i")
    buffers = {name: make_buffer(f"b_{name}", (COUNT,), name) for name in TYPES}
    variables = {DataType.of(name): [Var(f"v_{name}", DataType.of(name))] for name in TYPES}
    loads: dict[Var, PrimExpr] = {variables[DataType.of(name)][0]: buffer[i] for name, buffer in buffers.items()}
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    arrays = [_integers(rng, name) for name in TYPES]
    values = []
    for name in TYPES:
        value = substitute(data.draw(expressions(DataType.of(name), variables, depth=3)), loads)
        kinds = {item.dtype for item in pre_order(value) if isinstance(item, PrimExpr)}
        if any(kind.is_float or kind.bits == 4 for kind in kinds):
            continue
        func, (result,) = _program("one", list(buffers.values()), [value], i)
        try:
            interpret(func, *arrays, np.zeros(COUNT, result.dtype.numpy()))
        except UserError:
            continue  # a division by zero
        values.append(value)
    if values:
        checks = Checks(device)
        checks.add("random", list(buffers.values()), arrays, values, i, 0.0)
        checks.run()


def check_integers(device: Build) -> None:
    """Every operation on every type of integers, with their least and greatest values."""
    rng = np.random.default_rng(3)
    i = Var("i")
    checks = Checks(device)
    for name in TYPES:
        a, b = make_buffer("a", (COUNT,), name), make_buffer("b", (COUNT,), name)
        x, y = a[i], b[i]
        values: list[PrimExpr] = [e.Cast(x, DataType.of(other)) for other in TYPES]
        values += [e.Min(x, y), e.Max(x, y), e.LT(x, y), e.LE(x, y), e.EQ(x, y), e.NE(x, y)]
        values += [e.Select(e.LT(x, y), x, y)]
        arrays = [_integers(rng, name), _integers(rng, name)]
        if name != "bool":
            values += [x + y, x - y, x * y, x * x * x]
            values += [intrinsics.call(function, x) for function in ("popcount", "clz", "bitwise_not", "abs")]
            values += [function(x, y) for function in (build.bitwise_and, build.bitwise_or, build.bitwise_xor)]
            values += [intrinsics.shift_left(x, y), intrinsics.shift_right(x, y)]
            nonzero = e.Select(e.EQ(y, build.const(0, name)), build.const(3, name), y)
            values += [kind(x, nonzero) for kind in (e.FloorDiv, e.FloorMod, e.Div, e.Mod)]
            values += [kind(x, build.const(7, name)) for kind in (e.FloorDiv, e.FloorMod)]
        checks.add(f"ints_{name}_", [a, b], arrays, values, i, 0.0)
    checks.run()


def check_integers_to_floats(device: Build, floats: Sequence[str]) -> None:
    """Integers that no float holds are rounded once."""
    i = Var("i")
    checks = Checks(device)
    numbers = [0, 1, -1, 2049, 2051, 65519, 65520, -65520, 257, 2**24 + 1, 2**53 + 1, 2**62 + 1, -(2**63), 7, 9, 4097]
    for name in ("int64", "uint64", "int32", "uint32", "int16", "bool"):
        a = make_buffer("a", (COUNT,), name)
        values: list[PrimExpr] = [e.Cast(a[i], DataType.of(other)) for other in floats]
        checks.add(f"to_float_{name}_", [a], [np.array(numbers, np.int64).astype(name)], values, i, 0.0)
    checks.run()


def check_floats(device: Build, types: Sequence[str], skipped: Sequence[str] = ()) -> None:
    """Operations, conversions and functions of floats, with special values."""
    i = Var("i")
    checks = Checks(device)
    a, b = make_buffer("a", (COUNT,)), make_buffer("b", (COUNT,))
    x, y = a[i], b[i]
    values: list[PrimExpr] = [e.Min(x, y), e.Max(x, y), e.Mod(x, y), x / y, x * y, x - y, e.LT(x, y), e.NE(x, y)]
    values += [e.Cast(x, DataType.of(name)) for name in types]
    values += [intrinsics.call(name, x) for name in EXACT_CALLS]
    values += [intrinsics.call("copysign", x, y), intrinsics.reinterpret(x, "int32"), x * -1.0]
    number = e.Select(intrinsics.isnan(x), build.const(1.0, "float32"), x)
    values += [intrinsics.reinterpret(e.Cast(number, DataType.of("float16")), "uint16")]
    values += [e.Select(e.LT(x, y), build.const(value, "float32"), x) for value in (np.inf, -np.inf, np.nan, -0.0)]
    first = np.array(SPECIAL, np.float32)
    checks.add("floats", [a, b], [first, np.roll(first, 5)], values, i, 0.0)
    # Angles of any size are as precise as the device's own functions.
    sizes = np.array([0.0, -0.0, 1.0, -1.5, 2.5, 1e-30, 100.0, -30.0, 0.3, 7.0, 3000.0, 0.99, -1.0, 1e-5, 4.5, 11000.0])
    close: list[PrimExpr] = [intrinsics.call(name, x) for name in ("sin", "cos", "tan", "asin", "acos", "log10")]
    close += [intrinsics.call("pow", x, y), intrinsics.call("atan2", x, y)]
    checks.add("angles", [a, b], [sizes.astype(np.float32), np.roll(sizes, 3).astype(np.float32)], close, i, 2e-6)
    calls = [intrinsics.call(name, x) for name in CLOSE_CALLS if name not in ("sin", *skipped)]
    checks.add("calls", [a, b], [first, np.roll(first, 5)], [*calls, intrinsics.call("pow", x, y)], i, 2e-6)
    checks.run()


def check_halves(device: Build) -> None:
    """All halves and brain floats survive a copy; arithmetic is rounded at each step."""
    count = 1 << 16
    bits = np.arange(count, dtype=np.uint16)
    loops = []
    for name in ("float16", "bfloat16"):
        source, copied = make_buffer("a", (count,), name), make_buffer("b", (count,), name)
        single = make_buffer("c", (count,), "float32")
        body = _copies(source, copied, single)
        loops.append(PrimFunc(f"copy_{name}", (source, copied, single), body))
    module = device(loops)
    for func in loops:
        storage = bits.view(np.float16) if func.name.endswith("_float16") else bits
        copied, single = np.zeros_like(storage), np.zeros(count, np.float32)
        module[func.name](storage, copied, single)
        wanted = storage.astype(np.float32) if storage.dtype == np.float16 else (
            (bits.astype(np.uint32) << 16).view(np.float32))  # fmt: skip
        np.testing.assert_array_equal(single, wanted)
        numbers = ~np.isnan(wanted)
        np.testing.assert_array_equal(copied.view(np.uint16)[numbers], bits[numbers])


def _copies(source: Buffer, copied: Buffer, single: Buffer) -> Stmt:
    """A loop over blocks of threads that copies a buffer twice."""
    block, thread = Var("block"), Var("thread")
    place = block * 64 + thread
    body = seq(
        BufferStore(copied, (place,), source[place]),
        BufferStore(single, (place,), e.Cast(source[place], DataType.of("float32"))),
    )
    inner = For(thread, ZERO, IntImm(64), LoopKind.THREAD, body, "threadIdx.x")
    return For(block, ZERO, IntImm((1 << 16) // 64), LoopKind.THREAD, inner, "blockIdx.x")
