"""The memory plan that TensorFlow Lite for Microcontrollers makes, as published, for comparison: `greedy_arena`.

Its `GreedyMemoryPlanner` places values by size, the largest first (of equal ones the last that is written), each at the
lowest place where it meets no value that lives at the same time; sizes are whole multiples of 16 bytes. Values live
from the layer that writes them to the last one that reads them, inputs from the first layer on, outputs to the last.
What kernels ask for beside that (windows of CMSIS-NN), and what the interpreter keeps of tensors and nodes, is not
counted. This is an implementation of our own;

    python -m bench.micro_planner --against CHECKOUT

compiles the planner in a checkout of https://github.com/tensorflow/tflite-micro with a C++ compiler, and compares both
on random lives of values and on the layers of the four models of `bench.micro`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

ALIGNMENT = 16

_DRIVER = """
#include <cstdarg>
#include <cstdio>
#include <vector>

#include "tensorflow/lite/micro/memory_planner/greedy_memory_planner.h"

void MicroPrintf(const char*, ...) {}

int main() {
  int count;
  while (std::scanf("%d", &count) == 1) {
    std::vector<unsigned char> scratch(count * tflite::GreedyMemoryPlanner::per_buffer_size());
    tflite::GreedyMemoryPlanner planner;
    planner.Init(scratch.data(), static_cast<int>(scratch.size()));
    for (int i = 0; i < count; i++) {
      int size, first, last;
      if (std::scanf("%d %d %d", &size, &first, &last) != 3) return 1;
      planner.AddBuffer(size, first, last);
    }
    std::printf("%zu\\n", planner.GetMaximumMemorySize());
  }
}
"""


@dataclass(frozen=True)
class Layer:
    """What a layer reads and writes, by name."""

    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Life:
    """The bytes of a value, and the first and the last layer that knows it."""

    size: int
    first: int
    last: int

    def meets(self, other: Life) -> bool:
        """Whether both are needed at some layer."""
        return self.first <= other.last and other.first <= self.last


def greedy_arena(lives: Sequence[Life]) -> int:
    """The bytes of the arena for values in the order in which they are written."""
    placed: list[tuple[int, Life]] = []
    order = list(reversed(lives))
    order.sort(key=lambda item: -item.size)
    for value in order:
        offset = 0
        for start, other in sorted(placed, key=lambda item: item[0]):
            if not value.meets(other):
                continue
            if start - offset >= value.size:
                break
            offset = max(offset, start + other.size)
        placed.append((offset, value))
    return max(offset + value.size for offset, value in placed)


def lives(layers: Sequence[Layer], sizes: Mapping[str, int], output: str) -> list[Life]:
    """The lives of the values of layers that run in order."""
    found = [_life(name, layers, size, output) for name, size in sizes.items()]
    return sorted(found, key=lambda item: item.first)


def _life(name: str, layers: Sequence[Layer], size: int, output: str) -> Life:
    written = [number for number, layer in enumerate(layers) if layer.output == name]
    read = [number for number, layer in enumerate(layers) if name in layer.inputs]
    first = written[0] if written else 0
    last = len(layers) - 1 if name == output else max(read, default=first)
    return Life(-(-size // ALIGNMENT) * ALIGNMENT, first, last)


def published_arenas(checkout: Path, cases: Sequence[Sequence[Life]]) -> list[int]:
    """What the planner in a checkout of TFLite-Micro gives, compiled here."""
    planner = checkout / "tensorflow/lite/micro/memory_planner/greedy_memory_planner.cc"
    if not planner.is_file():
        sys.exit(f"error: {checkout} is no checkout of TFLite-Micro: it has no {planner.relative_to(checkout)}")
    text = "\n".join(
        f"{len(case)} " + " ".join(f"{life.size} {life.first} {life.last}" for life in case) for case in cases
    )
    with TemporaryDirectory() as folder:
        driver = Path(folder, "driver.cc")
        driver.write_text(_DRIVER)
        sources = [str(driver), str(planner)]
        program = str(Path(folder, "planner"))
        subprocess.run(["c++", "-std=c++17", "-O1", f"-I{checkout}", *sources, "-o", program], check=True)
        answer = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    return [int(line) for line in answer.stdout.split()]


def _random_lives(random: np.random.Generator) -> list[Life]:
    count = int(random.integers(1, 40))
    firsts = np.sort(random.integers(0, 20, count))
    lengths = random.geometric(0.4, count)
    sizes = ALIGNMENT * random.integers(1, int(random.integers(2, 400)), count)
    return [Life(int(s), int(f), int(f + n)) for s, f, n in zip(sizes, firsts, lengths, strict=True)]


def main() -> None:
    """Compare both planners; fail if an arena differs."""
    from bench.micro_models import MODELS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, metavar="CHECKOUT", help="a checkout of TFLite-Micro")
    parser.add_argument("--count", type=int, default=10_000, help="random lists of values (default: 10000)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    models = {name: build().lives for name, build in MODELS.items()}
    cases = [*models.values(), *(_random_lives(random) for _ in range(options.count))]
    ours = [greedy_arena(case) for case in cases]
    theirs = published_arenas(options.against, cases)
    for name, mine, published in zip(models, ours, theirs, strict=False):
        print(f"{name:20} {mine:8} bytes, TFLite-Micro's planner {published:8}")
    differing = sum(mine != published for mine, published in zip(ours, theirs, strict=True))
    print(f"{len(cases)} plans, {differing} differ")
    sys.exit(differing != 0)


if __name__ == "__main__":
    main()
