"""Shipped records for a GPU, from what was tuned or measured there.

    python -m bench.gpu_records TUNED.db... RESULTS.json... [--target "cuda -arch=sm_90a"]

Databases of `tilewright tune --target cuda` give what their models run best with, kernel by kernel. The tiles of layers
in true float32 (`--precisions float32 --out` of `bench.gpu_products`) become answers for the kernels of the bench's
models whose products have that shape, wherever a measured tile was clearly quicker than the one chosen by default in
the same run. What is known already of other kernels stays.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from bench import harness, zoo
from bench.gpu_layers import LAYERS, function_of
from tilewright.compiler import Compilation
from tilewright.lower.database import Database
from tilewright.lower.schedules import schedule_kernel
from tilewright.lower.shipped import add_shipped, shipped_answers
from tilewright.support.text import table
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.topi.schedule.choices import Answer
from tilewright.topi.schedule.gpu import products
from tilewright.topi.schedule.gpu.tile_choice import Shape

_GAIN = 1.03
"""How much quicker than the default a tile must have been to be written down."""

Tile = tuple[int, ...]
Answers = dict[str, dict[str, Answer]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_records", description=__doc__)
    parser.add_argument(
        "results", nargs="+", type=Path, help="what `tilewright tune` (.db) or bench.gpu_products (.json) wrote"
    )
    parser.add_argument("--target", default="cuda -arch=sm_90a", help="the GPU they were measured on")
    options = parser.parse_args(arguments)
    target = Target(options.target)
    answers = {symbol: dict(found) for symbol, found in shipped_answers(target).items()}
    results = [path for path in options.results if path.suffix == ".json"]
    rows = add_layers(results, target, answers) if results else []
    for path in options.results:
        if path.suffix != ".json":
            rows += add_tuned(path, target, answers)
    print(table(["from", "kernel", "answers", "against the default"], rows))
    harness.say(f"{len(answers)} kernels: {add_shipped(target, answers)}")
    return 0


def add_tuned(path: Path, target: Target, answers: Answers) -> list[list[str]]:
    """Put in what a database says of the kernels of a GPU; gives a row for each."""
    rows = []
    with Database(path, read_only=True) as database:
        for text in database.targets():
            measured = Target(text)
            if (measured.kind, measured.arch, measured.cores) != (target.kind, target.arch, target.cores):
                continue
            best = database.answers(text)
            for symbol in sorted({record.task for record in database.records(target=text)}):
                asked = {name for record in database.records(symbol, text) for name in record.answers}
                # Other precisions ask other questions about the same computation: their answers stay.
                kept = {name: value for name, value in answers.pop(symbol, {}).items() if name not in asked}
                found = {**kept, **best.get(symbol, {})}
                if found:
                    answers[symbol] = found
                quickest = database.best(symbol, text)
                gain = "" if quickest is None or not quickest.relative else f"{1 / quickest.relative:.2f}x alone"
                rows.append([path.stem, symbol, str(best.get(symbol) or "as the template has it"), gain])
    return rows


def add_layers(results: Sequence[Path], target: Target, answers: Answers) -> list[list[str]]:
    """Put in the best tiles of measured layers for the kernels that have their shapes; gives a row for each."""
    best = best_tiles(results, target)
    rows, done = [], set()
    for name in zoo.names():
        harness.say(f"{name}: kernels")
        for kernel in Compilation(zoo.build(name), target).kernels:
            shape = shape_of(kernel.func, target)
            if shape in best and kernel.symbol not in done:
                tile, gain = best[shape]
                done.add(kernel.symbol)
                answers[kernel.symbol] = {**answers.get(kernel.symbol, {}), "tile": tile}
                rows.append([name, kernel.symbol, str(tile), f"{gain:.2f}x"])
    return rows


def best_tiles(results: Sequence[Path], target: Target) -> dict[Shape, tuple[Tile, float]]:
    """For each shape of a product the quickest tile and its gain, where it is clearly the better one."""
    layers = {layer.name: layer for layer in LAYERS}
    times: dict[str, dict[Tile, float]] = {}
    defaults: dict[str, float] = {}
    for path in results:
        for entry in json.loads(path.read_text()):
            if entry["precision"] != "float32" or entry["default_us"] is None:
                continue
            found = times.setdefault(entry["name"], {})
            defaults[entry["name"]] = entry["default_us"]
            for item in entry["tiles"]:
                tile = tuple(item.get("answers", {}).get("tile", ()))
                # Clusters gain little beside other kernels, which want the same multiprocessors.
                if "us" in item and tile and tile[7:] in ((), (1,)):
                    # How many stages there are follows from the rest.
                    tile = tile[:6]
                    found[tile] = min(item["us"], found.get(tile, item["us"]))
    best = {}
    for name, found in times.items():
        shape = shape_of(function_of(layers[name]), target)
        if shape is None:
            continue
        ranked = products.ranked_tiles(shape, target)
        known = {item.answer[:6]: item.answer for item in ranked if item.cluster == 1}
        quickest = {known[tile]: time for tile, time in found.items() if tile in known}
        if not quickest:
            continue
        tile = min(quickest, key=quickest.__getitem__)
        gain = defaults[name] / quickest[tile]
        if gain >= _GAIN:
            best[shape] = (tile, gain)
    return best


def shape_of(func: PrimFunc, target: Target) -> Shape | None:
    """The shape of a program's product as the template of products sees it; None where it is not asked for a tile."""
    seen: list[Shape] = []

    def remember(shape: Shape, on: Target) -> tuple[products.Tile, ...]:
        seen.append(shape)
        return original(shape, on)

    original = products.ranked_tiles
    with mock.patch.object(products, "ranked_tiles", remember):
        schedule_kernel(func, target)
    return seen[0] if len(seen) == 1 else None


if __name__ == "__main__":
    sys.exit(main())
