"""Inputs and outputs of Core ML models: what their descriptions mean as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.frontend.coreml.types import array_dtype
from tilewright.ir.dtype import FLOAT16, FLOAT64, INT64, STRING, UINT8, DataType
from tilewright.support.errors import UnsupportedError, UserError

Dims = tuple[int | str, ...]
_GRAY, _RGB, _BGR, _GRAY_HALF = 10, 20, 30, 40
_KINDS = tuple(f"{name}Type" for name in "int64 double string image multiArray dictionary sequence state".split())
_MOST = 1 << 31


@dataclass(frozen=True)
class Feature:
    """An input or output as its description has it."""

    name: str
    kind: str
    """One of int64, double, string, image, multiArray, dictionary, sequence, state."""
    type: Any

    @property
    def is_scalar(self) -> bool:
        """Whether it is one number or text."""
        return self.kind in ("int64", "double", "string")

    @property
    def is_blue_first(self) -> bool:
        """Whether channels of an image are blue, green, red."""
        return self.kind == "image" and self.type.imageType.colorSpace == _BGR

    @property
    def is_gray(self) -> bool:
        """Whether an image has one channel."""
        return self.kind == "image" and self.type.imageType.colorSpace in (_GRAY, _GRAY_HALF)

    def dtype(self) -> DataType:
        """The type of its elements."""
        match self.kind:
            case "int64":
                return INT64
            case "double":
                return FLOAT64
            case "string":
                return STRING
            case "image":
                return FLOAT16 if self.type.imageType.colorSpace == _GRAY_HALF else UINT8
            case "multiArray":
                return array_dtype(self.type.multiArrayType.dataType)
        raise UnsupportedError(
            f"'{self.name}' is of the kind {self.kind}", hint="inputs are numbers, texts, arrays and images"
        )

    def dims(self) -> Dims:
        """Its sizes: (1, channels, height, width) of an image; open ones are texts."""
        if self.is_scalar:
            return ()
        if self.kind == "image":
            image = self.type.imageType
            height, width = (
                self._open(axis, size) for axis, size in (("height", image.height), ("width", image.width))
            )
            if image.HasField("imageSizeRange") or image.HasField("enumeratedSizes"):
                height, width = f"{self.name}_height", f"{self.name}_width"
            return (1, 1 if self.is_gray else 3, height, width)
        return self._array_dims()

    def _open(self, axis: str, size: int) -> int | str:
        if size < 0 or size > _MOST:
            raise UserError(f"'{self.name}' has a dimension of {size}")
        return int(size) or f"{self.name}_{axis}"

    def _array_dims(self) -> Dims:
        array = self.type.multiArrayType
        shape = [self._open(str(axis), size) for axis, size in enumerate(array.shape)]
        choices = [list(item.shape) for item in array.enumeratedShapes.shapes]
        ranges = array.shapeRange.sizeRanges
        if array.HasField("shapeRange"):
            if not shape:
                shape = [f"{self.name}_{axis}" for axis in range(len(ranges))]
            for axis, item in enumerate(ranges[: len(shape)]):
                if item.upperBound != item.lowerBound:
                    shape[axis] = f"{self.name}_{axis}"
        for axis in range(len(shape)):
            if any(len(item) != len(shape) for item in choices):
                raise UnsupportedError(f"'{self.name}' has shapes of different ranks")
            if len({item[axis] for item in choices}) > 1:
                shape[axis] = f"{self.name}_{axis}"
        return tuple(shape)


def feature(description: Any) -> Feature:
    """A feature of a description."""
    for kind in _KINDS:
        if description.type.HasField(kind):
            return Feature(description.name, kind.removesuffix("Type"), description.type)
    raise UserError(f"the feature '{description.name}' has no type that is known")


def features(descriptions: Sequence[Any]) -> list[Feature]:
    """All features of a description."""
    found = [feature(item) for item in descriptions]
    names = [item.name for item in found]
    if len(set(names)) != len(names):
        raise UserError("two features of the model have one name")
    return found
