"""ALU and EPI in numpy: steps that do not meet are computed together, the others one after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from tilewright.accel.config import (
    MOST_SHIFT,
    MULTIPLIER_BITS,
    RESIDUAL_SHIFT_AT,
    RESIDUAL_SHIFT_BITS,
    SHIFT_BITS,
    AccelConfig,
)
from tilewright.accel.instructions import Alu, Epi, Lanewise
from tilewright.accel.lanes import Lanes, wrap
from tilewright.accel.products import Indices, by_index, loop_index, outer_pieces
from tilewright.support.errors import UserError

Wide = npt.NDArray[np.int64]


def alu(instruction: Alu, micro_ops: Mapping[str, Indices], acc: Lanes, config: AccelConfig) -> None:
    """Execute an ALU instruction whose indices have been checked."""
    for piece in outer_pieces(instruction.outer, instruction.inner, instruction.uop_end - instruction.uop_begin):
        steps = instruction.dst_outer, instruction.dst_inner
        dst = loop_index(micro_ops["acc"], piece, instruction.inner, *steps)
        if instruction.use_imm:
            for turn in _turns(dst):
                _alu_step(instruction, acc, dst[turn], None, config)
        else:
            src = loop_index(micro_ops["inp"], piece, instruction.inner, instruction.src_outer, instruction.src_inner)
            for turn in _ordered_turns(dst, src):
                _alu_step(instruction, acc, dst[turn], src[turn], config)


def _alu_step(instruction: Alu, acc: Lanes, dst: Indices, src: Indices | None, config: AccelConfig) -> None:
    left = acc[dst].astype(np.int64)
    right = np.int64(instruction.imm) if src is None else acc[src].astype(np.int64)
    mask = np.int64(config.acc_bits - 1)
    numbers = Lanewise(np.where, lambda value: value & mask)
    acc[dst] = wrap(instruction.op.meaning(numbers, left, right), config.acc_bits)


def _turns(index: Indices) -> Iterator[Indices]:
    """Steps that each change one place, by the how-manieth change of its place they are."""
    if not len(index):
        return
    order = by_index(index)
    ordered = index[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    if len(starts) == len(index):
        yield np.arange(len(index))
        return
    rank = np.arange(len(index)) - np.repeat(starts, np.diff(starts, append=len(index)))
    by_rank = by_index(rank)
    # The steps of a turn in their order, so that those that follow each other in memory do so here.
    yield from np.split(order[by_rank], np.flatnonzero(np.diff(rank[by_rank])) + 1)


def _ordered_turns(dst: Indices, src: Indices) -> Iterator[Indices]:
    """Steps that change one place and read another, in groups in which none reads what another one changed before."""
    writer = np.full(int(max(dst.max(), src.max())) + 1 if len(dst) else 0, -1, np.int64)
    places = np.arange(len(dst))
    writer[dst] = places
    if (writer[src] < 0).all():
        yield from _turns(dst)
        return
    is_once = len(np.unique(dst)) == len(dst)
    if is_once and ((writer[src] < 0) | (writer[src] >= places)).all():
        # What is read is changed later if at all: all may be read first.
        yield places
        return
    yield from _runs(dst.tolist(), src.tolist())


def _runs(dst: list[int], src: list[int]) -> Iterator[Indices]:
    """Steps in their order, cut wherever one meets what another one since the last cut has changed."""
    begin, changed = 0, set[int]()
    for step, (place, other) in enumerate(zip(dst, src, strict=True)):
        if place in changed or other in changed:
            yield np.arange(begin, step)
            begin, changed = step, set()
        changed.add(place)
    yield np.arange(begin, len(dst))


def epilogue(epi: Epi, acc: Lanes, out: Lanes, par: npt.NDArray[np.int32], config: AccelConfig) -> None:
    """Execute an EPI whose indices have been checked; a shift that is too great is a `UserError`."""
    if not epi.outer or not epi.inner:
        return
    outer, inner = np.arange(epi.outer), np.arange(epi.inner)
    sources = (epi.acc + outer[:, None] * epi.acc_outer + inner * epi.acc_inner).reshape(-1)
    results = (epi.out + outer[:, None] * epi.out_outer + inner * epi.out_inner).reshape(-1)
    parameters = par[epi.par : epi.par + epi.outer].astype(np.int64) if epi.scale else None
    if parameters is not None:
        shifts = parameters[:, 3] & ((1 << SHIFT_BITS) - 1)
        if shifts.max() > MOST_SHIFT:
            o, channel = np.unravel_index(int(shifts.argmax()), shifts.shape)
            raise UserError(
                f"accelerator: the shift of channel {channel} in PAR[{epi.par + o}] is {shifts.max()}",
                hint=f"at most {MOST_SHIFT}",
            )
    block = np.repeat(outer, epi.inner)
    # Without a residual nothing is read of OUT, and of two results for one place the later one stays.
    turns = _turns(results) if epi.residual else (np.arange(len(results)),)
    for turn in turns:
        values = _results(
            epi,
            acc[sources[turn]].astype(np.int64),
            out[results[turn]].astype(np.int64) if epi.residual else None,
            None if parameters is None else parameters[block[turn]],
            config,
        )
        out[results[turn]] = values.astype(out.dtype)


def _results(epi: Epi, values: Wide, residual: Wide | None, parameters: Wide | None, config: AccelConfig) -> Wide:
    """Results of accumulators [step, row, channel]; parameters are [step, 4, channel]."""
    if parameters is None:
        total = values if residual is None else values + residual
    else:
        bias, multiplier, residual_multiplier, shift = (parameters[:, row, None, :] for row in range(4))
        biased = wrap(values + bias, config.acc_bits).astype(np.int64)
        total = biased * wrap(multiplier, MULTIPLIER_BITS)
        if residual is not None:
            places = (shift >> RESIDUAL_SHIFT_AT) & ((1 << RESIDUAL_SHIFT_BITS) - 1)
            total = total + (residual * wrap(residual_multiplier, MULTIPLIER_BITS).astype(np.int64) << places)
        amount = shift & ((1 << SHIFT_BITS) - 1)
        half = np.where(amount > 0, np.int64(1) << np.maximum(amount - 1, 0), 0)
        total = (total + half) >> amount
    return np.minimum(np.maximum(total + epi.offset, epi.low), epi.high)
