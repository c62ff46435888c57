"""Layers in fixed point become those of a tensor processor: channels in blocks, parameters in one tensor.

Before:  qnn.fixed_point(conv2d(int32(x) - zero, w), bias, multiplier, shift, ...)                     N, C, H, W
After:   unpack(accel.conv2d(pack(x), packed w, parameters, pack(residual), pad=zero, ...))            in blocks

`pack` and `unpack` are reshapes and transposes: between two such layers they cancel, and what is left of them runs on
the host. The zero point of the data is its padding, and what it adds to sums goes to the bias. A matrix product is a
convolution of one column. Grouped convolutions have blocks of their own where groups are whole blocks, and weights
with zeros where they are smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.accel.config import RESIDUAL_SHIFT_AT, AccelConfig
from tilewright.graph.ir.expr import Call, Constant, GraphExpr, constant
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make, static_shape
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.ops.fixed_point import FixedPointAttributes
from tilewright.ir.dtype import INT8, INT32
from tilewright.ir.function import IRModule
from tilewright.target import Target

Array = npt.NDArray[Any]
_LEAST_SHARE = 0.25
"""Of the array's products, those that a layer must use: first layers of few channels run on the host."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The tensors of a processor: rows of a batch, input channels and output channels."""

    batch: int
    inputs: int
    outputs: int

    @staticmethod
    def of(target: Target) -> Blocks:
        """The tensors of a target, which its configuration says."""
        config = AccelConfig.from_text(target.arch)
        return Blocks(config.batch, config.block_in, config.block_out)


def accelerator_layers(module: IRModule, blocks: Blocks) -> IRModule:
    """Replace layers in fixed point by a tensor processor's."""
    rule = Rule("a layer of the tensor processor", P.op("qnn.fixed_point", name="root"), _Layers(blocks).replaced)
    result = map_functions(module, lambda function: apply_rules(function, (rule,)))
    assert isinstance(result, IRModule)
    return result


@dataclass(frozen=True, slots=True)
class _Product:
    """A layer's product as a convolution: N, C, H, W data, weights of output x input channels and groups."""

    data: GraphExpr
    weight: Array
    zero: int
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1


def _data(item: GraphExpr) -> tuple[GraphExpr, int] | None:
    """`int32(x) - zero` as x and zero."""
    zero = 0
    if is_call_to(item, "subtract") and isinstance(item, Call):
        shift = item.args[1]
        if not isinstance(shift, Constant) or shift.data.size != 1:
            return None
        item, zero = item.args[0], int(shift.data.reshape(()))
    if not is_call_to(item, "cast") or not isinstance(item, Call):
        return None
    data = item.args[0]
    return (data, zero) if data.tensor_type.dtype is INT8 and item.tensor_type.dtype is INT32 else None


def _product(sums: GraphExpr) -> _Product | None:
    if not isinstance(sums, Call) or not (is_call_to(sums, "nn.conv2d") or is_call_to(sums, "matmul")):
        return None
    found, weight = _data(sums.args[0]), sums.args[1]
    if found is None or not isinstance(weight, Constant) or static_shape(found[0]) is None:
        return None
    data, zero = found
    if np.abs(weight.data).max(initial=0) > 127 or not -128 <= zero <= 127:
        return None
    if isinstance(sums.attributes, Conv2dAttributes):
        attributes = sums.attributes
        if attributes.dilation != (1, 1) or attributes.data_layout != "NCHW":
            return None
        return _Product(data, weight.data, zero, attributes.strides, attributes.padding, attributes.groups)
    assert isinstance(sums.attributes, MatmulAttributes)
    shape = static_shape(data)
    if sums.attributes.transpose_a or weight.data.ndim != 2 or shape is None or len(shape) < 2:
        return None
    matrix = weight.data if sums.attributes.transpose_b else weight.data.T
    # A row is a pixel: [rows, k] as an image of one column.
    lines = make("reshape", data, shape=(1, int(np.prod(shape[:-1])), shape[-1]), span=sums.span)
    image = make("transpose", lines, axes=(0, 2, 1), span=sums.span)
    image = make("reshape", image, shape=(1, shape[-1], int(np.prod(shape[:-1])), 1), span=sums.span)
    return _Product(image, matrix[:, :, None, None], zero)


@dataclass(frozen=True, slots=True)
class _Layers:
    """The rewrite for one processor."""

    blocks: Blocks

    def replaced(self, b: Bindings) -> GraphExpr | None:
        """A layer in blocks, or None for one that the processor does not have."""
        root = b.call("root")
        product = _product(root.args[0])
        numbers = [item.data for item in (*root.args[1:4], *root.args[5:7]) if isinstance(item, Constant)]
        if product is None or len(numbers) != len(root.args) - (2 if len(root.args) > 4 else 1):
            return None
        shape = static_shape(product.data)
        assert shape is not None
        weight, groups = self._in_block_groups(product)
        channels = weight.shape[0]
        used = weight.size / self._in_blocks(weight).size
        if used < _LEAST_SHARE or shape[0] % self.blocks.batch:
            return None
        bias, *rest = (np.broadcast_to(item.reshape(-1), channels).astype(np.int64) for item in numbers)
        bias = bias - product.zero * weight.astype(np.int64).reshape(channels, -1).sum(axis=1)
        attributes = root.attributes
        assert isinstance(attributes, FixedPointAttributes)
        args = [
            self._pack(product.data, self.blocks.inputs),
            constant(self._in_blocks(weight).astype(np.int8), "int8"),
            constant(self._parameters([bias, *rest]), "int32"),
        ]
        size = (shape[0], channels, *self._size(product, shape))
        if len(root.args) > 4:
            args.append(self._pack(self._image(root.args[4], size), self.blocks.outputs))
        layer = make(
            "accel.conv2d", *args, span=root.span, strides=product.strides, padding=product.padding, groups=groups,
            pad=product.zero, offset=attributes.offset, low=attributes.low, high=attributes.high,
        )  # fmt: skip
        return self._as_result(self._unpack(layer, size), root)

    def _in_block_groups(self, product: _Product) -> tuple[Array, int]:
        """Weights of groups that are whole blocks, and how many those are; smaller groups join, with zeros between."""
        weight, groups = product.weight, product.groups
        outputs, inputs = weight.shape[0] // groups, weight.shape[1]
        joined = 1
        while joined < groups and (joined * inputs % self.blocks.inputs or joined * outputs % self.blocks.outputs):
            joined += 1
            while groups % joined:
                joined += 1
        parts = weight.reshape(groups // joined, joined, outputs, *weight.shape[1:])
        wide = np.zeros((groups // joined, joined, outputs, joined, *weight.shape[1:]), weight.dtype)
        for number in range(joined):
            wide[:, number, :, number] = parts[:, number]
        return wide.reshape(weight.shape[0], joined * inputs, *weight.shape[2:]), groups // joined

    def _in_blocks(self, weight: Array) -> Array:
        """Weights as [co, ci, kh, kw, lanes, lanes], with zeros for channels that fill a block."""
        ours, theirs = self.blocks.outputs, self.blocks.inputs
        padded = np.pad(weight, ((0, -weight.shape[0] % ours), (0, -weight.shape[1] % theirs), (0, 0), (0, 0)))
        outputs, inputs, *kernel = padded.shape
        return padded.reshape(outputs // ours, ours, inputs // theirs, theirs, *kernel).transpose(0, 2, 4, 5, 1, 3)

    def _parameters(self, numbers: list[Array]) -> Array:
        """Bias, multiplier, residual's multiplier and shifts as [co, 4, lanes]."""
        bias, multiplier, shift, *residual = numbers
        factor, places = residual or (np.zeros_like(bias), np.zeros_like(bias))
        wrapped = bias.astype(np.uint64).astype(np.uint32).view(np.int32).astype(np.int64)
        words = np.stack([wrapped, multiplier, factor, shift | places << RESIDUAL_SHIFT_AT])
        words = np.pad(words, ((0, 0), (0, -words.shape[1] % self.blocks.outputs)))
        return words.reshape(4, -1, self.blocks.outputs).transpose(1, 0, 2).astype(np.int32)

    def _size(self, product: _Product, shape: tuple[int, ...]) -> tuple[int, int]:
        top, left, bottom, right = product.padding
        height = (shape[2] + top + bottom - product.weight.shape[2]) // product.strides[0] + 1
        return height, (shape[3] + left + right - product.weight.shape[3]) // product.strides[1] + 1

    def _pack(self, data: GraphExpr, lanes: int) -> GraphExpr:
        """N, C, H, W as [n, c, h, w, rows, lanes], with zeros for channels that fill a block."""
        shape = static_shape(data)
        assert shape is not None
        rows, more = self.blocks.batch, -shape[1] % lanes
        if more:
            data = make("pad", data, before=(0, 0, 0, 0), after=(0, more, 0, 0), span=data.span)
        number, channels, height, width = shape[0], shape[1] + more, shape[2], shape[3]
        split = (number // rows, rows, channels // lanes, lanes, height, width)
        return make(
            "transpose", make("reshape", data, shape=split, span=data.span), axes=(0, 2, 4, 5, 1, 3), span=data.span
        )

    def _unpack(self, data: GraphExpr, shape: tuple[int, ...]) -> GraphExpr:
        """[n, c, h, w, rows, lanes] as N, C, H, W of a shape."""
        lines = make("transpose", data, axes=(0, 4, 1, 5, 2, 3), span=data.span)
        blocks = static_shape(data)
        assert blocks is not None
        whole = (shape[0], blocks[1] * blocks[5], *shape[2:])
        image = make("reshape", lines, shape=whole, span=data.span)
        if whole == shape:
            return image
        return make("slice", image, begin=(0, 0, 0, 0), end=shape, strides=(1, 1, 1, 1), span=data.span)

    def _image(self, residual: GraphExpr, size: tuple[int, ...]) -> GraphExpr:
        """A residual as N, C, H, W; that of a matrix product has a pixel in each row."""
        shape = static_shape(residual)
        assert shape is not None
        if len(shape) == 4 and shape == size:
            return residual
        lines = make("reshape", residual, shape=(1, size[2], size[1]), span=residual.span)
        return make(
            "reshape", make("transpose", lines, axes=(0, 2, 1), span=residual.span), shape=size, span=residual.span
        )

    def _as_result(self, image: GraphExpr, root: Call) -> GraphExpr:
        wanted, shape = static_shape(root), static_shape(image)
        assert wanted is not None and shape is not None
        if is_call_to(root.args[0], "nn.conv2d"):
            return image
        lines = make(
            "transpose", make("reshape", image, shape=shape[:3], span=root.span), axes=(0, 2, 1), span=root.span
        )
        return make("reshape", lines, shape=wanted, span=root.span)
