"""The compute unit: GEMM and ALU in a pipeline of five cycles, one step in a cycle; LOADs of UOP and ACC.

    cycle 0   a step: read its micro-op
    cycle 1   indices: read input and weight
    cycle 2   products
    cycle 3   sums; read the accumulator
    cycle 4   add (or ALU); write the accumulator, give tokens

The accumulator is read in the cycle before it is written, and a read sees a write of its own cycle: steps that follow
each other may use the same accumulator.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.hardware.array import Array, Lanes, lanes
from tilewright.accel.hardware.fields import Fields, opcode_of
from tilewright.accel.hardware.hdl import hdl
from tilewright.accel.hardware.memories import Accumulators, MicroOpMemory, OnChip
from tilewright.accel.hardware.port import MemoryPort
from tilewright.accel.hardware.queues import TokenQueue
from tilewright.accel.hardware.reader import Reader
from tilewright.accel.hardware.steps import Steps
from tilewright.accel.hardware.watch import Watch
from tilewright.accel.instructions import Load, MicroOp, Opcode

STAGES = 4
"""Cycles after a step's first."""


class Stage:
    """What a step carries from one cycle of the pipeline to the next."""

    def __init__(self, number: int, config: AccelConfig) -> None:
        def signal(name: str, shape: Any = 1) -> Any:
            return hdl.Signal(shape, name=f"{name}{number}")

        self.valid, self.works, self.push_prev, self.push_next = map(
            signal, ("valid", "works", "push_prev", "push_next")
        )
        self.is_alu, self.use_imm, self.is_source, self.reset, self.replaces = map(
            signal, ("is_alu", "use_imm", "is_source", "reset", "replaces")
        )
        self.op, self.imm = signal("op", 4), signal("imm", hdl.signed(16))
        self.acc = signal("acc", config.index_bits[Memory.ACC])

    def follow(self, before: Stage) -> list[Any]:
        """Assignments that take over everything from the stage before."""
        return [getattr(self, name).eq(value) for name, value in vars(before).items()]


class Compute:
    """Executes the instructions of its queue in order."""

    def __init__(
        self,
        config: AccelConfig,
        queue: Any,
        port: MemoryPort,
        inputs: OnChip,
        weights: OnChip,
        accumulators: Accumulators,
        pops: tuple[TokenQueue, TokenQueue],
        pushes: tuple[TokenQueue, TokenQueue],
    ) -> None:
        self._config, self._queue, self._acc = config, queue, accumulators
        self.watch = Watch()
        m = self.module = hdl.Module()
        m.submodules.watch = self.watch.module
        self._reader = Reader(config, port.compute, port.data, (Memory.UOP, Memory.ACC))
        self._steps = Steps(config, queue.r_data)
        self._micro_ops = MicroOpMemory(config)
        self._array, self._lanes = Array(config), Lanes(config)
        m.submodules.reader, m.submodules.steps = self._reader.module, self._steps.module
        m.submodules.micro_ops = self._micro_ops.module
        m.submodules.array, m.submodules.lanes = self._array.module, self._lanes.module
        self._stages = [Stage(number, config) for number in range(STAGES + 1)]
        self._take(pops)
        self._pipeline(inputs, weights)
        self._finish(pushes)

    def _take(self, pops: tuple[TokenQueue, TokenQueue]) -> None:
        """Begin the next instruction when it has its tokens and its turn."""
        m, queue, steps, reader = self.module, self._queue, self._steps, self._reader
        head = Fields(queue.r_data, Load, self._config)
        is_load = opcode_of(queue.r_data) == Opcode.LOAD
        from_load, from_store = pops
        in_pipeline = hdl.Cat(*(stage.valid for stage in self._stages[1:])).any()
        lacks_prev = head.pop_prev & ~from_load.has_token
        lacks_next = head.pop_next & ~from_store.has_token
        # A LOAD writes what steps before it read and write, and steps after it read and write what it wrote.
        turn = hdl.Mux(is_load, ~steps.valid & ~in_pipeline & reader.ready, ~reader.busy & (~steps.valid | steps.last))
        take = hdl.Signal()
        m.d.comb += [
            take.eq(queue.r_rdy & turn & ~lacks_prev & ~lacks_next),
            queue.r_en.eq(take),
            steps.take.eq(take & ~is_load),
            reader.start.eq(take & is_load),
            reader.instruction.eq(queue.r_data),
            from_load.pop.eq(take & head.pop_prev),
            from_store.pop.eq(take & head.pop_next),
            self.watch.started.eq(take),
            self.watch.busy.eq(steps.valid | in_pipeline | (reader.write_valid & reader.write_ready)),
            self.watch.memory.eq(reader.busy),
            self.watch.wants_prev.eq(queue.r_rdy & turn & lacks_prev),
            self.watch.wants_next.eq(queue.r_rdy & turn & lacks_next),
        ]

    def _pipeline(self, inputs: OnChip, weights: OnChip) -> None:
        m, config, steps, stages = self.module, self._config, self._steps, self._stages
        first, indexed, read = stages[0], stages[1], stages[3]
        m.d.comb += [
            first.valid.eq(steps.valid),
            first.works.eq(steps.valid & ~steps.is_empty),
            first.push_prev.eq(steps.valid & steps.last & steps.push_prev),
            first.push_next.eq(steps.valid & steps.last & steps.push_next),
        ]
        for name in ("is_alu", "use_imm", "is_source", "reset", "replaces", "op", "imm"):
            m.d.comb += getattr(first, name).eq(getattr(steps, name))
        for before, after in pairwise(stages):
            m.d.sync += after.follow(before)
        # The offsets travel with the step; the micro-op comes in the next cycle.
        offsets = [hdl.Signal.like(offset.value) for offset in (steps.acc, steps.source, steps.wgt)]
        m.d.sync += [
            kept.eq(offset.value) for kept, offset in zip(offsets, (steps.acc, steps.source, steps.wgt), strict=True)
        ]
        micro_op = Fields(self._micro_ops.read_micro_op(m, steps.micro_op, steps.valid), MicroOp, config)
        source = hdl.Signal.like(offsets[1])
        is_product = indexed.works & ~indexed.is_alu & ~indexed.reset
        m.d.comb += [
            source.eq(micro_op.inp + offsets[1]),
            inputs.read.addr.eq(source),
            inputs.read.en.eq(is_product),
            weights.read.addr.eq(micro_op.wgt + offsets[2]),
            weights.read.en.eq(is_product),
            self._array.inputs.eq(inputs.read.data),
            self._array.weights.eq(weights.read.data),
        ]
        m.d.sync += stages[2].acc.eq(hdl.Mux(indexed.is_source, source, micro_op.acc + offsets[0]))
        m.d.comb += [
            self._acc.compute.index.eq(read.acc),
            self._acc.compute.enable.eq(read.works & ~read.reset & ~(read.replaces & ~read.is_alu)),
        ]

    def _finish(self, pushes: tuple[TokenQueue, TokenQueue]) -> None:
        """The last stage: results, tokens, and what LOADs write."""
        m, config, last, reader, acc = self.module, self._config, self._stages[-1], self._reader, self._acc
        bits = config.acc_bits
        source = hdl.Signal(len(acc.compute.data))
        immediate = hdl.Signal(hdl.signed(bits))
        with m.If(last.works & last.is_source):
            m.d.sync += source.eq(acc.compute.data)
        m.d.comb += [
            immediate.eq(last.imm),
            self._lanes.op.eq(last.op),
            self._lanes.left.eq(acc.compute.data),
            self._lanes.right.eq(hdl.Mux(last.use_imm, immediate.replicate(len(source) // bits), source)),
        ]
        sums = [
            hdl.Mux(last.reset, 0, hdl.Mux(last.replaces, new, (old + new)[:bits]))
            for old, new in zip(lanes(acc.compute.data, bits), lanes(self._array.sums, bits), strict=True)
        ]
        loads_acc = reader.write_valid & (reader.write_memory == Memory.ACC)
        m.d.comb += [
            acc.write_index.eq(hdl.Mux(loads_acc, reader.write_index, last.acc)),
            acc.write_lanes.eq(
                hdl.Mux(loads_acc, reader.write_lanes, (last.works & ~last.is_source).replicate(len(acc.write_lanes)))
            ),
        ]
        with m.If(loads_acc):
            m.d.comb += acc.write_data.eq(reader.write_data.replicate(len(acc.write_data) // len(reader.write_data)))
        with m.Elif(last.is_alu):
            m.d.comb += acc.write_data.eq(self._lanes.result)
        with m.Else():
            m.d.comb += acc.write_data.eq(hdl.Cat(*(lane[:bits] for lane in sums)))
        self._micro_ops.write_words(m, reader, reader.write_valid & (reader.write_memory == Memory.UOP))
        to_load, to_store = pushes
        m.d.comb += [
            to_load.push.eq((last.valid & last.push_prev) | reader.push_prev),
            to_store.push.eq((last.valid & last.push_next) | reader.push_next),
        ]
