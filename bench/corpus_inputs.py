"""What the models of the corpus are run on: arrays by recipe, from a seed.

A recipe in `corpus.toml` has the shape of an input whose dimensions the model leaves open, and what its values are:
`scale` (the standard deviation of normal values; 1 unless told), `range` (uniform, the end not included) or `value`
(all the same). Types and fixed shapes are the model's own. The name of an input may be a pattern for several
(`past_key_values.*`); the first that fits counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.support.errors import UserError

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an input is made."""

    shape: tuple[int, ...] | None = None
    dtype: str = ""
    scale: float = 1.0
    range: tuple[float, float] | None = None
    value: float | None = None

    def make(self, shape: tuple[int, ...], dtype: np.dtype[Any], random: np.random.Generator) -> np.ndarray:
        """An array of a shape and a type."""
        if self.value is not None:
            return np.full(shape, self.value, dtype)
        if dtype == np.bool_:
            return random.integers(0, 2, shape).astype(dtype)
        if np.issubdtype(dtype, np.integer):
            low, high = self.range or (0, 10)
            return random.integers(int(low), int(high), shape).astype(dtype)
        if self.range is not None:
            return random.uniform(*self.range, shape).astype(dtype)
        return (random.standard_normal(shape) * self.scale).astype(dtype)


def recipe(listed: Mapping[str, Any]) -> Recipe:
    """A recipe as the list has it."""
    if unknown := listed.keys() - {"shape", "dtype", "scale", "range", "value"}:
        raise ValueError(f"a recipe has no '{sorted(unknown)[0]}'")
    shape, ends = listed.get("shape"), listed.get("range")
    return Recipe(
        shape=None if shape is None else tuple(shape),
        dtype=listed.get("dtype", ""),
        scale=listed.get("scale", 1.0),
        range=None if ends is None else (ends[0], ends[1]),
        value=listed.get("value"),
    )


@dataclass(frozen=True, slots=True)
class Signature:
    """The type of an input, and its dimensions; None is one that the model leaves open."""

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


def onnx_signatures(path: Path) -> dict[str, Signature]:
    """The inputs of an ONNX file that no initializer gives."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    given = {item.name for item in graph.initializer}
    signatures = {}
    for item in graph.input:
        if item.name in given:
            continue
        tensor = item.type.tensor_type
        sizes = tuple(size.dim_value if size.dim_value > 0 else None for size in tensor.shape.dim)
        signatures[item.name] = Signature(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type), sizes)
    return signatures


def make_inputs(signatures: Mapping[str, Signature], recipes: Mapping[str, Recipe], seed: int = 0) -> Arrays:
    """An array for each input; a `UserError` where a recipe is missing or does not fit."""
    for pattern in recipes:
        if not any(fnmatchcase(name, pattern) for name in signatures):
            raise UserError(f"the model has no input '{pattern}': it has {', '.join(signatures)}", where="corpus.toml")
    random = np.random.default_rng(seed)
    arrays: Arrays = {}
    for name, signature in signatures.items():
        made = next((made for pattern, made in recipes.items() if fnmatchcase(name, pattern)), Recipe())
        shape = made.shape if made.shape is not None else signature.shape
        sizes = tuple(size for size in shape if size is not None)
        if len(sizes) != len(shape):
            raise UserError(f"input '{name}' has open dimensions {signature.shape}: say its shape", where="corpus.toml")
        arrays[name] = made.make(sizes, np.dtype(made.dtype or signature.dtype), random)
    return arrays
