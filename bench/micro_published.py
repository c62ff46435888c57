"""Layers against published figures: the network of CMSIS-NN's paper, on an emulated Cortex-M7.

    python -m bench.micro --published

The paper (Lai, Suda and Chandra, arXiv 1801.06601) times each layer of a network for CIFAR-10 on a Cortex-M7 of
216 MHz. Here the same network runs in QEMU, which counts instructions; a Cortex-M7 starts up to two of them in a
cycle, so theirs are cycles for each multiplication and ours instructions: columns to be read beside each other, not
divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.micro_models import MicroModel, QuantizedGraph
from tilewright.support.text import table

MEGAHERTZ: Final = 216
NETWORK: Final = "cmsis_nn_cifar10"


@dataclass(frozen=True, slots=True)
class Published:
    """A layer of the paper's table: its name, multiplications (none where it only compares), and milliseconds."""

    name: str
    products: int
    milliseconds: float

    @property
    def cycles(self) -> float:
        """Of all the layer."""
        return self.milliseconds * MEGAHERTZ * 1e3


LAYERS: Final = (
    Published("convolution 5 x 5, 3 to 32", 32 * 32 * 32 * 75, 31.4),
    Published("maximum 3 x 3", 0, 1.6),
    Published("convolution 5 x 5, 32 to 32", 16 * 16 * 32 * 800, 42.8),
    Published("maximum 3 x 3", 0, 0.4),
    Published("convolution 5 x 5, 32 to 64", 8 * 8 * 64 * 800, 22.6),
    Published("maximum 3 x 3", 0, 0.3),
    Published("dense, 1024 to 10", 10 * 1024, 0.1),
)


def cifar10() -> MicroModel:
    """The paper's network: three convolutions, each with a maximum after it, and a dense layer."""
    graph = QuantizedGraph(NETWORK, (1, 3, 32, 32))
    value = "input"
    for channels in (32, 32, 64):
        value = graph.max_pool(graph.conv(value, channels, (5, 5)))
    return graph.finish(graph.dense(graph.flatten(value), 10))


def by_layer(steps: Sequence[tuple[int, int]]) -> list[tuple[Published, int]]:
    """The instructions of each layer of the paper; a step is its multiplications and instructions, in order.

    A step that multiplies begins a layer; those that follow it without multiplying are its maximum, where there are
    any, and what else comes before the next (turning values round).
    """
    counts = [0] * len(LAYERS)
    place = -1
    for products, instructions in steps:
        if products:
            place = next((n for n in range(place + 1, len(LAYERS)) if LAYERS[n].products), place)
            counts[place] += instructions
        else:
            follows = place + 1 if place + 1 < len(LAYERS) and not LAYERS[place + 1].products else max(place, 0)
            counts[follows] += instructions
    return list(zip(LAYERS, counts, strict=True))


def render(steps: Sequence[tuple[int, int]]) -> str:
    """The table, with a line for all."""
    rows = []
    layers = by_layer(steps)
    total = Published("all", sum(item.products for item in LAYERS), sum(item.milliseconds for item in LAYERS))
    for layer, count in (*layers, (total, sum(count for _, count in layers))):
        each = [f"{layer.cycles / layer.products:.2f}", f"{count / layer.products:.2f}"] if layer.products else ["", ""]
        speed = f"{layer.products / layer.cycles:.2f}" if layer.products else ""
        name = layer.name
        rows.append(
            [
                name,
                f"{layer.products / 1e6:.2f}",
                f"{layer.cycles / 1e6:.2f}",
                speed,
                each[0],
                f"{count / 1e6:.2f}",
                each[1],
            ]
        )
    heads = ["layer", "M products", "M cycles", "products a cycle", "cycles a product"]
    return table([*heads, "our M instructions", "instructions a product"], rows)
