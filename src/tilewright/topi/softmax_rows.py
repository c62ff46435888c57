"""Softmax of long rows as CPUs compute it: the maximum, the exponentials with their sum, and one product each.

Exponentials are summed up as they are written to the result, and made to sum to one there: each row is read twice and
written twice, and no memory is needed beside it. Where other stages are part of the kernel, those of `reduce.py` are
taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tilewright.ir import build, intrinsics
from tilewright.ir.build import const
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import PrimExpr, Var, const_value
from tilewright.ir.types import Type
from tilewright.te.language import extern_rows
from tilewright.te.reduction import min_value
from tilewright.te.tensor import PlaceholderOp, Tensor
from tilewright.tir.buffer import Buffer
from tilewright.tir.stmt import Stmt, seq
from tilewright.topi.registry import compute_on_cpus, result_shape
from tilewright.topi.statements import at_once, combined, in_vectors, memory, put, with_memory

_LANES: Final = 64
_SHORT: Final = 2048
"""Rows that are shorter are better worked on several at a time, in the first cache level."""


@compute_on_cpus("nn.softmax")
def _softmax(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    def finish(sources: list[Buffer], target: Buffer, at: tuple[PrimExpr, ...], row: _Totals) -> list[Stmt]:
        def scaled(begin: PrimExpr, count: int) -> Stmt:
            def element(lane: Var) -> Stmt:
                place = (*at[:-1], begin + lane)
                return put(target, place, target[place] * row.total[0])

            return at_once(count, element)

        return [
            put(row.total, 0, const(1.0, FLOAT32) / row.total[0]),
            in_vectors(row.size, scaled, again=False),
        ]

    return _over_rows(inputs, attributes, result, "softmax", finish, stored=True)


@compute_on_cpus("nn.log_softmax")
def _log_softmax(inputs: list[Tensor], attributes: Any, result: Type) -> Tensor | None:
    def finish(sources: list[Buffer], target: Buffer, at: tuple[PrimExpr, ...], row: _Totals) -> list[Stmt]:
        def shifted(begin: PrimExpr, count: int) -> Stmt:
            def element(lane: Var) -> Stmt:
                place = (*at[:-1], begin + lane)
                return put(target, place, sources[0][place] - row.greatest[0] - row.total[0])

            return at_once(count, element)

        return [put(row.total, 0, intrinsics.log(row.total[0])), in_vectors(row.size, shifted)]

    return _over_rows(inputs, attributes, result, "log_softmax", finish, stored=False)


class _Totals:
    """What is known of a row: its greatest element, and the sum of the exponentials."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.greatest = memory("greatest", 1, FLOAT32)
        self.total = memory("total", 1, FLOAT32)
        self.parts = memory("parts", _LANES, FLOAT32)


_Finish = Callable[[list[Buffer], Buffer, tuple[PrimExpr, ...], _Totals], list[Stmt]]


def _over_rows(
    inputs: list[Tensor], attributes: Any, result: Type, name: str, finish: _Finish, *, stored: bool
) -> Tensor | None:
    (x,) = inputs
    size = const_value(x.shape[attributes.axis])
    alone = isinstance(x.op, PlaceholderOp) and x.dtype is FLOAT32
    if not alone or size is None or size < _SHORT or attributes.axis != x.ndim - 1:
        return None

    def statement(sources: list[Buffer], results: list[Buffer], at: tuple[PrimExpr, ...]) -> Stmt:
        source, target, row = sources[0], results[0], _Totals(size)

        def largest(place: tuple[PrimExpr, ...], lane: PrimExpr) -> list[Stmt]:
            return [put(row.parts, lane, build.maximum(row.parts[lane], source[place]))]

        def summed(place: tuple[PrimExpr, ...], lane: PrimExpr) -> list[Stmt]:
            exponential = intrinsics.exp(source[place] - row.greatest[0])
            if not stored:
                return [put(row.parts, lane, row.parts[lane] + exponential)]
            return [put(target, place, exponential), put(row.parts, lane, row.parts[lane] + target[place])]

        def walk(element: Callable[[tuple[PrimExpr, ...], PrimExpr], list[Stmt]]) -> Stmt:
            def part(begin: PrimExpr, count: int) -> Stmt:
                return at_once(count, lambda lane: seq(*element((*at[:-1], begin + lane), lane)))

            return in_vectors(size, part, again=False)

        return with_memory(
            f"{name}_row",
            [row.greatest, row.total, row.parts],
            [source, *([target] if stored else [])],
            [target],
            _filled(row.parts, min_value(FLOAT32)),
            walk(largest),
            combined(row.greatest, row.parts, min_value(FLOAT32), build.maximum),
            _filled(row.parts, const(0.0, FLOAT32)),
            walk(summed),
            combined(row.total, row.parts, const(0.0, FLOAT32), build.add),
            *finish(sources, target, at, row),
        )

    return extern_rows((result_shape(result),), attributes.axis, [x], statement, name, (FLOAT32,))[0]


def _filled(parts: Buffer, value: PrimExpr) -> Stmt:
    return at_once(_LANES, lambda lane: put(parts, lane, value))
