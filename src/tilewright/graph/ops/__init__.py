"""Operator declarations, one file a family; importing this package registers them all."""

from tilewright.graph.ops import (
    broadcast,
    contract,
    convolution,
    elementwise,
    indexing,
    normalization,
    pooling,
    reduce,
    shape,
    winograd,
)

__all__ = [
    "broadcast",
    "contract",
    "convolution",
    "elementwise",
    "indexing",
    "normalization",
    "pooling",
    "reduce",
    "shape",
    "winograd",
]
