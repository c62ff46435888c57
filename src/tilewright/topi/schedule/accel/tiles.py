"""Which tiles a product in blocks is cut in: an analytic model of the processor's memories, bus and units.

The best tiling has the fewest cycles: products or words of the bus, whichever are more, and what nothing overlaps with:
the loads before the first product, and the results after the last one. Two virtual threads have half of each memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

from tilewright.accel.config import PARAMETER_WORDS, AccelConfig, Memory

AXES: Final = ("n", "co", "y", "x")
_INSTRUCTION_CYCLES: Final = 16
"""What an instruction of products costs beside its products: its pipeline fills and drains."""
_NOT_HIDDEN: Final = 0.6
"""Of the time to load what stays, what products do not hide."""
_MOST_MICRO_OPS: Final = 1024


@dataclass(frozen=True, slots=True)
class Problem:
    """A product, in tensors: results n x co x y x x, sums over ci x kh x kw; `height` x `width` of the staged image."""

    n: int
    co: int
    y: int
    x: int
    ci: int
    kh: int
    kw: int
    down: int
    across: int
    height: int
    width: int
    groups: int = 1
    has_residual: bool = False
    weight_blocks: int = 0
    """Blocks of output channels that weights have: fewer than `co` where groups share them."""
    weight_taps: int = 1
    """Taps that weights have: 1 where all are the same."""
    gives_sums: bool = False
    """Whether accumulators are the results, as they are."""

    @property
    def weight_tensors(self) -> int:
        """Tensors of weights."""
        return self.weight_blocks * self.ci * self.weight_taps

    @property
    def result_memory(self) -> Memory:
        """The memory that results are stored from."""
        return Memory.ACC if self.gives_sums else Memory.OUT

    @property
    def products(self) -> int:
        """Cycles of the array."""
        return prod((self.n, self.co, self.y, self.x, self.ci, self.kh, self.kw))


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiles of results (co x y x x) and of the sum (ci); which axis the virtual threads divide, if there are two."""

    co: int
    y: int
    x: int
    ci: int
    thread: str = ""
    """"co", "y", "x", "n" or nothing."""
    spatial_first: bool = False
    """Whether all channels of a tile of pixels are computed before the next tile of pixels."""
    inputs_stay: bool = False
    """Whether the whole image is loaded once, before anything else; else each step of the sum loads its part."""
    weights_stay: bool = False

    @property
    def threads(self) -> int:
        """Virtual threads."""
        return 2 if self.thread else 1

    @property
    def numbers(self) -> tuple[int, ...]:
        """All of it as numbers, which a tuner's records keep: the axis of threads by its place among `AXES`, from 1."""
        axis = AXES.index(self.thread) + 1 if self.thread else 0
        flags = (self.spatial_first, self.inputs_stay, self.weights_stay)
        return (self.co, self.y, self.x, self.ci, axis, *map(int, flags))


def divisors(number: int) -> list[int]:
    """All divisors, the least first."""
    return [item for item in range(1, number + 1) if number % item == 0]


def best_tilings(problem: Problem, config: AccelConfig, *, threads: int = 2, most: int = 128) -> list[Tiling]:
    """The tilings with the fewest cycles by the model, the best first; none where not even single tensors fit."""
    fitting = [tiling for tiling in tilings(problem, threads) if fits(problem, tiling, config)]
    return sorted(fitting, key=lambda tiling: estimate(problem, tiling, config))[:most]


def tilings(problem: Problem, threads: int) -> Iterator[Tiling]:
    """All tilings that there are, whether they fit or not. Rows are cut only where a tile has one of them."""
    pixels = [(y, problem.x) for y in divisors(problem.y)]
    pixels += [(1, x) for x in divisors(problem.x) if x < problem.x]
    places = product(
        divisors(problem.co // problem.groups),
        pixels,
        divisors(problem.ci),
        (False, True),
        (False, True),
        (False, True),
    )
    for co, (y, x), ci, spatial_first, inputs_stay, weights_stay in places:
        counts = {"co": problem.co // co, "y": problem.y // y, "x": problem.x // x, "n": problem.n}
        able = [axis for axis in counts if counts[axis] % 2 == 0] if threads == 2 else []
        for thread in (*able, *([] if able else [""])):
            yield Tiling(co, y, x, ci, thread, spatial_first, inputs_stay, weights_stay)


def window(problem: Problem, tiling: Tiling) -> tuple[int, int]:
    """Rows and columns of the image that a tile of pixels reads."""
    kh, down = (1, 1) if problem.kh == 1 else (problem.kh, problem.down)
    return (tiling.y - 1) * down + kh, (tiling.x - 1) * problem.across + problem.kw


def fits(problem: Problem, tiling: Tiling, config: AccelConfig) -> bool:
    """Whether on-chip memories hold what is alive at once."""
    depth, threads = config.depth, tiling.threads
    rows, columns = window(problem, tiling)
    taps = problem.kh * problem.kw
    tile = tiling.co * tiling.y * tiling.x
    inputs = tiling.ci * rows * columns * threads
    weights = tiling.co * tiling.ci * problem.weight_taps * threads
    if tiling.inputs_stay:
        inputs = problem.n * problem.ci * problem.groups * problem.height * problem.width
    if tiling.weights_stay:
        weights = problem.weight_tensors
    return (
        tile * threads <= min(depth[Memory.ACC], depth[problem.result_memory])
        and inputs <= depth[Memory.INP]
        and weights <= depth[Memory.WGT]
        and (problem.gives_sums or min(problem.co, tiling.co * threads) <= depth[Memory.PAR])
        and tiling.co < 256
        and tiling.ci * taps * min(tiling.co, tiling.y, tiling.x) <= _MOST_MICRO_OPS
    )


def estimate(problem: Problem, tiling: Tiling, config: AccelConfig) -> float:
    """Cycles of a tiling, about."""
    words = {memory: config.dma_bytes[memory] // config.bus_bytes for memory in Memory}
    rows, columns = window(problem, tiling)
    taps, threads = problem.kh * problem.kw, tiling.threads
    pixels = problem.n * (problem.y // tiling.y) * (problem.x // tiling.x)
    tiles = pixels * (problem.co // tiling.co)
    steps = problem.ci // tiling.ci
    tile = tiling.co * tiling.y * tiling.x
    chunk_inputs = tiling.ci * rows * columns * words[Memory.INP]
    chunk_weights = tiling.co * tiling.ci * problem.weight_taps * words[Memory.WGT]
    all_inputs = problem.n * problem.ci * problem.groups * problem.height * problem.width * words[Memory.INP]
    all_weights = problem.weight_tensors * words[Memory.WGT]
    inputs = all_inputs if tiling.inputs_stay else tiles * steps * chunk_inputs
    weights = all_weights if tiling.weights_stay else tiles * steps * chunk_weights
    out = words[problem.result_memory]
    results = tiles * tile * out
    parameters = 0 if problem.gives_sums else problem.co * PARAMETER_WORDS * config.block_out * 4 // config.bus_bytes
    bus = inputs + weights + results * (2 if problem.has_residual else 1) + parameters
    instructions = tiles * steps * (2 if taps * tiling.ci > 1 else 1)
    array = problem.products + instructions * _INSTRUCTION_CYCLES
    store = tiles * tile * (1 + out)
    staying = (all_inputs if tiling.inputs_stay else 0) + (all_weights if tiling.weights_stay else 0)
    streamed = (0 if tiling.inputs_stay else chunk_inputs) + (0 if tiling.weights_stay else chunk_weights)
    # What stays is loaded piece by piece, when it is used first: the first tiles hide some of it.
    before = streamed + _NOT_HIDDEN * staying
    if taps == 1 and tiling.ci > 1:
        # The first products begin with the first piece; the rest is loaded while they and those of the others go on.
        rest = staying + (threads - 1) * streamed - threads * tile * tiling.ci
        before = streamed + staying / tiling.ci + max(rest, 0)
    # Both threads' results come at the end, less what the last products hide.
    finish = tile * (1 + out)
    after = threads * finish - min(finish, tile * tiling.ci * taps) * (threads - 1)
    # One thread alone loads, multiplies and stores in turn.
    busy: float = max(array, bus, store) if threads == 2 else array + bus
    # A thread loads its next step while the other multiplies: where that takes longer, products wait.
    step = streamed + tile * out / steps + config.memory_latency + 2 * _INSTRUCTION_CYCLES
    busy = max(busy, tiles * steps * step) if streamed else busy
    # Products of a tile wait until the other thread's products have hidden the results of the tile before.
    hidden = problem.products / tiles if threads == 2 else 0
    waiting = max(0.0, finish - hidden) * (tiles // threads - 1)
    fetched = 4 * tiles * (1 + 3 * steps)
    return busy + before + after + waiting + 2 * config.memory_latency + 0.1 * fetched
