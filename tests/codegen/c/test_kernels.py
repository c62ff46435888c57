"""Kernels as C: what stands around their statements."""

from __future__ import annotations

from tests.codegen import portable_kernels
from tests.codegen.on_device import on_opencl


def test_scalars() -> None:
    """Half precision is passed as its bits."""
    portable_kernels.check_scalars(on_opencl, (*portable_kernels.SCALARS, "float64"))
