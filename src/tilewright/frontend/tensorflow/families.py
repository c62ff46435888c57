"""The modules whose converters are registered, one an operator family."""

from __future__ import annotations

from tilewright.frontend.tensorflow import (
    complex_numbers,
    control,
    elementwise,
    image,
    indexing,
    linalg,
    lists,
    nn,
    normalization,
    randomness,
    recurrent,
    reduce,
    shape,
    state,
    texts,
)

FAMILIES = (
    complex_numbers,
    control,
    elementwise,
    image,
    indexing,
    linalg,
    lists,
    nn,
    normalization,
    randomness,
    recurrent,
    reduce,
    shape,
    state,
    texts,
)
