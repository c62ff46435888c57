"""Convolution by Winograd's algorithm F(m x m, 3 x 3): fewer multiplications, on tiles of transformed data.

A 3 x 3 convolution of stride 1 computes m x m results from a window of (m + 2) x (m + 2) elements. With matrices
A, B, G made from m + 1 points and infinity (Toom and Cook's interpolation),

    Y = A [ (G g G') * (B d B') ] A'        (* elementwise; X' is X transposed)

so that a window costs (m + 2)^2 multiplications for each pair of channels instead of 9 m^2: a quarter for m = 4. The
weights G g G' are constant and are computed at compile time (`nn.winograd_weight`).

Rounding errors grow with the size of the matrices' entries. The points of m = 4 are 0, +-sqrt(1/2), +-sqrt(2): their
errors are several times smaller than those of the usual 0, +-1, +-2. See docs/winograd.md for measured errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Attributes
from tilewright.graph.ir.op import Array, FusionKind, Types, get_operator, operator
from tilewright.graph.ops.common import (
    agree,
    constant_dim,
    dims,
    require_length,
    require_not_negative,
    require_rank,
    same_dtype,
    shape_text,
    tensors,
    window_dim,
)
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.ir.dtype import FLOAT16, DataType
from tilewright.ir.expr import IntImm
from tilewright.ir.node import node
from tilewright.ir.types import TensorType, Type
from tilewright.support.errors import UserError

KERNEL = 3
"""Rows and columns of the convolution's window."""
TILES = (2, 3, 4, 6)
"""The sizes of result tiles that have matrices."""
OPEN_BLOCK_TILES = 5
"""Tiles of images of open sizes that are computed together: a block.

With four vectors of channels they fill 32 registers, with two 16, and few are computed in vain.
"""
_SQUARED_POINTS = {2: (1.0,), 3: (0.5625,), 4: (0.5, 2.0), 6: (1.0, 0.25, 4.0)}
"""For each tile size, the squares of the points; the points are 0, infinity, and plus and minus their roots."""
_SINGLE_POINTS = {3: 1.5}
"""The last point of a tile size whose number of points leaves one without an opposite."""

_COMBINED_AT_ONCE = 1 << 14
"""Pairs of channels whose weights are transformed at a time."""
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class WinogradMatrices:
    """The three matrices of one tile size, with n = tile + 2: `output` (A) tile x n, `input` (B) n x n,
    `weight` (G) n x 3."""

    output: Matrix
    input: Matrix
    weight: Matrix


def _product(a: Matrix, b: tuple[float, ...]) -> Matrix:
    """The product of two polynomials, highest power first."""
    return np.asarray(np.polymul(a, np.array(b)), np.float64)


@cache
def winograd_matrices(tile: int) -> WinogradMatrices:
    """The matrices of a tile size: Toom and Cook's interpolation, transposed.

    Zeros are exact, and points come in pairs of opposite sign, so that the rows (columns) of a pair are the sum and the
    difference of the same two parts.
    """
    return _interpolation(tile, _SQUARED_POINTS[tile], _SINGLE_POINTS.get(tile))


@cache
def plain_matrices(tile: int, rest: int) -> WinogradMatrices:
    """The matrices for the first `rest` results of a tile, for weights that are transformed where they are used.

    G is applied to `plain_weight`s, and it is the same for all `rest`: what makes it simple is divided by in B. Fewer
    results need fewer points: the rows of B and columns of A for the last ones are zero then, and so are the rows of A
    past the results.
    """
    squares = _SQUARED_POINTS[tile]
    points = [sign * math.sqrt(square) for square in squares for sign in (1.0, -1.0)]
    part = _interpolation(rest, squares[: rest // 2], points[rest - 1] if rest % 2 else None)
    size = tile + KERNEL - 1
    used = [*range(rest + 1), size - 1]
    output, data = np.zeros((tile, size)), np.zeros((size, size))
    # G makes the powers of a point t, times p / t (`_plain_transform`).
    scale = np.append(part.weight[:-1, 0], 1.0)
    scale[1:-1] *= np.array(points[:rest]) / points[0]
    output[:rest, used] = part.output
    data[used, : rest + KERNEL - 1] = part.input * scale[:, np.newaxis]
    return WinogradMatrices(output, data, _plain_transform(tile))


def _plain_basis(tile: int) -> Matrix:
    """What `plain_weight`s are of three weights g: a = g0; b = g0 + p g1 + p^2 g2, for the first point p; x = g0 - g2.

    Every step from a pair of points t and 1 / t to each other, and from 0 to infinity, then is a multiple of x.
    """
    square = _SQUARED_POINTS[tile][0]
    return np.array([[1.0, 0.0, 0.0], [1.0, math.sqrt(square), square], [1.0, 0.0, -1.0]])


def _plain_transform(tile: int) -> Matrix:
    """G for a, b and x (`_plain_basis`): a for 0, a - x for infinity, and for other points t

        (g0 + t g1 + t^2 g2) p / t  =  b + ((p / t) (1 + t^2) - 1 - p^2) a + (p^2 - p t) x

    For tiles of 4, with points +-sqrt(1/2) and +-sqrt(2): b, b - 3 a + x, b - x / 2, b - 3 a + 3 x / 2.
    """
    squares = _SQUARED_POINTS[tile]
    first = squares[0]
    rows = [[1.0, 0.0, 0.0]]
    for square in squares:
        for sign in (1.0, -1.0):
            # Roots of quotients and products: what is rational is exact.
            quotient, product = sign * math.sqrt(first / square), sign * math.sqrt(first * square)
            rows.append([quotient * (1.0 + square) - 1.0 - first, 1.0, first - product])
    return np.array([*rows, [1.0, 0.0, -1.0]])


def transformed_weight(weight: Array, tile: int) -> Array:
    """G g G', computed in float64 and rounded once."""
    return _combined(weight, winograd_matrices(tile).weight)


def weight_transform(tile: int) -> Array:
    """The matrix (window * window, 9) that turns all taps of a kernel to its transformed weights."""
    matrix = winograd_matrices(tile).weight
    return np.asarray(np.kron(matrix, matrix), np.float32)


def plain_weight(weight: Array, tile: int) -> Array:
    """The weights (3, 3, inputs, outputs) for `nn.conv2d_winograd_plain`: as many, and quicker to transform.

    Rows and columns are combined as `_plain_basis` says, in float64, and rounded once.
    """
    return _combined(weight, _plain_basis(tile))


def _combined(weight: Array, matrix: Matrix) -> Array:
    """Rows and columns of weights multiplied by a matrix, in float64: some channels at a time, or it is all twice."""
    size, taps = matrix.shape
    inputs, outputs = weight.shape[2:]
    result = np.empty((size, size, inputs, outputs), weight.dtype)
    channels = max(1, _COMBINED_AT_ONCE // outputs)
    for start in range(0, inputs, channels):
        part = weight[:, :, start : start + channels].astype(np.float64)
        rows = (matrix @ part.reshape(taps, -1)).reshape(size, taps, -1)
        result[:, :, start : start + channels] = (matrix @ rows).reshape(size, size, -1, outputs)
    return result


def _interpolation(tile: int, squares: tuple[float, ...], single: float | None) -> WinogradMatrices:
    """The matrices for points 0, infinity, both roots of some squares, and perhaps one more."""
    size = tile + KERNEL - 1
    points = [0.0] + [sign * math.sqrt(square) for square in squares for sign in (1.0, -1.0)]
    factors = [(1.0, 0.0), *((1.0, 0.0, -square) for square in squares)]
    if single is not None:
        points.append(single)
        factors.append((1.0, -single))
    output, weight = np.zeros((tile, size)), np.zeros((size, KERNEL))
    data = np.zeros((size, size))
    for k, point in enumerate(points):
        output[:, k] = [point**power for power in range(tile)]
        others = math.prod(point - other for n, other in enumerate(points) if n != k)
        weight[k] = [point**power / others for power in range(KERNEL)]
        # The product of x - other over the other points; those of a pair multiply to x^2 - square.
        own = (k + 1) // 2
        row: Matrix = np.ones(1)
        for n, factor in enumerate(factors):
            if n != own:
                row = _product(row, factor)
            elif len(factor) == 3:
                row = _product(row, (1.0, point))
        data[k, : len(row)] = row[::-1]
    whole: Matrix = np.ones(1)
    for factor in factors:
        whole = _product(whole, factor)
    data[-1] = whole[::-1]
    output[-1, -1] = weight[-1, -1] = 1.0
    return WinogradMatrices(output, data, weight)


@node()
class WinogradAttributes(Attributes):
    """Rows and columns of a tile of results, and the padding (top, left, bottom, right)."""

    tile: int = 4
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)


@node()
class WinogradWeightAttributes(Attributes):
    """Rows and columns of a tile of results."""

    tile: int = 4


def _require_tile(tile: int) -> None:
    if tile not in TILES:
        raise UserError(f"there is no Winograd algorithm for tiles of {tile}", hint=f"tiles are {TILES}")


def _require_float(dtype: DataType) -> None:
    if dtype.name not in ("float32", "float64"):
        raise UserError(f"a Winograd convolution of {dtype}", hint="it needs float32 or float64")


def _weight(args: list[Array], attributes: WinogradWeightAttributes) -> Array:
    return transformed_weight(args[0], attributes.tile)


@operator(
    "nn.winograd_weight",
    inputs=("weight",),
    kind=FusionKind.OPAQUE,
    reference=_weight,
    attributes=WinogradWeightAttributes,
)
def winograd_weight(types: Types, attributes: WinogradWeightAttributes) -> Type:
    """The weights (3, 3, inputs, outputs) of a convolution, transformed: (tile + 2, tile + 2, inputs, outputs)."""
    (weight,) = tensors(types, ("weight",))
    _require_tile(attributes.tile)
    _require_float(weight.dtype)
    size = attributes.tile + KERNEL - 1
    if weight.shape is None:
        return TensorType((None,) * 4, weight.dtype)
    require_rank(weight.shape, 4, "weight")
    for dim in weight.shape[:2]:
        if constant_dim(dim) not in (None, KERNEL):
            raise UserError(f"a Winograd weight has {KERNEL} x {KERNEL} taps, it is {shape_text(weight.shape)}")
    return TensorType((*dims((size, size)), *weight.shape[2:]), weight.dtype)


_NAMES = ("data", "weight")
_WEIGHT_RANK = 4


def _conv2d_winograd(args: list[Array], attributes: WinogradAttributes) -> Array:
    """The algorithm itself, in float64: the transformed weights are given, so no plain convolution could be meant."""
    data, weight = (array.astype(np.float64) for array in args)
    matrices, tile = winograd_matrices(attributes.tile), attributes.tile
    if len(weight) == KERNEL:
        weight = transformed_weight(weight, tile)
    top, left, bottom, right = attributes.padding
    (batch, height, width, channels), outputs = data.shape, weight.shape[-1]
    out_height, out_width = height + top + bottom - KERNEL + 1, width + left + right - KERNEL + 1
    rows, columns = -(-out_height // tile), -(-out_width // tile)
    size = tile + KERNEL - 1
    padded = np.zeros((batch, rows * tile + KERNEL - 1, columns * tile + KERNEL - 1, channels))
    padded[:, top : top + height, left : left + width] = data
    step_n, step_h, step_w, step_c = padded.strides
    windows = np.lib.stride_tricks.as_strided(
        padded,
        (batch, rows, columns, size, size, channels),
        (step_n, step_h * tile, step_w * tile, step_h, step_w, step_c),
        writeable=False,
    )
    with np.errstate(all="ignore"):
        transformed = np.einsum("iu,jv,nyxuvc->ijnyxc", matrices.input, matrices.input, windows, optimize=True)
        product = np.matmul(transformed.reshape(size, size, -1, channels), weight)
        product = product.reshape(size, size, batch, rows, columns, outputs)
        result = np.einsum("au,bv,uvnyxo->nyaxbo", matrices.output, matrices.output, product, optimize=True)
    result = result.reshape(batch, rows * tile, columns * tile, outputs)[:, :out_height, :out_width]
    return np.ascontiguousarray(result, args[0].dtype)


@operator(
    "nn.conv2d_winograd",
    inputs=_NAMES,
    kind=FusionKind.OUT_FUSABLE,
    reference=_conv2d_winograd,
    attributes=WinogradAttributes,
)
def conv2d_winograd(types: Types, attributes: WinogradAttributes) -> Type:
    """A 3 x 3 convolution of stride 1 of NHWC data with weights that `nn.winograd_weight` transformed.

    Weights of 3 x 3 taps are transformed where they are used; they may be halves.
    """
    data, weight = tensors(types, _NAMES)
    taps = None if weight.shape is None or len(weight.shape) != _WEIGHT_RANK else constant_dim(weight.shape[0])
    is_plain = taps == KERNEL
    dtype = data.dtype if is_plain and weight.dtype is FLOAT16 else same_dtype([data, weight], _NAMES)
    _require_tile(attributes.tile)
    _require_float(dtype)
    require_length(attributes.padding, 4, "padding")
    require_not_negative(attributes.padding, "padding")
    if data.shape is None or weight.shape is None:
        return TensorType((None,) * 4, dtype)
    require_rank(data.shape, 4, "data")
    require_rank(weight.shape, 4, "weight")
    size = KERNEL if is_plain else attributes.tile + KERNEL - 1
    for dim in weight.shape[:2]:
        if constant_dim(dim) not in (None, size):
            raise UserError(f"the weights for tiles of {attributes.tile} are {size} x {size} x inputs x outputs")
    batch, height, width, channels = data.shape
    agree(channels, weight.shape[2], "channels of the data, and inputs of the weight")
    top, left, bottom, right = attributes.padding
    rows = window_dim(height, IntImm(KERNEL), 1, top, bottom, 1, "height")
    columns = window_dim(width, IntImm(KERNEL), 1, left, right, 1, "width")
    return TensorType((batch, rows, columns, weight.shape[3]), dtype)


def _plain(args: list[Array], attributes: WinogradAttributes) -> Array:
    """The plain convolution that is meant, in float64."""
    data, weight = args
    inverse: Matrix = np.linalg.inv(_plain_basis(attributes.tile)).astype(np.float64)
    taps = _combined(weight, inverse)
    convolution = Conv2dAttributes(padding=attributes.padding, data_layout="NHWC", kernel_layout="HWIO")
    result = get_operator("nn.conv2d").reference([data.astype(np.float64), taps], convolution)
    assert isinstance(result, np.ndarray)
    return result.astype(data.dtype)


@operator(
    "nn.conv2d_winograd_plain",
    inputs=_NAMES,
    kind=FusionKind.OUT_FUSABLE,
    reference=_plain,
    attributes=WinogradAttributes,
)
def conv2d_winograd_plain(types: Types, attributes: WinogradAttributes) -> Type:
    """A 3 x 3 convolution of stride 1 of NHWC data by Winograd's algorithm, with 3 x 3 weights (`plain_weight`).

    They are transformed where they are used: there are fewer of them to read.
    """
    data, weight = tensors(types, _NAMES)
    same_dtype([data, weight], _NAMES)
    if attributes.tile in _SINGLE_POINTS:
        raise UserError(f"there is no Winograd algorithm with plain weights for tiles of {attributes.tile}")
    transformed = winograd_weight([weight], WinogradWeightAttributes(tile=attributes.tile))
    return conv2d_winograd([data, transformed], attributes)
