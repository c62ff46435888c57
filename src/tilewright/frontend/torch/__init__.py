"""Importer of PyTorch programs: `from_torch` turns an exported program into the graph IR."""

from __future__ import annotations

from tilewright.frontend.torch import (
    arithmetic,
    attention,
    complex_numbers,
    contract,
    convolution,
    creation,
    distances,
    elementwise,
    fourier,
    gradients,
    indexing,
    linalg,
    normalization,
    pooling,
    quantize,
    randomness,
    reduce,
    reflections,
    resize,
    sampling,
    scatter,
    selection,
    shape,
    sorting,
    special,
    spectra,
    strided,
)
from tilewright.frontend.torch.importer import from_torch
from tilewright.frontend.torch.registry import converted_operators

__all__ = ["converted_operators", "from_torch"]

FAMILIES = (
    arithmetic,
    attention,
    complex_numbers,
    contract,
    convolution,
    creation,
    distances,
    elementwise,
    fourier,
    gradients,
    indexing,
    linalg,
    normalization,
    pooling,
    quantize,
    randomness,
    reduce,
    reflections,
    resize,
    sampling,
    scatter,
    selection,
    shape,
    sorting,
    special,
    spectra,
    strided,
)
"""Every family of operators; importing them fills the table of converters."""
