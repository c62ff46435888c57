"""Calibration data: arrays, mappings, iterators, .npz and .npy files and folders of images as inputs of a model."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilewright.support.errors import MissingDependencyError, UserError
from tilewright.support.text import kind_of

Array = npt.NDArray[Any]
Feed: TypeAlias = tuple[Array, ...]
"""The inputs of one run, in the order of the model's parameters."""
CalibrationData: TypeAlias = "str | os.PathLike[str] | Array | Mapping[str, Array] | Iterable[object]"
_MOST_EXAMPLES = 16
"""Examples of a run, where the model takes any number."""
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


@dataclass(frozen=True, slots=True)
class Input:
    """What a model takes: a name, sizes (None where any will do) and a data type."""

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))

    def checked(self, value: object) -> Array:
        """A value as this input, or an error that says what is wrong with it."""
        array = np.asarray(value)
        if array.ndim != len(self.shape) or any(
            size is not None and size != own for size, own in zip(self.shape, array.shape, strict=False)
        ):
            sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
            raise UserError(f"calibration data for {self.name!r} has shape {array.shape}, the model takes ({sizes})")
        whole_as_float = array.dtype.kind in "biu" and self.dtype.kind == "f"
        if not whole_as_float and not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise UserError(f"calibration data for {self.name!r} is {array.dtype}, the model takes {self.dtype}")
        return array.astype(self.dtype, copy=False)


def feeds(data: CalibrationData, inputs: Sequence[Input]) -> list[Feed]:
    """The runs that calibration makes: one for each item of the data.

    An array (or a mapping of arrays) is one batch after another along its first axis, in batches of the size that the
    model has (what is left over and fills no batch is not used) or of at most 16; an iterator gives the inputs of a run
    each time: an array, a tuple of arrays, or a mapping by name.
    """
    if not inputs:
        raise UserError("the model has no inputs: there is nothing to calibrate")
    result = []
    for feed in _runs(data, inputs):
        try:
            result.append(tuple(item.checked(value) for item, value in zip(inputs, feed, strict=True)))
        except UserError as error:
            raise UserError(f"{error} (run {len(result)} of the data)") from None
    if not result:
        raise UserError("there is no calibration data", hint="give at least one input of the model")
    return result


def _runs(data: CalibrationData, inputs: Sequence[Input]) -> Iterator[tuple[Any, ...]]:
    if isinstance(data, (str, os.PathLike)):
        yield from _files(Path(data), inputs)
    elif isinstance(data, np.ndarray):
        yield from _batches(_only(data, inputs), inputs)
    elif isinstance(data, Mapping):
        yield from _batches(data, inputs)
    elif isinstance(data, Iterable):
        for item in data:
            yield _one(item, inputs)
    else:
        raise UserError(
            f"calibration data cannot be {kind_of(data)}", hint="arrays, an iterator, or the path of a file"
        )


def _names(inputs: Sequence[Input]) -> str:
    return ", ".join(item.name for item in inputs)


def _only(array: Array, inputs: Sequence[Input]) -> dict[str, Array]:
    """One array, for a model of one input."""
    if len(inputs) != 1:
        raise UserError(
            f"the model has {len(inputs)} inputs ({_names(inputs)}), the data is one array",
            hint="a mapping of arrays by the names of inputs, or a .npz file",
        )
    return {inputs[0].name: array}


def _one(item: object, inputs: Sequence[Input]) -> tuple[Any, ...]:
    if isinstance(item, Mapping):
        return _by_name(item, inputs)
    parts = item if isinstance(item, (tuple, list)) else (item,)
    if len(parts) != len(inputs):
        raise UserError(f"the model has {len(inputs)} inputs ({_names(inputs)}), an item of the data has {len(parts)}")
    return tuple(parts)


def _by_name(item: Mapping[str, Any], inputs: Sequence[Input]) -> tuple[Any, ...]:
    missing = [part.name for part in inputs if part.name not in item]
    if missing:
        raise UserError(f"calibration data lacks the input {missing[0]!r}", hint=f"it has {', '.join(map(str, item))}")
    return tuple(item[part.name] for part in inputs)


def _batches(arrays: Mapping[str, Any], inputs: Sequence[Input]) -> Iterator[tuple[Any, ...]]:
    whole = tuple(np.asarray(array) for array in _by_name(arrays, inputs))
    if any(array.ndim == 0 for array in whole):
        yield whole
        return
    length = whole[0].shape[0]
    if any(array.shape[0] != length for array in whole):
        raise UserError("arrays of calibration data have different numbers of rows", hint="one row for each example")
    fixed = next((item.shape[0] for item in inputs if item.shape and item.shape[0] is not None), None)
    if fixed is not None and length < fixed:
        raise UserError(f"the model takes {fixed} examples at a time, the data has {length}")
    batch = fixed or _MOST_EXAMPLES
    # A model of any batch takes the rest as well.
    last = length - batch + 1 if fixed else length
    for start in range(0, last, batch):
        yield tuple(array[start : start + batch] for array in whole)


def _files(path: Path, inputs: Sequence[Input]) -> Iterator[tuple[Any, ...]]:
    if path.is_dir():
        yield from _folder(path, inputs)
    elif path.suffix in (".npz", ".npy"):
        loaded = _loaded(path)
        yield from _batches(loaded if isinstance(loaded, dict) else _only(loaded, inputs), inputs)
    else:
        raise UserError(f"{path} is no calibration data", hint="a .npz or .npy file, or a folder of them or of images")


def _loaded(path: Path) -> Array | dict[str, Array]:
    """The arrays of a file."""
    try:
        arrays = np.load(path, allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            return arrays
        with arrays:
            return {name: arrays[name] for name in arrays.files}
    except OSError as error:
        raise UserError(f"cannot read calibration data: {error.strerror or error}", where=str(path)) from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"the calibration data is damaged: {error}", where=str(path)) from None


def _folder(path: Path, inputs: Sequence[Input]) -> Iterator[tuple[Any, ...]]:
    files = sorted(item for item in path.iterdir() if item.suffix.lower() in (".npz", ".npy", *_IMAGES))
    if not files:
        raise UserError(f"there is no .npz, .npy or image file in {path}")
    for item in files:
        if item.suffix.lower() in _IMAGES:
            yield (_image(item, inputs),)
        else:
            yield from _files(item, inputs)


def _image(path: Path, inputs: Sequence[Input]) -> Array:
    """One photograph as the input of an image model: resized, in 0..1, channels where the model has them."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingDependencyError.for_extra("pillow", "images", "reading calibration images") from None
    shape = inputs[0].shape
    if len(inputs) != 1 or len(shape) != 4:
        raise UserError("images are for models with one input of 4 dimensions", hint="give arrays, by input")
    last = shape[3] in (1, 3)
    channels, height, width = (shape[3], shape[1], shape[2]) if last else shape[1:]
    if channels not in (1, 3) or height is None or width is None:
        raise UserError(
            "the model's input does not say how large images are", hint="give arrays, or a model of fixed sizes"
        )
    try:
        with Image.open(path) as image:
            picture = image.convert("L" if channels == 1 else "RGB").resize((width, height))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the image: {error}", where=str(path)) from None
    pixels = np.asarray(picture, np.float32).reshape(height, width, channels) / 255.0
    return pixels[None] if last else np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])
