"""Fourier transforms along the last axis, as products with tables of cosines and sines: shared by importers.

Complex data is a pair of real and imaginary parts, of which the second may be missing. A long transform of p * q
samples is q transforms of p samples and p of q (Cooley and Tukey): fewer products, and small tables. Half the spectrum
of real samples has products a quarter as large or less (`real_spectra.py`).
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontend.core.builder import Builder, dtype_of, rank_of, sizes_of
from tilewright.frontend.core.real_spectra import half_spectrum, is_folded
from tilewright.graph.ir.dimensions import Size, add, floor_divide, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError

Pair = tuple[GraphExpr, GraphExpr]
"""Real and imaginary parts."""

_LARGEST_TABLE = 1 << 24
"""The most elements of a table, which has the square of the length."""
_SPLIT_FROM = 1024
"""From this length on a transform is split where its length has factors."""


def transform(
    builder: Builder, real: GraphExpr, imaginary: GraphExpr | None, columns: Size, backward: bool = False
) -> Pair:
    """The first so many frequencies of the samples along the last axis (`backward`: the other way, not yet scaled)."""
    length = sizes_of(real)[-1]
    factor = _factor(length)
    if imaginary is None and factor is None and is_folded(length, columns):
        return half_spectrum(builder, real, backward)
    if factor is not None and isinstance(columns, int):
        return _split(builder, real, imaginary, factor, columns, backward)
    return _times(builder, real, imaginary, _tables(builder, (length, columns), length, backward, dtype_of(real).name))


def _factor(length: Size) -> int | None:
    """The factor nearest to the root of a length that is worth splitting by."""
    if not isinstance(length, int) or length < _SPLIT_FROM:
        return None
    factor = max((item for item in range(2, math.isqrt(length) + 1) if length % item == 0), default=1)
    return factor if factor >= 8 else None


def real_from_half(builder: Builder, real: GraphExpr, imaginary: GraphExpr | None, length: Size) -> GraphExpr:
    """Real samples from the first half of their spectrum (length // 2 + 1 frequencies), not yet scaled by 1 / length.

    The other half is known by symmetry: all frequencies but the first and, of an even length, the middle one occur
    twice. Their imaginary parts do not count.
    """
    half = sizes_of(real)[-1]
    if imaginary is not None and isinstance(length, int) and _factor(length) is not None:
        return _real_from_whole(builder, real, imaginary, length)
    places = builder.arange(half)
    twice = builder.call("greater", places, builder.constant(0, "int64"))
    last = builder.call(
        "less", builder.call("add", places, places), builder.reshape(builder.shape_tensor((length,)), ())
    )
    weight = builder.cast(builder.call("logical_and", twice, last), dtype_of(real))
    weight = builder.call("add", weight, builder.constant_like(1, real))
    cosines, sines = _tables(builder, (half, length), length, True, dtype_of(real).name)
    total = _product(builder, builder.call("multiply", real, weight), cosines)
    if imaginary is None:
        return total
    return builder.call("subtract", total, _product(builder, builder.call("multiply", imaginary, weight), sines))


def _real_from_whole(builder: Builder, real: GraphExpr, imaginary: GraphExpr, length: int) -> GraphExpr:
    """By a transform of the whole spectrum, which can be split."""
    axis = len(sizes_of(real)) - 1
    mirrored = builder.constant(np.arange((length - 1) // 2, 0, -1), "int64")
    ends = np.ones(length // 2 + 1)
    ends[0] = 0
    if length % 2 == 0:
        ends[-1] = 0
    imaginary = builder.call("multiply", imaginary, builder.cast(builder.constant(ends), dtype_of(imaginary)))
    parts = [builder.call("take", part, mirrored, axis=axis) for part in (real, imaginary)]
    whole = [
        builder.concatenate([real, parts[0]], axis),
        builder.concatenate([imaginary, builder.call("negative", parts[1])], axis),
    ]
    return transform(builder, whole[0], whole[1], length, backward=True)[0]


def half_length(length: Size) -> Size:
    """How many frequencies half a spectrum has."""
    return add(floor_divide(length, 2), 1)


def _tables(builder: Builder, shape: tuple[Size, Size], length: Size, backward: bool, dtype: str) -> Pair:
    """cos and sin of the angles from samples to frequencies."""
    rows, columns = shape
    if isinstance(rows, int) and isinstance(columns, int) and isinstance(length, int):
        if rows * columns > _LARGEST_TABLE:
            raise UnsupportedError(
                f"a Fourier transform of length {length}, which has no factors to split it by",
                hint="use a length that is a power of two",
            )
        # Angles are reduced as whole numbers first: large ones would lose digits.
        angle = 2 * np.pi * (np.outer(np.arange(rows), np.arange(columns)) % length) / length
        sign = 1.0 if backward else -1.0
        tables = [builder.constant(table, "float64") for table in (np.cos(angle), np.sin(angle) * sign)]
        return builder.cast(tables[0], dtype), builder.cast(tables[1], dtype)
    at = builder.reshape(builder.arange(rows), (rows, 1))
    turns = builder.call("multiply", at, builder.reshape(builder.arange(columns), (1, columns)))
    whole = builder.reshape(builder.shape_tensor((length,)), ())
    turns = builder.cast(builder.call("floor_mod", turns, whole), dtype)
    share = builder.call("divide", turns, builder.cast(whole, dtype))
    value = builder.call("multiply", share, builder.constant_like((2 if backward else -2) * math.pi, share))
    return builder.call("cos", value), builder.call("sin", value)


def _times(builder: Builder, real: GraphExpr, imaginary: GraphExpr | None, tables: Pair) -> Pair:
    """Samples times tables."""
    cosines, sines = tables
    pair = _product(builder, real, cosines), _product(builder, real, sines)
    if imaginary is None:
        return pair
    return (
        builder.call("subtract", pair[0], _product(builder, imaginary, sines)),
        builder.call("add", pair[1], _product(builder, imaginary, cosines)),
    )


def _product(builder: Builder, rows: GraphExpr, table: GraphExpr) -> GraphExpr:
    """Rows times a table; one signal alone is one row."""
    shape = sizes_of(rows)
    if len(shape) > 1:
        return builder.call("matmul", rows, table)
    found = builder.call("matmul", builder.reshape(rows, (1, *shape)), table)
    return builder.reshape(found, sizes_of(found)[1:])


def _split(
    builder: Builder, real: GraphExpr, imaginary: GraphExpr | None, p: int, columns: int, backward: bool
) -> Pair:
    """A transform of p * q samples: sample q * i + j, frequency k + p * l.

    Along i first, then a turn by the angle of (j, k), then along j.
    """
    *outer, length = sizes_of(real)
    assert isinstance(length, int)
    q, rank = length // p, len(outer)

    def turned(value: GraphExpr) -> GraphExpr:
        return builder.transpose(value, (*range(rank), rank + 1, rank))

    rows = [None if part is None else turned(builder.reshape(part, (*outer, p, q))) for part in (real, imaginary)]
    assert rows[0] is not None
    first = transform(builder, rows[0], rows[1], p, backward)
    cosines, sines = _tables(builder, (q, p), length, backward, dtype_of(real).name)
    spun = (
        builder.call(
            "subtract", builder.call("multiply", first[0], cosines), builder.call("multiply", first[1], sines)
        ),
        builder.call("add", builder.call("multiply", first[0], sines), builder.call("multiply", first[1], cosines)),
    )
    second = transform(builder, turned(spun[0]), turned(spun[1]), q, backward)
    found = [builder.reshape(turned(part), (*outer, length)) for part in second]
    return builder.slice_axis(found[0], rank, 0, columns), builder.slice_axis(found[1], rank, 0, columns)


def fitted_samples(builder: Builder, data: GraphExpr, axis: int, length: int) -> GraphExpr:
    """So many samples along an axis: cut off, or zeros at the end."""
    size = sizes_of(data)[axis]
    if isinstance(size, int) and size >= length:
        return builder.slice_axis(data, axis, 0, length)
    none, after = (0,) * rank_of(data), [0] * rank_of(data)
    missing: Size = subtract(length, size)
    return builder.call("pad", data, before=none, after=(*after[:axis], missing, *after[axis + 1 :]))
