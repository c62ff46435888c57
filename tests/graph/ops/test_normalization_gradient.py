"""What the gradient of a layer normalisation refuses."""

from __future__ import annotations

import pytest

from tests.graph.ops.running import infer
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError

ROWS = ((2, 3), (3,), (2, 3), (2, 1), (2, 1))


@pytest.mark.parametrize(
    ("place", "shape", "message"),
    [
        (1, (4, 2, 3), "scale .* does not fit"),
        (2, (2, 4), "the shape of the data, and of the gradient"),
        (2, (3,), "gradient"),
        (3, (2, 3), "the rows of the data, and of the mean"),
        (4, (1, 1), "the rows of the data, and of the inverse"),
    ],
)
def test_shapes_that_do_not_fit(place: int, shape: tuple[int, ...], message: str) -> None:
    shapes = [*ROWS[:place], shape, *ROWS[place + 1 :]]
    with pytest.raises(UserError, match=message):
        infer("nn.layer_norm_gradient", *(tensor_type(item, "float32") for item in shapes), axis=1)


def test_the_axis_and_the_types() -> None:
    kinds = [tensor_type(item, "float32") for item in ROWS]
    with pytest.raises(UserError, match="axis"):
        infer("nn.layer_norm_gradient", *kinds, axis=2)
    with pytest.raises(UserError, match="data types differ"):
        infer("nn.layer_norm_gradient", *kinds[:4], tensor_type((2, 1), "float64"), axis=1)
