"""Recurrent layers with weights of bytes: a state as digits of a byte each, whose products are added up in 32 bits."""

from __future__ import annotations

from typing import Any

from tilewright.graph.ops.integer_recurrent import LEVELS
from tilewright.ir import build, intrinsics
from tilewright.ir.build import cast, const
from tilewright.ir.dtype import INT8, INT32
from tilewright.ir.expr import ExprLike, PrimExpr
from tilewright.ir.types import Type
from tilewright.te import reduction
from tilewright.te.language import compute, reduce_axis
from tilewright.te.tensor import Tensor
from tilewright.tir.annotations import ANCHOR, Anchor
from tilewright.topi.recurrent import Product, Recurrence, gru_states, lstm_states, optional, rnn_states
from tilewright.topi.registry import compute_of


class _IntegerRecurrence(Recurrence):
    """A recurrence whose states become integers of 16 bits before they meet the weights."""

    def __init__(self, attributes: Any, inputs: list[Tensor], lengths: Tensor | None) -> None:
        super().__init__(attributes, inputs[0], inputs[1], lengths)
        self._scale = inputs[2]

    def product(self, source: Tensor, back: int, gates: range, name: str) -> Product:
        """Digits of rows of a tensor, `back` steps back, times the weights of some gates, put together and scaled."""
        unit, levels = self._levels(source, back, name)
        rows, depth = (self.rows, self.batch), self.weights.shape[2]

        def digit(t: ExprLike, b: ExprLike, d: ExprLike, n: ExprLike) -> PrimExpr:
            number = levels[t, b, n]
            high = (number + 128) >> 8
            value = cast(build.select(build.eq(d, 0), high, number - high * 256), INT8)
            return build.select(build.lt(n, self.size), value, const(0, INT8))

        digits = compute((*rows, 2, depth), digit, f"{name}_digits")
        k, i = reduce_axis((0, depth), "k"), reduce_axis((0, self.size), "i")

        # Digits inside gates: what is loaded of the weights meets both.
        def element(t: ExprLike, b: ExprLike, g: ExprLike, d: ExprLike, n: ExprLike) -> PrimExpr:
            gate = build.add(g, gates.start) if gates.start else g
            return reduction.sum(cast(digits[t, b, d, k], INT32) * cast(self.weights[gate, n, k], INT32), [k])

        shape = (*rows, len(gates), 2, self.size)
        product = compute(shape, element, name, ANCHOR.entry(Anchor.INTEGER_RECURRENCE))
        all_levels = compute(rows, lambda t, b: reduction.sum(levels[t, b, i], [i]), f"{name}_all_levels")
        offset = self.attributes.offset

        def by_weights(t: ExprLike, b: ExprLike, number: int, n: ExprLike) -> PrimExpr:
            # Sums have up to 40 bits, in two integers of 32: one counts 256, the other what is left. Numbers of 24 bits
            # are exact in float32, so that the sum is rounded once; a rare larger one is off by a last bit.
            high, low = (product[t, b, number - gates.start, d, n] for d in range(2))
            if offset:
                high = high + (all_levels[t, b] >> 8) * offset
                low = low + (all_levels[t, b] & 255) * offset
            carried = low >> 8
            total = cast(high + carried, "float32") * const(256.0, "float32") + cast(low - carried * 256, "float32")
            return total * (unit[t, b] * self._scale[number, n])

        return by_weights

    def _levels(self, source: Tensor, back: int, name: str) -> tuple[Tensor, Tensor]:
        """What a level counts in each sequence, and the levels of its elements."""
        rows = (self.rows, self.batch)
        j = reduce_axis((0, self.size), "j")

        def value(t: ExprLike, b: ExprLike, n: ExprLike) -> PrimExpr:
            return cast(source[build.sub(t, back), b, n], self.wide)

        peak = compute(rows, lambda t, b: reduction.max(intrinsics.abs(value(t, b, j)), [j]), f"{name}_peak")

        def unit_of(t: ExprLike, b: ExprLike) -> PrimExpr:
            none = build.eq(peak[t, b], const(0.0, "float32"))
            return build.select(none, const(1.0, "float32"), peak[t, b] * const(1 / LEVELS, "float32"))

        unit = compute(rows, unit_of, f"{name}_unit")
        inverse = compute(rows, lambda t, b: const(1.0, "float32") / unit[t, b], f"{name}_inverse")

        def level(t: ExprLike, b: ExprLike, n: ExprLike) -> PrimExpr:
            return cast(intrinsics.round(value(t, b, n) * inverse[t, b]), INT32)

        return unit, compute((*rows, self.size), level, f"{name}_levels")


@compute_of("qnn.lstm")
def _lstm(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    layer = _IntegerRecurrence(attributes, inputs, optional(inputs, 5))
    return lstm_states(layer, inputs[3], inputs[4], optional(inputs, 6))


@compute_of("qnn.gru")
def _gru(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    return gru_states(_IntegerRecurrence(attributes, inputs, optional(inputs, 5)), inputs[3], inputs[4])


@compute_of("qnn.rnn")
def _rnn(inputs: list[Tensor], attributes: Any, result: Type) -> list[Tensor]:
    return rnn_states(_IntegerRecurrence(attributes, inputs, optional(inputs, 4)), inputs[3])
