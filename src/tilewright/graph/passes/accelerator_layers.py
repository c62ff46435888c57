"""Layers in fixed point become those of a tensor processor: channels in blocks, parameters in one tensor.

Before:  qnn.fixed_point(conv2d(int32(x) - zero, w), bias, multiplier, shift, ...)                     N, C, H, W
After:   unpack(accel.conv2d(pack(x), packed w, parameters, pack(residual), pad=zero, ...))            in blocks

`pack` and `unpack` are reshapes and transposes: between two such layers they cancel, and what is left of them runs on
the host. The zero point of the data is its padding, and what it adds to sums goes to the bias. A matrix product is a
convolution of one column, one of two activations a convolution in groups, whose weights are the second. Grouped
convolutions have blocks of their own where groups are whole blocks, and weights with zeros where they are smaller: so
are averages and sums of two activations, with weights of one. Sums that floats read are stored as they are.

Before:  nn.max_pool2d(x)      take(take(x, [0, 0, 1, 1, ...], axis=2), [0, 0, 1, 1, ...], axis=3)              int8
After:   unpack(accel.max_pool2d(pack(x), ...))                    unpack(accel.spread(pack(x), ...))
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.graph.ir.expr import Call, Constant, GraphExpr, constant
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, make, static_shape
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes, Conv2dTransposeAttributes
from tilewright.graph.ops.fixed_point import FixedPointAttributes
from tilewright.graph.ops.indexing import TakeAttributes
from tilewright.graph.ops.pooling import Pool2dAttributes
from tilewright.graph.ops.reduce import ReduceAttributes
from tilewright.graph.passes.channel_blocks import Array, Blocks
from tilewright.graph.passes.transposed_phases import Phases
from tilewright.ir.dtype import INT8, INT32
from tilewright.ir.function import IRModule
from tilewright.support.span import Span

_LEAST_SHARE = 0.25
"""Of the array's products, those that a layer must use: first layers of few channels run on the host."""
_PRODUCTS = ("nn.conv2d", "nn.conv2d_transpose", "matmul")


def accelerator_layers(module: IRModule, blocks: Blocks) -> IRModule:
    """Replace layers in fixed point by a tensor processor's, and what stands between them."""
    layers = _Layers(blocks)
    rules = (
        Rule("a layer of the tensor processor", P.op("qnn.fixed_point", name="root"), layers.layer),
        Rule("a maximum of the tensor processor", P.op("nn.max_pool2d", name="root"), layers.maximum),
        Rule("a nearest image of the tensor processor", P.op("take", name="root"), layers.nearest),
    )
    # Sums are read by floats where no layer took them.
    sums = Rule("sums of the tensor processor", P.op(_PRODUCTS, name="root"), layers.sums)
    return map_functions(module, lambda function: apply_rules(apply_rules(function, rules), (sums,)))


@dataclass(frozen=True, slots=True)
class _Product:
    """A layer's product as a convolution: N, C, H, W data, weights of output x input channels and groups."""

    data: GraphExpr
    weight: Array
    zero: int
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    phases: Phases | None = None
    """Of a transposed convolution: what its channels are."""


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
    is_bytes = data.tensor_type.dtype is INT8 and item.tensor_type.dtype is INT32
    return (data, zero) if is_bytes and -128 <= zero <= 127 and static_shape(data) is not None else None


def _product(sums: GraphExpr) -> _Product | None:
    """A layer's sums as a convolution."""
    if not isinstance(sums, Call):
        return None
    if any(is_call_to(sums, name) for name in _PRODUCTS):
        found, weight = _data(sums.args[0]), sums.args[1]
        if found is None or not isinstance(weight, Constant) or np.abs(weight.data).max(initial=0) > 127:
            return None
        product = _Product(found[0], weight.data, found[1])
        return _matrix_product(product, sums) if is_call_to(sums, "matmul") else _convolution(product, sums.attributes)
    return _sum_of_ones(sums)


def _convolution(product: _Product, attributes: Any) -> _Product | None:
    if attributes.dilation != (1, 1) or attributes.data_layout != "NCHW":
        return None
    if isinstance(attributes, Conv2dAttributes):
        return replace(product, strides=attributes.strides, padding=attributes.padding, groups=attributes.groups)
    assert isinstance(attributes, Conv2dTransposeAttributes)
    shape = static_shape(product.data)
    assert shape is not None
    phases = Phases.of(attributes, shape, product.weight.shape)
    if attributes.groups > 1 or phases is None:
        return None
    return replace(product, weight=phases.weights(product.weight), padding=phases.padding, phases=phases)


def _matrix_product(product: _Product, sums: Call) -> _Product | None:
    """A row is a pixel: [rows, k] as an image of one column."""
    attributes, shape = sums.attributes, static_shape(product.data)
    assert isinstance(attributes, MatmulAttributes) and shape is not None
    if attributes.transpose_a or product.weight.ndim != 2 or len(shape) < 2:
        return None
    matrix = product.weight if attributes.transpose_b else product.weight.T
    size = (1, shape[-1], int(np.prod(shape[:-1])), 1)
    return replace(product, data=_column(product.data, size), weight=matrix[:, :, None, None])


def _sum_of_ones(sums: Call) -> _Product | None:
    """What has no weights, as a convolution with ones: an average's sum, or activations as they are."""
    kernel = (1, 1)
    if is_call_to(sums, "sum"):
        attributes, found = sums.attributes, _data(sums.args[0])
        shape = None if found is None else static_shape(found[0])
        assert isinstance(attributes, ReduceAttributes)
        if shape is None or len(shape) != 4 or attributes.axes != (2, 3):
            return None
        kernel = (shape[2], shape[3])
    else:
        found = _data(sums)
    shape = None if found is None else static_shape(found[0])
    if found is None or shape is None or len(shape) != 4:
        return None
    return _Product(found[0], np.ones((shape[1], 1, *kernel), np.int32), found[1], groups=shape[1])


def _column(data: GraphExpr, size: tuple[int, ...]) -> GraphExpr:
    """Rows of a matrix as the pixels of an image of one column."""
    lines = make("reshape", data, shape=(1, size[2], size[1]), span=data.span)
    return make("reshape", make("transpose", lines, axes=(0, 2, 1), span=data.span), shape=size, span=data.span)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What a layer does with its sums: parameters of its channels, a residual, and the range of results."""

    parameters: list[Array]
    """Bias, multiplier and shift (and the residual's), that broadcast along the channels."""
    residual: GraphExpr | None
    attributes: FixedPointAttributes

    @staticmethod
    def of(root: Call) -> _Numbers | None:
        """Those of a layer in fixed point whose parameters are constants."""
        numbers = [item.data.reshape(-1) for item in (*root.args[1:4], *root.args[5:7]) if isinstance(item, Constant)]
        if len(numbers) != len(root.args) - (2 if len(root.args) > 4 else 1):
            return None
        assert isinstance(root.attributes, FixedPointAttributes)
        return _Numbers(numbers, root.args[4] if len(root.args) > 4 else None, root.attributes)

    @property
    def form(self) -> dict[str, int]:
        """Attributes of a layer."""
        return {"offset": self.attributes.offset, "low": self.attributes.low, "high": self.attributes.high}


@dataclass(frozen=True, slots=True)
class _Layers:
    """The rewrites for one processor."""

    blocks: Blocks
    copies: dict[GraphExpr, tuple[GraphExpr, tuple[int, int]]] = field(default_factory=dict)
    """Images whose elements are repeated: of which image, and how often down and across."""
    packed: dict[GraphExpr, GraphExpr] = field(default_factory=dict)
    """Images that are results of layers, with the blocks that they are made of."""

    def layer(self, b: Bindings) -> GraphExpr | None:
        """A layer in blocks, or None for one that the processor does not have."""
        root = b.call("root")
        numbers = _Numbers.of(root)
        if numbers is None:
            return None
        if is_call_to(root.args[0], "matmul"):
            both = self._of_activations(root.args[0], root, numbers)
            if both is not None:
                return both
        product = _product(root.args[0])
        return None if product is None else self._convolved(product, root, numbers)

    def sums(self, b: Bindings) -> GraphExpr | None:
        """Sums in blocks, as they are."""
        root = b.call("root")
        if root.tensor_type.dtype is not INT32:
            return None
        if is_call_to(root, "matmul"):
            both = self._of_activations(root, root, None)
            if both is not None:
                return both
        product = _product(root)
        return None if product is None else self._convolved(product, root, None)

    def _convolved(self, product: _Product, root: Call, numbers: _Numbers | None) -> GraphExpr | None:
        shape = static_shape(product.data)
        assert shape is not None
        # Phases whose channels are no whole blocks are taken apart by the host.
        phases = product.phases
        weight, channels = product.weight, product.weight.shape[0]
        is_spread = False
        if phases is not None and numbers is not None and phases.count > 1:
            is_spread = channels // phases.count % self.blocks.outputs == 0
        weight, groups = self.blocks.grouped(weight, product.groups)
        packed = self.blocks.weights(weight)
        if weight.size / packed.size < _LEAST_SHARE or shape[0] % self.blocks.batch:
            return None
        residual = None if numbers is None else numbers.residual
        if residual is not None and phases is not None:
            return None
        size = (shape[0], channels, *self._size(product, shape))
        taken_off = product.zero * weight.astype(np.int64).reshape(channels, -1).sum(axis=1)
        args = [self._pack(product.data, self.blocks.inputs)]
        packed, more = _shared(packed, groups)
        args.append(constant(packed.astype(np.int8), "int8"))
        if numbers is not None:
            count = 1 if phases is None else phases.count
            bias, *rest = (self._along(item, channels, count) for item in numbers.parameters)
            args.append(constant(self.blocks.parameters([bias - taken_off, *rest]), "int32"))
            more |= numbers.form
        if residual is not None:
            args.append(self._pack(_as_image(residual, size), self.blocks.outputs))
        layer: GraphExpr = make(
            "accel.conv2d", *args, span=root.span, strides=product.strides, padding=product.padding, groups=groups,
            pad=product.zero, **more,
        )  # fmt: skip
        if phases is not None and is_spread:
            layer = phases.spread(layer, root.span)
            size = (shape[0], channels // phases.count, *phases.size)
        image = self._unpack(layer, size)
        if numbers is None and taken_off.any():
            image = _less(image, taken_off, root.span)
        if phases is not None and not is_spread:
            image = phases.apart(image, root.span)
        return _as_result(image, root)

    @staticmethod
    def _along(values: Array, channels: int, phases: int) -> Array:
        """Numbers of channels, for those of all phases of them."""
        own = np.broadcast_to(values, channels // phases).astype(np.int64)
        return np.tile(own, phases)

    def _pack(self, image: GraphExpr, lanes: int, whole: int = 1) -> GraphExpr:
        """An image in blocks. Channels that fill a block may hold anything: they make only channels of that kind."""
        blocks, size = self.packed.get(image), static_shape(image)
        shape = None if blocks is None else static_shape(blocks)
        if blocks is None or shape is None or size is None:
            return self.blocks.pack(image, lanes, whole)
        # Blocks may be as many as are whole inputs and outputs at once: more than these need be.
        if (shape[1] * lanes, shape[5]) == (_filled(size[1], max(lanes, whole)), lanes):
            return blocks
        return self.blocks.pack(image, lanes, whole)

    def _unpack(self, layer: GraphExpr, size: tuple[int, ...]) -> GraphExpr:
        image = self.blocks.unpack(layer, size)
        if layer.tensor_type.dtype is INT8:
            self.packed[image] = layer
        return image

    def _size(self, product: _Product, shape: tuple[int, ...]) -> tuple[int, int]:
        top, left, bottom, right = product.padding
        height = (shape[2] + top + bottom - product.weight.shape[2]) // product.strides[0] + 1
        return height, (shape[3] + left + right - product.weight.shape[3]) // product.strides[1] + 1

    # ------------------------------------------------- products of activations

    def _of_activations(self, sums: GraphExpr, root: Call, numbers: _Numbers | None) -> GraphExpr | None:
        """A batch of products of two activations without zero points: a group for each."""
        assert isinstance(sums, Call) and isinstance(sums.attributes, MatmulAttributes)
        left, right, attributes = _data(sums.args[0]), _data(sums.args[1]), sums.attributes
        if left is None or right is None or left[1] or right[1] or self.blocks.batch > 1:
            return None
        rows, columns = static_shape(left[0]), static_shape(right[0])
        if rows is None or columns is None or rows[:-2] != columns[:-2] or attributes.transpose_a:
            return None
        batch, outputs = int(np.prod(rows[:-2])), columns[-2 if attributes.transpose_b else -1]
        depth = rows[-1]
        if depth * outputs < _LEAST_SHARE * _filled(depth, self.blocks.inputs) * _filled(outputs, self.blocks.outputs):
            return None
        args = [self._rows(left[0], batch, root.span)]
        args.append(self._matrices(right[0], batch, attributes.transpose_b, root.span))
        if numbers is not None:
            if numbers.residual is not None:
                return None
            words = [np.broadcast_to(item, outputs).astype(np.int64) for item in numbers.parameters]
            args.append(constant(np.tile(self.blocks.parameters(words), (batch, 1, 1)), "int32"))
        form = {} if numbers is None else numbers.form
        layer = make("accel.conv2d", *args, span=root.span, groups=batch, **form)
        return self._from_rows(layer, batch, rows[-2], outputs, root)

    def _rows(self, data: GraphExpr, batch: int, span: Span | None) -> GraphExpr:
        """[..., rows, k] as [1, batch x k blocks, rows, 1, 1, lanes]."""
        shape, lanes = static_shape(data), self.blocks.inputs
        assert shape is not None
        value = _with_zeros(make("reshape", data, shape=(batch, *shape[-2:]), span=span), (0, 0, -shape[-1] % lanes))
        blocks = -(-shape[-1] // lanes)
        value = make("reshape", value, shape=(batch, shape[-2], blocks, lanes), span=span)
        value = make("transpose", value, axes=(0, 2, 1, 3), span=span)
        return make("reshape", value, shape=(1, batch * blocks, shape[-2], 1, 1, lanes), span=span)

    def _matrices(self, data: GraphExpr, batch: int, transposed: bool, span: Span | None) -> GraphExpr:
        """[..., k, columns] (or [..., columns, k]) as weights [batch x column blocks, k blocks, 1, 1, lanes, lanes]."""
        shape = static_shape(data)
        assert shape is not None
        value: GraphExpr = make("reshape", data, shape=(batch, *shape[-2:]), span=span)
        depth, columns = (shape[-1], shape[-2]) if transposed else (shape[-2], shape[-1])
        more = (-columns % self.blocks.outputs, -depth % self.blocks.inputs)
        value = _with_zeros(value, (0, *(more if transposed else more[::-1])))
        ours, theirs = -(-columns // self.blocks.outputs), -(-depth // self.blocks.inputs)
        if transposed:
            split, axes = (batch, ours, self.blocks.outputs, theirs, self.blocks.inputs), (0, 1, 3, 2, 4)
        else:
            split, axes = (batch, theirs, self.blocks.inputs, ours, self.blocks.outputs), (0, 3, 1, 4, 2)
        value = make("transpose", make("reshape", value, shape=split, span=span), axes=axes, span=span)
        whole = (batch * ours, theirs, 1, 1, self.blocks.outputs, self.blocks.inputs)
        return make("reshape", value, shape=whole, span=span)

    def _from_rows(self, layer: GraphExpr, batch: int, rows: int, columns: int, root: Call) -> GraphExpr:
        lanes, span = self.blocks.outputs, root.span
        blocks, shape = -(-columns // lanes), static_shape(root)
        assert shape is not None
        value: GraphExpr = make("reshape", layer, shape=(batch, blocks, rows, lanes), span=span)
        value = make("transpose", value, axes=(0, 2, 1, 3), span=span)
        value = make("reshape", value, shape=(batch, rows, blocks * lanes), span=span)
        if blocks * lanes != columns:
            value = make("slice", value, begin=(0, 0, 0), end=(batch, rows, columns), strides=(1, 1, 1), span=span)
        return make("reshape", value, shape=shape, span=span)

    # ------------------------------------------------------ between the layers

    def maximum(self, b: Bindings) -> GraphExpr | None:
        """The greatest of windows of bytes."""
        root = b.call("root")
        attributes, shape = root.attributes, static_shape(root.args[0])
        assert isinstance(attributes, Pool2dAttributes)
        is_plain = attributes.layout == "NCHW" and attributes.dilation == (1, 1)
        if root.tensor_type.dtype is not INT8 or shape is None or not is_plain or not self._is_filled(shape):
            return None
        channels, result = _filled(shape[1], self.blocks.whole), static_shape(root)
        assert result is not None
        nothing, one = np.zeros(channels, np.int64), np.ones(channels, np.int64)
        layer = make(
            "accel.max_pool2d",
            self._pack(root.args[0], self.blocks.inputs, self.blocks.whole),
            constant(self.blocks.diagonal(), "int8"),
            constant(self.blocks.parameters([nothing, one, nothing]), "int32"),
            span=root.span, kernel=attributes.kernel, strides=attributes.strides, padding=attributes.padding,
            groups=channels // self.blocks.whole,
        )  # fmt: skip
        return self._unpack(layer, result)

    def nearest(self, b: Bindings) -> GraphExpr | None:
        """Bytes of an image repeated down and across."""
        root = b.call("root")
        if root.tensor_type.dtype is not INT8:
            return None
        repeated, shape, result = _repeated(root), static_shape(root.args[0]), static_shape(root)
        if repeated is None or shape is None or result is None or not self._is_filled(shape):
            return None
        down, across = repeated
        # What is repeated down and then across is one copy.
        before = self.copies.get(root.args[0])
        item, factors = (root.args[0], (1, 1)) if before is None else before
        strides = factors[0] * down, factors[1] * across
        packed = self._pack(item, self.blocks.outputs)
        layer = make("accel.spread", packed, strides=strides, size=result[2:], span=root.span)
        image = self._unpack(layer, result)
        self.copies[image] = item, strides
        return image

    def _is_filled(self, shape: tuple[int, ...]) -> bool:
        """Whether an image has whole rows of tensors, and enough channels for its blocks."""
        whole = len(shape) == 4 and shape[0] % self.blocks.batch == 0
        return whole and shape[1] >= _LEAST_SHARE * _filled(shape[1], self.blocks.whole)


def _filled(size: int, lanes: int) -> int:
    """A size in whole blocks."""
    return -(-size // lanes) * lanes


def _repeated(item: Call) -> tuple[int, int] | None:
    """How many times in turn each row and each column of an image is taken."""
    attributes, indices, shape = item.attributes, item.args[1], static_shape(item.args[0])
    assert isinstance(attributes, TakeAttributes)
    if shape is None or len(shape) != 4 or not isinstance(indices, Constant) or indices.data.ndim != 1:
        return None
    axis = attributes.axis % 4
    factor = indices.data.size // shape[axis]
    same = factor * shape[axis] == indices.data.size and factor > 0
    if axis < 2 or not same or not np.array_equal(indices.data, np.arange(indices.data.size) // factor):
        return None
    return (factor, 1) if axis == 2 else (1, factor)


def _shared(weight: Array, groups: int) -> tuple[Array, dict[str, Any]]:
    """Weights once where taps or groups have the same ones, and the attributes that say so."""
    more: dict[str, Any] = {}
    kernel = weight.shape[2:4]
    if kernel != (1, 1) and (weight == weight[:, :, :1, :1]).all():
        weight, more["kernel"] = weight[:, :, :1, :1], kernel
    parts = weight.reshape(groups, -1, *weight.shape[1:])
    if groups > 1 and weight.shape[0] % groups == 0 and (parts == parts[:1]).all():
        weight, more["shared"] = parts[0], True
    return weight, more


def _with_zeros(value: GraphExpr, more: tuple[int, ...]) -> GraphExpr:
    """A tensor with zeros behind its elements."""
    if not any(more):
        return value
    return make("pad", value, before=(0,) * len(more), after=more, span=value.span)


def _less(image: GraphExpr, numbers: Array, span: Span | None) -> GraphExpr:
    """Sums of channels less a number each; as sums do, they wrap."""
    wrapped = numbers.astype(np.uint64).astype(np.uint32).view(np.int32)
    return make("subtract", image, constant(wrapped.reshape(-1, 1, 1), "int32"), span=span)


def _as_image(residual: GraphExpr, size: tuple[int, ...]) -> GraphExpr:
    """A residual as N, C, H, W; that of a matrix product has a pixel in each row."""
    return residual if static_shape(residual) == size else _column(residual, size)


def _as_result(image: GraphExpr, root: Call) -> GraphExpr:
    wanted, shape = static_shape(root), static_shape(image)
    assert wanted is not None and shape is not None
    if wanted == shape:
        return image
    if len(wanted) == 2 and shape[2:] == (1, 1):
        return make("reshape", image, shape=wanted, span=root.span)
    lines = make("transpose", make("reshape", image, shape=shape[:3], span=root.span), axes=(0, 2, 1), span=root.span)
    return make("reshape", lines, shape=wanted, span=root.span)
