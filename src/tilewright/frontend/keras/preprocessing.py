"""Preprocessing layers that models contain: scaling, images of one size, categories, tables of words and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.core.builder import LARGEST_MADE, dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.keras.boxes import Placement, cropped, moved_boxes, padded, stretched
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.images import resized
from tilewright.frontend.keras.layer import Layer
from tilewright.frontend.keras.registry import Slot, layer
from tilewright.frontend.keras.values import KerasBuilder, Value
from tilewright.frontend.keras.variables import under
from tilewright.graph.ir.dimensions import Size, add, floor_divide, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32, INT32, INT64, STRING, DataType
from tilewright.support.errors import UnsupportedError, UserError

FIRST_OF_BACKENDS = 3
"""The version of Keras in which several layers came to keep the type of what they are given."""


def numbers_of(described: Any, what: str) -> Array:
    """Numbers of a configuration: one, a list, or an array that Keras wrote out."""
    if isinstance(described, dict) and isinstance(described.get("config"), dict):
        described = described["config"].get("value")
    try:
        return np.asarray(described, np.float32)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} must be numbers, it is {str(described)[:60]!r}") from error


# Scaling


@layer("Rescaling", keeps_mask=True)
def rescaling(call: LayerCall) -> GraphExpr:
    """x * scale + offset."""
    b, options = call.builder, call.layer
    data = b.cast(call.input(0), options.dtype)
    scale, offset = (numbers_of(options.option(name, default), name) for name, default in (("scale", 1), ("offset", 0)))
    result = b.multiply(data, call.constant_of(_by_channel(call, scale), options.dtype))
    return b.add(result, call.constant_of(_by_channel(call, offset), options.dtype)) if offset.any() else result


def _by_channel(call: LayerCall, numbers: Array) -> Array:
    """Numbers for each channel, where channels are first."""
    if numbers.ndim == 1 and call.layer.channels_first:
        return numbers.reshape(-1, *(1,) * (rank_of(call.input(0)) - 2))
    return numbers


def _statistics(item: Layer) -> Sequence[Slot]:
    given = item.option("mean")
    return () if given is not None else [Slot(f"vars/{number}", False) for number in range(3)]


@layer("Normalization", variables=_statistics, keeps_mask=True)
def normalization(call: LayerCall) -> GraphExpr:
    """(x - mean) / deviation, or back."""
    b, options = call.builder, call.layer
    data = b.cast(call.input(0), options.dtype)
    rank = rank_of(data)
    axis = options.option("axis", -1)
    listed = [] if axis is None else list(axis) if isinstance(axis, (list, tuple)) else [axis]
    kept = [call.axis(item, rank) for item in listed]
    shape = [size_at(data, at) if at in kept else 1 for at in range(rank)]
    if options.option("mean") is not None:
        mean, variance = numbers_of(options.option("mean"), "mean"), numbers_of(options.option("variance"), "variance")
    else:
        mean, variance = call.array("vars/0"), call.array("vars/1")
    try:
        mean, variance = (np.broadcast_to(item.reshape(_fitting(item, shape)), shape) for item in (mean, variance))
    except ValueError as error:
        raise UserError(f"a mean of shape {mean.shape} does not fit data of shape {sizes_of(data)}") from error
    deviation = np.maximum(np.sqrt(variance), np.float32(1e-7))
    shift, factor = call.constant_of(mean, options.dtype), call.constant_of(deviation, options.dtype)
    if options.flag("invert"):
        return b.add(shift, b.multiply(data, factor))
    return b.divide(b.subtract(data, shift), factor)


def _fitting(item: Array, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(shape) if item.size == np.prod(shape) else item.shape


# Images


def image_axes(call: LayerCall, data: GraphExpr) -> tuple[int, int]:
    """The axes of rows and columns."""
    rank = rank_of(data)
    if rank not in (3, 4):
        raise UserError(f"images have 3 or 4 dimensions, not {rank}")
    first = rank - 2 if call.layer.channels_first else rank - 3
    return first, first + 1


def _image(call: LayerCall) -> GraphExpr:
    if call.args and isinstance(call.args[0], dict):
        raise UnsupportedError(
            f"{call.layer.kind} of images in a dictionary",
            hint="boxes and masks of another size belong into the input pipeline: call the layer on images alone",
        )
    return call.input(0)


def _as_image(call: LayerCall) -> GraphExpr:
    return call.builder.cast(_image(call), call.layer.dtype)


@layer("Resizing")
def resizing(call: LayerCall) -> Any:
    """Images of one size, as they are or cut or padded to its proportions; Keras 3 keeps whole numbers.

    In a dictionary, boxes move with the images, and masks are resized with them.
    """
    given = call.args[0] if call.args else None
    how = call.layer.text("interpolation", "bilinear").lower()
    if not isinstance(given, dict) or call.session.version < FIRST_OF_BACKENDS:
        return _resized(call, _image(call) if call.session.version >= FIRST_OF_BACKENDS else _as_image(call), how)
    images = given.get("images")
    if not isinstance(images, Value):
        raise UserError(f"a dictionary of {', '.join(map(str, given))} has no 'images'")
    result = {**given, "images": _resized(call, images.expr, how)}
    if isinstance(given.get("segmentation_masks"), Value):
        result["segmentation_masks"] = _resized(call, given["segmentation_masks"].expr, "nearest")
    if isinstance(given.get("bounding_boxes"), dict):
        result["bounding_boxes"] = moved_boxes(call, given["bounding_boxes"], _placement(call, images.expr))
    return result


def _resized(call: LayerCall, data: GraphExpr, how: str) -> GraphExpr:
    b, options = call.builder, call.layer
    target = _target(call)
    if options.flag("crop_to_aspect_ratio"):
        data = cropped_to(b, data, image_axes(call, data), target)
    elif options.flag("pad_to_aspect_ratio"):
        data = padded_to(b, data, image_axes(call, data), target, options.number("fill_value", 0.0))
    else:
        image_axes(call, data)
    return resized(b, data, target, how, options.channels_first, options.flag("antialias"))


def _target(call: LayerCall) -> tuple[int, int]:
    target = (call.layer.integer("height"), call.layer.integer("width"))
    if min(target) < 1:
        raise UserError(f"a size of {target[0]} x {target[1]}")
    return target


def _placement(call: LayerCall, images: GraphExpr) -> Placement:
    """Where images come to lie; of padding and cutting, Keras lets boxes know padding first."""
    before, after = _known(images, image_axes(call, images)), _target(call)
    if call.layer.flag("pad_to_aspect_ratio"):
        return padded(before, after)
    return cropped(before, after) if call.layer.flag("crop_to_aspect_ratio") else stretched(before, after)


def _known(data: GraphExpr, axes: tuple[int, int]) -> tuple[int, int]:
    return size_at(data, axes[0]), size_at(data, axes[1])


def cropped_to(b: KerasBuilder, data: GraphExpr, axes: tuple[int, int], target: tuple[int, int]) -> GraphExpr:
    """The middle of images, in the proportions of a size."""
    height, width = _known(data, axes)
    rows = max(min(height, width * target[0] // target[1]), 1)
    columns = max(min(width, height * target[1] // target[0]), 1)
    for axis, size, whole in ((axes[0], rows, height), (axes[1], columns, width)):
        start = (whole - size) // 2
        data = b.slice_axis(data, axis, start, start + size)
    return data


def padded_to(
    b: KerasBuilder, data: GraphExpr, axes: tuple[int, int], target: tuple[int, int], fill: float
) -> GraphExpr:
    """Images with a border, in the proportions of a size."""
    height, width = _known(data, axes)
    rows, columns = max(height, width * target[0] // target[1]), max(width, height * target[1] // target[0])
    before = [0] * rank_of(data)
    for axis, size, whole in ((axes[0], rows, height), (axes[1], columns, width)):
        before[axis] = (size - whole) // 2
    return b.call("pad", data, before=tuple(before), after=tuple(before), value=fill) if any(before) else data


@layer("CenterCrop")
def center_crop(call: LayerCall) -> GraphExpr:
    """The middle of images; of smaller ones, what fits the proportions, enlarged."""
    b, options, data = call.builder, call.layer, _as_image(call)
    return _middle(b, data, image_axes(call, data), (options.integer("height"), options.integer("width")), options)


def _middle(
    b: KerasBuilder, data: GraphExpr, axes: tuple[int, int], target: tuple[int, int], options: Layer
) -> GraphExpr:
    sizes = sizes_of(data)
    if any(isinstance(sizes[axis], int) and sizes[axis] < size for axis, size in zip(axes, target, strict=True)):
        return resized(b, cropped_to(b, data, axes, target), target, "bilinear", options.channels_first)
    for axis, size in zip(axes, target, strict=True):
        start: Size = floor_divide(subtract(sizes[axis], size), 2)
        data = b.slice_axis(data, axis, start, add(start, size))
    return data


def _stages(item: Layer) -> list[Layer]:
    return item.listed_parts("_pipeline_layers", item.option("layers"))


@layer("Pipeline", variables=lambda item: [slot for part in _stages(item) for slot in under(item, part)])
def pipeline(call: LayerCall) -> Any:
    """Layers one after the other."""
    value = call.args[0]
    for part in _stages(call.layer):
        value = call.apply(part, value)
    return value


# Categories


def encoded(
    call: LayerCall, indices: GraphExpr, depth: int, mode: str, dtype: DataType, weights: Any = None
) -> GraphExpr:
    """Indices as they are, or as rows with a 1 (or a count) for each of so many categories."""
    b = call.builder
    if mode == "int":
        return b.cast(indices, dtype)
    if depth < 1 or depth > LARGEST_MADE:
        raise UserError(f"{depth} categories")
    if not rank_of(indices):
        indices = b.reshape(indices, (1,))
    rank = rank_of(indices)
    if mode == "one_hot":
        if rank > 1 and sizes_of(indices)[-1] == 1:
            indices = b.reshape(indices, sizes_of(indices)[:-1])
        return b.cast(_hot(b, indices, depth), dtype)
    if mode not in ("multi_hot", "count"):
        raise UnsupportedError(f"the output mode {mode!r}", hint="one of int, one_hot, multi_hot and count")
    rows = _hot(b, indices, depth)
    axis = min(rank - 1, 1)  # the one after the batch, however many there are
    if mode == "multi_hot":
        return b.cast(b.reduce("any", rows, (axis,)), dtype)
    counts = b.cast(rows, dtype)
    if weights is not None:
        factors = b.cast(weights, dtype)
        counts = b.multiply(counts, b.reshape(factors, (*sizes_of(factors), 1)))
    return b.reduce("sum", counts, (axis,))


def _hot(b: KerasBuilder, indices: GraphExpr, depth: int) -> GraphExpr:
    """Whether each index is each of so many."""
    order = b.constant(b.count(depth), INT64)
    return b.call("equal", b.reshape(b.cast(indices, INT64), (*sizes_of(indices), 1)), order)


@layer("CategoryEncoding", autocast=False)
def category_encoding(call: LayerCall) -> GraphExpr:
    """Indices as rows of categories."""
    b, depth = call.builder, call.layer.integer("num_tokens")
    mode = call.layer.text("output_mode", "multi_hot")
    indices = b.cast(call.input(0), INT64)
    indices = checked_index(b, indices, (depth,), (0,), negative=False)
    return encoded(call, indices, depth, mode, call.layer.dtype, call.tensor("count_weights", 1))


@layer("Discretization")
def discretization(call: LayerCall) -> GraphExpr:
    """The number of boundaries that are not above a value."""
    b, options = call.builder, call.layer
    described = options.option("bin_boundaries")
    if described is None:
        raise UserError("the layer has no boundaries", hint="adapt it before the model is saved")
    bounds = numbers_of(described, "bin_boundaries").reshape(-1)
    data = b.cast(call.input(0), FLOAT32)
    wide = b.reshape(data, (*sizes_of(data), 1))
    reached = b.call("greater_equal", wide, b.constant(bounds, FLOAT32))
    indices = b.reduce("sum", b.cast(reached, INT32), (rank_of(data),))
    mode = options.text("output_mode", "int")
    dtype = INT32 if mode == "int" else options.dtype if options.dtype.is_float else FLOAT32
    return encoded(call, indices, bounds.size + 1, mode, dtype)


# Tables

_NOWHERE = -2
"""The place of what is masked among categories: it is none of them."""


def _vocabulary(call: LayerCall) -> list[Any]:
    """The words or numbers of a table: in its options, or in a file beside the weights."""
    described = call.layer.option("vocabulary")
    if isinstance(described, dict) and isinstance(described.get("config"), dict):
        described = described["config"].get("value")
    if isinstance(described, list):
        return described
    name = f"{call.layer.weights.prefix}vocabulary.txt"
    content = call.session.assets.get(name)
    if content is None:
        raise UserError(
            f"the file has no vocabulary ('assets/{name}')",
            hint="save the model as a .keras archive, after the layer was adapted",
        )
    return content.decode("utf-8", "replace").split("\n")[: content.count(b"\n") + (not content.endswith(b"\n"))]


def _lookup(call: LayerCall, key: type, keys_type: DataType, default_mask: Any, default_oov: Any) -> GraphExpr:
    options = call.layer
    try:
        words = [key(item) for item in _vocabulary(call)]
    except (TypeError, ValueError) as error:
        raise UserError(f"the vocabulary is damaged: {error}") from error
    mask, oov = options.option("mask_token", default_mask), options.option("oov_token", default_oov)
    count = options.integer("num_oov_indices", 1)
    masks = [] if mask is None else [mask]
    # Only places have one for the mask: rows of categories have no column for it.
    special = masks if options.text("output_mode", "int") == "int" else []
    start = len(special)
    if words[:start] == special and words[start : start + count] == [oov] * count:
        words = words[start + count :]
    if options.flag("invert"):
        if keys_type is not STRING:
            raise UnsupportedError("an inverted table of numbers")
        tokens = [*special, *([oov] * count), *words]
        return call.call(
            "text.lookup",
            call.input(0),
            keys=tuple(range(len(tokens))),
            values=tuple(tokens),
            default=oov,
            dtype=STRING,
        )
    if count > 1 and (keys_type is STRING or options.option("oov_method", "floormod") not in (None, "floormod")):
        raise UnsupportedError(
            "a table with several places for unknown keys, which are hashed", hint="use num_oov_indices=1"
        )
    keys = (*masks, *words)
    values = (*(range(start) if start else [_NOWHERE] * len(masks)), *range(start + count, start + count + len(words)))
    found = call.call("text.lookup", _keys(call, keys_type), keys=keys, values=values, default=start, dtype=INT64)
    if count > 1:
        rest = call.builder.binary("floor_mod", _keys(call, keys_type), count)
        known = call.call("text.lookup", _keys(call, keys_type), keys=keys, values=values, default=-1, dtype=INT64)
        found = call.builder.where(call.builder.compare("equal", known, -1), call.builder.add(rest, start), known)
    if count == 0:
        raise UnsupportedError("a table without a place for unknown words", hint="use num_oov_indices=1")
    return _finished_lookup(call, found, start + count + len(words))


def _keys(call: LayerCall, dtype: DataType) -> GraphExpr:
    data = call.input(0)
    if (dtype is STRING) != (dtype_of(data) is STRING):
        raise UserError(f"a table of {dtype} is given {dtype_of(data)}")
    return data if dtype is STRING else call.builder.cast(data, INT64)


def _finished_lookup(call: LayerCall, indices: GraphExpr, size: int) -> GraphExpr:
    options = call.layer
    mode = options.text("output_mode", "int")
    if options.flag("sparse"):
        raise UnsupportedError("a sparse result", hint="build the layer with sparse=False")
    if mode == "int":
        return indices
    depth = options.integer("max_tokens") if options.flag("pad_to_max_tokens") else size
    if mode == "tf_idf":
        counts = encoded(call, indices, depth, "count", FLOAT32)
        return call.builder.multiply(counts, call.builder.constant(_rarity(options, depth), FLOAT32))
    # Before Keras 3 the type of the layer was that of the rows.
    is_float = call.session.version < FIRST_OF_BACKENDS and options.dtype.is_float
    return encoded(call, indices, depth, mode, options.dtype if is_float else INT64)


def _rarity(options: Layer, depth: int) -> Array:
    """The weight of each category: that of unknown ones is the mean, and of unused ones 0."""
    weights = numbers_of(options.option("idf_weights"), "idf_weights").reshape(-1)
    unknown = options.integer("num_oov_indices", 1)
    if not weights.size or weights.size + unknown > depth:
        raise UserError(f"{weights.size} idf_weights do not fit {depth} categories")
    filled = np.zeros(depth, np.float32)
    filled[:unknown], filled[unknown : unknown + weights.size] = weights.mean(), weights
    return filled


@layer("IntegerLookup", autocast=False)
def integer_lookup(call: LayerCall) -> GraphExpr:
    """Whole numbers as places in a vocabulary."""
    return _lookup(call, int, INT64, None, -1)


@layer("StringLookup", autocast=False)
def string_lookup(call: LayerCall) -> GraphExpr:
    """Words as places in a vocabulary, or back."""
    return _lookup(call, str, STRING, None, "[UNK]")


@layer("TextVectorization", "Hashing", "HashedCrossing", autocast=False)
def hashed(call: LayerCall) -> Value:
    """What TensorFlow alone computes, on texts."""
    raise UnsupportedError(
        f"the layer {call.layer.kind} works on texts by TensorFlow's own functions",
        hint="apply it before the model, in the input pipeline, and save the model without it",
    )
