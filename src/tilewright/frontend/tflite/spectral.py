"""Converters of spectra. A complex tensor is held as pairs of floats along one more axis at the end."""

from __future__ import annotations

from tilewright.frontend.core.builder import rank_of, sizes_of
from tilewright.frontend.core.fourier import fitted_samples, transform
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError

OF_PAIRS = frozenset({"RFFT2D", "REAL", "IMAG", "COMPLEX_ABS", "SQUEEZE", "EXPAND_DIMS", "CAST"})
"""Operators that know what pairs are."""


@converter("RFFT2D")
def rfft2d(node: NodeContext) -> GraphExpr:
    """The first half of the spectrum of real images: along rows, then along columns."""
    builder, data = node.builder, node.input(0)
    lengths = node.constant_ints(1, "the lengths")
    if len(lengths) != 2 or rank_of(data) < 2 or min(lengths) < 1:
        raise UserError(f"RFFT2D of lengths {lengths}")
    rank = rank_of(data)
    for axis, length in zip((rank - 2, rank - 1), lengths, strict=True):
        data = fitted_samples(builder, data, axis, length)
    real, imaginary = transform(builder, data, None, lengths[1] // 2 + 1, backward=False)
    order = (*range(rank - 2), rank - 1, rank - 2)
    parts = (builder.transpose(real, order), builder.transpose(imaginary, order))
    whole = transform(builder, parts[0], parts[1], lengths[0], backward=False)
    pairs = [builder.expand_dims(builder.transpose(part, order), (rank,)) for part in whole]
    return builder.concatenate(pairs, rank)


def _part(node: NodeContext, at: int) -> GraphExpr:
    data = node.input(0)
    last = rank_of(data) - 1
    return node.builder.reshape(node.builder.slice_axis(data, last, at, at + 1), sizes_of(data)[:-1])


@converter("REAL")
def real(node: NodeContext) -> GraphExpr:
    """The real parts."""
    return _part(node, 0)


@converter("IMAG")
def imaginary(node: NodeContext) -> GraphExpr:
    """The imaginary parts."""
    return _part(node, 1)


@converter("COMPLEX_ABS")
def complex_abs(node: NodeContext) -> GraphExpr:
    """The magnitudes."""
    squares = [node.call("multiply", part, part) for part in (_part(node, 0), _part(node, 1))]
    return node.call("sqrt", node.call("add", *squares))
