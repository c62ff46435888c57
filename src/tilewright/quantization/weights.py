"""Weights as integers: parameters, rounding (to the nearest, or learned on calibration data), the bias that it leaves.

Learned rounding goes through the inputs of a layer one after another. What rounding the weights of one input gets wrong
on the calibration data is made up for by the weights of the inputs that are still to come, as far as inputs correlate
(optimal brain surgeon; the same order and updates as GPTQ, by the Cholesky factor of the inverse second moments).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.quantization.layers import Layer
from tilewright.quantization.options import QuantizeOptions
from tilewright.quantization.parameters import Parameters, of_affine_weight, of_weight
from tilewright.quantization.statistics import Moments

Array = npt.NDArray[Any]
_DAMPING = 0.01
"""What is added to the second moments of inputs, as a share of their mean: inputs that are never seen stay stable."""
_BLOCK = 128


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A layer's weight in integers. `grouped` is the shape in which scales of groups broadcast, if they are used."""

    integers: Array
    parameters: Parameters
    grouped: tuple[int, ...] | None = None

    def numbers(self) -> Array:
        """The weight that the integers stand for, in its own shape."""
        if self.grouped is None:
            return self.parameters.numbers(self.integers)
        return self.parameters.numbers(self.integers.reshape(self.grouped)).reshape(self.integers.shape)


def quantize_weight(layer: Layer, values: Array, options: QuantizeOptions, moments: Moments | None) -> QuantizedWeight:
    """The integers of a layer's weight `values` (which equalisation may have changed)."""
    grouped = _groups(layer, values.shape, options.group)
    shape, axes = (values.shape, layer.scale_axes) if grouped is None else (grouped[0], (grouped[1],))
    if grouped is None and not options.per_channel:
        axes = tuple(range(values.ndim))
    find = of_affine_weight if options.affine else of_weight
    parameters = find(values.reshape(shape), axes, options.weight_bits)
    if options.rounding == "learned" and moments is not None:
        scale = np.broadcast_to(parameters.scale, shape).reshape(values.shape)
        integers = _learned(layer, values, scale, options.weight_bits, moments)
    else:
        integers = parameters.integers(values.reshape(shape)).reshape(values.shape)
    return QuantizedWeight(integers, parameters, None if grouped is None else shape)


def _groups(layer: Layer, shape: tuple[int, ...], group: int) -> tuple[tuple[int, ...], int] | None:
    """The shape of a matrix with its inputs split into groups, and the axis within a group; None where it does not."""
    attributes = layer.call.attributes
    if not group or not isinstance(attributes, MatmulAttributes) or len(shape) != 2:
        return None
    axis = 1 if attributes.transpose_b else 0
    if shape[axis] % group:
        return None
    split = (*shape[:axis], shape[axis] // group, group, *shape[axis + 1 :])
    return split, axis + 1


def as_matrices(layer: Layer, values: Array) -> Array:
    """A weight as matrices that rows of inputs meet: (groups, outputs of a group, inputs)."""
    attributes = layer.call.attributes
    if isinstance(attributes, MatmulAttributes):
        return (values if attributes.transpose_b else values.T)[None]
    assert isinstance(attributes, Conv2dAttributes)
    outer = values if attributes.kernel_layout == "OIHW" else values.transpose(3, 2, 0, 1)
    return outer.reshape(attributes.groups, outer.shape[0] // attributes.groups, -1)


def _from_matrices(layer: Layer, matrices: Array, shape: tuple[int, ...]) -> Array:
    attributes = layer.call.attributes
    if isinstance(attributes, MatmulAttributes):
        return np.ascontiguousarray(matrices[0] if attributes.transpose_b else matrices[0].T)
    assert isinstance(attributes, Conv2dAttributes)
    if attributes.kernel_layout == "OIHW":
        return np.ascontiguousarray(matrices.reshape(shape))
    height, width, inputs, outputs = shape
    return np.ascontiguousarray(matrices.reshape(outputs, inputs, height, width).transpose(2, 3, 1, 0))


def _learned(layer: Layer, values: Array, scale: Array, bits: int, moments: Moments) -> Array:
    matrices = as_matrices(layer, values.astype(np.float64))
    scales = as_matrices(layer, scale.astype(np.float64))
    result = np.empty(matrices.shape, np.int8)
    largest = 2 ** (bits - 1) - 1
    for group in range(matrices.shape[0]):
        result[group] = _compensated(matrices[group], scales[group], moments.squares[group], largest)
    return _from_matrices(layer, result, values.shape)


def _compensated(matrix: Array, scale: Array, squares: Array, largest: int) -> Array:
    """Round the columns of a matrix from the most to the least important, each error taken up by later columns."""
    order = np.argsort(-np.diag(squares), kind="stable")
    matrix, scale, squares = matrix[:, order], scale[:, order], squares[np.ix_(order, order)]
    damping = _DAMPING * max(float(np.mean(np.diag(squares))), 1e-12)
    inverse = np.linalg.inv(squares + damping * np.eye(len(squares)))
    factor = np.linalg.cholesky((inverse + inverse.T) / 2).T
    integers = np.empty(matrix.shape, np.int8)
    for start in range(0, matrix.shape[1], _BLOCK):
        stop = min(start + _BLOCK, matrix.shape[1])
        errors = np.empty((matrix.shape[0], stop - start))
        for column in range(start, stop):
            steps = np.clip(np.rint(matrix[:, column] / scale[:, column]), -largest - 1, largest)
            integers[:, column] = steps
            error = (matrix[:, column] - steps * scale[:, column]) / factor[column, column]
            matrix[:, column + 1 : stop] -= error[:, None] * factor[column, column + 1 : stop]
            errors[:, column - start] = error
        matrix[:, stop:] -= errors @ factor[start:stop, stop:]
    back = np.empty_like(integers)
    back[:, order] = integers
    return back


def mean_error(layer: Layer, values: Array, rounded: Array, moments: Moments) -> Array:
    """What rounded weights add to each output of a layer on average over the calibration data."""
    difference = as_matrices(layer, rounded.astype(np.float64) - values.astype(np.float64))
    return np.asarray(np.einsum("goi,gi->go", difference, moments.mean).reshape(-1), np.float32)
