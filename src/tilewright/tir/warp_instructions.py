"""Matrix instructions of NVIDIA GPUs, which the threads of a warp execute together on registers of all of them.

Each thread gives the addresses of its own registers, and of the row in shared memory that it points out. What one
thread gets depends on the registers of the others: a program with such calls is interpreted before it is lowered.
"""

from __future__ import annotations

from typing import Final, NoReturn

from tilewright.support.errors import UnsupportedError
from tilewright.tir.machine import define

WARP: Final = 32
"""Threads that execute an instruction together."""
PRODUCTS: Final = {
    ("float16", "float16"): "cuda.mma.f16",
    ("bfloat16", "bfloat16"): "cuda.mma.bf16",
    ("float32", "float32"): "cuda.mma.tf32",
    ("int8", "int8"): "cuda.mma.s8",
    ("uint8", "uint8"): "cuda.mma.u8",
    ("uint8", "int8"): "cuda.mma.u8s8",
    ("int8", "uint8"): "cuda.mma.s8u8",
}
"""The product of each pair of types: 16 rows by 8 columns, steps of 32 bytes."""


def _refuse(*arguments: object) -> NoReturn:
    raise UnsupportedError(
        "the threads of a warp compute this together, which the interpreter does not do",
        hint="interpret the scheduled program before it is lowered",
    )


for _name, _doc in (
    ("cuda.ldmatrix.x4", "fills a register of each thread from each of four 8 x 16 byte matrices in shared memory"),
    ("cuda.ldmatrix.x4.trans", "the same for the transposed matrices of 8 x 8 elements of 16 bits"),
):
    define(_name, "", "int32", ("handle", "handle"), ("sm_75",), _refuse, _doc, pure=False)
for _name in PRODUCTS.values():
    define(
        _name,
        "",
        "int32",
        ("handle", "handle", "handle"),
        ("sm_80",),
        _refuse,
        "adds the product of fragments of a 16-row and an 8-column operand to a fragment of sums",
        pure=False,
    )

__all__ = ["PRODUCTS", "WARP"]
