"""What one core can do at most: kernels of nothing but multiply-adds, dot products or loads, written in LLVM IR.

Every fraction that `bench.kernels` prints is against one of these, measured in the same run and the same moment;
`tilewright calibrate` derives machine parameters from them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.backends.llvm.jit import JitLibrary
from tilewright.backends.llvm.toolchain import compile_ir
from tilewright.runtime.core.convert import address_of, aligned_empty
from tilewright.runtime.core.library import bind
from tilewright.target import Target

_CHAINS = 16
_STEPS = 20_000
_STREAMS = 8
_ADDITIONS = 6
_AHEAD = 16
"""Vectors between the place that is written to and the one that is fetched."""


@dataclass(frozen=True, slots=True)
class Peak:
    """A limit of the machine: `work` units (operations or bytes) done by one `call`."""

    name: str
    work: float
    call: Callable[[], object]


def arithmetic_peak(target: Target, dtype: str, chains: int | None = None) -> Peak | None:
    """Independent chains of the best vector instruction for a data type; None where the CPU has none.

    Their number is what hides the latency if nothing is said; a single one shows it.

    float32 and float16: fused multiply-adds, two operations a lane. int8: dot products of four, eight a lane.
    """
    # As many chains as hide the latency, and leave registers for the operands.
    count = chains or min(_CHAINS, target.vector_registers - 4)
    if dtype == "int8":
        step = _dot_step(target)
        if step is None:
            return None
        lanes = target.lanes(32)
        text = _chains_ir(count, f"<{lanes} x i32>", step)
        operations = 8 * lanes
    else:
        if dtype == "float16" and not target.has_fp16:
            return None
        bits, element = {"float32": (32, "float"), "float16": (16, "half")}[dtype]
        lanes = target.lanes(bits)
        vector = f"<{lanes} x {element}>"
        # `fmuladd` may become two instructions, and does on some processors; `fma` calls a library on those without.
        intrinsic = f"@llvm.{'fma' if target.has_fma else 'fmuladd'}.v{lanes}f{bits}"
        declaration = f"declare {vector} {intrinsic}({vector}, {vector}, {vector})"
        step = _Step(declaration, f"call {vector} {intrinsic}({vector} %x, {vector} %x, {vector} {{chain}})", vector)
        text = _chains_ir(count, vector, step)
        operations = 2 * lanes
    function = _compile(text, target)
    # A chain is a sum, as in products. It grows by a quarter a step: always a normal number.
    kind = np.dtype(dtype)
    data = aligned_empty((target.vector_bits // 8 // kind.itemsize,), kind)
    data[...] = 1 if dtype == "int8" else 0.5
    out = aligned_empty((target.vector_bits // 8,), np.dtype(np.uint8))
    arguments = (address_of(data), address_of(out), _STEPS)

    def call(keep: object = (data, out)) -> None:
        function(*arguments)

    return Peak(dtype, float(operations * count * _STEPS), call)


def tile_peak(target: Target, dtype: str) -> Peak | None:
    """Products of matrix tiles, four in turn, with nothing loaded; None where the CPU has none.

    int8: 16 x 16 x 64 multiply-adds an instruction; bfloat16: 16 x 16 x 32.
    """
    instruction, depth = {"int8": ("tdpbusd", 64), "bfloat16": ("tdpbf16ps", 32)}[dtype]
    if not target.has_feature("amx-int8" if dtype == "int8" else "amx-bf16"):
        return None
    function = _compile(_tile_ir(instruction), target)
    data = aligned_empty((64,), np.dtype(np.uint8))
    # The configuration of eight registers of 16 rows of 64 bytes.
    data[...] = [1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8]
    arguments = (address_of(data), 0, _STEPS)

    def call(keep: object = data) -> None:
        function(*arguments)

    return Peak(f"{dtype} tiles", 2.0 * 16 * 16 * depth * 4 * _STEPS, call)


def _tile_ir(instruction: str) -> str:
    zeros = "\n".join(f"  call void @llvm.x86.tilezero(i8 {n})" for n in range(8))
    steps = "\n".join(f"  call void @llvm.x86.{instruction}(i8 {n}, i8 {4 + n // 2}, i8 {6 + n % 2})" for n in range(4))
    return f"""
declare i64 @syscall(i64, ...)
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8)
declare void @llvm.x86.{instruction}(i8, i8, i8)
define void @peak(ptr %data, ptr %out, i64 %count) {{
entry:
  %asked = call i64 (i64, ...) @syscall(i64 158, i64 4131, i64 18)
  call void @llvm.x86.ldtilecfg(ptr %data)
{zeros}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{steps}
  %next = add i64 %i, 1
  %again = icmp ult i64 %next, %count
  br i1 %again, label %loop, label %end
end:
  call void @llvm.x86.tilerelease()
  ret void
}}
"""


def read_peak(target: Target, size: int, passes: int = 1) -> Peak:
    """Reading `size` bytes in order into vector registers, once or several times; then a power of two of them."""
    lanes = target.lanes(32)
    block = lanes * 4 * _STREAMS
    blocks = max(size // block, 1)
    if passes > 1:
        blocks = 1 << (blocks.bit_length() - 1)
    function = _compile(_read_ir(lanes, blocks - 1 if passes > 1 else -1), target)
    data = aligned_empty((blocks * block,), np.dtype(np.uint8))
    data[...] = 1
    out = aligned_empty((lanes * 4,), np.dtype(np.uint8))
    arguments = (address_of(data), address_of(out), blocks * passes)

    def call(keep: object = (data, out)) -> None:
        function(*arguments)

    return Peak("read", float(blocks * block * passes), call)


def move_peak(target: Target, read: int, written: int) -> Peak:
    """Reading some bytes and writing others, both once and in order: what a kernel cannot do without.

    Where little is written it is left out: less than one vector in sixteen that are read.
    """
    lanes = target.lanes(32)
    most = max(read, written)
    loads, stores = (max(least, round(_STREAMS * size / most)) for size, least in ((read, 1), (written, 0)))
    size = lanes * 4
    blocks = max(most // (size * _STREAMS), 1)
    function = _compile(_move_ir(lanes, loads, stores), target)
    data = aligned_empty((blocks * loads * size,), np.dtype(np.uint8))
    data[...] = 1
    out = aligned_empty((max(1, blocks * stores) * size,), np.dtype(np.uint8))
    arguments = (address_of(data), address_of(out), blocks)

    def call(keep: object = (data, out)) -> None:
        function(*arguments)

    return Peak("move", float(blocks * (loads + stores) * size), call)


def width_peak(target: Target, additions: int = _ADDITIONS) -> Peak:
    """Independent additions of integers: as many instructions at a time as the core takes in.

    What a thread of another program on the same core takes away shows here first. One at a time are cycles.
    """
    phis = "\n".join(f"  %c{n} = phi i64 [ {n}, %entry ], [ %d{n}, %loop ]" for n in range(additions))
    steps = "\n".join(f"  %d{n} = add i64 %c{n}, %x" for n in range(additions))
    function = _compile(_loop_ir("i64", phis, steps, additions), target)
    data = aligned_empty((16,), np.dtype(np.int64))
    data[...] = 1
    arguments = (address_of(data), address_of(data) + 64, 10 * _STEPS)

    def call(keep: object = data) -> None:
        function(*arguments)

    return Peak("width", 10.0 * additions * _STEPS, call)


@dataclass(frozen=True, slots=True)
class _Step:
    """One link of a chain: the declaration it needs, its text (`{chain}` is the value so far), type of operand x."""

    declaration: str
    text: str
    operand: str


def _dot_step(target: Target) -> _Step | None:
    lanes = target.lanes(32)
    chain, operand = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    if target.has_dotprod:
        name = f"@llvm.aarch64.neon.sdot.v{lanes}i32.v{4 * lanes}i8"
    elif target.has_vnni:
        name = f"@llvm.x86.avx512.vpdpbusd.{target.vector_bits}"
    else:
        return None
    declaration = f"declare {chain} {name}({chain}, {operand}, {operand})"
    return _Step(declaration, f"call {chain} {name}({chain} {{chain}}, {operand} %x, {operand} %x)", operand)


def _chains_ir(count: int, vector: str, step: _Step) -> str:
    phis = "\n".join(f"  %c{n} = phi {vector} [ zeroinitializer, %entry ], [ %d{n}, %loop ]" for n in range(count))
    steps = "\n".join(f"  %d{n} = {step.text.format(chain=f'%c{n}')}" for n in range(count))
    return f"{step.declaration}\n{_loop_ir(step.operand, phis, steps, count, vector)}"


def _loop_ir(operand: str, phis: str, steps: str, count: int, vector: str | None = None) -> str:
    """A loop of `count` chains %c0 ... that become %d0 ... in each iteration with the help of an operand %x."""
    # Chains are told apart by storing each, in turn, to the same place: a volatile store is never left out.
    stores = "\n".join(f"  store volatile {vector or operand} %d{n}, ptr %out" for n in range(count))
    return f"""
define void @peak(ptr %data, ptr %out, i64 %count) {{
entry:
  %x = load {operand}, ptr %data
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{steps}
  %next = add i64 %i, 1
  %again = icmp ult i64 %next, %count
  br i1 %again, label %loop, label %end
end:
{stores}
  ret void
}}
"""


def _read_ir(lanes: int, mask: int) -> str:
    """A loop over blocks of vectors; a mask of their numbers brings it back to the first."""
    vector = f"<{lanes} x i32>"
    phis = "\n".join(f"  %c{n} = phi {vector} [ zeroinitializer, %entry ], [ %d{n}, %loop ]" for n in range(_STREAMS))
    loads = "\n".join(
        f"  %p{n} = getelementptr {vector}, ptr %base, i64 {n}\n"
        f"  %v{n} = load {vector}, ptr %p{n}\n"
        f"  %d{n} = xor {vector} %c{n}, %v{n}"
        for n in range(_STREAMS)
    )
    stores = "\n".join(f"  store volatile {vector} %d{n}, ptr %out" for n in range(_STREAMS))
    return f"""
define void @peak(ptr %data, ptr %out, i64 %count) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
  %block = and i64 %i, {mask}
  %base = getelementptr [{_STREAMS} x {vector}], ptr %data, i64 %block
{loads}
  %next = add i64 %i, 1
  %again = icmp ult i64 %next, %count
  br i1 %again, label %loop, label %end
end:
{stores}
  ret void
}}
"""


def _move_ir(lanes: int, loads: int, stores: int) -> str:
    """A loop that reads some vectors, and stores some: the combination of all that it has read.

    Places are fetched before they are written to: stores alone would wait for each.
    """
    vector = f"<{lanes} x i32>"
    read = "\n".join(
        f"  %p{n} = getelementptr {vector}, ptr %source, i64 {n}\n"
        f"  %v{n} = load {vector}, ptr %p{n}\n"
        f"  %x{n + 1} = xor {vector} %x{n}, %v{n}"
        for n in range(loads)
    )
    written = "\n".join(
        f"  %q{n} = getelementptr {vector}, ptr %place, i64 {n}\n"
        f"  %f{n} = getelementptr {vector}, ptr %place, i64 {n + _AHEAD}\n"
        f"  call void @llvm.prefetch.p0(ptr %f{n}, i32 1, i32 2, i32 1)\n"
        f"  store {vector} %x{loads}, ptr %q{n}"
        for n in range(stores)
    )
    return f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define void @peak(ptr %data, ptr %out, i64 %count) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %x0 = phi {vector} [ zeroinitializer, %entry ], [ %x{loads}, %loop ]
  %source = getelementptr [{loads} x {vector}], ptr %data, i64 %i
  %place = getelementptr [{stores} x {vector}], ptr %out, i64 %i
{read}
{written}
  %next = add i64 %i, 1
  %again = icmp ult i64 %next, %count
  br i1 %again, label %loop, label %end
end:
  store volatile {vector} %x{loads}, ptr %out
  ret void
}}
"""


def _compile(text: str, target: Target) -> Callable[[int, int, int], object]:
    # The optimiser is left out: the code is meant exactly as it is written.
    code = compile_ir(text, triple=target.triple, cpu=target.cpu, features=target.features, opt_level=0)
    function: Callable[[int, int, int], object] = bind(
        JitLibrary([code]), "peak", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
    )
    return function
