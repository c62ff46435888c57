"""EPI in a pipeline of five cycles, one tensor in a cycle.

    cycle 0   read accumulator, parameters and residual
    cycle 1   add the bias
    cycle 2   multiply
    cycle 3   add, round and shift
    cycle 4   offset and clip; write the result, give tokens

Without scale, multipliers are one and shifts zero. A residual that an earlier tensor of the pipeline still has to
write is waited for.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tilewright.accel.config import (
    MULTIPLIER_BITS,
    RESIDUAL_SHIFT_AT,
    RESIDUAL_SHIFT_BITS,
    SHIFT_BITS,
    AccelConfig,
    Memory,
)
from tilewright.accel.hardware.array import lanes
from tilewright.accel.hardware.fields import Fields
from tilewright.accel.hardware.hdl import hdl
from tilewright.accel.hardware.memories import AccumulatorReader, OnChip
from tilewright.accel.hardware.steps import Offset
from tilewright.accel.instructions import Epi

STAGES = 4
"""Cycles after a tensor's first."""


class Stage:
    """What a tensor carries through the pipeline beside its lanes."""

    def __init__(self, number: int, config: AccelConfig) -> None:
        def signal(name: str, shape: Any = 1) -> Any:
            return hdl.Signal(shape, name=f"{name}{number}")

        self.valid, self.works, self.push_prev = signal("valid"), signal("works"), signal("push_prev")
        self.scale, self.residual = signal("scale"), signal("residual")
        self.out = signal("out", config.index_bits[Memory.OUT])
        result = hdl.signed(config.out_bits)
        self.offset, self.low, self.high = signal("offset", result), signal("low", result), signal("high", result)

    def follow(self, before: Stage) -> list[Any]:
        """Assignments that take over everything from the stage before."""
        return [getattr(self, name).eq(value) for name, value in vars(before).items()]


class Epilogue:
    """The instruction that EPI is at, its loops, and the pipeline. `take` begins the instruction that `word` holds."""

    def __init__(self, config: AccelConfig, word: Any, reader: AccumulatorReader, out: OnChip, par: OnChip) -> None:
        self.take = hdl.Signal()
        self.ready = hdl.Signal()
        """Whether an instruction can begin in the next cycle."""
        self.is_active = hdl.Signal()
        """Whether an instruction has tensors left to begin."""
        self.in_pipeline = hdl.Signal()
        self.push_prev = hdl.Signal()
        self.reads_acc = hdl.Signal()
        self.acc_index = hdl.Signal(config.index_bits[Memory.ACC])
        self.reads_out = hdl.Signal()
        self.out_index = hdl.Signal(config.index_bits[Memory.OUT])
        self.writes = hdl.Signal()
        self.write_index = hdl.Signal(config.index_bits[Memory.OUT])
        self.write_data = hdl.Signal(config.element_bits[Memory.OUT])
        self.module = hdl.Module()
        self._config, self._reader = config, reader
        self._stages = [Stage(number, config) for number in range(STAGES + 1)]
        self._loops(Fields(word, Epi, config), par)
        for before, after in pairwise(self._stages):
            self.module.d.sync += after.follow(before)
        self._lanes(out, par)

    def _loops(self, head: Fields, par: OnChip) -> None:
        m, config, first = self.module, self._config, self._stages[0]
        acc, out = Offset("acc", config.index_bits[Memory.ACC]), Offset("out", config.index_bits[Memory.OUT])
        acc_base, out_base = hdl.Signal.like(acc.value), hdl.Signal.like(out.value)
        par_index = hdl.Signal(config.index_bits[Memory.PAR])
        outer, inner = hdl.Signal(len(head.outer)), hdl.Signal(len(head.inner))
        outer_step, inner_step = hdl.Signal.like(outer), hdl.Signal.like(inner)
        is_empty, gives, scale, residual = hdl.Signal(), hdl.Signal(), hdl.Signal(), hdl.Signal()
        inner_ends, last, steps = inner_step + 1 == inner, hdl.Signal(), hdl.Signal()
        pending = [stage.works & (stage.out == self.out_index) for stage in self._stages[1:]]
        blocked = residual & hdl.Cat(*pending).any()
        m.d.comb += [
            self.acc_index.eq(acc_base + acc.value),
            self.out_index.eq(out_base + out.value),
            self.reads_acc.eq(self.is_active & ~is_empty & ~blocked),
            self.reads_out.eq(steps & ~is_empty & residual),
            par.read.addr.eq(par_index),
            par.read.en.eq(steps & scale),
            steps.eq(self.is_active & (is_empty | self._reader.granted)),
            last.eq(is_empty | (inner_ends & (outer_step + 1 == outer))),
            self.ready.eq(~self.is_active | (steps & last)),
            self.in_pipeline.eq(hdl.Cat(*(stage.valid for stage in self._stages[1:])).any()),
            first.valid.eq(steps),
            first.works.eq(steps & ~is_empty),
            first.push_prev.eq(steps & last & gives),
            first.scale.eq(scale),
            first.residual.eq(residual),
            first.out.eq(self.out_index),
        ]
        with m.If(steps):
            m.d.sync += [inner_step.eq(inner_step + 1), *acc.step_inner(), *out.step_inner()]
            with m.If(inner_ends):
                m.d.sync += [inner_step.eq(0), outer_step.eq(outer_step + 1), par_index.eq(par_index + 1)]
                m.d.sync += [*acc.step_outer(), *out.step_outer()]
            with m.If(last):
                m.d.sync += self.is_active.eq(0)
        with m.If(self.take):
            m.d.sync += [
                self.is_active.eq(1),
                is_empty.eq((head.outer == 0) | (head.inner == 0)),
                outer.eq(head.outer),
                inner.eq(head.inner),
                outer_step.eq(0),
                inner_step.eq(0),
                *acc.begin(head.acc_outer, head.acc_inner),
                *out.begin(head.out_outer, head.out_inner),
                acc_base.eq(head.acc),
                out_base.eq(head.out),
                par_index.eq(head.par),
                gives.eq(head.push_prev),
                scale.eq(head.scale),
                residual.eq(head.residual),
            ]
        for name in ("offset", "low", "high"):
            kept = hdl.Signal.like(getattr(first, name), name=f"kept_{name}")
            m.d.comb += getattr(first, name).eq(kept)
            with m.If(self.take):
                m.d.sync += kept.eq(getattr(head, name))

    def _lanes(self, out: OnChip, par: OnChip) -> None:
        m, config, last = self.module, self._config, self._stages[-1]
        bias, multiplier, residual_multiplier, shifts = (
            [par.read.data.word_select(word * config.block_out + channel, 32) for channel in range(config.block_out)]
            for word in range(4)
        )
        accumulators = lanes(self._reader.data, config.acc_bits)
        residuals = lanes(out.read.data, config.out_bits)
        results = []
        for number, (accumulator, residual) in enumerate(zip(accumulators, residuals, strict=True)):
            channel = number % config.block_out
            parameters = bias[channel], multiplier[channel], residual_multiplier[channel], shifts[channel]
            results.append(self._lane(number, accumulator, residual, parameters))
        m.d.comb += [
            self.writes.eq(last.works),
            self.write_index.eq(last.out),
            self.write_data.eq(hdl.Cat(*results)),
            self.push_prev.eq(last.valid & last.push_prev),
        ]

    def _lane(self, number: int, accumulator: Any, residual: Any, parameters: tuple[Any, Any, Any, Any]) -> Any:
        """One lane of a result."""
        m, config = self.module, self._config
        added, last = self._stages[1], self._stages[4]
        bias, multiplier, residual_multiplier, shifts = parameters

        def signal(name: str, bits: int, *, signed: bool = True) -> Any:
            return hdl.Signal(hdl.signed(bits) if signed else bits, name=f"{name}_{number}", reset_less=True)

        total = signal("total", config.acc_bits)
        factor, residual_factor = signal("factor", MULTIPLIER_BITS), signal("residual_factor", MULTIPLIER_BITS)
        addend = signal("addend", config.out_bits)
        shift, residual_shift = (
            signal("shift", SHIFT_BITS, signed=False),
            signal("residual_shift", RESIDUAL_SHIFT_BITS, signed=False),
        )
        m.d.sync += [
            total.eq(hdl.Mux(added.scale, accumulator + bias.as_signed(), accumulator)),
            factor.eq(hdl.Mux(added.scale, multiplier[:MULTIPLIER_BITS], 1)),
            residual_factor.eq(hdl.Mux(added.scale, residual_multiplier[:MULTIPLIER_BITS], 1)),
            addend.eq(hdl.Mux(added.residual, residual, 0)),
            shift.eq(hdl.Mux(added.scale, shifts[:SHIFT_BITS], 0)),
            residual_shift.eq(
                hdl.Mux(added.scale, shifts[RESIDUAL_SHIFT_AT : RESIDUAL_SHIFT_AT + RESIDUAL_SHIFT_BITS], 0)
            ),
        ]
        product = signal("product", config.acc_bits + MULTIPLIER_BITS)
        residual_product = signal("residual_product", config.out_bits + MULTIPLIER_BITS)
        late_shift, late_residual_shift = (
            signal("late_shift", SHIFT_BITS, signed=False),
            signal("late_residual_shift", RESIDUAL_SHIFT_BITS, signed=False),
        )
        m.d.sync += [
            product.eq(total * factor),
            residual_product.eq(addend * residual_factor),
            late_shift.eq(shift),
            late_residual_shift.eq(residual_shift),
        ]
        # Twice the value, so that half a unit of the result is a whole number for a shift of zero too.
        bits = config.out_bits + MULTIPLIER_BITS + (1 << RESIDUAL_SHIFT_BITS) + 2
        half = (hdl.Const(1, 1) << late_shift)[:bits] & ~hdl.Const(1, bits)
        value, rounded = signal("value", bits), signal("rounded", bits)
        m.d.comb += value.eq(((product + (residual_product << late_residual_shift)) << 1) + half.as_signed())
        m.d.sync += rounded.eq(value >> (late_shift + 1))
        moved = signal("moved", bits + 1)
        raised, result = signal("raised", bits + 1), signal("result", config.out_bits)
        m.d.comb += [
            moved.eq(rounded + last.offset),
            raised.eq(hdl.Mux(moved < last.low, last.low, moved)),
            result.eq(hdl.Mux(raised > last.high, last.high, raised)),
        ]
        return result
