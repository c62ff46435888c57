"""Instructions of the tensor processor (`accel`), as calls in loop programs; `docs/accelerator.md` says what they do.

    accel.load(dst, src, lanes, y_size, x_size, y_stride, y_before, y_after, x_before, x_after, pad)
    accel.store(dst, src, lanes, y_size, x_size, y_stride)
    accel.gemm(acc, inp, wgt, rows, columns, depth, *loops)            each loop: extent, steps of acc, inp and wgt
    accel.reset(acc, lanes, *loops)                                    each loop: extent, step of acc
    accel.alu(operation, dst, src, lanes, *loops)                      each loop: extent, steps of dst and src
    accel.alu_imm(operation, dst, immediate, lanes, *loops)            each loop: extent, step of dst
    accel.epi(out, acc, par, columns, rows, scale, offset, low, high, *loops)
                                                                       each loop: extent, steps of out, acc and par
    accel.epi_residual(out, res, acc, par, ...)                        the same with a residual

Steps and sizes count tensors of an on-chip memory; loops run the first one outermost. A call has no loops where
a tensor intrinsic is lowered to it; `backends/accel/fold_loops.py` moves the loops around it into it. Each has a
reference, so that programs can be interpreted at every stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tilewright.accel.config import PARAMETER_WORDS, RESIDUAL_SHIFT_AT, RESIDUAL_SHIFT_BITS, SHIFT_BITS
from tilewright.accel.instructions import AluOp, Lanewise
from tilewright.ir import intrinsics
from tilewright.ir.dtype import INT32
from tilewright.ir.expr import Call, PrimExpr
from tilewright.tir.machine import Instruction, table
from tilewright.tir.numbers import Pointer

INP: Final = "accel.inp"
WGT: Final = "accel.wgt"
ACC: Final = "accel.acc"
OUT: Final = "accel.out"
PAR: Final = "accel.par"
SCOPES: Final = (INP, WGT, ACC, OUT, PAR)
"""Scopes of buffers in the on-chip memories."""

LOAD: Final = "accel.load"
STORE: Final = "accel.store"
GEMM: Final = "accel.gemm"
RESET: Final = "accel.reset"
ALU: Final = "accel.alu"
ALU_IMMEDIATE: Final = "accel.alu_imm"
EPI: Final = "accel.epi"
EPI_RESIDUAL: Final = "accel.epi_residual"
FIXED: Final = {GEMM: 6, RESET: 2, ALU: 4, ALU_IMMEDIATE: 4, EPI: 9, EPI_RESIDUAL: 10}
"""Arguments before the loops."""


def accel_call(name: str, *arguments: PrimExpr) -> Call:
    """A call of an instruction."""
    return Call(name, arguments, INT32)


def _wrapped(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def _places(loops: Sequence[int], steps: int) -> Iterator[tuple[int, ...]]:
    """The tensors that each iteration of the loops in a call's arguments is about."""
    if not loops:
        yield (0,) * steps
        return
    extent, *each = loops[: steps + 1]
    for number in range(extent):
        for place in _places(loops[steps + 1 :], steps):
            yield tuple(number * step + inner for step, inner in zip(each, place, strict=True))


def _load(
    dst: Pointer,
    src: Pointer,
    lanes: int,
    y_size: int,
    x_size: int,
    y_stride: int,
    y_before: int,
    y_after: int,
    x_before: int,
    x_after: int,
    pad: int,
) -> int:
    at = 0
    for y in range(-y_before, y_size + y_after):
        for x in range(-x_before, x_size + x_after):
            inside = 0 <= y < y_size and 0 <= x < x_size
            for lane in range(lanes):
                dst[at + lane] = src[(y * y_stride + x) * lanes + lane] if inside else pad
            at += lanes
    return 0


def _store(dst: Pointer, src: Pointer, lanes: int, y_size: int, x_size: int, y_stride: int) -> int:
    for y in range(y_size):
        for at in range(x_size * lanes):
            dst[y * y_stride * lanes + at] = src[y * x_size * lanes + at]
    return 0


def _gemm(acc: Pointer, inp: Pointer, wgt: Pointer, rows: int, columns: int, depth: int, *loops: int) -> int:
    for a, x, w in _places(loops, 3):
        for row in range(rows):
            for column in range(columns):
                left, right = (x * rows + row) * depth, (w * columns + column) * depth
                place = (a * rows + row) * columns + column
                product = sum(inp[left + k] * wgt[right + k] for k in range(depth))
                acc[place] = _wrapped(acc[place] + product)
    return 0


def _reset(acc: Pointer, lanes: int, *loops: int) -> int:
    for (a,) in _places(loops, 1):
        for lane in range(lanes):
            acc[a * lanes + lane] = 0
    return 0


_PLAIN: Final = Lanewise(lambda condition, yes, no: yes if condition else no, lambda value: value & 31)
OPERATIONS: Final = {op.name.lower(): op for op in AluOp}
"""What ALU does, by the names of its operations."""


def _alu(operation: str, dst: Pointer, src: Pointer, lanes: int, *loops: int) -> int:
    meaning = OPERATIONS[operation].meaning
    for d, s in _places(loops, 2):
        for lane in range(lanes):
            dst[d * lanes + lane] = _wrapped(meaning(_PLAIN, dst[d * lanes + lane], src[s * lanes + lane]))
    return 0


def _alu_immediate(operation: str, dst: Pointer, immediate: int, lanes: int, *loops: int) -> int:
    meaning = OPERATIONS[operation].meaning
    for (d,) in _places(loops, 1):
        for lane in range(lanes):
            dst[d * lanes + lane] = _wrapped(meaning(_PLAIN, dst[d * lanes + lane], immediate))
    return 0


def _epi(out: Pointer, acc: Pointer, par: Pointer, *rest: int) -> int:
    return _requantize(out, None, acc, par, *rest)


def _epi_residual(out: Pointer, res: Pointer, acc: Pointer, par: Pointer, *rest: int) -> int:
    return _requantize(out, res, acc, par, *rest)


def _requantize(
    out: Pointer,
    res: Pointer | None,
    acc: Pointer,
    par: Pointer,
    columns: int,
    rows: int,
    scale: int,
    offset: int,
    low: int,
    high: int,
    *loops: int,
) -> int:
    # A residual has steps of its own, behind those of the results.
    for o, *others, a, p in _places(loops, 3 if res is None else 4):
        for lane in range(rows * columns):
            place, column = o * rows * columns + lane, p * PARAMETER_WORDS * columns + lane % columns
            value = acc[a * rows * columns + lane]
            residual = 0 if res is None else res[others[0] * rows * columns + lane]
            if scale:
                bias, multiplier, factor, shifts = (par[column + word * columns] for word in range(PARAMETER_WORDS))
                shift = shifts & ((1 << SHIFT_BITS) - 1)
                residual_shift = shifts >> RESIDUAL_SHIFT_AT & ((1 << RESIDUAL_SHIFT_BITS) - 1)
                half = (1 << shift) >> 1
                value = (_wrapped(value + bias) * multiplier + (residual * factor << residual_shift) + half) >> shift
            else:
                value += residual
            out[place] = min(max(value + offset, low), high)
    return 0


def _define(name: str, reference: Callable[..., Any], doc: str) -> None:
    # The loops of a call are arguments, so their number is open.
    table[name] = Instruction(name, "", INT32, (), (frozenset({"accel"}),), reference, doc, pure=False)
    intrinsics.define(name, None, "any", None, doc, result="given", pure=False)


_define(LOAD, _load, "copies rows of tensors to an on-chip memory, with padding around")
_define(STORE, _store, "copies tensors of an on-chip memory to rows in memory")
_define(GEMM, _gemm, "adds products of input and weight tensors to accumulators, in loops")
_define(RESET, _reset, "sets accumulators to zero, in loops")
_define(ALU, _alu, "changes accumulators by others, in loops")
_define(ALU_IMMEDIATE, _alu_immediate, "changes accumulators by a number, in loops")
_define(EPI, _epi, "turns accumulators to results, in loops")
_define(EPI_RESIDUAL, _epi_residual, "turns accumulators and residuals to results, in loops")
