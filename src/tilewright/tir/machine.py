"""Instructions of processors that programs may call by name: types, the features they need, what they compute.

    machine_call("x86.vpdpbusd.512", accumulator, bytes_a, bytes_b)

Lowering rules of tensor intrinsics build such calls; the code generator turns them into the LLVM intrinsic of the
table, after checking that the target has the features. Only what is in the table can be called: LLVM ends the process
when it meets an intrinsic that the processor lacks. Each instruction has a reference, so that lowered programs can
still be interpreted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tilewright.ir import intrinsics
from tilewright.ir.dtype import HANDLE, DataType
from tilewright.ir.expr import Call, PrimExpr
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.target.target import Target
from tilewright.tir.numbers import Pointer

Reference = Callable[..., Any]
"""From lists of lanes, numbers and pointers to a list of lanes (or to nothing, with effects on pointers)."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `features` are alternatives: a processor that has all of one of the sets has the instruction.

    `llvm` is the name of the LLVM intrinsic (none for GPUs: their code generators have the text). A vector argument of
    32 bits fills the register again and again, as wide as the result. The tile arguments of instructions on matrix
    tiles are registers, written as addresses of a buffer of scope `TILE_SCOPE` (see `backends/llvm/emit_machine.py`).
    """

    name: str
    llvm: str
    result: DataType
    arguments: tuple[DataType, ...]
    features: tuple[frozenset[str], ...]
    reference: Reference
    doc: str
    pure: bool = True

    def is_on(self, target: Target) -> bool:
        """Whether a processor has the instruction."""
        return any(needed <= target.feature_set for needed in self.features)

    def require(self, target: Target) -> None:
        """Refuse a target that lacks the instruction."""
        if not self.is_on(target):
            needed = " or ".join(" and ".join(f"+{name}" for name in sorted(item)) for item in self.features)
            raise UnsupportedError(
                f"the instruction {self.name} needs {needed}, which {target.cpu} ({target.arch}) does not have",
                hint="leave the tensor intrinsic out for this target, or add the feature with -mattr",
            )


TILE_SCOPE: Final = "tile"
"""The scope of buffers that live in matrix tile registers: each tile is one run of elements of the buffer."""

table: Final[dict[str, Instruction]] = {}
"""Every instruction by name."""


def define(
    name: str,
    llvm: str,
    result: str,
    arguments: Sequence[str],
    features: Sequence[str],
    reference: Reference,
    doc: str,
    *,
    pure: bool = True,
) -> Instruction:
    """Add an instruction; `features` are alternatives such as "avx512vnni avx512vl"."""
    types = tuple(HANDLE if item == "handle" else DataType.of(item) for item in arguments)
    sets = tuple(frozenset(item.split()) for item in features)
    instruction = Instruction(name, llvm, DataType.of(result), types, sets, reference, doc, pure)
    table[name] = instruction
    intrinsics.define(name, len(types), "any", None, doc, result="given", pure=pure)
    return instruction


def find_instruction(name: str) -> Instruction:
    """The instruction of a name."""
    instruction = table.get(name)
    if instruction is None:
        raise UserError(f"there is no machine instruction {name!r}", hint=f"known: {', '.join(sorted(table))}")
    return instruction


def machine_call(name: str, *arguments: PrimExpr) -> Call:
    """A call of an instruction; the types of the arguments must be the instruction's own."""
    instruction = find_instruction(name)
    if len(arguments) != len(instruction.arguments):
        raise UserError(f"{name} takes {len(instruction.arguments)} arguments, not {len(arguments)}")
    for number, (argument, expected) in enumerate(zip(arguments, instruction.arguments, strict=True)):
        if argument.dtype is not expected:
            raise UserError(f"argument {number} of {name} is a {argument.dtype}, not {expected}")
    return Call(name, arguments, instruction.result)


def _wrapped(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def _dot4(total: list[int], a: list[int], b: list[int]) -> list[int]:
    """Each lane gains the product of four values, the same for all, with four neighbours of its own."""
    return [_wrapped(start + sum(a[n] * b[4 * lane + n] for n in range(4))) for lane, start in enumerate(total)]


def _dot4_of_lanes(total: list[int], a: list[int], b: list[int]) -> list[int]:
    """Each lane gains the product of four neighbours with four neighbours."""
    return [
        _wrapped(start + sum(a[4 * lane + n] * b[4 * lane + n] for n in range(4))) for lane, start in enumerate(total)
    ]


def _pairs(total: list[Any], a: list[Any], b: list[Any]) -> list[Any]:
    """Each lane gains the products of two values, the same for all, with two of its own, summed in float32."""
    return [
        np.float32(np.float32(a[1]) * np.float32(b[2 * lane + 1]))
        + (np.float32(a[0]) * np.float32(b[2 * lane]) + start)
        for lane, start in enumerate(total)
    ]


def _pair_products(a: list[int], b: list[int]) -> list[int]:
    """The sums of the products of two values, the same for all lanes, with two neighbours of each lane."""
    return [_wrapped(a[0] * b[place] + a[1] * b[place + 1]) for place in range(0, len(b), 2)]


for _bits, _llvm, _feature in (
    (512, "avx512.pmaddw.d.512", "avx512bw"),
    (256, "avx2.pmadd.wd", "avx2"),
    (128, "sse2.pmadd.wd", "sse2"),
):
    define(
        f"x86.pmaddwd.{_bits}",
        f"llvm.x86.{_llvm}",
        f"int32x{_bits // 32}",
        ("int16x2", f"int16x{_bits // 16}"),
        (_feature,),
        _pair_products,
        "adds the products of two pairs of 16-bit integers, the same first factors for all",
    )
for _bits, _features in ((512, ("avx512vnni",)), (256, ("avx512vnni avx512vl", "avxvnni"))):
    _lanes = _bits // 32
    define(
        f"x86.vpdpbusd.{_bits}",
        f"llvm.x86.avx512.vpdpbusd.{_bits}",
        f"int32x{_lanes}",
        (f"int32x{_lanes}", "uint8x4", f"int8x{4 * _lanes}"),
        _features,
        _dot4,
        "adds dot products of four unsigned with four signed bytes",
    )
    define(
        f"x86.vpdpbusd.columns.{_bits}",
        f"llvm.x86.avx512.vpdpbusd.{_bits}",
        f"int32x{_lanes}",
        (f"int32x{_lanes}", f"uint8x{4 * _lanes}", "int8x4"),
        _features,
        lambda total, columns, row: _dot4(total, row, columns),
        "adds dot products of four unsigned with four signed bytes, the same signed ones for all",
    )
for _sign, _left in (("s", "int8"), ("u", "uint8")):
    define(
        f"arm.{_sign}dot",
        f"llvm.aarch64.neon.{_sign}dot.v4i32.v16i8",
        "int32x4",
        ("int32x4", f"{_left}x4", f"{_left}x16"),
        ("dotprod",),
        _dot4,
        "adds dot products of four bytes with four bytes",
    )
define(
    "arm.sdot.lanes",
    "llvm.aarch64.neon.sdot.v4i32.v16i8",
    "int32x4",
    ("int32x4", "int8x16", "int8x16"),
    ("dotprod",),
    _dot4_of_lanes,
    "adds dot products of four bytes with four bytes, both a lane's own",
)
for _lanes in (8, 16):
    define(
        f"arm.interleave4.{_lanes}",
        "",
        f"int8x{4 * _lanes}",
        (f"int8x{_lanes}",) * 4,
        ("neon",),
        lambda *rows: [byte for column in zip(*rows, strict=True) for byte in column],
        "the first bytes of four vectors, then the second ones, and so on",
    )
define(
    "arm.usdot",
    "llvm.aarch64.neon.usdot.v4i32.v16i8",
    "int32x4",
    ("int32x4", "uint8x4", "int8x16"),
    ("i8mm",),
    _dot4,
    "adds dot products of four unsigned with four signed bytes",
)
define(
    "x86.vdpbf16ps.512",
    "llvm.x86.avx512bf16.dpbf16ps.512",
    "float32x16",
    ("float32x16", "bfloat16x2", "bfloat16x32"),
    ("avx512bf16",),
    _pairs,
    "adds dot products of two with two bfloat16; subnormal numbers count as zero",
)


DOT4: Final = "gpu.dot4"
"""Adds the products of the four signed bytes of two words to a sum: GPUs have it by many names."""
define(
    DOT4,
    "",
    "int32",
    ("int32", "int32", "int32"),
    ("sm_70", "dot4"),
    lambda total, a, b: _wrapped(total + intrinsics.dot4_reference(a, b)),
    "adds the products of the four signed bytes of two words to a sum",
)


RUN_DOTS: Final = "tw_run_dots"
"""How names of functions begin that add dot products of runs of signed bytes to a tile of sums, by its size."""


# Matrix tiles. The register is the address of the tile's first and last element in a buffer of scope TILE_SCOPE,
# which in the interpreter is memory like any other; `pitch` is how many elements apart its rows are there.


def _tile_zero(tile: Pointer, pitch: int, rows: int, row_bytes: int) -> int:
    for row in range(rows):
        for column in range(row_bytes // 4):
            tile[row * pitch + column] = 0
    return 0


def _tile_load(size: int) -> Reference:
    def reference(tile: Pointer, pitch: int, rows: int, row_bytes: int, source: Pointer, stride: int) -> int:
        for row in range(rows):
            for column in range(row_bytes // size):
                tile[row * pitch + column] = source[row * stride // size + column]
        return 0

    return reference


def _tile_store(tile: Pointer, pitch: int, rows: int, row_bytes: int, target: Pointer, stride: int) -> int:
    for row in range(rows):
        for column in range(row_bytes // 4):
            target[row * stride // 4 + column] = tile[row * pitch + column]
    return 0


def _tile_product(group: int, exact: bool) -> Reference:
    """`rows` x `row_bytes` of a times b (rows of `group` neighbours for each of 16 columns), added to c."""

    def reference(c: Pointer, pitch: int, a: Pointer, b: Pointer, rows: int, row_bytes: int) -> int:
        depth = row_bytes * group // 4
        for row in range(rows):
            for column in range(16):
                total = c[row * pitch + column]
                for k in range(depth):
                    total = total + a[row * depth + k] * b[(k // group) * 16 * group + column * group + k % group]
                c[row * pitch + column] = _wrapped(total) if exact else np.float32(total)
        return 0

    return reference


_TILE: Final = ("handle", "int64", "int64", "int64")
for _name, _size in (("8", 1), ("16", 2)):
    define(
        f"amx.load.{_name}",
        "llvm.x86.tileloadd64",
        "int32",
        (*_TILE, "handle", "int64"),
        ("amx-tile",),
        _tile_load(_size),
        "fills a tile (its pitch, rows, bytes a row) from memory, rows a number of bytes apart",
        pure=False,
    )
define(
    "amx.zero",
    "llvm.x86.tilezero",
    "int32",
    _TILE,
    ("amx-tile",),
    _tile_zero,
    "fills a tile (its pitch, rows, bytes a row) with zeros",
    pure=False,
)
define(
    "amx.store",
    "llvm.x86.tilestored64",
    "int32",
    (*_TILE, "handle", "int64"),
    ("amx-tile",),
    _tile_store,
    "writes a tile (its pitch, rows, bytes a row) to memory, rows a number of bytes apart",
    pure=False,
)
for _name, _feature in (("bssd", "int8"), ("bsud", "int8"), ("busd", "int8"), ("buud", "int8"), ("bf16ps", "bf16")):
    define(
        f"amx.tdp{_name}",
        f"llvm.x86.tdp{_name}",
        "int32",
        ("handle", "int64", "handle", "handle", "int64", "int64"),
        (f"amx-tile amx-{_feature}",),
        _tile_product(2 if _name == "bf16ps" else 4, _name != "bf16ps"),
        "adds the product of two tiles (rows of the first, bytes of its rows) to a tile (with its pitch)",
        pure=False,
    )

__all__ = ["TILE_SCOPE", "Instruction", "define", "find_instruction", "machine_call", "table"]
