"""Batch normalisation and scales folded into the weights of the contraction beside them.

Before:  batch_norm(conv2d(x, w), scale, bias, mean, variance)
After:   conv2d(x, w * s) + t        with s = scale / sqrt(variance + epsilon), t = bias - mean * s

Inference-time batch normalisation is a scale and a shift a channel. They become a multiply and an add of constants;
the multiply then folds into the weights of a convolution or matmul before it (if nothing else reads that result) or
after it, shifts before a contraction without padding become a shift after it, and constant shifts add up. What no
contraction takes stays as multiply and add, which fuse.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.dimensions import Sizes
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.convolution import Conv2dAttributes, Conv2dTransposeAttributes
from tilewright.graph.ops.normalization import BatchNormAttributes
from tilewright.ir.dtype import DataType
from tilewright.ir.function import IRModule

Wide = npt.NDArray[np.float64]
Floats = npt.NDArray[Any]
_CONTRACTIONS = ("nn.conv2d", "nn.conv2d_transpose", "matmul")
_FLOATS = ("float16", "float32", "float64")


def fold_batch_norm(module: IRModule) -> IRModule:
    """Fold batch normalisation and constant scales and shifts a channel into contractions."""
    return map_functions(module, _fold_function)


def _fold_function(function: Function) -> Function:
    return apply_rules(function, RULES)


def _wide(item: Constant) -> Wide:
    return item.data.astype(np.float64)


def _workable(item: Constant) -> Floats:
    """Weights in a type to scale them in: their own, but at least float32 (weights are large, widening costs time)."""
    return item.data.astype(np.float32) if item.dtype.name == "float16" else item.data


def _narrow(values: Floats, dtype: DataType) -> Constant:
    with np.errstate(over="ignore"):
        narrow = values.astype(dtype.numpy(), copy=False)
    return Constant(np.ascontiguousarray(narrow).reshape(values.shape), dtype)


def _floats(*items: GraphExpr) -> bool:
    return all(item.tensor_type.dtype.name in _FLOATS for item in items)


def _open_batch_norm(b: Bindings) -> GraphExpr | None:
    call = b.call("root")
    data, *statistics = call.args
    attributes = call.attributes
    assert isinstance(attributes, BatchNormAttributes)
    if not all(isinstance(item, Constant) for item in statistics) or not _floats(data) or data.tensor_type.rank is None:
        return None
    scale, bias, mean, variance = (_wide(item) for item in statistics if isinstance(item, Constant))
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + attributes.epsilon)
        shift = bias - mean * factor
    column = (-1,) + (1,) * (data.tensor_type.rank - attributes.axis - 1)
    dtype = data.tensor_type.dtype
    scaled = make("multiply", data, _narrow(factor.reshape(column), dtype), span=call.span)
    return make("add", scaled, _narrow(shift.reshape(column), dtype), span=call.span)


def _channel_vector(item: Constant, sizes: Sizes, axis: int) -> Wide | None:
    """A constant that broadcasts to a shape and varies only along one axis of a known size, as a vector along it."""
    dims = (1,) * (len(sizes) - item.data.ndim) + item.data.shape
    channels = sizes[axis]
    if not isinstance(channels, int) or len(dims) != len(sizes):
        return None
    if any(dim not in (1, channels if a == axis else 1) for a, dim in enumerate(dims)):
        return None
    return np.broadcast_to(_wide(item).reshape(-1), (channels,)) if channels else None


def _layout_axis(call: Call) -> int | None:
    """The axis of channels of a convolution's data and result."""
    assert isinstance(call.attributes, (Conv2dAttributes, Conv2dTransposeAttributes))
    axis = call.attributes.data_layout.find("C")
    return axis if axis >= 0 else None


def _output_axis(call: Call) -> int | None:
    """The axis of a contraction's result along which its weights have independent slices."""
    if isinstance(call.attributes, MatmulAttributes):
        rank = call.tensor_type.rank
        return None if rank is None else rank - 1
    return _layout_axis(call)


def _scale_outputs(call: Call, weight: Constant, factor: Wide) -> Floats | None:
    """The weights with each output channel scaled."""
    wide, attributes = _workable(weight), call.attributes
    factor = factor.astype(wide.dtype)
    if isinstance(attributes, MatmulAttributes):
        if weight.data.ndim < 2 or call.args[1] is not weight:
            return None
        return wide * (factor[:, None] if attributes.transpose_b else factor)
    assert isinstance(attributes, (Conv2dAttributes, Conv2dTransposeAttributes))
    place = attributes.kernel_layout.find("O")
    if place < 0:
        return None
    dims = [1] * wide.ndim
    if isinstance(attributes, Conv2dTransposeAttributes):
        # The kernel is I x (O / groups): the group of an output channel is that of its input channels.
        groups, inputs = attributes.groups, attributes.kernel_layout.find("I")
        per_group = wide.shape[place]
        result = wide.copy()
        step = wide.shape[inputs] // groups
        for group in range(groups):
            dims[place] = per_group
            chosen: list[slice] = [slice(None)] * wide.ndim
            chosen[inputs] = slice(group * step, (group + 1) * step)
            part = factor[group * per_group : (group + 1) * per_group]
            result[tuple(chosen)] *= part.reshape(dims)
        return result
    dims[place] = len(factor)
    return wide * factor.reshape(dims)


def _scale_after(b: Bindings) -> GraphExpr | None:
    call, weight = b.call("contraction"), b.constant("w")
    sizes, axis = known_sizes(call), _output_axis(call)
    if sizes is None or axis is None or not b.used_once("contraction") or not _floats(weight):
        return None
    if b.root.type is not call.type or call.args[1] is not weight:
        return None
    factor = _channel_vector(b.constant("c"), sizes, axis)
    if factor is None:
        return None
    scaled = _scale_outputs(call, weight, factor)
    return None if scaled is None else _with_weight(call, call.args[0], scaled, weight)


def _with_weight(call: Call, data: GraphExpr, values: Floats, weight: Constant) -> Call:
    new_weight = _narrow(values, weight.dtype)
    new_weight.span = weight.span
    new = Call(call.callee, (data, new_weight), call.attributes)
    new.span = call.span
    new.type = call.type
    return new


def _scale_inputs(call: Call, weight: Constant, factor: Wide) -> Floats | None:
    """The weights with each input channel scaled."""
    wide, attributes = _workable(weight), call.attributes
    factor = factor.astype(wide.dtype)
    if isinstance(attributes, MatmulAttributes):
        if weight.data.ndim < 2 or attributes.transpose_a:
            return None
        return wide * (factor if attributes.transpose_b else factor[:, None])
    if isinstance(attributes, Conv2dTransposeAttributes):
        dims = [1] * wide.ndim
        dims[attributes.kernel_layout.find("I")] = len(factor)
        return wide * factor.reshape(dims)
    assert isinstance(attributes, Conv2dAttributes)
    outputs, inputs = attributes.kernel_layout.find("O"), attributes.kernel_layout.find("I")
    result = wide.copy()
    per_group, step = wide.shape[inputs], wide.shape[outputs] // attributes.groups
    dims = [1] * wide.ndim
    dims[inputs] = per_group
    for group in range(attributes.groups):
        chosen: list[slice] = [slice(None)] * wide.ndim
        chosen[outputs] = slice(group * step, (group + 1) * step)
        result[tuple(chosen)] *= factor[group * per_group : (group + 1) * per_group].reshape(dims)
    return result


def _input_axis(call: Call) -> int | None:
    if isinstance(call.attributes, MatmulAttributes):
        rank = call.args[0].tensor_type.rank
        return None if rank is None else rank - 1
    return _layout_axis(call)


def _input_vector(b: Bindings) -> Wide | None:
    """The constant beside a contraction's input as a vector of its channels."""
    call, inner = b.call("root"), b.call("inner")
    sizes, axis = known_sizes(inner), _input_axis(call)
    if sizes is None or axis is None or b["x"].type is not inner.type or not _floats(b["w"]):
        return None
    return _channel_vector(b.constant("c"), sizes, axis)


def _scale_before(b: Bindings) -> GraphExpr | None:
    factor = _input_vector(b)
    if factor is None or not b.used_once("inner"):
        return None
    call, weight = b.call("root"), b.constant("w")
    scaled = _scale_inputs(call, weight, factor)
    return None if scaled is None else _with_weight(call, b["x"], scaled, weight)


def _shift_before(b: Bindings) -> GraphExpr | None:
    """contraction(x + c, w) = contraction(x, w) + sum(w * c), where no padding mixes zeros in."""
    call, weight = b.call("root"), b.constant("w")
    attributes = call.attributes
    padded = isinstance(attributes, Conv2dAttributes) and any(attributes.padding)
    if padded or isinstance(attributes, Conv2dTransposeAttributes) or not b.used_once("inner"):
        return None
    shift = _input_vector(b)
    if shift is None:
        return None
    scaled = _scale_inputs(call, weight, shift)
    if scaled is None:
        return None
    if isinstance(attributes, MatmulAttributes):
        if weight.data.ndim != 2:
            return None
        offset = scaled.sum(axis=1 if attributes.transpose_b else 0, dtype=np.float64)
    else:
        assert isinstance(attributes, Conv2dAttributes)
        outputs = attributes.kernel_layout.find("O")
        offset = scaled.sum(axis=tuple(axis for axis in range(4) if axis != outputs), dtype=np.float64)
        offset = offset.reshape(-1, 1, 1) if attributes.data_layout == "NCHW" else offset
    new = Call(call.callee, (b["x"], weight), attributes)
    new.span, new.type = call.span, call.type
    return make("add", new, _narrow(offset, weight.dtype), span=call.span)


def _is_contraction(item: GraphExpr) -> bool:
    return (
        isinstance(item, Call)
        and isinstance(item.callee, Operator)
        and item.callee.name in _CONTRACTIONS
        and isinstance(item.args[1], Constant)
    )


def _one_covers(a: Constant, b: Constant) -> bool:
    """Whether two constants broadcast to no more elements than the larger has."""
    shape = np.broadcast_shapes(a.data.shape, b.data.shape)
    return int(np.prod(shape, dtype=np.int64)) == max(a.data.size, b.data.size)


def _multiply_of_add(b: Bindings) -> GraphExpr | None:
    """(y + c) * d = y * d + c * d, so that the scale reaches the contraction."""
    inner, shift, factor = b.call("inner"), b.constant("c"), b.constant("d")
    if not _floats(shift) or inner.type is not b.root.type or not b.used_once("inner"):
        return None
    if b["y"].type is not inner.type or not _one_covers(shift, factor):
        return None
    moved = _narrow(_wide(shift) * _wide(factor), shift.dtype)
    scaled = make("multiply", b["y"], factor, span=b.root.span)
    return make("add", scaled, moved)


def _add_of_add(b: Bindings) -> GraphExpr | None:
    inner, first, second = b.call("inner"), b.constant("c"), b.constant("d")
    if not _floats(first) or inner.type is not b.root.type or b["y"].type is not inner.type:
        return None
    if not b.used_once("inner") or not _one_covers(first, second):
        return None
    return make("add", b["y"], _narrow(_wide(first) + _wide(second), first.dtype))


_CONTRACTION = P.any("y", where=_is_contraction)
RULES = (
    Rule("batch normalisation is a scale and a shift", P.op("nn.batch_norm", name="root"), _open_batch_norm),
    Rule(
        "scale after a contraction",
        P.op("multiply", P.op(_CONTRACTIONS, P.any("x"), P.const("w"), name="contraction"), P.const("c")),
        _scale_after,
    ),
    Rule(
        "scale after a shift after a contraction",
        P.op("multiply", P.op("add", _CONTRACTION, P.const("c"), name="inner"), P.const("d")),
        _multiply_of_add,
    ),
    Rule(
        "shift after a shift",
        P.op("add", P.op("add", P.any("y"), P.const("c"), name="inner"), P.const("d")),
        _add_of_add,
    ),
    Rule(
        "scale before a contraction",
        P.op(_CONTRACTIONS, P.op("multiply", P.any("x"), P.const("c"), name="inner"), P.const("w"), name="root"),
        _scale_before,
    ),
    Rule(
        "shift before a contraction",
        P.op(_CONTRACTIONS, P.op("add", P.any("x"), P.const("c"), name="inner"), P.const("w"), name="root"),
        _shift_before,
    ),
)
"""All rules, tried in order at each node."""
