"""The whole operator library: importing this registers the computations of every family."""

from tilewright.topi import (
    attention,
    bitserial,
    checks,
    convolution,
    cumulative,
    elementwise,
    half_products,
    integer_products,
    matmul,
    planar_pooling,
    pooling,
    recurrent,
    reduce,
    scatter,
    selection,
    shape,
    softmax_rows,
    sorting,
    symbolic,
    transpose,
    trees,
    winograd,
)
from tilewright.topi.registry import compute_operator

FAMILIES = (
    attention,
    bitserial,
    checks,
    convolution,
    cumulative,
    elementwise,
    half_products,
    integer_products,
    matmul,
    planar_pooling,
    pooling,
    recurrent,
    reduce,
    scatter,
    selection,
    shape,
    softmax_rows,
    sorting,
    symbolic,
    transpose,
    trees,
    winograd,
)

__all__ = ["FAMILIES", "compute_operator"]
