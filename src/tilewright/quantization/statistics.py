"""What calibration keeps of a model: ranges of sources, and second moments of what layers multiply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Function
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes, windows
from tilewright.ir.function import IRModule
from tilewright.quantization.data import Feed
from tilewright.quantization.layers import Layer, Sources, with_more_results
from tilewright.quantization.observers import OBSERVERS, Observer
from tilewright.quantization.running import CompileModule
from tilewright.support.errors import UserError
from tilewright.support.progress import Progress

Array = npt.NDArray[Any]
_MOST_ROWS = 512
"""Rows of inputs that one run adds to the moments of a layer."""


@dataclass
class Moments:
    """Of the rows that a layer multiplies with its weights: how many, their sum, and sums of their products."""

    with_squares: bool
    count: int = 0
    total: Array = field(default_factory=lambda: np.zeros(0))
    power: Array = field(default_factory=lambda: np.zeros(0))
    """(groups, inputs): squares added up."""
    squares: Array = field(default_factory=lambda: np.zeros(0))
    """(groups, inputs, inputs): x x^T added up; empty where nobody asked for it."""

    def add(self, rows: Array) -> None:
        """Take in rows of shape (groups, rows, inputs)."""
        wide = rows.astype(np.float64)
        if self.count == 0:
            self.total, self.power = np.zeros((2, rows.shape[0], rows.shape[2]))
            self.squares = np.zeros((rows.shape[0], rows.shape[2], rows.shape[2]) if self.with_squares else 0)
        self.count += rows.shape[1]
        self.total += wide.sum(axis=1)
        self.power += np.square(wide).sum(axis=1)
        if self.with_squares:
            self.squares += wide.transpose(0, 2, 1) @ wide

    @property
    def mean(self) -> Array:
        """The mean row: (groups, inputs). Means that a few rows have by chance are taken for small."""
        count = max(self.count, 1)
        squared = np.square(self.total / count)
        chance = np.maximum(self.power / count - squared, 0.0) / count
        certain = squared / np.maximum(squared + chance, np.finfo(np.float64).tiny)
        return np.asarray(self.total / count * certain)


def input_rows(layer: Layer, data: Array, generator: np.random.Generator) -> Array | None:
    """The rows that a layer multiplies with its weight matrix, some of them by chance: (groups, rows, inputs).

    None for layers whose weights are no matrix of that kind (transposed convolutions, batches of weights).
    """
    attributes, weight = layer.call.attributes, layer.weight
    assert weight is not None
    if isinstance(attributes, MatmulAttributes):
        if weight.data.ndim != 2 or attributes.transpose_a:
            return None
        rows = data.reshape(1, -1, data.shape[-1])
        return rows[:, _some(rows.shape[1], generator)]
    if not isinstance(attributes, Conv2dAttributes):
        return None
    planar, kernel = data, weight.data.shape[2:]
    if attributes.data_layout == "NHWC":
        planar, kernel = data.transpose(0, 3, 1, 2), weight.data.shape[:2]
    top, left, bottom, right = attributes.padding
    padded = np.pad(planar, ((0, 0), (0, 0), (top, bottom), (left, right)))
    view = windows(padded, (kernel[0], kernel[1]), attributes.strides, attributes.dilation)
    n, _, height, width = view.shape[:4]
    picked = _some(n * height * width, generator)
    flat = view.transpose(0, 2, 3, 1, 4, 5)
    some = flat[np.unravel_index(picked, (n, height, width))]
    groups = attributes.groups
    return np.moveaxis(some.reshape(len(picked), groups, -1), 1, 0)


def _some(count: int, generator: np.random.Generator) -> Array:
    if count <= _MOST_ROWS:
        return np.arange(count)
    return generator.choice(count, _MOST_ROWS, replace=False)


@dataclass
class Statistics:
    """What calibration found."""

    ranges: dict[int, tuple[float, float]]
    """Of each group of sources."""
    moments: dict[str, Moments]
    """Of each layer that was asked for, by name."""


def collect(
    function: Function,
    layers: Sequence[Layer],
    sources: Sources,
    data: Sequence[Feed],
    *,
    observer: str,
    with_means: bool,
    with_squares: bool,
    compile_module: CompileModule,
) -> Statistics:
    """Run the model on the data and look at the sources, and at the rows that layers multiply if asked for."""
    watched = list(sources.values.values())
    positions = {id(item): n for n, item in enumerate(watched)}
    inputs = [layer for layer in layers if (with_means or with_squares) and layer.weight is not None]
    for layer in inputs:
        value = layer.activations[0]
        if id(value) not in positions:
            positions[id(value)] = len(watched)
            watched.append(value)
    module = infer_types(IRModule({function.name: with_more_results(function, watched)}))
    executable = compile_module(module)
    observers: dict[int, Observer] = {sources.group(item): OBSERVERS[observer]() for item in sources.values.values()}
    moments = {layer.name: Moments(with_squares) for layer in inputs}
    generator = np.random.default_rng(0)
    with Progress("calibrating", len(data)) as progress:
        for feed in data:
            results = executable(*feed)
            values = [np.asarray(item) for item in results[-len(watched) :]] if watched else []
            _observe(watched, values, sources, observers)
            for layer in inputs:
                rows = input_rows(layer, values[positions[id(layer.activations[0])]], generator)
                if rows is not None:
                    moments[layer.name].add(rows)
            progress.step()
    ranges = {group: item.range for group, item in observers.items()}
    return Statistics(ranges, {name: item for name, item in moments.items() if item.count})


def _observe(watched: Sequence[Any], values: Sequence[Array], sources: Sources, observers: dict[int, Observer]) -> None:
    for item, value in zip(watched, values, strict=True):
        if id(item) not in sources.values:
            continue
        try:
            observers[sources.group(item)].update(value)
        except UserError as error:
            where = item.span.described() if item.span is not None else "an input"
            raise UserError(f"{error} (the result of {where})") from None
