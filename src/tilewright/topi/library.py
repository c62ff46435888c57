"""Imports every family of the operator library, so that all computations are registered."""

from tilewright.topi import contract, convolution, elementwise, pooling, reduce, shape

FAMILIES = (contract, convolution, elementwise, pooling, reduce, shape)
