"""Host functions: operators that make no sense as kernels (strings, sequences, results sized by data), in numpy.

Importing this package registers every family; `registry.py` has the calling convention.
"""

from __future__ import annotations

from tilewright.runtime.host import (
    axes,
    conditions,
    factorizations,
    patches,
    random_numbers,
    resampling,
    selection,
    sequences,
    shaping,
    spectra,
    suppression,
    texts,
)
from tilewright.runtime.host.registry import HostFunction, HostValue, host_function, names, register

FAMILIES = (
    axes,
    conditions,
    factorizations,
    patches,
    random_numbers,
    resampling,
    selection,
    sequences,
    shaping,
    spectra,
    suppression,
    texts,
)
"""The modules whose functions are registered."""

__all__ = ["FAMILIES", "HostFunction", "HostValue", "host_function", "names", "register"]
