"""Random programs that are legal: their tokens order all that meets, so the results do not depend on timing.

Instructions are drawn in the program's order; before each one, tokens are added for whatever it must wait for and
nothing orders yet. A token is given by an instruction that is earlier in the program than the one that takes it, and a
unit that could give more than a queue holds first hears that some were taken: no timing deadlocks or overflows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.accel.config import MOST_SHIFT, AccelConfig, Memory
from tilewright.accel.encoding import decode_micro_ops, encode_micro_ops
from tilewright.accel.instructions import (
    Alu,
    AluOp,
    Epi,
    Finish,
    Gemm,
    Instruction,
    Load,
    MicroOp,
    Overwrite,
    Store,
    Unit,
)
from tilewright.accel.program import Program
from tilewright.accel.rules import dram_rows, sram_count

Accesses = list[tuple[Memory | None, Any, bool]]
"""What an instruction touches: a memory (None: DRAM, in words of the bus), the indices, whether it writes."""

_MOST_STEPS = 120
_TOWARDS = {-1: ("push_prev", "pop_next"), 1: ("push_next", "pop_prev")}


def token_only(unit: Unit, rng: np.random.Generator) -> Instruction:
    """An instruction of a unit that does nothing but take and give tokens."""
    if unit is Unit.LOAD:
        return Load(memory=Memory.INP, y_size=int(rng.integers(3)))
    if unit is Unit.STORE:
        return Store(memory=Memory.OUT, x_size=int(rng.integers(3)))
    return Load(memory=Memory.UOP) if rng.integers(2) else Gemm(outer=0, inner=1)


class Stream:
    """Instructions with the tokens that order them. A clock says how many instructions of each unit are done."""

    def __init__(self, config: AccelConfig, dram_bytes: int, rng: np.random.Generator) -> None:
        self.config = config
        self.rng = rng
        self.instructions: list[Instruction] = []
        self._places: dict[Unit, list[int]] = {unit: [] for unit in Unit}
        self._clocks = {unit: [0, 0, 0] for unit in Unit}
        # By queue: the ordinals, in their units, of the instructions that took tokens.
        self._takers: dict[tuple[Unit, Unit], list[int]] = {}
        self._pops: dict[Unit, dict[str, bool]] = {unit: {} for unit in Unit}
        sizes: dict[Memory | None, int] = {**config.depth, None: dram_bytes // config.bus_bytes}
        # By unit, memory and whether it wrote: how many instructions there were after the last that touched an element.
        self._last = {
            (unit, memory, wrote): np.zeros(size, np.int64)
            for unit in Unit
            for memory, size in sizes.items()
            for wrote in (False, True)
        }

    def add(self, instruction: Instruction, accesses: Accesses) -> None:
        """Append an instruction, ordered after all that it meets."""
        unit = instruction.unit
        for other in (Unit.STORE, Unit.LOAD, Unit.COMPUTE):
            if other is not unit:
                self.order(other, unit, self._needed(other, accesses))
        self.append(instruction)
        for memory, index, writes in accesses:
            self._last[unit, memory, writes][index] = len(self._places[unit])

    def _needed(self, other: Unit, accesses: Accesses) -> int:
        """How many instructions of another unit must be done."""
        needed = 0
        for memory, index, writes in accesses:
            if len(index):
                needed = max(needed, self._last[other, memory, True][index].max())
                if writes:
                    needed = max(needed, self._last[other, memory, False][index].max())
        return int(needed)

    def append(self, instruction: Instruction) -> None:
        """Append an instruction as it is, with the tokens that its unit is to take next."""
        unit = instruction.unit
        pops, self._pops[unit] = self._pops[unit], {}
        self._places[unit].append(len(self.instructions))
        self.instructions.append(replace(instruction, **pops))
        self._clocks[unit][unit] += 1

    def order(self, before: Unit, after: Unit, needed: int) -> None:
        """See to it that the next instruction of a unit comes after the first `needed` ones of another."""
        if self._clocks[after][before] >= needed:
            return
        if abs(before - after) == 2:
            self.token(before, Unit.COMPUTE)
            self.token(Unit.COMPUTE, after)
        else:
            self.token(before, after)

    def token(self, giver: Unit, taker: Unit) -> None:
        """A token from the last instruction of a unit to the next of another, behind one that may be in the way."""
        push, pop = _TOWARDS[taker - giver]
        if self._pops[taker].get(pop):
            # The next instruction already takes one from there.
            self.append(token_only(taker, self.rng))
        takers = self._takers.setdefault((giver, taker), [])
        room = self.config.token_queue
        if len(takers) >= room and takers[-room] >= self._clocks[giver][taker]:
            self.token(taker, giver)
        # What gives it must come after all that the giver knows of by now; a token says so only once.
        places = self._places[giver]
        last = self.instructions[places[-1]] if places else None
        if last is None or self._pops[giver] or getattr(last, push) or self.rng.integers(4) == 0:
            self.append(token_only(giver, self.rng))
        place = self._places[giver][-1]
        self.instructions[place] = replace(self.instructions[place], **{push: True})
        takers.append(len(self._places[taker]))
        self._pops[taker][pop] = True
        self._clocks[taker] = [max(pair) for pair in zip(self._clocks[taker], self._clocks[giver], strict=True)]

    def finish(self) -> None:
        """FINISH, after everything else."""
        if self._pops[Unit.LOAD]:
            self.append(token_only(Unit.LOAD, self.rng))
        self.order(Unit.LOAD, Unit.STORE, len(self._places[Unit.LOAD]))
        if self._pops[Unit.COMPUTE]:
            self.append(token_only(Unit.COMPUTE, self.rng))
        self.order(Unit.COMPUTE, Unit.STORE, len(self._places[Unit.COMPUTE]))
        self.append(Finish())


class _Areas:
    """The parts of DRAM: what LOADs read, parameters, micro-ops, what STOREs write."""

    def __init__(self, config: AccelConfig, rng: np.random.Generator) -> None:
        deepest = max(config.dma_bytes[memory] * count for memory, count in config.depth.items())
        # One more than the bus's width, so that not all rows begin alike.
        self.data = rng.integers(0, 256, _whole(deepest + 37 * config.bus_bytes, config), np.uint8)
        self.parameters = _parameters(config, rng)
        self.micro_ops = _micro_ops(config, rng)
        sizes = [self.data.nbytes, self.parameters.nbytes, self.micro_ops.nbytes]
        self.starts = [0, *(int(end) for end in np.cumsum(sizes))]
        stored = sum(config.depth[memory] * config.dma_bytes[memory] for memory in (Memory.ACC, Memory.OUT))
        self.results = self.starts[3]
        self.results_bytes = _whole(stored + 29 * config.bus_bytes, config)
        self.end = self.results + self.results_bytes

    def segments(self) -> dict[int, bytes]:
        """What DRAM holds before the run."""
        parts = (self.data, self.parameters, self.micro_ops)
        return {start: part.tobytes() for start, part in zip(self.starts, parts, strict=False)}


def _whole(size: int, config: AccelConfig) -> int:
    return -(-size // config.bus_bytes) * config.bus_bytes


def _parameters(config: AccelConfig, rng: np.random.Generator) -> Any:
    """Parameter tensors: all words random, shifts legal, some at their ends."""
    words = rng.integers(-(1 << 31), 1 << 31, (3 * config.par_entries, 4, config.block_out), np.int64)
    shifts = rng.choice([0, 1, MOST_SHIFT, 15, 20, 25, 30, 31, 32], size=words[:, 3].shape)
    words[:, 3] = (words[:, 3] & ~63) | np.where(rng.random(shifts.shape) < 0.5, shifts, words[:, 3] % (MOST_SHIFT + 1))
    small = rng.random(words[:, 0].shape) < 0.5
    words[:, 0] = np.where(small, words[:, 0] >> 16, words[:, 0])
    return words.astype(np.uint32)


def _micro_ops(config: AccelConfig, rng: np.random.Generator) -> Any:
    """Micro-ops: some stay low, so that loops around them have room."""
    inputs = min(config.depth[Memory.INP], config.depth[Memory.ACC])
    count = 2 * config.depth[Memory.UOP] + 3 * config.dma_elements[Memory.UOP]
    share = rng.choice([1, 2, 8], size=(count // 4 + 1)).repeat(4)
    ops = [
        MicroOp(
            acc=int(rng.integers(max(1, config.depth[Memory.ACC] // part))),
            inp=int(rng.integers(max(1, inputs // part))),
            wgt=int(rng.integers(max(1, config.depth[Memory.WGT] // part))),
        )
        for part in share[:count]
    ]
    return encode_micro_ops(ops, config)


class _Generator:
    """Draws instructions for a stream."""

    def __init__(self, rng: np.random.Generator, config: AccelConfig) -> None:
        self.rng = rng
        self.config = config
        self.areas = _Areas(config, rng)
        self.stream = Stream(config, self.areas.end, rng)
        self.uop = np.zeros(config.depth[Memory.UOP], np.uint32)

    def below(self, end: int) -> int:
        """A number from 0 on, 0 and the last more often than others."""
        if end <= 1 or self.rng.integers(8) == 0:
            return 0
        return end - 1 if self.rng.integers(8) == 0 else int(self.rng.integers(end))

    def transfer(self, instruction: Load | Store) -> None:
        """Add a LOAD or STORE."""
        config = self.config
        first, rows, size, stride = dram_rows(instruction, config)
        words = (first + stride * np.arange(rows)[:, None] + np.arange(0, size, config.bus_bytes)).reshape(-1)
        elements = np.arange(instruction.sram, instruction.sram + sram_count(instruction, config))
        is_load = isinstance(instruction, Load)
        dram: Any = words // config.bus_bytes
        self.stream.add(instruction, [(None, dram, not is_load), (instruction.memory, elements, is_load)])
        if instruction.memory is Memory.UOP:
            start = self.areas.starts[2]
            content = self.areas.micro_ops.view(np.uint8)
            bytes_ = np.concatenate(
                [content[:0], *(content[word - start : word - start + config.bus_bytes] for word in words)]
            )
            self.uop[elements] = bytes_.view(np.uint32)

    def area(self, memory: Memory) -> tuple[int, int]:
        """Where a memory is loaded from: begin and end."""
        starts = self.areas.starts
        if memory is Memory.PAR:
            return starts[1], starts[2]
        if memory is Memory.UOP:
            return starts[2], starts[3]
        # What was stored before is loaded again.
        return (self.areas.results, self.areas.end) if self.rng.integers(4) == 0 else (0, starts[1])

    def load(self, memory: Memory | None = None) -> None:
        """Add a random LOAD."""
        rng, config = self.rng, self.config
        chosen = Memory(int(rng.integers(6))) if memory is None else memory
        each = config.dma_elements[chosen]
        pads = dict.fromkeys(("y_before", "y_after", "x_before", "x_after"), 0)
        if chosen not in (Memory.UOP, Memory.PAR) and rng.integers(2):
            pads = {name: self.below(4) for name in pads}
        room = config.depth[chosen] // each
        y_size, x_size = self.below(6), self.below(9)
        while (pads["y_before"] + y_size + pads["y_after"]) * (pads["x_before"] + x_size + pads["x_after"]) > room:
            y_size, x_size = y_size // 2, x_size // 2
            pads = {name: value // 2 for name, value in pads.items()}
        elements = (pads["y_before"] + y_size + pads["y_after"]) * (pads["x_before"] + x_size + pads["x_after"])
        begin, end = self.area(chosen)
        if end - begin < x_size * config.dma_bytes[chosen]:
            # What was stored is less than a row of these elements.
            begin, end = 0, self.areas.starts[1]
        first, y_stride = self.rectangle(y_size, x_size, config.dma_bytes[chosen], begin, end)
        self.transfer(
            Load(
                memory=chosen,
                sram=each * self.below(room - max(elements, 1) + 1),
                dram=first // config.bus_bytes,
                y_size=y_size,
                x_size=x_size,
                y_stride=y_stride,
                pad=int(rng.choice([0, 0, -128, 127, int(rng.integers(-128, 128))])),
                **pads,
            )
        )

    def rectangle(self, rows: int, columns: int, size: int, begin: int, end: int) -> tuple[int, int]:
        """A place and a stride for rows of elements within bytes of DRAM."""
        most = max(0, (end - begin) // size - columns)
        stride = self.below(most // (rows - 1) + 1) if rows > 1 else self.below(5)
        if self.rng.integers(3):
            stride = min(max(stride % 7, columns), stride)
        extent = ((rows - 1) * stride + columns) * size if rows and columns else 0
        # A parameter tensor begins where one was put, so that its shifts are shifts; the others at any word of the bus.
        unit = size if begin == self.areas.starts[1] else self.config.bus_bytes
        return begin + unit * self.below((end - begin - extent) // unit + 1), stride

    def store(self) -> None:
        """Add a random STORE."""
        memory = Memory.OUT if self.rng.integers(2) else Memory.ACC
        y_size, x_size = self.below(6), self.below(9)
        while y_size * x_size > self.config.depth[memory]:
            y_size, x_size = y_size // 2, x_size // 2
        size = self.config.dma_bytes[memory]
        first, y_stride = self.rectangle(y_size, x_size, size, self.areas.results, self.areas.end)
        self.transfer(
            Store(
                memory=memory,
                sram=self.below(self.config.depth[memory] - max(y_size * x_size, 1) + 1),
                dram=first // self.config.bus_bytes,
                y_size=y_size,
                x_size=x_size,
                y_stride=y_stride,
            )
        )

    def loops(self) -> tuple[int, int, int, int]:
        """A range of micro-ops and the steps of two loops around it."""
        depth = self.config.depth[Memory.UOP]
        count = self.below(min(7, depth + 1))
        outer, inner = self.below(7), self.below(9)
        while outer * inner * count > _MOST_STEPS:
            inner //= 2
        if self.rng.integers(4):
            outer, inner, count = max(outer, 1), max(inner, 1), max(count, 1)
        begin = self.below(depth - max(count, 1) + 1)
        return begin, begin + count, outer, inner

    def factors(self, greatest: int, depth: int, outer: int, inner: int) -> tuple[int, int]:
        """What steps of loops may add to an index at most `greatest` of a memory."""
        room = max(depth - 1 - greatest, 0)
        first = self.below(min(room // max(outer - 1, 1), depth - 1) + 1)
        room -= first * max(outer - 1, 0)
        second = self.below(min(room // max(inner - 1, 1), depth - 1) + 1)
        return first, second

    def gemm(self) -> None:
        """Add a random GEMM."""
        config = self.config
        begin, end, outer, inner = self.loops()
        fields = decode_micro_ops(self.uop[begin:end], config)
        names = {Memory.ACC: "acc", Memory.INP: "inp", Memory.WGT: "wgt"}
        factors = {
            memory: self.factors(int(fields[name].max(initial=0)), config.depth[memory], outer, inner)
            for memory, name in names.items()
        }
        reset = self.rng.integers(8) == 0
        instruction = Gemm(
            reset=bool(reset),
            overwrite=Overwrite(int(self.rng.integers(5))),
            uop_begin=begin,
            uop_end=end,
            outer=outer,
            inner=inner,
            acc_outer=factors[Memory.ACC][0],
            acc_inner=factors[Memory.ACC][1],
            inp_outer=factors[Memory.INP][0],
            inp_inner=factors[Memory.INP][1],
            wgt_outer=factors[Memory.WGT][0],
            wgt_inner=factors[Memory.WGT][1],
        )
        accesses: Accesses = [(Memory.UOP, np.arange(begin, end), False)]
        for memory, name in names.items():
            if memory is Memory.ACC or not reset:
                index = _indices(fields[name], outer, inner, *factors[memory])
                accesses.append((memory, index, memory is Memory.ACC))
        self.stream.add(instruction, accesses)

    def alu(self) -> None:
        """Add a random ALU."""
        config, rng = self.config, self.rng
        begin, end, outer, inner = self.loops()
        fields = decode_micro_ops(self.uop[begin:end], config)
        depth = config.depth[Memory.ACC]
        dst = self.factors(int(fields["acc"].max(initial=0)), depth, outer, inner)
        src = self.factors(int(fields["inp"].max(initial=0)), depth, outer, inner)
        use_imm = bool(rng.integers(2))
        instruction = Alu(
            op=AluOp(int(rng.integers(len(AluOp)))),
            use_imm=use_imm,
            imm=int(rng.choice([0, 1, -1, 31, 32, -(1 << 15), (1 << 15) - 1, int(rng.integers(-(1 << 15), 1 << 15))])),
            uop_begin=begin,
            uop_end=end,
            outer=outer,
            inner=inner,
            dst_outer=dst[0],
            dst_inner=dst[1],
            src_outer=src[0],
            src_inner=src[1],
        )
        accesses: Accesses = [
            (Memory.UOP, np.arange(begin, end), False),
            (Memory.ACC, _indices(fields["acc"], outer, inner, *dst), True),
        ]
        if not use_imm:
            accesses.append((Memory.ACC, _indices(fields["inp"], outer, inner, *src), False))
        self.stream.add(instruction, accesses)

    def epi(self) -> None:
        """Add a random EPI."""
        config, rng = self.config, self.rng
        outer, inner = self.below(min(4, config.par_entries) + 1), self.below(9)
        acc, out = self.below(config.depth[Memory.ACC]), self.below(config.depth[Memory.OUT])
        acc_steps = self.factors(acc, config.depth[Memory.ACC], outer, inner)
        out_steps = self.factors(out, config.depth[Memory.OUT], outer, inner)
        least, most = -(1 << (config.out_bits - 1)), (1 << (config.out_bits - 1)) - 1
        low, high = sorted(int(rng.integers(least, most + 1)) for _ in range(2))
        if rng.integers(2):
            low, high = least, most
        instruction = Epi(
            scale=bool(rng.integers(4)),
            residual=bool(rng.integers(2)),
            offset=int(rng.choice([0, least, most, int(rng.integers(least, most + 1))])),
            low=low,
            high=high,
            outer=outer,
            inner=inner,
            acc=acc,
            out=out,
            par=self.below(config.par_entries - max(outer, 1) + 1),
            acc_outer=acc_steps[0],
            acc_inner=acc_steps[1],
            out_outer=out_steps[0],
            out_inner=out_steps[1],
        )
        results = _indices(np.array([out]), outer, inner, *out_steps)
        accesses: Accesses = [
            (Memory.ACC, _indices(np.array([acc]), outer, inner, *acc_steps), False),
            (Memory.OUT, results, True),
        ]
        if instruction.residual:
            accesses.append((Memory.OUT, results, False))
        if instruction.scale and inner:
            accesses.append((Memory.PAR, np.arange(instruction.par, instruction.par + outer), False))
        self.stream.add(instruction, accesses)

    def fill(self) -> None:
        """Load every memory whole, in pieces and in any order, so that nothing undefined is read."""
        pieces = []
        for memory, depth in self.config.depth.items():
            each = self.config.dma_elements[memory]
            whole = depth // each
            cuts = sorted({0, whole, *(int(self.rng.integers(whole + 1)) for _ in range(2))})
            pieces += [(memory, begin * each, end - begin) for begin, end in pairwise(cuts)]
        for place in self.rng.permutation(len(pieces)):
            memory, sram, count = pieces[place]
            begin, end = self.area(memory)
            if memory not in (Memory.UOP, Memory.PAR):
                begin, end = 0, self.areas.starts[1]
            first, _ = self.rectangle(1, count, self.config.dma_bytes[memory], begin, end)
            dram = first // self.config.bus_bytes
            self.transfer(Load(memory=memory, sram=sram, dram=dram, y_size=1, x_size=count, y_stride=count))

    def drain(self) -> None:
        """Store all of ACC and OUT, so that results show what they hold."""
        at = self.areas.results
        for memory in (Memory.OUT, Memory.ACC):
            count = self.config.depth[memory]
            dram = at // self.config.bus_bytes
            self.transfer(Store(memory=memory, dram=dram, y_size=1, x_size=count, y_stride=count))
            at += count * self.config.dma_bytes[memory]


def _indices(base: Any, outer: int, inner: int, outer_step: int, inner_step: int) -> Any:
    steps = np.arange(outer)[:, None, None] * outer_step + np.arange(inner)[None, :, None] * inner_step
    return np.unique(steps + np.asarray(base)[None, None, :])


def random_program(rng: np.random.Generator, config: AccelConfig, length: int = 24) -> Program:
    """A legal program with about `length` instructions that do something, of every kind.

    Its results are a part of DRAM in which all that STOREs wrote lies, with all of OUT and ACC as they were at the end.
    """
    generator = _Generator(rng, config)
    generator.fill()
    kinds: list[tuple[Callable[[], None], int]] = [
        (generator.load, 5),
        (generator.store, 3),
        (generator.gemm, 5),
        (generator.alu, 4),
        (generator.epi, 4),
        (lambda: generator.load(Memory.UOP), 1),
    ]
    chances = np.array([chance for _, chance in kinds], float)
    for choice in rng.choice(len(kinds), length, p=chances / chances.sum()):
        kinds[choice][0]()
        if rng.integers(6) == 0:
            giver = Unit(int(rng.integers(3)))
            taker = Unit.COMPUTE if giver is not Unit.COMPUTE else Unit(int(rng.choice([0, 2])))
            generator.stream.token(giver, taker)
    generator.drain()
    generator.stream.finish()
    areas = generator.areas
    return Program(
        config,
        tuple(generator.stream.instructions),
        areas.segments(),
        ((areas.results, areas.results_bytes),),
    )
