"""Shipped records for a GPU from what `bench.gpu_kernels` measured there.

    python -m bench.gpu_records RESULTS.json... [--target "cuda -arch=sm_90a"]

The tiles of layers (`--out` of `bench.gpu_kernels`) become answers for the kernels of the bench's models whose products
have the same shape, wherever a measured tile was clearly quicker than the one chosen by default in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from bench import harness, zoo
from bench.gpu_kernels import LAYERS, function_of
from tilewright.compiler import Compilation
from tilewright.lower.kernel import schedule_kernel
from tilewright.lower.shipped import add_shipped
from tilewright.support.text import table
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.topi.schedule.choices import Answer
from tilewright.topi.schedule.gpu import contraction
from tilewright.topi.schedule.gpu.tile_choice import Shape

_GAIN = 1.03
"""How much quicker than the default a tile must have been to be written down."""

Tile = tuple[int, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_records", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="what bench.gpu_kernels wrote")
    parser.add_argument("--target", default="cuda -arch=sm_90a", help="the GPU they were measured on")
    options = parser.parse_args(arguments)
    target = Target(options.target)
    best = best_tiles(options.results, target)
    answers: dict[str, dict[str, Answer]] = {}
    rows = []
    for name in zoo.names():
        harness.say(f"{name}: kernels")
        for kernel in Compilation(zoo.build(name), target).kernels:
            shape = shape_of(kernel.func, target)
            if shape in best and kernel.symbol not in answers:
                tile, gain = best[shape]
                answers[kernel.symbol] = {"tile": tile}
                rows.append([name, kernel.symbol, str(tile), f"{gain:.2f}x"])
    print(table(["model", "kernel", "tile", "against the default"], rows))
    harness.say(f"{len(answers)} kernels: {add_shipped(target, answers)}")
    return 0


def best_tiles(results: Sequence[Path], target: Target) -> dict[Shape, tuple[Tile, float]]:
    """For each shape of a product the quickest tile and its gain, where it is clearly the better one."""
    layers = {layer.name: layer for layer in LAYERS}
    times: dict[str, dict[Tile, float]] = {}
    defaults: dict[str, float] = {}
    for path in results:
        for entry in json.loads(path.read_text()):
            found = times.setdefault(entry["name"], {})
            defaults[entry["name"]] = entry["default_us"]
            for item in entry["configs"]:
                tile = tuple(item["tile"])
                # Clusters gain little beside other kernels, which want the same multiprocessors.
                if "us" in item and tile[7:] in ((), (1,)):
                    # How many stages there are follows from the rest.
                    tile = tile[:6]
                    found[tile] = min(item["us"], found.get(tile, item["us"]))
    best = {}
    for name, found in times.items():
        shape = shape_of(function_of(layers[name]), target)
        if shape is None or not found:
            continue
        ranked = contraction.ranked_tiles(shape, target)
        known = {item.answer[:6]: item.answer for item in ranked if item.cluster == 1}
        quickest = {known[tile]: time for tile, time in found.items() if tile in known}
        tile = min(quickest, key=quickest.__getitem__)
        gain = defaults[name] / quickest[tile]
        if gain >= _GAIN:
            best[shape] = (tile, gain)
    return best


def shape_of(func: PrimFunc, target: Target) -> Shape | None:
    """The shape of a program's product as the template of products sees it; None where it is not asked for a tile."""
    seen: list[Shape] = []

    def remember(shape: Shape, on: Target) -> tuple[contraction.Tile, ...]:
        seen.append(shape)
        return original(shape, on)

    original = contraction.ranked_tiles
    with mock.patch.object(contraction, "ranked_tiles", remember):
        schedule_kernel(func, target)
    return seen[0] if len(seen) == 1 else None


if __name__ == "__main__":
    sys.exit(main())
