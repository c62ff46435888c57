"""Converters of operators that make tensors from numbers, and those that tell numbers about tensors."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.arithmetic import Number, Operand
from tilewright.frontend.core.builder import LARGEST_MADE
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import Converter, converter, refuse
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import PrimExpr
from tilewright.support.errors import UnsupportedError


def _filled(value: Number) -> Converter:
    def convert(b: TorchBuilder, **_: object) -> GraphExpr:
        return fill(b, value)

    convert.__doc__ = f"A tensor of {value}."
    return convert


def fill(b: TorchBuilder, value: Operand) -> GraphExpr:
    """A tensor of one value, of the shape and type that torch says."""
    if 0 in b.shape:
        return b.empty(b.shape, b.dtype)
    return b.broadcast_to(b.operand(value, b.dtype), b.shape)


# Empty tensors hold anything; zeros make runs repeatable.
converter(
    "zeros",
    "zeros_like",
    "new_zeros",
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "empty_permuted",
    "zero",
)(_filled(0))
converter("ones", "ones_like", "new_ones")(_filled(1))


@converter("full", "full_like", "new_full")
def full(b: TorchBuilder, fill_value: Number, **_: object) -> GraphExpr:
    """A tensor of a number."""
    return fill(b, fill_value)


@converter("fill")
def fill_tensor(b: TorchBuilder, x: GraphExpr, value: Operand) -> GraphExpr:
    """A tensor of the shape of another, of one value."""
    return fill(b, value)


@converter("copy")
def copy(b: TorchBuilder, x: GraphExpr, src: GraphExpr) -> GraphExpr:
    """The values of another tensor in the shape and type of the first."""
    return fill(b, src)


@converter("scalar_tensor")
def scalar_tensor(b: TorchBuilder, s: Number, dtype: DataType | None = None) -> GraphExpr:
    """A number as a tensor."""
    return b.scalar(s, b.dtype)


@converter("arange")
def arange(
    b: TorchBuilder, end: Number, start: Number = 0, step: Number = 1, dtype: DataType | None = None
) -> GraphExpr:
    """start, start + step ... before end."""
    (count,) = b.shape
    if not isinstance(count, int):
        if isinstance(start, (int, PrimExpr)) and isinstance(step, int):
            return b.cast(b.arange(count, start, step), b.dtype)
        wide = DataType.of("float64")
        steps = b.multiply(b.cast(b.arange(count), wide), b.operand(step, wide))
        return b.cast(b.add(b.operand(start, wide), steps), b.dtype)
    _check_size(count)
    if isinstance(start, int) and isinstance(step, int) and b.dtype.is_integer:
        return b.constant((start + np.arange(count, dtype=np.int64) * step).astype(b.dtype.numpy()), b.dtype)
    return _numbers(b, start + np.arange(count, dtype=np.float64) * step)


@converter("linspace")
def linspace(b: TorchBuilder, start: Operand, end: Operand, steps: int, dtype: DataType | None = None) -> GraphExpr:
    """Numbers at equal distances, both ends included."""
    return _between(b, start, end, steps, None)


@converter("logspace")
def logspace(
    b: TorchBuilder,
    start: Operand,
    end: Operand,
    steps: int,
    base: Number = 10.0,
    dtype: DataType | None = None,
) -> GraphExpr:
    """Powers of a base with exponents at equal distances."""
    return _between(b, start, end, steps, float(base))


def _between(b: TorchBuilder, start: Operand, end: Operand, steps: int, base: float | None) -> GraphExpr:
    _check_size(steps)
    if steps == 0:
        return b.empty((0,), b.dtype)
    wide = DataType.of("float64")
    first, last = b.operand(start, wide), b.operand(end, wide)
    if steps == 1:
        values = b.reshape(first, (1,))
    else:
        width = b.divide(b.subtract(last, first), float(steps - 1))
        half = steps // 2
        index = np.arange(steps, dtype=np.float64)
        low = b.add(first, b.multiply(b.constant(index[:half], wide), width))
        high = b.subtract(last, b.multiply(b.constant(steps - 1 - index[half:], wide), width))
        values = b.concatenate([low, high], 0)
    if base is not None:
        values = b.call("power", b.scalar(base, wide), values)
    return b.cast(values, b.dtype)


@converter("eye")
def eye(b: TorchBuilder, n: Size, m: Size | None = None, dtype: DataType | None = None) -> GraphExpr:
    """Ones on the diagonal."""
    if 0 in b.shape:
        return b.empty(b.shape, b.dtype)
    return b.cast(b.call("equal", b.positions(b.shape, 0), b.positions(b.shape, 1)), b.dtype)


def _phases(length: int, periodic: bool) -> Array:
    """Where the samples of a window lie in it: angles from 0 to a full turn."""
    _check_size(length)
    return 2 * np.pi * np.arange(length) / max(length if periodic else length - 1, 1)


@converter("hann_window")
def hann_window(b: TorchBuilder, window_length: int, periodic: bool = True, dtype: DataType | None = None) -> GraphExpr:
    """Half a cosine that rises from 0."""
    return hamming_window(b, window_length, periodic, 0.5, 0.5)


@converter("hamming_window")
def hamming_window(
    b: TorchBuilder,
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    dtype: DataType | None = None,
) -> GraphExpr:
    """alpha - beta * cos."""
    if window_length == 1:
        return _numbers(b, np.ones(1))
    return _numbers(b, alpha - beta * np.cos(_phases(window_length, periodic)))


@converter("blackman_window")
def blackman_window(
    b: TorchBuilder, window_length: int, periodic: bool = True, dtype: DataType | None = None
) -> GraphExpr:
    """Two cosines, which fall off faster."""
    if window_length == 1:
        return _numbers(b, np.ones(1))
    angle = _phases(window_length, periodic)
    return _numbers(b, 0.42 - 0.5 * np.cos(angle) + 0.08 * np.cos(2 * angle))


@converter("tril_indices")
def lower_indices(b: TorchBuilder, row: int, col: int, offset: int = 0, dtype: DataType | None = None) -> GraphExpr:
    """The places of a lower triangle."""
    _check_size(row)
    _check_size(col)
    return b.constant(np.stack(np.tril_indices(row, offset, col)).astype(b.dtype.numpy()), b.dtype)


@converter("triu_indices")
def upper_indices(b: TorchBuilder, row: int, col: int, offset: int = 0, dtype: DataType | None = None) -> GraphExpr:
    """The places of an upper triangle."""
    _check_size(row)
    _check_size(col)
    return b.constant(np.stack(np.triu_indices(row, offset, col)).astype(b.dtype.numpy()), b.dtype)


def _numbers(b: TorchBuilder, values: Array) -> GraphExpr:
    return b.cast(b.constant(values, "float64"), b.dtype)


def _check_size(count: Size) -> None:
    if not isinstance(count, int):
        raise UnsupportedError("a table whose size varies is needed here", hint="give the size as a number")
    if count > LARGEST_MADE:
        raise UnsupportedError(f"a table of {count} entries is needed here, which is too large")


@converter("sym_size", "sym_numel", "sym_stride", "sym_storage_offset")
def size_of(b: TorchBuilder, **_: object) -> Size:
    """A number that torch knows."""
    return b.sizes.size(b.meta)


refuse(
    "compiled models draw no random numbers of this kind",
    *"cauchy geometric log_normal multinomial poisson binomial random".split(),
    *"rrelu_with_noise _sample_dirichlet _standard_gamma _fused_dropout".split(),
)
