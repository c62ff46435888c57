"""Bytes looked up in a table of all bytes: by instructions on Arm, in vectors of any length, also of open sizes."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.graph.ir.expr import Function, GraphExpr, Var, constant
from tilewright.graph.ir.op import call
from tilewright.ir.dtype import INT32
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type

NEON = "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1"
X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512"


def lookup(table: np.ndarray, *shape: int | Symbol, widened: bool = False, dtype: str = "uint8") -> IRModule:
    x = Var("x", tensor_type(shape, dtype))
    body: GraphExpr = call("take", constant(table), x, axis=0, mode="inside")
    if widened:
        body = call("subtract", call("cast", body, dtype=INT32), constant(np.int32(3)))
    return IRModule([Function("main", (x,), body)])


def random_bytes(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape).astype(np.uint8).view(dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("count", [1, 5, 8, 15, 16, 24, 33, 40, 72, 200, 1031])
def test_every_length(count: int, dtype: str) -> None:
    table, x = random_bytes(dtype, 256), random_bytes("uint8", count)
    np.testing.assert_array_equal(tw.compile(lookup(table, count))(x), table[x])
    wide = tw.compile(lookup(table, count, widened=True))(x)
    np.testing.assert_array_equal(wide, table[x].astype(np.int32) - 3)


@pytest.mark.parametrize("widened", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_open_sizes(threads: int, widened: bool) -> None:
    table = random_bytes("int8", 256)
    run = tw.compile(lookup(table, Symbol("n"), Symbol("m"), widened=widened), threads=threads)
    for shape in ((1, 1), (3, 7), (2, 8), (5, 17), (16, 64), (9, 129)):
        x = random_bytes("uint8", *shape)
        found = table[x].astype(np.int32) - 3 if widened else table[x]
        np.testing.assert_array_equal(run(x), found)


def test_rows_with_a_border() -> None:
    table, x = random_bytes("int8", 256), random_bytes("uint8", 1, 6, 11, 24)
    (param,) = lookup(table, 1, 6, 11, 24)["main"].params
    body = call("take", constant(table), param, axis=0, mode="inside")
    before, after = (0, 1, 2, 0), (0, 2, 1, 0)
    padded = call("pad", body, before=before, after=after, value=-7.0)
    run = tw.compile(IRModule([Function("main", (param,), padded)]))
    np.testing.assert_array_equal(run(x), np.pad(table[x], tuple(zip(before, after, strict=True)), constant_values=-7))


def test_other_tables_are_read_from_memory() -> None:
    """Of wider entries, of fewer, and by places that are no bytes."""
    words, few = np.arange(256, dtype=np.int16)[::-1].copy(), random_bytes("int8", 100)
    x = random_bytes("uint8", 300)
    np.testing.assert_array_equal(tw.compile(lookup(words, 300))(x), words[x])
    np.testing.assert_array_equal(tw.compile(lookup(few, 300))(x % 100), few[x % 100])
    table, places = random_bytes("int8", 256), x.astype(np.int32)
    np.testing.assert_array_equal(tw.compile(lookup(table, 300, dtype="int32"))(places), table[places])


def test_images_of_few_channels() -> None:
    table, x = random_bytes("int8", 256), random_bytes("uint8", 2, 9, 11, 3)
    np.testing.assert_array_equal(tw.compile(lookup(table, 2, 9, 11, 3))(x), table[x])


@pytest.mark.parametrize(("target", "expected"), [(NEON, True), (X86, False)])
@pytest.mark.parametrize("shape", [(4096,), (1, 32, 32, 3)])
def test_instructions(target: str, shape: tuple[int, ...], expected: bool) -> None:
    """All axes are one, so that vectors are whole."""
    compilation = tw.Compilation(lookup(random_bytes("int8", 256), *shape), target)
    (kernel,) = compilation.kernels
    text = compilation.assembly(kernel)
    assert ("tbl" in text) == expected
