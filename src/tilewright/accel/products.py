"""GEMM in numpy, a whole instruction at a time.

The sums of one instruction wrap, so their order does not matter: the steps are sorted by accumulator, steps before an
accumulator's last overwriting one are dropped, and accumulators whose lists of weights agree become the rows of one
matrix product. The products are computed in floating point, in pieces whose sums are exact.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.accel.config import AccelConfig
from tilewright.accel.instructions import Gemm, Overwrite
from tilewright.accel.lanes import Lanes

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_MOST_STEPS = 1 << 20
"""Steps of one plan; a longer instruction is executed in pieces of its outer loop."""
_MOST_KEPT = 1 << 23
"""Indices that the plans of a machine hold together."""


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product: rows of accumulators, whose inputs differ, and columns of them, whose weights differ."""

    acc: Indices
    """[row, column]"""
    fresh: Flags
    """[row, column]: the accumulator does not add to what it holds."""
    inp: Indices
    """[row, k]"""
    wgt: Indices
    """[column, k]"""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of an instruction in order: which elements each takes, and whether it overwrites."""

    acc: Indices
    inp: Indices
    wgt: Indices
    overwrites: Flags


def loop_index(base: Indices, outer: range, inner: int, outer_step: int, inner_step: int) -> Indices:
    """The index of each step of two loops around micro-ops, in order."""
    o = np.arange(outer.start, outer.stop, dtype=np.int64)[:, None, None] * outer_step
    i = np.arange(inner, dtype=np.int64)[None, :, None] * inner_step
    return (o + i + base[None, None, :]).reshape(-1)


def outer_pieces(outer: int, inner: int, count: int) -> Iterator[range]:
    """Ranges of an outer loop that together have a bounded number of steps each."""
    each = max(1, _MOST_STEPS // max(inner * count, 1))
    for begin in range(0, outer, each):
        yield range(begin, min(begin + each, outer))


class Products:
    """Executes GEMM on the memories of a machine. What it finds out about an instruction is kept for the next time."""

    def __init__(self, config: AccelConfig, inp: npt.NDArray[np.floating], wgt: npt.NDArray[np.floating]) -> None:
        self._inp = inp
        self._wgt = wgt
        _, self._batch, self._block_in = inp.shape
        self._block_out = config.block_out
        self._chunk = max(1, _exact(inp.dtype) // (config.block_in << (config.inp_bits + config.wgt_bits - 2)))
        self._kept: OrderedDict[tuple[object, ...], tuple[Product, ...]] = OrderedDict()
        self._kept_size = 0

    def execute(self, gemm: Gemm, micro_ops: Mapping[str, Indices], acc: Lanes) -> None:
        """Add the products of an instruction (whose indices have been checked) to the accumulators."""
        for piece in outer_pieces(gemm.outer, gemm.inner, gemm.uop_end - gemm.uop_begin):
            for product in self._planned(gemm, piece, micro_ops):
                self._multiply(product, acc)

    def _planned(self, gemm: Gemm, piece: range, micro_ops: Mapping[str, Indices]) -> tuple[Product, ...]:
        key = (
            piece,
            gemm.overwrite,
            gemm.inner,
            *(gemm.acc_outer, gemm.acc_inner, gemm.inp_outer, gemm.inp_inner, gemm.wgt_outer, gemm.wgt_inner),
            *(micro_ops[name].tobytes() for name in ("acc", "inp", "wgt")),
        )
        plan = self._kept.get(key)
        if plan is None:
            plan = tuple(_plan(_steps(gemm, piece, micro_ops)))
            self._kept[key] = plan
            self._kept_size += _size(plan)
            while self._kept_size > _MOST_KEPT and len(self._kept) > 1:
                self._kept_size -= _size(self._kept.popitem(last=False)[1])
        else:
            self._kept.move_to_end(key)
        return plan

    def _multiply(self, product: Product, acc: Lanes) -> None:
        rows, length = product.inp.shape
        columns = len(product.wgt)
        total: npt.NDArray[np.int32] | None = None
        for begin in range(0, length, self._chunk):
            part = slice(begin, begin + self._chunk)
            left = self._rows(product.inp[:, part])
            right = self._columns(product.wgt[:, part])
            exact = np.matmul(left, right).astype(np.int32 if self._inp.dtype == np.float32 else np.int64)
            wrapped = exact.astype(np.int32, copy=False)
            total = wrapped if total is None else total + wrapped
        assert total is not None  # a product has at least one step
        shape = rows, self._batch, columns, self._block_out
        values = total.reshape(shape).transpose(0, 2, 1, 3)
        if not product.fresh.all():
            before = acc[product.acc]
            before[product.fresh] = 0
            values = values + before
        acc[product.acc] = values.astype(acc.dtype, copy=False)

    def _rows(self, index: Indices) -> npt.NDArray[np.floating]:
        """Inputs as a matrix: (row, row of the batch) x (k, input channel)."""
        inputs = self._inp.take(index, axis=0)
        if self._batch > 1:
            inputs = inputs.transpose(0, 2, 1, 3)
        return inputs.reshape(len(index) * self._batch, -1)

    def _columns(self, index: Indices) -> npt.NDArray[np.floating]:
        """Weights as a matrix: (k, input channel) x (column, output channel)."""
        columns, length = index.shape
        weights = self._wgt.take(index.T, axis=0)
        if columns > 1:
            weights = weights.transpose(0, 2, 1, 3)
        return weights.reshape(length * self._block_in, columns * self._block_out)


def operand_type(config: AccelConfig) -> np.dtype[np.floating]:
    """The type that inputs and weights are held in: one in which the sum of a single step is exact."""
    most = config.block_in << (config.inp_bits + config.wgt_bits - 2)
    return np.dtype(np.float32 if most <= _exact(np.dtype(np.float32)) else np.float64)


def _exact(dtype: np.dtype[np.floating]) -> int:
    """The number up to which a floating type has all whole numbers."""
    return 1 << (np.finfo(dtype).nmant + 1)


def _size(plan: tuple[Product, ...]) -> int:
    return sum(product.inp.size + product.wgt.size + 2 * product.acc.size for product in plan)


def _steps(gemm: Gemm, piece: range, micro_ops: Mapping[str, Indices]) -> Steps:
    shape = len(piece), gemm.inner, len(micro_ops["acc"])
    overwrites = np.zeros(shape, np.bool_)
    if gemm.overwrite is Overwrite.ALWAYS:
        overwrites[:] = True
    elif gemm.overwrite is Overwrite.OUTER and piece.start == 0:
        overwrites[0] = True
    elif gemm.overwrite is Overwrite.INNER:
        overwrites[:, 0] = True
    elif gemm.overwrite is Overwrite.UOP:
        overwrites[:, :, 0] = True
    return Steps(
        loop_index(micro_ops["acc"], piece, gemm.inner, gemm.acc_outer, gemm.acc_inner),
        loop_index(micro_ops["inp"], piece, gemm.inner, gemm.inp_outer, gemm.inp_inner),
        loop_index(micro_ops["wgt"], piece, gemm.inner, gemm.wgt_outer, gemm.wgt_inner),
        overwrites.reshape(-1),
    )


def _plan(steps: Steps) -> Iterator[Product]:
    """The matrix products that together are an instruction."""
    if not len(steps.acc):
        return
    order = by_index(steps.acc)
    acc = steps.acc[order]
    starts = np.flatnonzero(np.diff(acc, prepend=-1))
    fresh = np.zeros(len(starts), np.bool_)
    if steps.overwrites.any():
        places = np.arange(len(order))
        last = np.maximum.reduceat(np.where(steps.overwrites[order], places, -1), starts)
        fresh = last >= 0
        kept = places >= np.repeat(last, np.diff(starts, append=len(order)))
        order, acc = order[kept], acc[kept]
        starts = np.flatnonzero(np.diff(acc, prepend=-1))
    lengths = np.diff(starts, append=len(order))
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        at = order if len(rows) == len(starts) else order[starts[rows][:, None] + np.arange(length)]
        inp, wgt = steps.inp[at].reshape(-1, length), steps.wgt[at].reshape(-1, length)
        yield from _joined(acc[starts[rows]], fresh[rows], inp, wgt)


def _joined(acc: Indices, fresh: Flags, inp: Indices, wgt: Indices) -> Iterator[Product]:
    """Rows with equal lists of weights are one product; products with equal inputs are columns of one."""
    columns: dict[bytes, list[Indices]] = {}
    for rows in _equal_rows(wgt):
        columns.setdefault(inp[rows].tobytes(), []).append(rows)
    for groups in columns.values():
        at = np.stack(groups, axis=1)
        yield Product(acc[at], fresh[at], inp[groups[0]], np.stack([wgt[rows[0]] for rows in groups]))


def _equal_rows(table: Indices) -> list[Indices]:
    """The numbers of the rows of a table, grouped by what they hold."""
    if len(table) == 1 or (table == table[0]).all():
        return [np.arange(len(table))]
    weights = np.random.default_rng(0).integers(1, 1 << 62, table.shape[1], dtype=np.int64) | 1
    _, first, group = np.unique((table * weights).sum(axis=1), return_index=True, return_inverse=True)
    if not (table == table[first[group]]).all():
        # Two different rows with one hash.
        _, group = np.unique(table, axis=0, return_inverse=True)
    order = by_index(group)
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)


def by_index(values: Indices) -> Indices:
    """The order that sorts indices; those that are equal stay in theirs."""
    # Sixteen bits are sorted by digits.
    small = values.astype(np.uint16) if values.size and values.max() < 1 << 16 else values
    return np.argsort(small, kind="stable")
