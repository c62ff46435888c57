"""Spectra of real samples: halves of the samples are added and subtracted first, which makes the products smaller.

Of N samples x, M = N / 2, a frequency k is x[0] + sum(e[n] cos(2 pi k n / N)) - i sum(o[n] sin(2 pi k n / N)) over n
from 1 to M, where e[n] = x[n] + x[N - n] and o[n] = x[n] - x[N - n] (of e[M] half counts: it is twice x[M]).

Sums of cosines and sines go on in the same way, for cos(2 pi k (M - n) / N) is cos(2 pi k n / N), or its negative for
odd k: even k are the sums of half the length, of e[n] + e[M - n], and odd k are sums over e[n] - e[M - n].
"""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import Builder, dtype_of, sizes_of
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array

_SHORTEST = 64
"""Samples from which adding halves pays."""
_SPLIT_FROM = 256
"""Samples from which sums of cosines and sines are split into those of even and odd frequencies."""


def is_folded(length: object, columns: object) -> bool:
    """Whether so many frequencies of so many real samples are computed here."""
    if not isinstance(length, int) or not isinstance(columns, int) or length % 2:
        return False
    return length >= _SHORTEST and columns == length // 2 + 1


def half_spectrum(builder: Builder, samples: GraphExpr, backward: bool) -> tuple[GraphExpr, GraphExpr]:
    """Real and imaginary parts of frequencies up to half the length, of samples along the last axis."""
    length = sizes_of(samples)[-1]
    assert isinstance(length, int)
    half = length // 2
    first, second = _part(builder, samples, 1, half), _part(builder, samples, length - 1, half, -1)
    real = _cosines(builder, _part(builder, samples, 0, 1), builder.call("add", first, second), length)
    imaginary = _sines(builder, builder.call("subtract", first, second), length, 1.0 if backward else -1.0)
    return real, imaginary


def _part(builder: Builder, value: GraphExpr, start: int, count: int, step: int = 1) -> GraphExpr:
    """So many elements along the last axis."""
    shape = sizes_of(value)
    outer = (0,) * (len(shape) - 1)
    end = (*shape[:-1], start + count * step)
    return builder.call("slice", value, begin=(*outer, start), end=end, strides=(*(1 for _ in outer), step))


def _folded(builder: Builder, value: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """Elements 1 .. M/2 and M-1 .. M/2 of those from 1 to M."""
    count = sizes_of(value)[-1]
    assert isinstance(count, int)
    half = count // 2
    return _part(builder, value, 0, half), _part(builder, value, count - 2, half, -1)


def _is_split(length: int) -> bool:
    return length >= _SPLIT_FROM and length % 4 == 0


def _cosines(builder: Builder, base: GraphExpr, value: GraphExpr, length: int) -> GraphExpr:
    """base + sum(value[n] cos(2 pi k n / length)) over n = 1 .. M, half of the last, for k = 0 .. M."""
    half = length // 2
    if not _is_split(length):
        table = np.cos(_angles(length, half, np.arange(half + 1)))
        return _plus(builder, base, _product(builder, value, _half_of_last(table)))
    last = _part(builder, value, half - 1, 1)
    last = builder.call("multiply", last, builder.constant_like(0.5, last))
    first, second = _folded(builder, value)
    even = _cosines(builder, builder.call("add", base, last), builder.call("add", first, second), half)
    table = np.cos(_angles(length, half // 2, _odd(half)))
    odd = _product(builder, builder.call("subtract", first, second), table)
    return _by_turns(builder, even, _plus(builder, builder.call("subtract", base, last), odd))


def _sines(builder: Builder, value: GraphExpr, length: int, sign: float) -> GraphExpr:
    """sum(value[n] sin(2 pi k n / length)) over n = 1 .. M for k = 0 .. M, times a sign."""
    half = length // 2
    if not _is_split(length):
        return _product(builder, value, sign * np.sin(_angles(length, half, np.arange(half + 1))))
    first, second = _folded(builder, value)
    even = _sines(builder, builder.call("subtract", first, second), half, sign)
    table = sign * np.sin(_angles(length, half // 2, _odd(half)))
    return _by_turns(builder, even, _product(builder, builder.call("add", first, second), _half_of_last(table)))


def _odd(half: int) -> Array:
    """The odd frequencies, and one beyond: as many as there are even ones."""
    return np.arange(half // 2 + 1) * 2 + 1


def _angles(length: int, count: int, frequencies: Array) -> Array:
    """The angles of samples 1 .. count; reduced as whole numbers first: large ones would lose digits."""
    return 2 * np.pi * (np.outer(np.arange(1, count + 1), frequencies) % length) / length


def _half_of_last(table: Array) -> Array:
    """A table for samples of which the last one is twice what it is."""
    table[-1] *= 0.5
    return table


def _product(builder: Builder, rows: GraphExpr, table: Array) -> GraphExpr:
    """Rows times a table; one signal alone is one row."""
    shape = sizes_of(rows)
    constant = builder.cast(builder.constant(table, "float64"), dtype_of(rows))
    if len(shape) > 1:
        return builder.call("matmul", rows, constant)
    found = builder.call("matmul", builder.reshape(rows, (1, *shape)), constant)
    return builder.reshape(found, sizes_of(found)[1:])


def _plus(builder: Builder, base: GraphExpr, sums: GraphExpr) -> GraphExpr:
    return builder.call("add", sums, base)


def _by_turns(builder: Builder, even: GraphExpr, odd: GraphExpr) -> GraphExpr:
    """Frequencies in order: even[0], odd[0], even[1], ... without the last odd one."""
    *outer, count = sizes_of(even)
    assert isinstance(count, int)
    axis = len(outer)
    pairs = builder.concatenate([builder.expand_dims(part, (axis + 1,)) for part in (even, odd)], axis + 1)
    return builder.slice_axis(builder.reshape(pairs, (*outer, 2 * count)), axis, 0, 2 * count - 1)
