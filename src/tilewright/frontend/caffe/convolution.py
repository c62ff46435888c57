"""Converters of layers that multiply with weights: convolutions, inner products, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.caffe.layer import Layer, converter
from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.core.checks import checked_index
from tilewright.frontend.core.layers import convolve, deconvolve, dense, flattened
from tilewright.frontend.core.windows import Extents
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError


def _per_dimension(options: Any, name: str, pair: Sequence[str], rank: int, default: int) -> tuple[int, ...]:
    """One number for all dimensions, one each, or (in two dimensions) under names of their own."""
    if any(options.HasField(item) for item in pair):
        if rank != 2:
            raise UserError(f"{pair[0]} and {pair[1]} are for two dimensions, the data have {rank}")
        return tuple(int(getattr(options, item)) for item in pair)
    values = [int(value) for value in getattr(options, name)] or [default]
    if len(values) not in (1, rank):
        raise UserError(f"{name} has {len(values)} numbers for {rank} dimensions")
    return tuple(values * rank if len(values) == 1 else values)


def _extents(layer: Layer, rank: int) -> Extents:
    options = layer.options("convolution")
    kernel = _per_dimension(options, "kernel_size", ("kernel_h", "kernel_w"), rank, 0)
    strides = _per_dimension(options, "stride", ("stride_h", "stride_w"), rank, 1)
    pads = _per_dimension(options, "pad", ("pad_h", "pad_w"), rank, 0)
    dilation = [int(value) for value in options.dilation] or [1]
    if len(dilation) not in (1, rank):
        raise UserError(f"dilation has {len(dilation)} numbers for {rank} dimensions")
    dilation = dilation * rank if len(dilation) == 1 else dilation
    if any(item < 1 for item in (*kernel, *strides, *dilation)):
        raise UserError(
            f"a kernel of {kernel} by steps of {strides}, spread by {tuple(dilation)}: all must be positive"
        )
    return Extents(kernel, strides, pads, pads, tuple(dilation))


def _sizes(layer: Layer) -> tuple[int, int, int]:
    """Channels, outputs and groups."""
    options, data = layer.options("convolution"), layer.input(0)
    if rank_of(data) < 3 or layer.axis(options.axis, rank_of(data)) != 1:
        raise UnsupportedError(f"a convolution of data of {rank_of(data)} dimensions along axis {options.axis}")
    channels, outputs, groups = size_at(data, 1), int(options.num_output), int(options.group)
    if groups < 1 or channels % groups or outputs % groups or outputs < 1:
        raise UserError(f"{groups} groups do not divide {channels} channels and {outputs} outputs")
    return channels, outputs, groups


def _each_bottom(layer: Layer, one: Any) -> list[GraphExpr]:
    return [one(data) for data in layer.all_inputs()]


@converter("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution")
def convolution(layer: Layer) -> list[GraphExpr]:
    """In one, two or three dimensions; several bottoms share the weights."""
    channels, outputs, groups = _sizes(layer)
    if layer.message.type != "Convolution":
        groups = channels
    extents = _extents(layer, rank_of(layer.input(0)) - 2)
    weight = layer.blob(0, (outputs, channels // groups, *extents.kernel))
    bias = layer.blob(1, (outputs,)) if layer.options("convolution").bias_term else None
    return _each_bottom(layer, lambda data: convolve(layer.b, data, weight, bias, extents, groups))


@converter("Deconvolution")
def deconvolution(layer: Layer) -> list[GraphExpr]:
    """The transpose of a convolution."""
    channels, outputs, groups = _sizes(layer)
    rank = rank_of(layer.input(0)) - 2
    extents = _extents(layer, rank)
    weight = layer.blob(0, (channels, outputs // groups, *extents.kernel))
    bias = layer.blob(1, (outputs,)) if layer.options("convolution").bias_term else None
    return _each_bottom(layer, lambda data: deconvolve(layer.b, data, weight, bias, extents, (0,) * rank, groups))


@converter("InnerProduct")
def inner_product(layer: Layer) -> GraphExpr:
    """Everything from an axis on times a matrix."""
    options, data = layer.options("inner_product"), layer.input(0)
    axis = layer.axis(options.axis, rank_of(data))
    rows = flattened(layer.b, data, axis)
    inputs, outputs = size_at(rows, axis), int(options.num_output)
    weight = layer.blob(0, (inputs, outputs) if options.transpose else (outputs, inputs))
    if options.transpose:
        weight = layer.b.transpose(weight, (1, 0))
    return dense(layer.b, rows, weight, layer.blob(1, (outputs,)) if options.bias_term else None)


@converter("Embed")
def embed(layer: Layer) -> GraphExpr:
    """A row of the weights for each number."""
    options, data = layer.options("embed"), layer.input(0)
    weight = layer.blob(0, (int(options.input_dim), int(options.num_output)))
    places = layer.b.cast(data, INT64)
    places = checked_index(layer.b, places, [sizes_of(weight)[0]], [0], negative=False)
    result = layer.call("take", weight, places, axis=0)
    return layer.call("add", result, layer.blob(1, (int(options.num_output),))) if options.bias_term else result
