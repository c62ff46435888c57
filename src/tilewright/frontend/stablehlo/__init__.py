"""Importer of JAX functions and StableHLO programs: `from_jax`, `from_stablehlo`."""

from __future__ import annotations

from tilewright.frontend.stablehlo import (
    calls,
    complex_numbers,
    contract,
    control,
    convolution,
    elementwise,
    fourier,
    indexing,
    linalg,
    normalization,
    randomness,
    reduce,
    scatter,
    shapes,
    sorting,
    windows,
)
from tilewright.frontend.stablehlo.importer import from_stablehlo
from tilewright.frontend.stablehlo.jax import from_jax
from tilewright.frontend.stablehlo.registry import converted_operations

__all__ = ["converted_operations", "from_jax", "from_stablehlo"]

FAMILIES = (
    calls,
    complex_numbers,
    contract,
    control,
    convolution,
    elementwise,
    fourier,
    indexing,
    linalg,
    normalization,
    randomness,
    reduce,
    scatter,
    shapes,
    sorting,
    windows,
)
"""Every family of operations; importing them fills the table of converters."""
