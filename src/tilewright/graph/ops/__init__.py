"""Operator declarations, one file a family; importing this package registers them all."""

from tilewright.graph.ops import (
    broadcast,
    contract,
    convolution,
    elementwise,
    host,
    indexing,
    normalization,
    pooling,
    quantize,
    recurrent,
    reduce,
    scatter,
    shape,
    sorting,
    symbolic,
    winograd,
)

__all__ = [
    "broadcast",
    "contract",
    "convolution",
    "elementwise",
    "host",
    "indexing",
    "normalization",
    "pooling",
    "quantize",
    "recurrent",
    "reduce",
    "scatter",
    "shape",
    "sorting",
    "symbolic",
    "winograd",
]
