"""Code for processors other than this one: it compiles, and the inner loop is made of vector multiply-adds."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.codegen.compiled import assert_stages_agree, integers
from tests.codegen.test_emit_programs import convolution, tiled_matmul
from tilewright.backends.host import host_source
from tilewright.backends.llvm.toolchain import compile_ir, emit_assembly
from tilewright.ir import intrinsics
from tilewright.ir.expr import ZERO, IntImm, Var
from tilewright.target.target import Target
from tilewright.tir.annotations import PLAIN_ADDRESSES
from tilewright.tir.buffer import make_buffer
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import BufferStore, For, LoopKind


def assembly(func: PrimFunc, target: Target) -> str:
    text = host_source([func], target)
    return emit_assembly(text, triple=target.triple, cpu=target.cpu, features=target.features)


@pytest.mark.parametrize(
    ("spec", "lanes", "tile", "instruction"),
    [
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1", 4, (8, 8), r"fmla\s+v\d+\.4s"),
        ("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell", 8, (6, 16), r"vfmadd\d+ps\s.*ymm"),
        ("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512", 16, (6, 32), r"vfmadd\d+ps\s.*zmm"),
    ],
)
def test_register_tile_has_vector_multiply_adds_and_no_spills(
    spec: str, lanes: int, tile: tuple[int, int], instruction: str
) -> None:
    rows, columns = tile
    text = assembly(tiled_matmul(rows * 4, columns * 4, 64, rows, columns, lanes), Target(spec))
    assert len(re.findall(instruction, text)) >= rows * columns // lanes
    spills = re.findall(r"(?:stp?|ldp?)\s+q\d+.*\[sp|vmovups\s.*\(%rsp\)", text)
    assert not spills


@pytest.mark.parametrize(
    "spec",
    [
        "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1",
        "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64",
        "llvm -mtriple=riscv64-linux-gnu -mcpu=generic-rv64 -mattr=+m,+a,+f,+d,+c,+v",
    ],
)
def test_masks_and_mathematics_compile_everywhere(spec: str) -> None:
    target = Target(spec)
    func, _ = convolution(5, 7, 3, 5, 2)
    assert "main" in assembly(func, target)
    a, b, r = make_buffer("a", (100,), "float16"), make_buffer("b", (100,), "bfloat16"), make_buffer("r", (100,))
    i, v = Var("i"), Var("v")
    at = i * 16 + v
    value = intrinsics.tanh(a[at]).astype("float32") + intrinsics.sin(b[at].astype("float32"))
    store = BufferStore(r, (at,), value)
    loops = For(i, ZERO, IntImm(6), LoopKind.PARALLEL, For(v, ZERO, IntImm(16), LoopKind.VECTORIZED, store))
    text = assembly(PrimFunc("mathematics", (a, b, r), loops), target)
    # Conversions of 16-bit floats are never left to a compiler's support library.
    assert not re.search(r"__(extend|trunc)[sdh]f", text)


def _sums(notes: dict[str, object]) -> PrimFunc:
    """Four sums of products of A, 64 bytes a step, with elements of B, 4 bytes a step."""
    a, b, r = make_buffer("A", (64 * 16,)), make_buffer("B", (4 * 64,)), make_buffer("R", (4 * 16,))
    i, k, v = Var("i"), Var("k"), Var("v")
    at = i * 16 + v
    add = BufferStore(r, (at,), r[at] + a[k * 16 + v] * b[k + i * 64])
    lanes = For(v, ZERO, IntImm(16), LoopKind.VECTORIZED, add)
    rows = For(i, ZERO, IntImm(4), LoopKind.UNROLLED, lanes)
    return PrimFunc("sums", (a, b, r), For(k, ZERO, IntImm(64), LoopKind.SERIAL, rows, annotations=notes))


def test_addresses_of_one_register_and_a_constant() -> None:
    target = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512")
    indexed = re.compile(r"v(?:fmadd|broadcast|mov)\w*\s+-?\d*\(%\w+,%\w+")
    assert indexed.search(assembly(_sums({}), target)), "there is nothing to note any more"
    assert not indexed.search(assembly(_sums({PLAIN_ADDRESSES.name: ["A", "B"]}), target))


@pytest.mark.parametrize("triple", ["aarch64-linux-gnu", "riscv64-linux-gnu", "wasm32-unknown-unknown"])
def test_plain_addresses_mean_the_same_everywhere(triple: str) -> None:
    func = _sums({PLAIN_ADDRESSES.name: ["A", "B"]})
    assert_stages_agree(func, integers(64 * 16), integers(4 * 64), np.zeros(64, "float32"))
    target = Target(f"llvm -mtriple={triple}")
    assert compile_ir(host_source([func], target), triple=target.triple, cpu=target.cpu, features=target.features)
