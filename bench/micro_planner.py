"""The memory plan that TensorFlow Lite for Microcontrollers makes, as published, for comparison: `greedy_arena`.

Its `GreedyMemoryPlanner` places values by size, the largest first, each at the lowest place where it meets no value
that lives at the same time; sizes are whole multiples of 16 bytes. Values live from the layer that writes them to the
last one that reads them, inputs from the first layer on, outputs to the last. What kernels ask for beside that (windows
of CMSIS-NN), and what the interpreter keeps of tensors and nodes, is not counted. This is an implementation of our own:
the library itself is not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 16


@dataclass(frozen=True)
class Layer:
    """What a layer reads and writes, by name."""

    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class _Value:
    size: int
    first: int
    last: int

    def meets(self, other: _Value) -> bool:
        return self.first <= other.last and other.first <= self.last


def greedy_arena(layers: Sequence[Layer], sizes: Mapping[str, int], output: str) -> int:
    """The bytes of the arena for layers that run in order."""
    values = [_life(name, layers, size, output) for name, size in sizes.items()]
    placed: list[tuple[int, _Value]] = []
    for value in sorted(values, key=lambda item: (-item.size, item.first)):
        offset = 0
        for start, other in sorted(placed, key=lambda item: item[0]):
            if not value.meets(other):
                continue
            if start - offset >= value.size:
                break
            offset = max(offset, start + other.size)
        placed.append((offset, value))
    return max(offset + value.size for offset, value in placed)


def _life(name: str, layers: Sequence[Layer], size: int, output: str) -> _Value:
    written = [number for number, layer in enumerate(layers) if layer.output == name]
    read = [number for number, layer in enumerate(layers) if name in layer.inputs]
    first = written[0] if written else 0
    last = len(layers) - 1 if name == output else max(read, default=first)
    return _Value(-(-size // ALIGNMENT) * ALIGNMENT, first, last)
