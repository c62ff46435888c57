"""Quantisation parameters: the scale and zero point of a tensor, and how numbers become integers by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Call, Constant, GraphExpr, constant
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.quantization import integer_range
from tilewright.ir.dtype import DataType
from tilewright.support.span import Span

Array = npt.NDArray[Any]
_SHARES = np.linspace(1.0, 0.3, 29)
"""Of the scale that holds the largest weight, what is tried for weights in few bits."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """number = (integer - zero) * scale; both broadcast to the tensor (single numbers: one scale for all of it)."""

    scale: Array
    """float32, never zero."""
    zero: Array
    """Of the integer type."""
    dtype: DataType
    bits: int = 8

    def integers(self, values: Array) -> Array:
        """Numbers as integers: to the nearest, even at ties, saturating."""
        low, high = integer_range(self.dtype, self.bits)
        steps = np.rint(values.astype(np.float32) / self.scale) + self.zero.astype(np.float32)
        return np.asarray(np.clip(steps, low, high), self.dtype.numpy())

    def numbers(self, integers: Array) -> Array:
        """What integers stand for."""
        shifted = integers.astype(np.int32) - self.zero.astype(np.int32)
        return np.asarray(shifted.astype(np.float32) * self.scale, np.float32)

    def rounded(self, values: Array) -> Array:
        """The numbers that can be represented, next to these."""
        return self.numbers(self.integers(values))

    def constants(self) -> tuple[Constant, Constant]:
        """Scale and zero point as constants of a graph."""
        return constant(self.scale, "float32"), constant(self.zero, self.dtype)

    def through_integers(self, value: GraphExpr, span: Span | None) -> Call:
        """A value of a graph, quantised and dequantised."""
        scale, zero = self.constants()
        integers = make("qnn.quantize", value, scale, zero, dtype=self.dtype, bits=self.bits, span=span)
        return make("qnn.dequantize", integers, scale, zero, span=span)


def _safe(scale: npt.ArrayLike) -> Array:
    """Scales as float32 that can be divided by: what is always zero has some scale."""
    narrow = np.asarray(scale, np.float32)
    return np.where(narrow < np.finfo(np.float32).tiny, np.float32(1.0), narrow).astype(np.float32)


def of_range(low: float, high: float, dtype: DataType, bits: int = 8) -> Parameters:
    """Parameters of a tensor whose values lie in a range: affine for unsigned integers, symmetric for signed ones.

    Zero is always represented exactly: padding and ReLU need it.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    smallest, largest = integer_range(dtype, bits)
    if not dtype.is_uint:
        return Parameters(_safe(np.float32(max(-low, high) / largest)), np.asarray(0, dtype.numpy()), dtype, bits)
    scale = _safe(np.float32((high - low) / (largest - smallest)))
    zero = np.clip(np.rint(-low / float(scale)), smallest, largest)
    return Parameters(scale, np.asarray(zero, dtype.numpy()), dtype, bits)


def _narrowest(kind: str, bits: int) -> DataType:
    """The narrowest integer type that has so many bits and that models of other tools know."""
    return DataType.of(f"{kind}{next(width for width in (2, 4, 8) if bits <= width)}")


def of_weight(values: Array, axes: tuple[int, ...], bits: int) -> Parameters:
    """Symmetric parameters of a weight; `axes` are those that share a scale (all axes: one scale for the whole).

    In few bits, the largest weights saturate where that makes the squared error of all of them smaller.
    """
    dtype = _narrowest("int", bits)
    largest = integer_range(dtype, bits)[1]
    peak = np.abs(values.astype(np.float64)).max(axis=axes, keepdims=True) if values.size else np.zeros(())
    scale = _safe(peak / largest)
    if bits < 8 and values.size:
        scale = _least_error(values, axes, scale, largest)
    if scale.size == 1:
        scale = scale.reshape(())
    return Parameters(scale, np.asarray(0, np.int8), dtype, bits)


def of_affine_weight(values: Array, axes: tuple[int, ...], bits: int) -> Parameters:
    """Affine parameters of a weight, in unsigned integers: its range in all levels, with 0 represented exactly."""
    dtype = _narrowest("uint", bits)
    largest = integer_range(dtype, bits)[1]
    exact = values.astype(np.float64) if values.size else np.zeros((1,) * values.ndim)
    low = np.minimum(exact.min(axis=axes, keepdims=True), 0.0)
    scale = _safe((np.maximum(exact.max(axis=axes, keepdims=True), 0.0) - low) / largest)
    zero = np.clip(np.rint(-low / scale.astype(np.float64)), 0, largest).astype(np.uint8)
    if scale.size == 1:
        scale, zero = scale.reshape(()), zero.reshape(())
    return Parameters(scale, zero, dtype, bits)


def _least_error(values: Array, axes: tuple[int, ...], whole: Array, largest: int) -> Array:
    """Of some shares of the scales that hold everything, the ones whose rounding has the least squared error."""
    best, least = whole, np.full(whole.shape, np.inf)
    for share in _SHARES:
        scale = _safe(whole * np.float32(share))
        rounded = np.clip(np.rint(values / scale), -largest - 1, largest) * scale
        error = np.square(rounded - values, dtype=np.float64).sum(axis=axes, keepdims=True)
        best, least = np.where(error < least, scale, best), np.minimum(error, least)
    return best.astype(np.float32)
