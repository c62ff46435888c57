"""Layers that change images when a model is trained, and a few that always do: what is left of them when it runs.

Images come alone, or in a dictionary with labels, boxes and masks, which then is the result too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.images import resized
from tilewright.frontend.keras.preprocessing import FIRST_OF_BACKENDS, cropped_to, image_axes, numbers_of
from tilewright.frontend.keras.registry import layer
from tilewright.frontend.keras.values import Value, mapped
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32
from tilewright.support.errors import UserError

_MOST = 255.0


def with_images(call: LayerCall, images: GraphExpr) -> Any:
    """What the layer was given, with other images in it."""
    given = call.args[0]
    if not isinstance(given, dict):
        return images
    boxes = given.get("bounding_boxes")
    if not isinstance(boxes, dict) or not isinstance(boxes.get("boxes"), Value):
        return {**given, "images": images}
    corners = call.builder.cast(boxes["boxes"].expr, FLOAT32)
    return {**given, "images": images, "bounding_boxes": {**boxes, "boxes": corners}}


def images_of(call: LayerCall) -> GraphExpr:
    """The images, alone or in a dictionary."""
    given = call.args[0] if call.args else None
    if not isinstance(given, dict):
        return call.input(0)
    images = given.get("images")
    if not isinstance(images, Value):
        raise UserError(f"a dictionary of {', '.join(map(str, given))} has no 'images'")
    return images.expr


@layer(
    "RandomFlip",
    "RandomRotation",
    "RandomZoom",
    "RandomTranslation",
    "RandomHeight",
    "RandomWidth",
    "RandomElasticTransform",
    "RandomErasing",
    "RandomGaussianBlur",
    "RandomPerspective",
    "RandomSharpness",
    "RandomShear",
    "RandAugment",
    "Solarization",
    "AugMix",
    "CutMix",
)
def augmentation(call: LayerCall) -> Any:
    """What only training changes, in the type that the layer computes in."""
    return with_images(call, call.builder.cast(images_of(call), call.layer.dtype))


@layer(
    "RandomBrightness",
    "RandomColorDegeneration",
    "RandomColorJitter",
    "RandomContrast",
    "RandomGrayscale",
    "RandomHue",
    "RandomInvert",
    "RandomPosterization",
    "RandomSaturation",
    "MixUp",
)
def augmentation_of_colours(call: LayerCall) -> Any:
    """What only training changes; whole numbers stay such."""
    return with_images(call, images_of(call))


@layer("RandomCrop")
def random_crop(call: LayerCall) -> Any:
    """Images as they are; in Keras 2 the middle in the proportions of a size, as large as it."""
    b, options, data = call.builder, call.layer, images_of(call)
    if call.session.version >= FIRST_OF_BACKENDS:
        return with_images(call, data)
    data = b.cast(data, options.dtype)
    axes, target = image_axes(call, data), (options.integer("height"), options.integer("width"))
    return resized(b, cropped_to(b, data, axes, target), target, "bilinear", options.channels_first)


@layer("AutoContrast")
def auto_contrast(call: LayerCall) -> Any:
    """Each channel of an image stretched to the whole range; one of a single value stays as it is."""
    b, dtype = call.builder, call.layer.dtype
    data = b.cast(images_of(call), dtype)
    bounds = value_range(call)
    images = between(call, data, bounds, np.array([0.0, _MOST]))
    # Height and width are sought at these places whatever the order of the dimensions is, as Keras does.
    axes = (1, 2) if rank_of(data) == 4 else (0, 1)
    low, high = (b.call(name, images, axes=axes, keepdims=True) for name in ("min", "max"))
    width = b.subtract(high, low)
    flat = b.compare("less_equal", width, 0.0)
    scale = b.divide(b.constant_like(_MOST, width), b.where(flat, b.constant_like(1.0, width), width))
    stretched = b.subtract(b.multiply(images, scale), b.multiply(low, scale))
    kept = b.call("clip", stretched, minimum=0.0, maximum=_MOST)
    return with_images(call, b.where(flat, data, between(call, kept, np.array([0.0, _MOST]), bounds)))


def value_range(call: LayerCall) -> Array:
    """The least and the greatest value of images."""
    bounds = numbers_of(call.layer.option("value_range", (0, 255)), "value_range")
    if bounds.shape != (2,) or not bounds[0] < bounds[1]:
        raise UserError(f"value_range must be two numbers, it is {bounds.tolist()}")
    return bounds


def between(call: LayerCall, data: GraphExpr, source: Array, target: Array) -> GraphExpr:
    """Numbers of one range in another."""
    if np.array_equal(source, target):
        return data
    b = call.builder
    share = b.divide(b.subtract(data, float(source[0])), float(source[1] - source[0]))
    return b.add(b.multiply(share, float(target[1] - target[0])), float(target[0]))


@layer("MaxNumBoundingBoxes")
def max_num_bounding_boxes(call: LayerCall) -> Any:
    """So many boxes and labels for each image: the first ones, and filled up."""
    given = call.args[0]
    count, fill = call.layer.integer("max_number"), call.layer.number("fill_value", -1)
    boxes = given.get("bounding_boxes") if isinstance(given, dict) else None
    if not isinstance(boxes, dict):
        return given
    return {**given, "bounding_boxes": mapped(lambda item: _filled_up(call, item, count, fill), boxes)}


def _filled_up(call: LayerCall, item: Any, count: int, fill: float) -> Any:
    if not isinstance(item, Value):
        return item
    b, value = call.builder, item.expr
    size = size_at(value, 1)
    kept = b.slice_axis(value, 1, 0, min(size, count))
    none = [0] * len(sizes_of(value))
    after = [*none[:1], max(count - size, 0), *none[2:]]
    return b.call("pad", kept, before=tuple(none), after=tuple(after), value=fill) if any(after) else kept


@layer("TFDIdentity", autocast=False)
def feature_as_it_is(call: LayerCall) -> GraphExpr:
    """A feature of a `FeatureSpace` that nothing is done with."""
    return call.input(0)


@layer("TFDConcat", autocast=False)
def joined_features(call: LayerCall) -> GraphExpr:
    """All features of a `FeatureSpace` in one tensor."""
    b, values = call.builder, [value.expr for value in call.values]
    common = b.common_type(values)
    axis = call.axis(call.layer.option("axis", -1), rank_of(values[0]))
    return b.concatenate([b.cast(value, common) if dtype_of(value) is not common else value for value in values], axis)
