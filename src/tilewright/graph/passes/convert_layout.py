"""Layout conversion: networks of NCHW convolutions and pools computed in NHWC.

Before:  x -> conv2d(NCHW) -> + b[C, 1, 1] -> relu -> max_pool2d(NCHW) -> flatten
After:   x -> transpose -> conv2d(NHWC) -> + b[C] -> relu -> max_pool2d(NHWC) -> transpose -> flatten

With channels last, a convolution reads vectors along channels. Every four-dimensional value may exist in both orders;
convolutions produce channels last, and elementwise operators, pools, reductions, concatenations, pads and slices keep
the order that their inputs have, with their axes remapped. Weights and broadcast constants are rearranged at compile
time. A transpose remains only at the borders: inputs and results of the model, and operators that need the original
order (reshape). `canonicalize` afterwards removes those that cancel or that move only dimensions of 1. A convolution
that would be turned for its own sake alone may stay as it is (`lone_convolutions`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.graph.ir.dimensions import Size, Sizes
from tilewright.graph.ir.expr import Attributes, Call, Constant, Function, GraphExpr, constant
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import Operator, is_call_to
from tilewright.graph.ir.rewrite import make, static_shape
from tilewright.graph.ir.traverse import children, map_functions, post_order, with_children
from tilewright.graph.ops.convolution import Conv2dAttributes, Conv2dTransposeAttributes
from tilewright.graph.ops.convolution_gradient import Conv2dWeightGradientAttributes
from tilewright.graph.ops.indexing import TakeAttributes
from tilewright.graph.ops.normalization import BatchNormAttributes, LayerNormAttributes
from tilewright.graph.ops.normalization_gradient import BatchNormSumsAttributes
from tilewright.graph.ops.pooling import Pool2dAttributes
from tilewright.graph.ops.reduce import ArgReduceAttributes, ReduceAttributes
from tilewright.graph.ops.shape import TransposeAttributes
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.lone_convolutions import as_product, is_pointwise, lone_convolutions
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, TupleType
from tilewright.target import Target

TO_LAST = (0, 2, 3, 1)
"""Axes of a transpose from NCHW to NHWC: dimension i of the result is dimension TO_LAST[i]."""
TO_FIRST = (0, 3, 1, 2)
"""Axes of a transpose from NHWC to NCHW."""
_MOVED = (0, 3, 1, 2)
"""Where each axis of NCHW is in NHWC."""
_KERNEL = (2, 3, 1, 0)
"""Axes of a transpose from OIHW to HWIO."""
_TRANSPOSED_KERNEL = (2, 3, 0, 1)
"""Axes of a transpose from IOHW to HWIO."""
_TO_MODEL_KERNEL = (3, 2, 0, 1)
"""Axes of a transpose from HWIO to OIHW."""
_WEIGHT_GRADIENT = "nn.conv2d_weight_gradient"
_SAME_AXIS = frozenset(["nn.softmax", "nn.log_softmax", "cumsum", "concatenate", "split"])
_REDUCTIONS = frozenset(["sum", "mean", "max", "min", "prod", "all", "any", "moments"])
_PER_AXIS = {
    "pad": ("before", "after"),
    "slice": ("begin", "end", "strides"),
    "tile": ("repeats",),
    "broadcast_to": ("shape",),
    "assume_shape": ("shape",),
}


def convert_layout(module: IRModule, options: GraphOptions) -> IRModule:
    """Compute convolutional parts channels last (the only other layout for now is the model's own).

    What is as quick in the model's own order on a target stays in it.
    """
    if options.layout != "NHWC":
        return module
    return map_functions(module, lambda function: _Converter(options.target).run(function))


def _rank(item: GraphExpr) -> int | None:
    return item.type.rank if isinstance(item.type, TensorType) else None


def _last(values: Sequence[Size]) -> Sizes:
    """One entry an axis, in the order of NHWC."""
    return tuple(values[axis] for axis in TO_LAST)


class _Converter:
    """One run: for each node of the old graph, its value in the original order and/or channels last."""

    def __init__(self, target: Target | None) -> None:
        self.target = target
        self.lone: frozenset[int] = frozenset()
        """Old convolutions that stay in the model's order."""
        self.plain: dict[int, GraphExpr] = {}
        self.last: dict[int, GraphExpr] = {}
        self.native: set[int] = set()
        """Old nodes that are computed channels last."""

    def run(self, function: Function) -> Function:
        if self.target is not None:
            self.lone = lone_convolutions(function, self.target)
        for item in post_order(function):
            converted = self._convert(item)
            if converted is None:
                self.plain[id(item)] = self._rebuild(item)
            elif is_call_to(item, "transpose") or is_call_to(item, _WEIGHT_GRADIENT) or _rank(converted) != 4:
                # The order is the one that the model asks for.
                self.plain[id(item)] = converted
            else:
                self.last[id(item)] = converted
                self.native.add(id(item))
        result = self.plain[id(function)]
        assert isinstance(result, Function)
        return result

    def _rebuild(self, item: GraphExpr) -> GraphExpr:
        rebuilt = with_children(item, [self.in_plain(child) for child in children(item)])
        if id(item) in self.lone and self.target is not None and is_pointwise(rebuilt, self.target):
            assert isinstance(rebuilt, Call)
            return as_product(rebuilt)
        if rebuilt is not item:
            fill_type(rebuilt)
            if rebuilt.type is None:
                rebuilt.type = item.type
        return rebuilt

    def in_plain(self, item: GraphExpr) -> GraphExpr:
        """The value of an old node in its original order."""
        plain = self.plain.get(id(item))
        if plain is None:
            plain = make("transpose", self.last[id(item)], axes=TO_FIRST, span=item.span)
            self.plain[id(item)] = plain
        return plain

    def in_last(self, item: GraphExpr) -> GraphExpr:
        """The value of an old node of four dimensions, channels last."""
        converted = self.last.get(id(item))
        if converted is None:
            plain = self.plain[id(item)]
            if isinstance(plain, Constant):
                converted = _rearranged(plain, plain.data.transpose(TO_LAST))
            else:
                converted = make("transpose", plain, axes=TO_LAST, span=item.span)
            self.last[id(item)] = converted
        return converted

    def _is_native(self, item: GraphExpr) -> bool:
        return id(item) in self.native

    def _convert(self, item: GraphExpr) -> GraphExpr | None:
        """The node computed from inputs channels last, or None to keep it as it is."""
        if not (isinstance(item, Call) and isinstance(item.callee, Operator)):
            return None
        name = item.callee.name
        if name in ("nn.conv2d", "nn.conv2d_transpose"):
            return self._convolution(item)
        if name == _WEIGHT_GRADIENT:
            return self._weight_gradient(item)
        if not any(self._is_native(arg) for arg in item.args):
            return None
        if item.callee.elementwise:
            return self._elementwise(item)
        if name in _SAME_AXIS:
            return self._with_axis(item)
        if name in _REDUCTIONS or name in ("argmax", "argmin"):
            return self._reduction(item)
        if name in _PER_AXIS:
            return self._per_axis(item, _PER_AXIS[name])
        handler = self._handlers().get(name)
        return None if handler is None else handler(item)

    def _handlers(self) -> dict[str, Callable[[Call], GraphExpr | None]]:
        return {
            "nn.max_pool2d": self._pool,
            "nn.avg_pool2d": self._pool,
            "nn.max_pool2d_gradient": self._pool,
            "nn.avg_pool2d_gradient": self._pool,
            "nn.batch_norm": self._batch_norm,
            "nn.batch_norm_sums": self._batch_norm_sums,
            "nn.layer_norm": self._layer_norm,
            "transpose": self._transpose,
            "take": self._take,
        }

    def _call(self, item: Call, args: Sequence[GraphExpr], attributes: Attributes | None) -> GraphExpr:
        new = Call(item.callee, tuple(args), attributes)
        new.span = item.span
        fill_type(new)
        return new

    def _convolution(self, item: Call) -> GraphExpr | None:
        attributes, (data, weight) = item.attributes, item.args
        assert isinstance(attributes, (Conv2dAttributes, Conv2dTransposeAttributes))
        order = _KERNEL if isinstance(attributes, Conv2dAttributes) else _TRANSPOSED_KERNEL
        if attributes.data_layout != "NCHW" or _rank(data) != 4 or id(item) in self.lone:
            return None
        kernel = self.in_plain(weight)
        if isinstance(kernel, Constant):
            kernel = _rearranged(kernel, kernel.data.transpose(order))
        else:
            kernel = make("transpose", kernel, axes=order, span=weight.span)
        changed = attributes.replace(data_layout="NHWC", kernel_layout="HWIO")
        return self._call(item, [self.in_last(data), kernel], changed)

    def _weight_gradient(self, item: Call) -> GraphExpr | None:
        """Sums of channels last give weights as HWIO, which are put in the order of the model's weights."""
        attributes = item.attributes
        assert isinstance(attributes, Conv2dWeightGradientAttributes)
        if attributes.data_layout != "NCHW" or any(_rank(arg) != 4 for arg in item.args):
            return None
        changed = attributes.replace(data_layout="NHWC", kernel_layout="HWIO")
        sums = self._call(item, [self.in_last(arg) for arg in item.args], changed)
        return make("transpose", sums, axes=_TO_MODEL_KERNEL, span=item.span)

    def _pool(self, item: Call) -> GraphExpr | None:
        assert isinstance(item.attributes, Pool2dAttributes)
        if item.attributes.layout != "NCHW":
            return None
        return self._call(item, [self.in_last(arg) for arg in item.args], item.attributes.replace(layout="NHWC"))

    def _batch_norm(self, item: Call) -> GraphExpr | None:
        data, *statistics = item.args
        assert isinstance(item.attributes, BatchNormAttributes)
        if not self._is_native(data):
            return None
        changed = item.attributes.replace(axis=_MOVED[item.attributes.axis])
        return self._call(item, [self.in_last(data), *map(self.in_plain, statistics)], changed)

    def _batch_norm_sums(self, item: Call) -> GraphExpr | None:
        data, mean, gradient = item.args
        assert isinstance(item.attributes, BatchNormSumsAttributes)
        if _rank(data) != 4:
            return None
        changed = item.attributes.replace(axis=_MOVED[item.attributes.axis])
        return self._call(item, [self.in_last(data), self.in_plain(mean), self.in_last(gradient)], changed)

    def _layer_norm(self, item: Call) -> GraphExpr | None:
        """Images normalised by themselves: channels last, step by step (what is normalised is not last there)."""
        attributes, (data, scale, bias) = item.attributes, item.args
        assert isinstance(attributes, LayerNormAttributes)
        if not self._is_native(data) or _rank(data) != 4 or attributes.axis != 2:
            return None
        image = self.in_last(data)
        axes = (1, 2)
        centred = make("subtract", image, make("mean", image, axes=axes, keepdims=True))
        variance = make("mean", make("multiply", centred, centred), axes=axes, keepdims=True)
        least = make("cast", constant(attributes.epsilon, "float64"), dtype=variance.tensor_type.dtype)
        inverse = make("rsqrt", make("add", variance, least))
        scaled = make("multiply", make("multiply", centred, inverse), self._broadcast_operand(scale))
        return make("add", scaled, self._broadcast_operand(bias), span=item.span)

    def _elementwise(self, item: Call) -> GraphExpr | None:
        if _rank(item) != 4 or any(static_shape(arg) is None and _rank(arg) != 4 for arg in item.args):
            return None
        return self._call(item, [self._broadcast_operand(arg) for arg in item.args], item.attributes)

    def _broadcast_operand(self, item: GraphExpr) -> GraphExpr:
        """An input that broadcasts to four dimensions, channels last."""
        rank, shape = _rank(item), static_shape(item)
        if rank == 4:
            return self.in_last(item)
        plain = self.in_plain(item)
        if rank == 0 or shape is None:
            return plain
        full = (1,) * (4 - len(shape)) + shape
        if isinstance(plain, Constant):
            data = plain.data.reshape(full).transpose(TO_LAST)
            while data.ndim > 1 and data.shape[0] == 1:
                data = data[0]
            return _rearranged(plain, data)
        widened = make("reshape", plain, shape=full, span=item.span)
        return make("transpose", widened, axes=TO_LAST, span=item.span)

    def _with_axis(self, item: Call) -> GraphExpr | None:
        """Operators with one axis, over inputs that all have four dimensions."""
        if any(_rank(arg) != 4 for arg in item.args):
            return None
        axis = getattr(item.attributes, "axis", None)
        if item.attributes is None or not isinstance(axis, int) or not isinstance(item.type, TensorType):
            return None
        return self._call(item, [self.in_last(arg) for arg in item.args], item.attributes.replace(axis=_MOVED[axis]))

    def _reduction(self, item: Call) -> GraphExpr | None:
        attributes = item.attributes
        if isinstance(attributes, ReduceAttributes):
            axes = tuple(sorted(_MOVED[axis] for axis in attributes.axes))
            changed: Attributes = attributes.replace(axes=axes)
        else:
            assert isinstance(attributes, ArgReduceAttributes)
            axes = (_MOVED[attributes.axis],)
            changed = attributes.replace(axis=axes[0])
        if isinstance(item.type, TupleType) and attributes.keepdims:
            return None
        if not attributes.keepdims:
            rest = [TO_LAST[axis] for axis in range(4) if axis not in axes]
            if rest != sorted(rest):
                return None
        return self._call(item, [self.in_last(item.args[0])], changed)

    def _per_axis(self, item: Call, fields: Sequence[str]) -> GraphExpr | None:
        if _rank(item) != 4 or _rank(item.args[0]) != 4 or item.attributes is None:
            return None
        changes: dict[str, object] = {field: _last(getattr(item.attributes, field)) for field in fields}
        return self._call(item, [self.in_last(item.args[0])], item.attributes.replace(**changes))

    def _transpose(self, item: Call) -> GraphExpr | None:
        """The transpose of a transpose: one from the order that the input has."""
        assert isinstance(item.attributes, TransposeAttributes)
        axes = tuple(_MOVED[axis] for axis in item.attributes.axes)
        source = self.in_last(item.args[0])
        return source if axes == (0, 1, 2, 3) else make("transpose", source, axes=axes, span=item.span)

    def _take(self, item: Call) -> GraphExpr | None:
        data, indices = item.args
        assert isinstance(item.attributes, TakeAttributes)
        if not self._is_native(data) or _rank(indices) != 1:
            return None
        changed = item.attributes.replace(axis=_MOVED[item.attributes.axis])
        return self._call(item, [self.in_last(data), self.in_plain(indices)], changed)


def _rearranged(item: Constant, data: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Constant:
    result = Constant(data, item.dtype)
    result.span = item.span
    return result
