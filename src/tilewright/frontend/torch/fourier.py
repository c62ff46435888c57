"""Converters of Fourier transforms, and of signals put together from the spectra of their windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.core.fourier import half_length, real_from_half, transform
from tilewright.frontend.torch.builder import TorchBuilder
from tilewright.frontend.torch.registry import converter
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError

_BY_ROOT, _BY_LENGTH = 1, 2
"""How torch says that a transform is divided by the root of its length, or by its length."""


def _last(b: TorchBuilder, value: GraphExpr, axis: int) -> GraphExpr:
    """With an axis moved to the end (and back: the last axis moved to the axis)."""
    rank = rank_of(value)
    return b.transpose(value, [*(at for at in range(rank) if at != axis), axis])


def _back(b: TorchBuilder, value: GraphExpr, axis: int) -> GraphExpr:
    """With the last axis moved to where it was."""
    rank = rank_of(value)
    return b.transpose(value, [*range(axis), rank - 1, *range(axis, rank - 1)])


def _divided(b: TorchBuilder, value: GraphExpr, lengths: Sequence[Size], how: int) -> GraphExpr:
    """Divided as torch says, by the product of lengths."""
    if how not in (_BY_ROOT, _BY_LENGTH):
        return value
    number = b.cast(b.reshape(b.shape_tensor((dimensions.product(lengths),)), ()), dtype_of(value))
    return b.divide(value, b.call("sqrt", number) if how == _BY_ROOT else number)


def _along(b: TorchBuilder, z: Complex, axis: int, backward: bool) -> Complex:
    """A complex transform along an axis."""
    length = sizes_of(z.real)[axis]
    real, imaginary = transform(b, _last(b, z.real, axis), _last(b, z.imaginary, axis), length, backward)
    return Complex(_back(b, real, axis), _back(b, imaginary, axis))


@converter("_fft_r2c")
def of_real(b: TorchBuilder, x: GraphExpr, dim: Sequence[int], normalization: int, onesided: bool) -> Complex:
    """The spectrum of real data, half of it along the last axis if that is enough."""
    axes = [b.axis(axis, rank_of(x)) for axis in dim]
    lengths = [sizes_of(x)[axis] for axis in axes]
    columns = half_length(lengths[-1]) if onesided else lengths[-1]
    real, imaginary = transform(b, _last(b, x, axes[-1]), None, columns)
    found = Complex(_back(b, real, axes[-1]), _back(b, imaginary, axes[-1]))
    for axis in axes[:-1]:
        found = _along(b, found, axis, backward=False)
    return Complex(*(_divided(b, part, lengths, normalization) for part in found.parts))


@converter("_fft_c2c")
def of_complex(b: TorchBuilder, x: Complex, dim: Sequence[int], normalization: int, forward: bool) -> Complex:
    """The spectrum of complex data, or the data of a spectrum."""
    axes = [b.axis(axis, rank_of(x.real)) for axis in dim]
    lengths = [sizes_of(x.real)[axis] for axis in axes]
    for axis in axes:
        x = _along(b, x, axis, backward=not forward)
    return Complex(*(_divided(b, part, lengths, normalization) for part in x.parts))


@converter("_fft_c2r")
def to_real(b: TorchBuilder, x: Complex, dim: Sequence[int], normalization: int, last_dim_size: Size) -> GraphExpr:
    """Real data from half of its spectrum along the last axis."""
    axes = [b.axis(axis, rank_of(x.real)) for axis in dim]
    lengths = [*(sizes_of(x.real)[axis] for axis in axes[:-1]), last_dim_size]
    for axis in axes[:-1]:
        x = _along(b, x, axis, backward=True)
    half = half_length(last_dim_size)
    real, imaginary = (b.slice_axis(_last(b, part, axes[-1]), rank_of(part) - 1, 0, half) for part in x.parts)
    found = _back(b, real_from_half(b, real, imaginary, last_dim_size), axes[-1])
    return _divided(b, found, lengths, normalization)


@converter("istft")
def inverse_stft(
    b: TorchBuilder,
    x: Complex,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: GraphExpr | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Size | None = None,
    return_complex: bool = False,
) -> GraphExpr:
    """The signal whose windows have these spectra: windows are added up, and divided by what they add up to."""
    if return_complex:
        raise UnsupportedError("istft with return_complex=True")
    hop = hop_length or n_fft // 4
    frames = sizes_of(x.real)[-1]
    halved = onesided if onesided is not None else size_at(x.real, rank_of(x.real) - 2) != n_fft
    spectra = Complex(*(_last(b, part, rank_of(part) - 2) for part in x.parts))
    if halved:
        parts = real_from_half(b, spectra.real, spectra.imaginary, n_fft)
    else:
        parts, _ = transform(b, spectra.real, spectra.imaginary, n_fft, backward=True)
    parts = _divided(b, parts, (n_fft,), _BY_ROOT if normalized else _BY_LENGTH)
    shape = _window(b, window, win_length or n_fft, n_fft, parts)
    signal = _overlapped(b, b.multiply(parts, shape), hop)
    weight = _overlapped(b, b.broadcast_to(b.multiply(shape, shape), (frames, n_fft)), hop)
    samples = dimensions.add(dimensions.multiply(dimensions.subtract(frames, 1), hop), n_fft)
    start = n_fft // 2 if center else 0
    wanted = b.shape[-1]
    available = dimensions.subtract(samples, start)
    kept = available if dimensions.same(wanted, available) else dimensions.minimum(wanted, available)
    end = dimensions.add(start, kept)
    axis = rank_of(signal) - 1
    result = b.divide(b.slice_axis(signal, axis, start, end), b.slice_axis(weight, 0, start, end))
    missing = dimensions.subtract(wanted, kept)
    if missing == 0:
        return result
    before = (0,) * (axis + 1)
    return b.call("pad", result, before=before, after=(*(0,) * axis, missing))


def _window(b: TorchBuilder, window: GraphExpr | None, length: int, whole: int, like: GraphExpr) -> GraphExpr:
    """A window in the middle of a frame; one of ones where none is given."""
    found = window if window is not None else b.filled(1, (length,), dtype_of(like))
    before = (whole - length) // 2
    return b.call("pad", found, before=(before,), after=(whole - length - before,)) if whole > length else found


def _overlapped(b: TorchBuilder, frames: GraphExpr, hop: int) -> GraphExpr:
    """Frames (..., count, length) added up, each so far behind the one before: a signal, zeros at its end.

    A frame is cut into pieces as long as the distance: piece k of frame t belongs to place t + k.
    """
    *outer, count, _ = sizes_of(frames)
    length, rank = size_at(frames, rank_of(frames) - 1), len(outer)
    pieces = math.ceil(length / hop)
    none = (0,) * rank
    if pieces * hop > length:
        frames = b.call("pad", frames, before=(*none, 0, 0), after=(*none, 0, pieces * hop - length))
    total: GraphExpr | None = None
    for piece in range(pieces):
        part = b.slice_axis(frames, rank + 1, piece * hop, (piece + 1) * hop)
        if pieces > 1:
            part = b.call("pad", part, before=(*none, piece, 0), after=(*none, pieces - 1 - piece, 0))
        total = part if total is None else b.add(total, part)
    assert total is not None
    places = dimensions.add(count, pieces - 1)
    return b.reshape(total, (*outer, dimensions.multiply(places, hop)))
