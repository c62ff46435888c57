"""Sizes that a file with open dimensions was exported for: the sizes that it is likely to run at.

Exporters of detectors and classifiers (Ultralytics) write the size of the images that a network was trained on beside
the model: `imgsz = [64, 64]`. Where the input's height and width are symbols, these are their likely sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tilewright.graph.ir.dimensions import Sizes
from tilewright.ir.expr import Var

IMAGE_SIZE = "imgsz"
"""The key of an image's height and width."""
_MOST = 1 << 16
"""Larger sizes are no sizes of images."""


def exported_sizes(metadata: Mapping[str, str], inputs: Sequence[Sizes | None]) -> dict[str, int]:
    """The likely sizes of the symbols of a model's inputs, by name: of images in channels first.

    What is written beside a model is a hint, and in no standard: what cannot be read so says nothing.
    """
    size = _image_size(metadata.get(IMAGE_SIZE, ""))
    images = [shape[2:] for shape in inputs if shape is not None and len(shape) == 4]
    if size is None or len(images) != 1:
        return {}
    pairs = zip(images[0], size, strict=True)
    return {symbol.name: number for symbol, number in pairs if type(symbol) is Var}


def _image_size(text: str) -> tuple[int, int] | None:
    """`"[64, 48]"` -> `(64, 48)`."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, list) or len(found) != 2:
        return None
    height, width = found
    if type(height) is not int or type(width) is not int or not (0 < height <= _MOST and 0 < width <= _MOST):
        return None
    return height, width
