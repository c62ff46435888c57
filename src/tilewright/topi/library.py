"""The whole operator library: importing this registers the computations of every family."""

from tilewright.topi import contract, convolution, elementwise, pooling, reduce, shape, winograd
from tilewright.topi.registry import compute_operator

FAMILIES = (contract, convolution, elementwise, pooling, reduce, shape, winograd)

__all__ = ["FAMILIES", "compute_operator"]
