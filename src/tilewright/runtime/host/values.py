"""What host functions share: reading values of the kind they expect, and reading attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime.host.registry import HostAttribute, HostValue
from tilewright.support.errors import CompilerBug, UserError

Array = npt.NDArray[Any]
Attributes = Mapping[str, HostAttribute]


def tensor(value: HostValue, what: str = "an input") -> Array:
    """A value that must be a tensor."""
    if isinstance(value, np.ndarray):
        return value
    raise UserError(f"{what} must be a tensor, it is {kind_of(value)}")


def sequence(value: HostValue) -> list[HostValue]:
    """A value that must be a sequence."""
    if isinstance(value, list):
        return value
    raise UserError(f"an input must be a sequence, it is {kind_of(value)}")


def scalar(value: HostValue, what: str = "an input") -> Any:
    """The one element of a tensor, as a Python number."""
    array = tensor(value, what)
    if array.size != 1:
        raise UserError(f"{what} must be one number, it is a tensor of shape {array.shape}")
    return array.reshape(-1)[0].item()


def kind_of(value: HostValue) -> str:
    """What a value is, for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a tensor of shape {value.shape}"


def texts(items: list[str], shape: tuple[int, ...]) -> Array:
    """A tensor of strings."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array.reshape(shape)


def integer(attributes: Attributes, name: str) -> int:
    """A whole-number attribute."""
    value = attributes[name]
    if not isinstance(value, int):
        raise CompilerBug(f"the attribute {name} of a host function is {value!r}, not a whole number")
    return value


def number(attributes: Attributes, name: str) -> float:
    """A number attribute."""
    value = attributes[name]
    if not isinstance(value, (int, float)):
        raise CompilerBug(f"the attribute {name} of a host function is {value!r}, not a number")
    return float(value)


def text(attributes: Attributes, name: str) -> str:
    """A text attribute."""
    value = attributes[name]
    if not isinstance(value, str):
        raise CompilerBug(f"the attribute {name} of a host function is {value!r}, not a text")
    return value


def items(attributes: Attributes, name: str) -> tuple[HostAttribute, ...]:
    """A list attribute."""
    value = attributes[name]
    if not isinstance(value, tuple):
        raise CompilerBug(f"the attribute {name} of a host function is {value!r}, not a list")
    return value


def whole_numbers(attributes: Attributes, name: str) -> tuple[int, ...]:
    """A list of whole numbers."""
    numbers = items(attributes, name)
    return tuple(item for item in numbers if isinstance(item, int))


def to_numbers(array: Array, attributes: Attributes) -> Array:
    """A tensor in a type that numpy orders: bfloat16 arrives as bits, which the attribute `dtype` tells."""
    if attributes.get("dtype") != "bfloat16":
        return array
    return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
