"""Kernels as C: what stands around their statements."""

from __future__ import annotations

from tests.codegen import portable_kernels
from tests.codegen.on_device import on_opencl, require_opencl


def test_scalars() -> None:
    """Half precision is passed as its bits."""
    portable_kernels.check_scalars(on_opencl, (*portable_kernels.SCALARS, "float64"))


def test_large_grids() -> None:
    portable_kernels.check_large_grids(on_opencl)


def test_symbolic_sizes() -> None:
    require_opencl()
    portable_kernels.check_symbolic_sizes("opencl")
