"""Graphs that torch captures with all sizes open are compiled whole: nothing of them is left to torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

from tests.requirements import need_module
from tilewright.torch_backend import FallbackWarning

torch = need_module("torch")
functional = torch.nn.functional

CASES: dict[str, tuple[Callable[..., object], list[tuple[int, ...]]]] = {
    "maxima of windows": (lambda a: functional.max_pool2d(a, 3, 2, 1), [(1, 3, 9, 10), (2, 3, 12, 7)]),
    "their places": (
        lambda a: functional.max_pool2d(a, (3, 2), 2, 1, return_indices=True),
        [(1, 3, 9, 10), (2, 3, 12, 7), (2, 2, 5, 5)],
    ),
    "a size of another tensor": (
        lambda a: functional.interpolate(
            functional.max_pool2d(a, 2), size=a.shape[-2:], mode="bilinear", align_corners=False
        ),
        [(1, 3, 8, 10), (2, 3, 12, 6)],
    ),
    "corners aligned": (
        lambda a: functional.interpolate(
            a, size=(a.shape[-2] * 2, a.shape[-1] + 3), mode="bilinear", align_corners=True
        ),
        [(1, 3, 8, 10), (2, 3, 12, 6)],
    ),
    "the nearest": (lambda a: functional.interpolate(a, scale_factor=2.0), [(1, 3, 8, 10), (2, 3, 12, 6)]),
    "a ratio of sizes": (lambda a: a * (a.shape[0] / a.shape[1]) + 1 / a.shape[1], [(3, 4), (5, 7)]),
    "as many from the end as another has": (
        lambda a: (a[-a.shape[1] :] * 2, torch.slice_scatter(a, a[: a.shape[1]] + 1, 0, -a.shape[1])),
        [(9, 3), (12, 5)],
    ),
    "volumes": (
        lambda a: functional.conv3d(a, torch.ones(4, 2, 3, 3, 3) / 9, stride=(2, 1, 1), padding=1),
        [(1, 2, 5, 6, 6), (2, 2, 8, 7, 7)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left_to_torch(name: str) -> None:
    function, shapes = CASES[name]
    compiled = torch.compile(function, backend="tilewright", dynamic=True, options={"threads": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for shape in shapes:
            a = torch.randn(shape)
            torch.testing.assert_close(compiled(a), function(a))
