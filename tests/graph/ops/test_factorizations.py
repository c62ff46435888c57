"""Type rules of factorisations that the host does, with what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.ops.running import apply, data, infer
from tilewright.ir.types import TensorType, tensor_type
from tilewright.support.errors import UserError


def test_results_have_the_types_that_the_rules_say():
    square = data(2, 5, 5) + 9 * np.eye(5, dtype=np.float32)
    apply("host.cholesky", square + np.swapaxes(square, -1, -2))
    apply("host.solve_triangular", np.tril(square)[0], data(3, 5, 2), upper=False, unit=False)
    _, pivots = apply("host.lu", data(2, 5, 7), steps=5)
    apply("host.exchanged", pivots, rows=6)
    packed, factors = apply("host.reflections", data(2, 5, 3))
    apply("host.reflect", packed, factors, data(5, 4), first=True)
    apply("host.eig", square, left=True)


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "message"),
    [
        ("host.cholesky", [(3,)], {}, "matrices of at least 2 dimensions"),
        ("host.cholesky", [(3, 4)], {}, "the two sides of a symmetric matrix: 3 and 4"),
        ("host.eig", [(3, 4)], {}, "that has eigenvalues: 3 and 4"),
        ("host.solve_triangular", [(3, 3), (3,)], {}, "the right side of triangular systems needs at least 2"),
        ("host.solve_triangular", [(3, 3), (4, 1)], {}, "rows of both sides of a triangular system: 3 and 4"),
        ("host.solve_triangular", [(3, 4), (4, 1)], {}, "the two sides of a triangular matrix: 3 and 4"),
        ("host.lu", [(3, 4)], {"steps": 4}, "4 steps of elimination are more than a matrix has"),
        ("host.exchanged", [()], {"rows": 2}, "exchanges of rows need at least 1 dimension"),
        ("host.reflect", [(3, 2), (2,), (3,)], {}, "what is reflected needs at least 2 dimensions"),
        ("host.reflect", [(3, 2), (2,), (4, 1)], {}, "rows of reflecting vectors and of what is reflected: 3 and 4"),
    ],
)
def test_refusals(name, shapes, attributes, message):
    with pytest.raises(UserError, match=message):
        infer(name, *(tensor_type(shape, "float32") for shape in shapes), **attributes)


def test_reflections_of_open_sizes_are_refused():
    with pytest.raises(UserError, match="the reflections of matrices whose size varies"):
        infer("host.reflections", TensorType((None, None), tensor_type((), "float32").dtype))
