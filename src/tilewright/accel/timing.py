"""How many cycles a program takes: a model of the hardware's units, from event to event instead of cycle by cycle.

The rules are those of `docs/accelerator.md` ("Timing"): what a unit does takes as many cycles as it has steps or words,
and the memory port goes to the store unit first, then to compute, then in turn to load and fetch. Between two events
all rates are constant, so the cycles between them cost nothing. No data is computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from tilewright.accel.accesses import MicroOps, looped
from tilewright.accel.checker import LINKS, Link, pops, pushes
from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.encoding import INSTRUCTION_BYTES, decode_micro_ops
from tilewright.accel.instructions import Alu, Epi, Finish, Gemm, Instruction, Load, Overwrite, Store, Unit
from tilewright.support.errors import UserError

_UNDER_WAY = 8
"""LOADs whose words were asked for and are not all written, in one unit."""
_PIPELINE = 4
"""Cycles from a step of GEMM, ALU or EPI to its write."""
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Timing:
    """What a program takes: cycles in all, and what each unit does in them."""

    cycles: int
    busy: dict[Unit, int]
    """Cycles in which a unit has steps or words."""
    port_words: int
    """Words that the memory port carried."""

    @property
    def utilization(self) -> float:
        """The share of cycles in which the array multiplies (or ALU works)."""
        return self.busy[Unit.COMPUTE] / self.cycles if self.cycles else 0.0


@dataclass(slots=True)
class _Work:
    """What an instruction asks of its unit."""

    item: Instruction
    unit: Unit
    pops: tuple[Link, ...]
    pushes: tuple[Link, ...]
    words: int = 0
    """Words through the port."""
    steps: int = 0
    """Cycles in the unit itself: products, tensors of EPI, or elements of padding."""
    trailing: int = 0
    """Elements of padding after the last word."""
    banks: tuple[float, float] = (0.0, 0.0)
    """The share of steps that read each bank of ACC."""


def estimate(program: Sequence[Instruction], config: AccelConfig, read_dram: Callable[[int, int], bytes]) -> Timing:
    """The time of a program that the checker passes; `read_dram` gives the DRAM that holds its micro-ops."""
    return _Machine(_works(program, config, read_dram), config).run()


def _works(program: Sequence[Instruction], config: AccelConfig, read_dram: Callable[[int, int], bytes]) -> list[_Work]:
    words = np.zeros(config.depth[Memory.UOP], np.uint32)
    micro_ops: MicroOps = decode_micro_ops(words, config)
    half = config.depth[Memory.ACC] // 2
    banks: dict[tuple[object, ...], tuple[float, float]] = {}
    result = []
    for item in program:
        work = _Work(item, item.unit, tuple(pops(item)), tuple(pushes(item)))
        result.append(work)
        match item:
            case Load() | Store():
                work.words = item.x_size * item.y_size * config.dma_bytes[item.memory] // config.bus_bytes
                if isinstance(item, Load):
                    row = item.x_before + item.x_size + item.x_after
                    work.steps = row * (item.y_before + item.y_size + item.y_after) - item.x_size * item.y_size
                    work.trailing = row * item.y_after + item.x_after
                    if item.memory is Memory.UOP and work.words:
                        size, stride = (part * config.bus_bytes for part in (item.x_size, item.y_stride))
                        firsts = (item.dram * config.bus_bytes + y * stride for y in range(item.y_size))
                        data = b"".join(read_dram(first, size) for first in firsts)
                        words[item.sram : item.sram + len(data) // 4] = np.frombuffer(data, np.uint32)
                        micro_ops = decode_micro_ops(words, config)
                        banks.clear()
            case Gemm() | Alu():
                count = max(0, item.uop_end - item.uop_begin)
                is_pair = isinstance(item, Alu) and not item.use_imm
                work.steps = item.outer * item.inner * count * (2 if is_pair else 1)
                key = (item.uop_begin, item.uop_end, item.outer, item.inner, *_acc_factors(item), _reads(item))
                if key not in banks:
                    banks[key] = _bank_shares(item, micro_ops, half)
                work.banks = banks[key]
            case Epi():
                work.steps = item.outer * item.inner
                last = item.acc + max(0, item.outer - 1) * item.acc_outer + max(0, item.inner - 1) * item.acc_inner
                work.banks = (1.0, 0.0) if last < half else (0.0, 1.0) if item.acc >= half else (0.5, 0.5)
            case _:
                pass
    return result


def _acc_factors(item: Gemm | Alu) -> tuple[int, int]:
    return (item.acc_outer, item.acc_inner) if isinstance(item, Gemm) else (item.dst_outer, item.dst_inner)


def _reads(item: Gemm | Alu) -> float:
    """The share of an instruction's steps that read the accumulator."""
    if isinstance(item, Alu):
        return 1.0
    if item.reset or item.overwrite is Overwrite.ALWAYS:
        return 0.0
    first = {
        Overwrite.NEVER: inf,
        Overwrite.OUTER: item.outer,
        Overwrite.INNER: item.inner,
        Overwrite.UOP: item.uop_end - item.uop_begin,
    }[item.overwrite]
    return 1 - 1 / first if first else 1.0


def _bank_shares(item: Gemm | Alu, micro_ops: MicroOps, half: int) -> tuple[float, float]:
    outer, inner = _acc_factors(item)
    places = looped(micro_ops["acc"][item.uop_begin : item.uop_end], item.outer, item.inner, outer, inner)
    upper = float((places >= half).mean()) if places.size else 0.0
    return (1 - upper) * _reads(item), upper * _reads(item)


@dataclass(slots=True)
class _Flow:
    """A client of the port: words that it still asks for, from some time on."""

    left: float = 0.0
    since: float = inf

    def is_active(self, now: float) -> bool:
        return self.left > _EPSILON and self.since <= now + _EPSILON


@dataclass
class _Machine:
    """The state of the units between two events."""

    works: list[_Work]
    config: AccelConfig
    now: float = 0.0
    queues: dict[Unit, deque[_Work]] = field(default_factory=lambda: {unit: deque() for unit in Unit})
    tokens: dict[Link, deque[float]] = field(default_factory=lambda: {link: deque() for link in LINKS})
    """When each token that was pushed can be popped."""
    flows: dict[str, _Flow] = field(
        default_factory=lambda: {name: _Flow() for name in ("store", "compute", "load", "fetch")}
    )
    busy: dict[Unit, int] = field(default_factory=lambda: dict.fromkeys(Unit, 0))

    def __post_init__(self) -> None:
        per_word = max(1, self.config.bus_bytes // INSTRUCTION_BYTES)
        self._fetch_words = max(1.0, INSTRUCTION_BYTES / self.config.bus_bytes) / per_word
        self._buffer = 1 << (self.config.memory_latency + 15).bit_length()
        self._fetched = 0
        """Instructions whose words were asked for."""
        self._dispatched = 0
        self._arrivals: deque[float] = deque()
        """When instructions that were asked for can be handed to their queues."""
        self._ready: dict[Unit, deque[float]] = {unit: deque() for unit in Unit}
        self._loading: _Work | None = None
        self._compute_loading: _Work | None = None
        self._storing: _Work | None = None
        self._written: deque[float] = deque([0.0] * _UNDER_WAY, maxlen=_UNDER_WAY)
        """When the last LOADs of the load unit are all written."""
        self._compute_written: deque[float] = deque([0.0] * _UNDER_WAY, maxlen=_UNDER_WAY)
        self._load_free = self._compute_free = self._steps_end = self._store_free = 0.0
        """When a unit can take its next instruction; the last step of GEMM or ALU."""
        self._gemm: _Work | None = None
        self._epi: _Work | None = None
        self._epi_left = 0.0
        self._epi_end = 0.0
        self._finished = inf

    def run(self) -> Timing:
        """From the first word to FINISH."""
        self.now = 1.0
        while self._finished == inf:
            self._start_all()
            if self._finished < inf:
                break
            rates = self._rates()
            following = self._next_event(rates)
            if following == inf:
                raise UserError(
                    "accelerator: the program waits for ever", hint="tilewright accel check names the fault"
                )
            self._advance(following - self.now, rates)
        words = sum(work.words for work in self.works) + len(self.works) * self._fetch_words
        return Timing(round(self._finished), self.busy, round(words))

    # ------------------------------------------------------------------ rates

    def _rates(self) -> dict[str, float]:
        """Words that each client gets in a cycle, and tensors that EPI does."""
        active = {name for name, flow in self.flows.items() if flow.is_active(self.now)}
        rates = dict.fromkeys(self.flows, 0.0)
        for first in ("store", "compute"):
            if first in active:
                rates[first] = 1.0
                break
        else:
            share = active & {"load", "fetch"}
            for name in share:
                rates[name] = 1.0 / len(share)
        if self._epi is not None:
            conflict = 0.0
            if self._gemm is not None and self._steps_end > self.now + _EPSILON:
                conflict = sum(a * b for a, b in zip(self._epi.banks, self._gemm.banks, strict=True))
            rates["epi"] = 1.0 - conflict
        return rates

    def _next_event(self, rates: dict[str, float]) -> float:
        times = [self.now + flow.left / rates[name] for name, flow in self.flows.items() if rates[name]]
        times += [flow.since for flow in self.flows.values() if flow.left > _EPSILON and flow.since > self.now]
        if self._epi is not None and rates["epi"] > _EPSILON:
            times.append(self.now + self._epi_left / rates["epi"])
        later = [self._load_free, self._compute_free, self._steps_end, self._store_free, *self._written]
        later += self._compute_written
        later += [stamps[0] for stamps in self.tokens.values() if stamps]
        later += [stamps[0] for stamps in self._ready.values() if stamps]
        if self._arrivals:
            later.append(self._arrivals[0])
        times += [time for time in later if self.now + _EPSILON < time < inf]
        return min(times, default=inf)

    def _advance(self, cycles: float, rates: dict[str, float]) -> None:
        for name, flow in self.flows.items():
            if rates[name]:
                flow.left -= cycles * rates[name]
        if self._epi is not None:
            self._epi_left -= cycles * rates["epi"]
        self.now += cycles

    # -------------------------------------------------------------- the units

    def _start_all(self) -> None:
        """Everything that begins or ends now."""
        while any((self._fetch(), self._dispatch(), self._load(), self._compute(), self._store())):
            pass

    def _pop(self, work: _Work) -> bool:
        """Take an instruction's tokens, if all are there."""
        if any(not self.tokens[link] or self.tokens[link][0] > self.now + _EPSILON for link in work.pops):
            return False
        for link in work.pops:
            self.tokens[link].popleft()
        return True

    def _push(self, work: _Work, time: float) -> None:
        for link in work.pushes:
            self.tokens[link].append(time)

    def _fetch(self) -> bool:
        flow = self.flows["fetch"]
        if flow.left > _EPSILON:
            return False
        moved = False
        if flow.since < inf:
            self._arrivals.append(self.now + self.config.memory_latency + 2)
            flow.since, moved = inf, True
        waiting = (self._fetched - self._dispatched) * self._fetch_words
        if self._fetched < len(self.works) and waiting + self._fetch_words <= self._buffer:
            self._fetched += 1
            flow.left, flow.since, moved = self._fetch_words, self.now, True
        return moved

    def _dispatch(self) -> bool:
        if not self._arrivals or self._arrivals[0] > self.now + _EPSILON:
            return False
        work = self.works[self._dispatched]
        if len(self.queues[work.unit]) >= self.config.command_queue:
            return False
        self._arrivals.popleft()
        self._dispatched += 1
        self.queues[work.unit].append(work)
        self._ready[work.unit].append(self.now + 2)
        return True

    def _head(self, unit: Unit) -> _Work | None:
        """The next instruction of a unit, if it has come through its queue."""
        if not self.queues[unit] or self._ready[unit][0] > self.now + _EPSILON:
            return None
        return self.queues[unit][0]

    def _take(self, unit: Unit) -> None:
        self.queues[unit].popleft()
        self._ready[unit].popleft()

    def _read(self, name: str, work: _Work, written: deque[float]) -> None:
        """The last word of a LOAD was asked for: when it is written, its tokens follow."""
        arrives = self.now + self.config.memory_latency + 2 + work.trailing
        end = max(written[-1] + max(1, work.words + work.steps), arrives)
        written.append(end)
        self._push(work, end + 1)
        self.flows[name].since = inf

    def _load(self) -> bool:
        flow, moved = self.flows["load"], False
        if self._loading is not None and flow.left <= _EPSILON:
            self._read("load", self._loading, self._written)
            self._loading, moved = None, True
        work = self._head(Unit.LOAD)
        if self._loading is None and work is not None and self._written[0] <= self.now + _EPSILON and self._pop(work):
            self._take(Unit.LOAD)
            self.busy[Unit.LOAD] += work.words + work.steps
            if work.words:
                self._loading, flow.left, flow.since = work, float(work.words), self.now + 1
            else:
                end = max(self._written[-1], self.now + 2) + max(1, work.steps)
                self._written.append(end)
                self._push(work, end + 1)
            moved = True
        return moved

    def _compute(self) -> bool:
        flow, moved = self.flows["compute"], False
        if self._compute_loading is not None and flow.left <= _EPSILON:
            self._read("compute", self._compute_loading, self._compute_written)
            self._compute_loading, moved = None, True
        work = self._head(Unit.COMPUTE)
        if work is None or self._compute_loading is not None:
            return moved
        is_load = isinstance(work.item, Load)
        drained = self._steps_end + _PIPELINE + 1
        free = (
            max(self._compute_written[0], drained)
            if is_load
            else max(self._compute_written[-1] + 1, self._compute_free)
        )
        if free > self.now + _EPSILON:
            self._compute_free = max(self._compute_free, free) if not is_load else self._compute_free
            self._load_free = free if is_load else self._load_free
            return moved
        if not self._pop(work):
            return moved
        self._take(Unit.COMPUTE)
        if is_load:
            flow.left, flow.since, self._compute_loading = float(work.words), self.now + 1, work
            if not work.words:
                self._read("compute", work, self._compute_written)
                self._compute_loading = None
            return True
        steps = max(1, work.steps)
        self.busy[Unit.COMPUTE] += work.steps
        self._gemm, self._steps_end = work, self.now + steps
        self._compute_free = self.now + steps
        self._push(work, self.now + steps + _PIPELINE + 1)
        return True

    def _store(self) -> bool:
        flow, moved = self.flows["store"], False
        if self._storing is not None and flow.left <= _EPSILON:
            self._push(self._storing, self.now)
            self._store_free, self._storing, flow.since, moved = self.now, None, inf, True
        if self._epi is not None and self._epi_left <= _EPSILON:
            self._epi_end = self.now + _PIPELINE
            self._push(self._epi, self._epi_end + 1)
            self._epi, moved = None, True
        work = self._head(Unit.STORE)
        if work is None or self._storing is not None or self._epi is not None:
            return moved
        free = self._store_free if isinstance(work.item, Epi) else max(self._store_free, self._epi_end + 1)
        if free > self.now + _EPSILON:
            self._store_free = free
            return moved
        if not self._pop(work):
            return moved
        self._take(Unit.STORE)
        if isinstance(work.item, Epi):
            self.busy[Unit.STORE] += work.steps
            self._epi, self._epi_left = work, float(max(1, work.steps)) + 1
        elif isinstance(work.item, Finish):
            self._finished = self.now + 1
        elif work.words:
            self.busy[Unit.STORE] += work.words
            elements = work.words * self.config.bus_bytes // self.config.dma_bytes[work.item.memory]  # type: ignore[attr-defined]
            # An accumulator is copied before its words are sent.
            copies = 2 * elements if work.item.memory is Memory.ACC else 0  # type: ignore[attr-defined]
            self._storing, flow.left, flow.since = work, float(work.words), self.now + 2 + copies
        else:
            self._push(work, self.now + 2)
            self._store_free = self.now + 2
        return True
