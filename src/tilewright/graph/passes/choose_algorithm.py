"""Choice of algorithm: 3 x 3 convolutions of stride 1 go to Winograd's algorithm where an estimate says it pays.

Before:  nn.conv2d(x, w[3, 3, 64, 64], padding=(1, 1, 1, 1), data_layout="NHWC", ...)
After:   nn.conv2d_winograd(x, u[6, 6, 64, 64], tile=4, padding=(1, 1, 1, 1))
     or  nn.conv2d_winograd_plain(x, p[3, 3, 64, 64], tile=4, padding=(1, 1, 1, 1))

Weights that are constants are transformed here, once, in float64; computed ones, as in training, by a matrix product as
the model runs, where enough tiles meet them. The estimate weighs multiplications and the work of the transforms against
the weights' size: transformed weights are 1.8 (tile 2) to 4 times (tile 4) as large and each inference reads them from
memory, which takes longer than the arithmetic where an image has few tiles. Weights that are transformed in the kernel
are no larger than they were, but each inference transforms them: in registers where tiles are few, and a panel at a
time where the transformed image is large (`nn.conv2d_winograd` with the taps themselves). What was measured
(`graph/choices.py`) goes before the estimate. Heights and widths that are open are taken for likely ones: what the
model's file or its user says of them (`graph/likely_sizes.py`), or the same number everywhere. Layers that hardly count
in their model stay direct.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from math import prod

import numpy as np

from tilewright.graph.choices import GraphChoices
from tilewright.graph.ir.dimensions import symbols_of
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, constant
from tilewright.graph.ir.infer import keep_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import known_sizes, make, static_shape
from tilewright.graph.ir.traverse import graph_functions, map_functions, post_order, rewrite
from tilewright.graph.layer_products import layer_products, most_of_little
from tilewright.graph.likely_sizes import likely_size
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.ops.winograd import (
    KERNEL,
    OPEN_BLOCK_TILES,
    plain_weight,
    transformed_weight,
    weight_transform,
)
from tilewright.graph.options import GraphOptions
from tilewright.ir.dtype import FLOAT16
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters

CHOICES = (2, 3, 4)
"""Tile sizes to choose from; tiles of 6 save little more and their rounding errors are ten times larger."""
_IMAGE_RANK = 4
_PLAIN_TILE, _PLAIN = 4, "winograd4_plain"
"""The tile size with plain weights, and the name of that algorithm."""
_PLAIN_TRANSFORM = 48
"""Multiply-adds that transform the weights of a pair of channels for that tile, one row of points after the other."""
_IN_KERNEL = "in kernel"
"""Weights that keep their taps, for kernels that transform a panel of them at a time."""
_PANEL = 4
"""Vectors of output channels in a panel, at most."""
_FAR = 8
"""Transformed weights that are so many times as large as the second cache level are slow even if they are read once."""
_LEAST_PANEL_TILES = 12
"""Tiles that must meet each weight that is transformed so: fewer would wait for the transforms."""
_LEAST_USES = 64
"""Tiles that must meet each weight that is transformed as the model runs: fewer take longer than the direct sums."""

_LITTLE = 0.01
"""The part of a model's time that layers may lose together which are computed directly, though they could be quicker.

A network of images has a few layers that take its time and many that do not, each as long to compile as the largest.
Direct kernels compile in half the time, and layers that differ in their sizes share them (`lower/shared_sizes.py`).
"""

_LIKELY = 40
"""Rows and columns of which nothing is known count as so many."""
_USUAL_IMAGE = 320
"""Open rows and columns of a model's images count as so many: layers see a part of them, as their sizes say.

Of ten rows, a thirty-second, larger tiles take up to 1.6 times as long as smaller ones: they read more weights. Of
twenty, where the image has 640, smaller ones take 1.2 times as long.
"""


@dataclass(frozen=True)
class ConvolutionSize:
    """The sizes of a 3 x 3 convolution of stride 1; a batch that is open counts as one image, other sizes as likely."""

    batch: int
    height: int
    width: int
    channels: int
    outputs: int
    is_open: bool = False
    """Whether height or width are open."""


def choose_algorithm(module: IRModule, options: GraphOptions) -> IRModule:
    """Rewrite the convolutions for which another algorithm is faster on a target: as estimated, or as `choices` say."""

    def visit(function: Function) -> Function:
        changed = rewrite(function, lambda old, item: chooser.visit(old, item))
        assert isinstance(changed, Function)
        return changed

    choices = replace(options.choices, likely={**_usual_sizes(module), **options.choices.likely})
    chooser = _Chooser(options.machine, choices, _least_gain(module, replace(options, choices=choices)))
    return map_functions(module, visit)


def _usual_sizes(module: IRModule) -> dict[str, int]:
    """What open sizes of the images that a model takes count as, by name."""
    params = [param for function in graph_functions(module).values() for param in function.params]
    shapes = [known_sizes(param) for param in params if isinstance(param.type, TensorType)]
    sizes = [size for shape in shapes if shape is not None and len(shape) == _IMAGE_RANK for size in shape[1:]]
    return {symbol.name: _USUAL_IMAGE for size in sizes if size is not None for symbol in symbols_of(size)}


def _least_gain(module: IRModule, options: GraphOptions) -> float:
    """The gain in cycles up to which layers stay direct: all of them together lose a small part of the model's time."""
    gains: list[float] = []
    whole = 0.0
    functions = [item for item in module.functions.values() if isinstance(item, Function)]
    items = list(chain.from_iterable(map(post_order, functions)))
    convolutions = [item for item in items if isinstance(item, Call) and is_call_to(item, "nn.conv2d")]
    if not any(convolution_size(item, options.choices.likely) for item in convolutions):
        return 0.0
    for item in items:
        products = layer_products(item)
        if not products or not isinstance(item, Call):
            continue
        whole += product_cycles(products, prod(static_shape(item.args[1]) or ()), 0.0, options.machine)
        size = convolution_size(item, options.choices.likely) if is_call_to(item, "nn.conv2d") else None
        if size is not None and isinstance(item.args[1], Constant):
            gains.append(_gain(size, options.machine))
            whole -= gains[-1]
    return most_of_little(gains, _LITTLE * whole)


def _gain(size: ConvolutionSize, target: Target) -> float:
    """How many cycles less than the direct computation the best algorithm is estimated to take."""
    direct, tile = direct_cycles(size, target), best_tile(size, target)
    others = [] if tile is None else [winograd_cycles(size, tile, target)]
    if is_plain_possible(size, target):
        others.append(plain_cycles(size, target))
    return max(0.0, direct - min(others, default=direct))


class _Chooser:
    def __init__(self, target: Target, choices: GraphChoices, least_gain: float) -> None:
        self._target = target
        self._choices = choices
        self._least_gain = least_gain
        # Weights that several convolutions share are transformed once; keyed by identity, so they are kept alive.
        self._weights: dict[tuple[int, str], tuple[Constant, Constant]] = {}

    def visit(self, old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
        keep_type(old, item)
        if not isinstance(item, Call) or not is_call_to(item, "nn.conv2d"):
            return None
        weight, attributes = item.args[1], item.attributes
        assert isinstance(attributes, Conv2dAttributes)
        size = convolution_size(item, self._choices.likely)
        if size is None:
            return None
        if not isinstance(weight, Constant):
            return self._with_computed_weight(item, size)
        if not size.is_open and 0 < _gain(size, self._target) <= self._least_gain:
            return None
        tiles = {"direct": None, **{f"winograd{tile}": tile for tile in possible_tiles(size, self._target)}}
        if is_plain_possible(size, self._target):
            tiles[_PLAIN] = _PLAIN_TILE
        chosen = self._choices.choose([item], tuple(tiles), best_algorithm(size, self._target))
        tile = tiles[chosen]
        if tile is None:
            return None
        name = "nn.conv2d_winograd_plain" if chosen == _PLAIN else "nn.conv2d_winograd"
        in_kernel = chosen != _PLAIN and is_transformed_in_kernel(size, tile, self._target)
        operand = self._operand(weight, _IN_KERNEL if in_kernel else chosen, tile)
        return make(name, item.args[0], operand, tile=tile, padding=tuple(attributes.padding), span=item.span)

    def _with_computed_weight(self, item: Call, size: ConvolutionSize) -> GraphExpr | None:
        """Weights that are inputs or computed, as in training, are transformed as the model runs: one small product."""
        data, weight = item.args
        assert isinstance(item.attributes, Conv2dAttributes)
        tile = None if size.is_open else best_tile(size, self._target, transforms_weights=True)
        if tile is None or _products(size, tile) < _LEAST_USES * _window(tile):
            return None
        pairs = (size.channels, size.outputs)
        # As one matrix product: in the stages of `nn.winograd_weight` it takes five times as long.
        rows = make("reshape", weight, shape=(KERNEL**2, pairs[0] * pairs[1]), span=weight.span)
        product = make("matmul", constant(weight_transform(tile)), rows, span=weight.span)
        window = tile + KERNEL - 1
        operand = make("reshape", product, shape=(window, window, *pairs), span=weight.span)
        padding = tuple(item.attributes.padding)
        return make("nn.conv2d_winograd", data, operand, tile=tile, padding=padding, span=item.span)

    def _operand(self, weight: Constant, algorithm: str, tile: int) -> Constant:
        """The weights as an algorithm wants them."""
        known = self._weights.get((id(weight), algorithm))
        if known is not None:
            return known[1]
        if algorithm == _IN_KERNEL:
            result = _as_halves(weight) if self._target.has_half_conversion else weight
        else:
            data = plain_weight(weight.data, tile) if algorithm == _PLAIN else transformed_weight(weight.data, tile)
            result = Constant(data, weight.dtype)
        result.span = weight.span
        self._weights[id(weight), algorithm] = (weight, result)
        return result


def _as_halves(weight: Constant) -> Constant:
    """Weights that a file has as halves are halves again: half as many bytes to keep and to read."""
    with np.errstate(over="ignore"):
        halves = weight.data.astype(np.float16)
    return Constant(halves, FLOAT16) if np.array_equal(halves, weight.data) else weight


def convolution_size(item: Call, likely: Mapping[str, int]) -> ConvolutionSize | None:
    """The sizes of a convolution that Winograd's algorithm can compute, or None; `likely` are those of symbols."""
    attributes, (data, weight) = item.attributes, item.args
    assert isinstance(attributes, Conv2dAttributes)
    source, taps, result = known_sizes(data), static_shape(weight), known_sizes(item)
    if source is None or taps is None or result is None or attributes.data_layout != "NHWC":
        return None
    if tuple(attributes.strides) != (1, 1) or tuple(attributes.dilation) != (1, 1) or attributes.groups != 1:
        return None
    if taps[:2] != (KERNEL, KERNEL) or data.tensor_type.dtype.name != "float32" or 0 in (*source, *result):
        return None
    batch, height, width, _ = result
    is_open = not isinstance(height, int) or not isinstance(width, int)
    batch = batch if isinstance(batch, int) else 1
    rows, columns = (likely_size(size, likely) or _LIKELY for size in (height, width))
    return ConvolutionSize(batch, rows, columns, taps[2], taps[3], is_open)


def possible_tiles(size: ConvolutionSize, target: Target) -> tuple[int, ...]:
    """The tile sizes with fewer multiplications than the direct computation and all smaller tiles.

    Others have nothing to gain: their weights are larger.
    """
    if min(size.channels, size.outputs) < cpu_parameters(target).winograd.least_channels:
        return ()
    possible, least = [], KERNEL**2 * size.batch * size.height * size.width
    for tile in CHOICES:
        if _products(size, tile) < least:
            possible.append(tile)
            least = _products(size, tile)
    return tuple(possible)


def is_transformed_in_kernel(size: ConvolutionSize, tile: int, target: Target) -> bool:
    """Whether weights keep their 3 x 3 taps, and the kernel transforms a panel of them at a time, for all tiles.

    Transformed ahead they would be read from memory once for each group of tiles: several times, where the transformed
    image does not stay in the second cache level, or from far away. The kernel keeps that image instead: it must be no
    larger than the weights would be. Each core has panels of its own.
    """
    lanes, near = target.lanes(32), target.l2_bytes * cpu_parameters(target).winograd.small_group_share
    tiles = _products(size, tile) // _window(tile)
    image, weights = (4 * _window(tile) * size.channels * count for count in (tiles, size.outputs))
    is_whole = not size.is_open and size.outputs % lanes == 0 and size.outputs >= target.cores * _PANEL * lanes
    is_slow = image > near or weights > target.l2_bytes * _FAR
    return is_whole and is_slow and _LEAST_PANEL_TILES <= tiles and image <= weights and near > 0


def best_algorithm(size: ConvolutionSize, target: Target) -> str:
    """The name of the algorithm that is estimated to be fastest."""
    tile = best_tile(size, target)
    if is_plain_possible(size, target):
        direct = direct_cycles(size, target) / cpu_parameters(target).winograd.least_gain
        if plain_cycles(size, target) < (direct if tile is None else winograd_cycles(size, tile, target)):
            return _PLAIN
    return "direct" if tile is None else f"winograd{tile}"


def is_plain_possible(size: ConvolutionSize, target: Target) -> bool:
    """Whether a kernel can transform weights in registers, where they are used.

    The sums of a row of points for all tiles must stay there too, beside a row of transformed weights and the numbers
    that they are made with. Vectors of channels are whole, and a factor for all of a vector is part of the instruction
    that multiplies by it: x86 processors of that many registers.
    """
    row, lanes = _PLAIN_TILE + KERNEL - 1, target.lanes(32)
    tiles = size.batch * -(-size.height // _PLAIN_TILE) * -(-size.width // _PLAIN_TILE)
    if target.arch != "x86_64" or size.is_open or size.channels % lanes or size.outputs % lanes:
        return False
    is_less = _plain_products(size) < KERNEL**2 * size.batch * size.height * size.width
    return is_less and (tiles + 1) * row + 2 <= target.vector_registers


def plain_cycles(size: ConvolutionSize, target: Target) -> float:
    """Estimated time of Winograd's algorithm with plain weights."""
    pairs = size.channels * size.outputs
    return product_cycles(_plain_products(size) * pairs, KERNEL**2 * pairs, 0.0, target)


def _plain_products(size: ConvolutionSize) -> int:
    """Multiplications for one pair of channels with plain weights, those that transform the weights among them."""
    # Tiles at the border have as many points as their results need.
    points = [length + (KERNEL - 1) * -(-length // _PLAIN_TILE) for length in (size.height, size.width)]
    return size.batch * points[0] * points[1] + _PLAIN_TRANSFORM


def best_tile(size: ConvolutionSize, target: Target, *, transforms_weights: bool = False) -> int | None:
    """The tile size that is estimated to be fastest, or None for the direct computation.

    With `transforms_weights` the weights are transformed each time too.
    """
    winograd = cpu_parameters(target).winograd
    most = direct_cycles(size, target) / winograd.least_gain
    cycles = {tile: winograd_cycles(size, tile, target) for tile in possible_tiles(size, target)}
    if transforms_weights:
        cycles = {tile: estimate + weight_cycles(size, tile, target) for tile, estimate in cycles.items()}
    quicker = [tile for tile, estimate in cycles.items() if estimate < most]
    # Larger tiles have larger weights and errors: they too must be worth it.
    return min(quicker, key=lambda tile: cycles[tile] * _window(tile) ** winograd.weights_exponent, default=None)


def direct_cycles(size: ConvolutionSize, target: Target) -> float:
    """Estimated time of the direct computation."""
    products = KERNEL**2 * size.batch * size.height * size.width * size.channels * size.outputs
    return product_cycles(products, KERNEL**2 * size.channels * size.outputs, 0.0, target)


def winograd_cycles(size: ConvolutionSize, tile: int, target: Target) -> float:
    """Estimated time of Winograd's algorithm."""
    window, products = _window(tile), _products(size, tile)
    lanes = target.lanes(32)
    vectors = products * (-(-size.channels // lanes) + -(-size.outputs // lanes))
    # Each transformed vector takes part in two sums of about half a window's row, is stored and is read.
    transforms = vectors * (tile + KERNEL - 1) / 2
    pairs = size.channels * size.outputs
    return product_cycles(products * pairs, window * pairs, transforms, target)


def weight_cycles(size: ConvolutionSize, tile: int, target: Target) -> float:
    """Estimated time of transforming computed weights: they are written, and copied as the products read them."""
    pairs = size.channels * size.outputs
    # What is written is fetched before.
    moved = KERNEL**2 + 5 * _window(tile)
    return product_cycles(_window(tile) * KERNEL**2 * pairs, moved * pairs, 0.0, target)


def _window(tile: int) -> int:
    """Elements of the window of a tile, and of the transformed weights of a pair of channels."""
    return (tile + KERNEL - 1) ** 2


def _products(size: ConvolutionSize, tile: int) -> int:
    """Multiplications of Winograd's algorithm for one pair of channels."""
    tiles = -(-size.height // tile) * -(-size.width // tile)
    # Tiles of an image of an open size come in whole blocks.
    tiles = -(-tiles // OPEN_BLOCK_TILES) * OPEN_BLOCK_TILES if size.is_open else tiles
    return _window(tile) * size.batch * tiles


def product_cycles(products: int, weights: int, transforms: float, target: Target) -> float:
    """Multiplications, weights to read, and cycles of transforms -> cycles with all cores at work.

    Weights are fetched ahead while others are used: the slower of arithmetic and reading counts.
    """
    core = cpu_parameters(target).core
    arithmetic = products / (core.fma_per_cycle * target.lanes(32) * core.efficiency) + transforms
    traffic = 4 * weights / core.memory_bytes_per_cycle
    return max(arithmetic / target.cores, traffic / min(target.cores, core.cores_to_saturate))
