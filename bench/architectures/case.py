"""What an architecture is: how its model is built, and inputs of it for a batch and a length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Inputs = Mapping[str, Any]
"""Keyword arguments of a model: tensors, or structures of them."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What varies between two calls of one model."""

    batch: int
    length: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model of a package, built from a small configuration; `inputs` gives arguments for sizes.

    Whatever differs between the inputs of two sizes is left open when the model is exported.
    """

    name: str
    package: str
    build: Callable[[], Any]
    inputs: Callable[[Sizes], Inputs]
    small: Sizes = field(default=Sizes(2, 16))
    large: Sizes = field(default=Sizes(3, 24))
