"""Which elements of which memories an instruction reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tilewright.accel.config import AccelConfig, Memory
from tilewright.accel.encoding import decode_micro_ops
from tilewright.accel.instructions import Alu, Epi, Gemm, Instruction, Load, Overwrite, Store

Indices = npt.NDArray[np.int64]
MicroOps = Mapping[str, Indices]
"""The fields of the micro-ops in UOP memory, as `decode_micro_ops` gives them."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A rectangle of DRAM: rows of so many bytes, from byte `start` on, `stride` bytes from row to row."""

    start: int
    count: int
    size: int
    stride: int

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The rows as pairs of first byte and byte after the last."""
        firsts = (self.start + row * self.stride for row in range(self.count))
        return ((first, first + self.size) for first in firsts)


@dataclass(frozen=True, slots=True)
class Accesses:
    """Elements of on-chip memories, and rectangles of DRAM, that an instruction reads and writes."""

    reads: dict[Memory, Indices] = field(default_factory=dict)
    writes: dict[Memory, Indices] = field(default_factory=dict)
    dram_reads: Rows | None = None
    dram_writes: Rows | None = None


class MicroOpMemory:
    """What UOP memory holds as a program goes on; `read_dram` gives the DRAM that holds its micro-ops."""

    def __init__(self, config: AccelConfig, read_dram: Callable[[int, int], bytes]) -> None:
        self._config, self._read_dram = config, read_dram
        self._words = np.zeros(config.depth[Memory.UOP], np.uint32)
        self._fields: MicroOps | None = None

    @property
    def fields(self) -> MicroOps:
        """The micro-ops that are there now."""
        if self._fields is None:
            self._fields = decode_micro_ops(self._words, self._config)
        return self._fields

    def follow(self, item: Instruction) -> bool:
        """Take over what an instruction loads; whether it loads micro-ops. What leaves the memory is left out."""
        rows = rectangle(item, self._config) if isinstance(item, Load) and item.memory is Memory.UOP else None
        if rows is None or not isinstance(item, Load):
            return False
        data = np.frombuffer(b"".join(self._read_dram(first, end - first) for first, end in rows), np.uint32)
        room = self._words[item.sram : item.sram + len(data)]
        room[:] = data[: len(room)]
        self._fields = None
        return True


def looped(starts: Indices, outer: int, inner: int, outer_step: int, inner_step: int) -> Indices:
    """Indices in two loops around some starts, in the order of execution: an array of outer x inner x starts."""
    return (
        np.arange(outer, dtype=np.int64)[:, None, None] * outer_step
        + np.arange(inner, dtype=np.int64)[None, :, None] * inner_step
        + starts
    )


def accesses(item: Instruction, config: AccelConfig, micro_ops: MicroOps) -> Accesses:
    """What an instruction touches, when UOP memory holds these micro-ops."""
    match item:
        case Load():
            return Accesses(writes={item.memory: _loaded(item, config)}, dram_reads=rectangle(item, config))
        case Store():
            stored = item.sram + np.arange(item.y_size * item.x_size, dtype=np.int64)
            return Accesses(reads={item.memory: stored}, dram_writes=rectangle(item, config))
        case Gemm():
            return _gemm(item, micro_ops)
        case Alu():
            return _alu(item, micro_ops)
        case Epi():
            return _epi(item)
        case _:
            return Accesses()


def rectangle(item: Load | Store, config: AccelConfig) -> Rows | None:
    """The part of DRAM that a copy reads or writes."""
    if not (item.y_size and item.x_size):
        return None
    size = config.dma_bytes[item.memory]
    return Rows(item.dram * config.bus_bytes, item.y_size, item.x_size * size, item.y_stride * size)


def _loaded(item: Load, config: AccelConfig) -> Indices:
    rows = item.y_before + item.y_size + item.y_after
    columns = (item.x_before + item.x_size + item.x_after) * config.dma_elements[item.memory]
    return item.sram + np.arange(rows * columns, dtype=np.int64)


def _gemm(item: Gemm, micro_ops: MicroOps) -> Accesses:
    used = slice(item.uop_begin, item.uop_end)

    def indices(name: str, outer_step: int, inner_step: int) -> Indices:
        return looped(micro_ops[name][used], item.outer, item.inner, outer_step, inner_step).reshape(-1)

    acc = indices("acc", item.acc_outer, item.acc_inner)
    if item.reset:
        return Accesses(writes={Memory.ACC: acc})
    reads = {
        Memory.INP: indices("inp", item.inp_outer, item.inp_inner),
        Memory.WGT: indices("wgt", item.wgt_outer, item.wgt_inner),
    }
    if item.overwrite is not Overwrite.ALWAYS:
        reads[Memory.ACC] = acc
    return Accesses(reads=reads, writes={Memory.ACC: acc})


def _alu(item: Alu, micro_ops: MicroOps) -> Accesses:
    used = slice(item.uop_begin, item.uop_end)
    target = looped(micro_ops["acc"][used], item.outer, item.inner, item.dst_outer, item.dst_inner).reshape(-1)
    if item.use_imm:
        return Accesses(reads={Memory.ACC: target}, writes={Memory.ACC: target})
    source = looped(micro_ops["inp"][used], item.outer, item.inner, item.src_outer, item.src_inner).reshape(-1)
    return Accesses(reads={Memory.ACC: np.concatenate([target, source])}, writes={Memory.ACC: target})


def _epi(item: Epi) -> Accesses:
    first = np.zeros(1, np.int64)
    acc = looped(first + item.acc, item.outer, item.inner, item.acc_outer, item.acc_inner).reshape(-1)
    out = looped(first + item.out, item.outer, item.inner, item.out_outer, item.out_inner).reshape(-1)
    reads = {Memory.ACC: acc}
    if item.scale:
        reads[Memory.PAR] = item.par + np.arange(item.outer if item.inner else 0, dtype=np.int64)
    if item.residual:
        reads[Memory.OUT] = out
    return Accesses(reads=reads, writes={Memory.OUT: out})
