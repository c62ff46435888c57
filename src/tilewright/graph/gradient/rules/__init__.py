"""Gradient rules, one file a family of operators; importing this package registers them all."""

from tilewright.graph.gradient.rules import (
    attention,
    broadcast,
    contract,
    convolution,
    elementwise,
    host,
    indexing,
    internal,
    normalization,
    pooling,
    recurrent,
    reduce,
    shape,
    spectra,
)

__all__ = [
    "attention",
    "broadcast",
    "contract",
    "convolution",
    "elementwise",
    "host",
    "indexing",
    "internal",
    "normalization",
    "pooling",
    "recurrent",
    "reduce",
    "shape",
    "spectra",
]
