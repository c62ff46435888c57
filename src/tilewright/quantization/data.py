"""Calibration data: arrays, mappings, iterators, .npz and .npy files and folders of images as inputs of a model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilewright.support.errors import UserError
from tilewright.support.text import kind_of

Array = npt.NDArray[Any]
Feed: TypeAlias = tuple[Array, ...]
"""The inputs of one run, in the order of the model's parameters."""
CalibrationData: TypeAlias = "str | os.PathLike[str] | Array | Mapping[str, Array] | Iterable[object]"
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


def feeds(data: CalibrationData, names: Sequence[str], shapes: Sequence[tuple[int | None, ...]]) -> list[Feed]:
    """The runs that calibration makes: one for each item of the data.

    An array (or a mapping of arrays) is one batch after another along its first axis, in batches of the size that the
    model has; an iterator gives the inputs of a run each time: an array, a tuple of arrays, or a mapping by name.
    """
    result = list(_runs(data, names, shapes))
    if not result:
        raise UserError("there is no calibration data", hint="give at least one input of the model")
    return result


def _runs(data: CalibrationData, names: Sequence[str], shapes: Sequence[tuple[int | None, ...]]) -> Iterator[Feed]:
    if isinstance(data, (str, os.PathLike)):
        yield from _files(Path(data), names, shapes)
    elif isinstance(data, np.ndarray):
        yield from _batches({names[0]: data}, names, shapes)
    elif isinstance(data, Mapping):
        yield from _batches(data, names, shapes)
    elif isinstance(data, Iterable):
        for item in data:
            yield _one(item, names)
    else:
        raise UserError(
            f"calibration data cannot be {kind_of(data)}", hint="arrays, an iterator, or the path of a file"
        )


def _one(item: object, names: Sequence[str]) -> Feed:
    if isinstance(item, Mapping):
        return _by_name(item, names)
    parts = item if isinstance(item, (tuple, list)) else (item,)
    if len(parts) != len(names):
        raise UserError(f"the model has {len(names)} inputs ({', '.join(names)}), an item of the data has {len(parts)}")
    return tuple(np.asarray(part) for part in parts)


def _by_name(item: Mapping[str, Any], names: Sequence[str]) -> Feed:
    missing = [name for name in names if name not in item]
    if missing:
        raise UserError(f"calibration data lacks the input {missing[0]!r}", hint=f"it has {', '.join(map(str, item))}")
    return tuple(np.asarray(item[name]) for name in names)


def _batches(
    arrays: Mapping[str, Array], names: Sequence[str], shapes: Sequence[tuple[int | None, ...]]
) -> Iterator[Feed]:
    whole = _by_name(arrays, names)
    if any(array.ndim == 0 for array in whole):
        yield whole
        return
    length = whole[0].shape[0]
    if any(array.shape[0] != length for array in whole):
        raise UserError("arrays of calibration data have different numbers of rows", hint="one row for each example")
    batch = next((shape[0] for shape in shapes if shape and shape[0] is not None), None) or min(length, 16)
    if length < batch:
        raise UserError(f"the model takes {batch} examples at a time, the data has {length}")
    for start in range(0, length - batch + 1, batch):
        yield tuple(array[start : start + batch] for array in whole)


def _files(path: Path, names: Sequence[str], shapes: Sequence[tuple[int | None, ...]]) -> Iterator[Feed]:
    if path.is_dir():
        yield from _folder(path, names, shapes)
    elif path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            yield from _batches({name: arrays[name] for name in arrays.files}, names, shapes)
    elif path.suffix == ".npy":
        yield from _batches({names[0]: np.load(path, allow_pickle=False)}, names, shapes)
    else:
        raise UserError(f"{path} is no calibration data", hint="a .npz or .npy file, or a folder of them or of images")


def _folder(path: Path, names: Sequence[str], shapes: Sequence[tuple[int | None, ...]]) -> Iterator[Feed]:
    files = sorted(item for item in path.iterdir() if item.suffix.lower() in (".npz", ".npy", *_IMAGES))
    if not files:
        raise UserError(f"there is no .npz, .npy or image file in {path}")
    for item in files:
        if item.suffix.lower() in _IMAGES:
            yield (_image(item, shapes[0]),)
        else:
            yield from _files(item, names, shapes)


def _image(path: Path, shape: tuple[int | None, ...]) -> Array:
    """One photograph as the input of an image model: resized, in 0..1, channels where the model has them."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError("reading images needs Pillow", hint="pip install pillow, or give arrays") from None
    if len(shape) != 4:
        raise UserError(f"images are for models with one input of 4 dimensions, not {len(shape)}")
    last = shape[3] in (1, 3)
    channels, height, width = (shape[3], shape[1], shape[2]) if last else shape[1:]
    if channels not in (1, 3) or height is None or width is None:
        raise UserError(
            "the model's input does not say how large images are", hint="shapes={'input': (1, 3, 224, 224)}"
        )
    with Image.open(path) as image:
        picture = image.convert("L" if channels == 1 else "RGB").resize((width, height))
    pixels = np.asarray(picture, np.float32).reshape(height, width, channels) / 255.0
    return pixels[None] if last else np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])
