"""Host functions of spectral factorisations: singular values and eigenvalues come from LAPACK through numpy."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.values import Attributes, tensor


@register("host.svd")
def svd(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Left vectors, singular values by falling size, right vectors as rows: of each matrix of a batch."""
    left, sizes, right = np.linalg.svd(tensor(values[0]), full_matrices=bool(attributes["full_matrices"]))
    return [np.ascontiguousarray(left), sizes, np.ascontiguousarray(right)]


@register("host.eigh")
def eigh(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Rising eigenvalues and the eigenvectors as columns: of each symmetric matrix of a batch, by one triangle."""
    sizes, vectors = np.linalg.eigh(tensor(values[0]), UPLO="U" if attributes["upper"] else "L")
    return [sizes, np.ascontiguousarray(vectors)]
