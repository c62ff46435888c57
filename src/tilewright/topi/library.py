"""The whole operator library: importing this registers the computations of every family."""

from tilewright.topi import (
    attention,
    checks,
    contract,
    convolution,
    cumulative,
    elementwise,
    half,
    planes,
    pooling,
    quantize,
    recurrent,
    reduce,
    rows,
    scatter,
    selection,
    shape,
    sorting,
    symbolic,
    turned,
    winograd,
)
from tilewright.topi.registry import compute_operator

FAMILIES = (
    attention,
    checks,
    contract,
    convolution,
    cumulative,
    elementwise,
    half,
    planes,
    pooling,
    quantize,
    recurrent,
    reduce,
    rows,
    scatter,
    selection,
    shape,
    sorting,
    symbolic,
    turned,
    winograd,
)

__all__ = ["FAMILIES", "compute_operator"]
