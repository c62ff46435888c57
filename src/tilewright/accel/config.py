"""The configuration of an accelerator: sizes of its array, its memories and its bus. All else derives from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from tilewright.support.errors import UserError

MICRO_OP_BITS = 32
MULTIPLIER_BITS = 16
"""Bits of EPI's multipliers, signed; they are the low bits of words of a parameter tensor."""
SHIFT_BITS = 6
"""Bits of EPI's shift, the low ones of its word."""
MOST_SHIFT = 47
RESIDUAL_SHIFT_AT, RESIDUAL_SHIFT_BITS = 8, 5
"""Where the word of the shift holds the residual's, and its bits."""
PARAMETER_WORDS = 4
"""Words of 32 bits for each output channel in a parameter tensor: bias, multiplier, residual's multiplier, shifts."""
_MOST_BYTES = 1 << 24


class Memory(IntEnum):
    """The on-chip memories, with the number that instructions name them by."""

    UOP = 0
    """Micro-ops."""
    INP = 1
    """Input tensors: batch x block_in."""
    WGT = 2
    """Weight tensors: block_out x block_in."""
    ACC = 3
    """Accumulator tensors: batch x block_out, in two banks (the lower and the upper half)."""
    OUT = 4
    """Result tensors: batch x block_out; also where residual tensors are loaded to."""
    PAR = 5
    """Parameter tensors of EPI: 4 x block_out words (biases, multipliers, residuals' multipliers, shifts)."""


def _count(default: int, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True)
class AccelConfig:
    """One accelerator. Sizes of memories are in bytes; a size that makes no sense is refused, not rounded."""

    batch: int = _count(1, "rows of an input, accumulator or result tensor")
    block_in: int = _count(16, "columns of an input tensor: input channels that one multiplication reduces")
    block_out: int = _count(16, "columns of an accumulator tensor: output channels of one multiplication")
    inp_bits: int = _count(8, "width of an input, signed")
    wgt_bits: int = _count(8, "width of a weight, signed")
    acc_bits: int = _count(32, "width of an accumulator, signed; sums wrap")
    out_bits: int = _count(8, "width of a result, signed")
    uop_bytes: int = _count(32 << 10, "micro-op memory")
    inp_bytes: int = _count(32 << 10, "input memory")
    wgt_bytes: int = _count(256 << 10, "weight memory")
    acc_bytes: int = _count(128 << 10, "accumulator memory")
    out_bytes: int = _count(32 << 10, "result memory")
    par_entries: int = _count(128, "parameter tensors")
    bus_bytes: int = _count(8, "bytes that the memory port carries in a cycle, read or written")
    memory_latency: int = _count(64, "cycles from a read's acceptance to its data")
    command_queue: int = _count(64, "instructions that wait before each unit")
    token_queue: int = _count(64, "tokens that one token queue holds")

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_BYTES:
                raise UserError(f"accelerator: {item.name} is {value!r}", hint="a whole number of at most 16 Mi")
        _check(self)

    @cached_property
    def element_bits(self) -> dict[Memory, int]:
        """The size of one element of each memory: what an index counts."""
        lanes = self.batch * self.block_out
        return {
            Memory.UOP: MICRO_OP_BITS,
            Memory.INP: self.batch * self.block_in * self.inp_bits,
            Memory.WGT: self.block_out * self.block_in * self.wgt_bits,
            Memory.ACC: lanes * self.acc_bits,
            Memory.OUT: lanes * self.out_bits,
            Memory.PAR: PARAMETER_WORDS * self.block_out * 32,
        }

    @cached_property
    def depth(self) -> dict[Memory, int]:
        """The number of elements of each memory, a power of two."""
        sizes = {
            Memory.UOP: self.uop_bytes,
            Memory.INP: self.inp_bytes,
            Memory.WGT: self.wgt_bytes,
            Memory.ACC: self.acc_bytes,
            Memory.OUT: self.out_bytes,
        }
        counts = {memory: size * 8 // self.element_bits[memory] for memory, size in sizes.items()}
        return {**counts, Memory.PAR: self.par_entries}

    @cached_property
    def index_bits(self) -> dict[Memory, int]:
        """The width of an index into each memory."""
        return {memory: max(1, (count - 1).bit_length()) for memory, count in self.depth.items()}

    @cached_property
    def dma_bytes(self) -> dict[Memory, int]:
        """What a LOAD or STORE counts: an element, or for micro-ops as many as the bus carries in a cycle."""
        return {memory: max(bits // 8, self.bus_bytes) for memory, bits in self.element_bits.items()}

    @cached_property
    def dma_elements(self) -> dict[Memory, int]:
        """Elements of a memory in one step of a LOAD or STORE: one, of micro-ops a bus word's."""
        return {memory: self.dma_bytes[memory] * 8 // bits for memory, bits in self.element_bits.items()}

    @property
    def multipliers(self) -> int:
        """Products of inputs and weights in a cycle."""
        return self.batch * self.block_in * self.block_out

    @property
    def on_chip_bytes(self) -> int:
        """All on-chip memory together."""
        return sum(self.depth[memory] * bits // 8 for memory, bits in self.element_bits.items())

    def to_json(self) -> str:
        """The configuration as text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> AccelConfig:
        """The configuration that a text gives; what it leaves out has its default."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise UserError(f"accelerator: the configuration is no JSON: {error}") from None
        if not isinstance(values, Mapping):
            raise UserError("accelerator: the configuration is no JSON object")
        known = {item.name for item in fields(cls)}
        for name in values:
            if name not in known:
                raise UserError(
                    f"accelerator: there is no '{name}' in a configuration",
                    hint=f"there are {', '.join(sorted(known))}",
                )
        return cls(**values)

    def to_text(self) -> str:
        """The configuration in a target's text: what is not the default, as `block_in:32,block_out:32`."""
        usual = AccelConfig()
        values = [(item.name, getattr(self, item.name)) for item in fields(self)]
        return ",".join(f"{name}:{value}" for name, value in values if value != getattr(usual, name)) or "default"

    @classmethod
    def from_text(cls, text: str) -> AccelConfig:
        """The configuration that `to_text` gave."""
        if text == "default":
            return cls()
        pairs = [part.partition(":") for part in text.split(",")]
        for name, _, value in pairs:
            if not value.isascii() or not value.isdigit():
                raise UserError(
                    f"accelerator: '{name}:{value}' in a configuration is no name with a whole number",
                    hint="write block_in:32,block_out:32, or the path of a JSON file",
                )
        return cls.from_json(json.dumps({name: int(value) for name, _, value in pairs}))

    @classmethod
    def read(cls, path: str | Path) -> AccelConfig:
        """The configuration in a file."""
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"accelerator: cannot read the configuration {path}: {error}") from None
        return cls.from_json(text)


def _is_power(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _check(config: AccelConfig) -> None:
    """Refuse what no hardware is generated for."""

    def need(holds: bool, what: str) -> None:
        if not holds:
            raise UserError(f"accelerator: {what}")

    for name in ("batch", "block_in", "block_out", "bus_bytes"):
        need(_is_power(getattr(config, name)), f"{name} is {getattr(config, name)}, which is no power of two")
    for name in ("inp_bits", "wgt_bits", "out_bits"):
        need(getattr(config, name) in (2, 4, 8), f"{name} is {getattr(config, name)}, not 2, 4 or 8")
    need(config.acc_bits in (16, 32), f"acc_bits is {config.acc_bits}, not 16 or 32")
    need(4 <= config.bus_bytes <= 64, f"bus_bytes is {config.bus_bytes}, not from 4 to 64")
    need(1 <= config.memory_latency <= 1024, f"memory_latency is {config.memory_latency}, not from 1 to 1024")
    need(2 <= config.command_queue <= 4096, f"command_queue is {config.command_queue}, not from 2 to 4096")
    need(1 <= config.token_queue <= 4096, f"token_queue is {config.token_queue}, not from 1 to 4096")
    for memory, bits in config.element_bits.items():
        if memory is not Memory.UOP:
            need(
                bits % (8 * config.bus_bytes) == 0,
                f"an element of {memory.name} has {bits} bits, no multiple of the bus's {8 * config.bus_bytes}",
            )
        count = config.depth[memory]
        need(
            _is_power(count) and count >= 2, f"{memory.name} holds {count} elements, which is no power of two from 2 on"
        )
