"""Host functions of spectral factorisations: singular values and eigenvalues come from LAPACK through numpy."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tilewright.runtime.host.factorizations import each_matrix
from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.values import Array, Attributes, tensor


@register("host.svd")
def svd(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Left vectors, singular values by falling size, right vectors as rows: of each matrix of a batch."""
    full = bool(attributes["full_matrices"])
    left, sizes, right = each_matrix(lambda batch: np.linalg.svd(batch, full_matrices=full), tensor(values[0]))
    return [np.ascontiguousarray(left), sizes, np.ascontiguousarray(right)]


@register("host.eigh")
def eigh(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Rising eigenvalues and the eigenvectors as columns: of each symmetric matrix of a batch, by one triangle."""
    triangle: Literal["L", "U"] = "U" if attributes["upper"] else "L"
    sizes, vectors = each_matrix(lambda batch: np.linalg.eigh(batch, UPLO=triangle), tensor(values[0]))
    return [sizes, np.ascontiguousarray(vectors)]


@register("host.eig")
def eig(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Eigenvalues and the right and left eigenvectors as columns, real and imaginary parts one after the other."""
    a = tensor(values[0])
    sizes, right = each_matrix(_spectrum, a)
    left = right
    if attributes["left"]:
        # The left vectors are those of the transposed matrix, whose eigenvalues come in another order.
        others, vectors = each_matrix(_spectrum, np.swapaxes(a, -1, -2))
        order = np.empty(sizes.shape, np.int64)
        for place in np.ndindex(sizes.shape[:-1]):
            order[place] = _nearest(np.conj(sizes[place]), others[place])
        left = np.take_along_axis(vectors, order[..., None, :], -1)
    parts = [part for value in (sizes, right, left) for part in (value.real, value.imag)]
    return [np.ascontiguousarray(part, a.dtype) for part in parts]


def _spectrum(batch: Array) -> tuple[Array, Array]:
    sizes, vectors = np.linalg.eig(batch)
    return sizes.astype(np.complex128), vectors.astype(np.complex128)


def _nearest(wanted: Array, others: Array) -> Array:
    """For each number the nearest of others, each of which is taken once."""
    apart = np.abs(wanted[:, None] - others[None, :])
    apart[np.isnan(apart)] = np.inf
    order = np.empty(len(wanted), np.int64)
    free = np.ones(len(wanted), bool)
    for place in range(len(wanted)):
        order[place] = np.argmin(np.where(free, apart[place], np.inf)) if np.isfinite(apart[place]).any() else place
        free[order[place]] = False
    return order
