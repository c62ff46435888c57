"""Equalisation of histograms by tiles, against its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontend.test_keras import archive, data, layer, result_of
from tilewright.frontend.keras import from_keras
from tilewright.support.errors import UserError

_KIND = "ContrastLimitedAdaptiveHistogramEqualization"


def one_tile(image: Any, limit: float) -> Any:
    """A single channel whose only tile is the whole image."""
    counts = np.bincount(image.ravel(), minlength=256).astype(np.float64)
    clipped = np.minimum(counts, limit * image.size / 256) if limit > 0 else counts
    sums = np.cumsum(clipped + (counts - clipped).sum() / 256)
    return np.clip((sums - sums[0]) * 255 / (image.size - sums[0]), 0, 255)[image]


@pytest.mark.parametrize("limit", [0.0, 4.0])
@pytest.mark.parametrize("order", ["channels_last", "channels_first"])
def test_one_tile(limit: float, order: str) -> None:
    image = np.random.default_rng(0).integers(40, 90, (6, 7))
    shape = (6, 7, 1) if order == "channels_last" else (1, 6, 7)
    options = {"clip_limit": limit, "tile_grid_size": [1, 1], "data_format": order}
    result = result_of(
        archive([data(*shape), layer(_KIND, "l", "x", **options)], "l"), np.float32(image.reshape(shape))
    )
    np.testing.assert_allclose(result.reshape(6, 7), one_tile(image, limit), rtol=1e-4, atol=1e-3)


def test_equal_tiles_give_the_same_as_one() -> None:
    tile = np.random.default_rng(1).integers(0, 256, (4, 4))
    image = np.tile(tile, (2, 3))[None, :, :, None]
    content = archive([data(1, 8, 12, 1, dtype="int32"), layer(_KIND, "l", "x", tile_grid_size=[2, 3])], "l")
    result = result_of(content, image.astype(np.int32))
    assert result.dtype == np.int32
    expected = np.tile(one_tile(tile, 4.0), (2, 3))
    assert np.abs(result[0, :, :, 0] - expected).max() <= 1  # cut off to whole numbers


def test_more_tiles_than_pixels() -> None:
    with pytest.raises(UserError, match="8 x 8 tiles of an image of 4 x 4"):
        from_keras(archive([data(1, 4, 4, 1), layer(_KIND, "l", "x")], "l"))


@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        (_KIND, [None, 8, 8, 1], "equalisation of images of open sizes"),
        ("MelSpectrogram", [1, None], "signals of open length"),
    ],
)
def test_sizes_that_have_to_be_known(kind: str, shape: list[int | None], message: str) -> None:
    inputs = layer("InputLayer", "x", batch_shape=shape, dtype="float32")
    with pytest.raises(UserError, match=message):
        from_keras(archive([inputs, layer(kind, "l", "x")], "l"))
