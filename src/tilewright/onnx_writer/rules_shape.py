"""How operators whose sizes, axes or places are data are written as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.graph.ir.dimensions import as_size
from tilewright.graph.ir.expr import Call, Constant, GraphExpr
from tilewright.graph.ir.op import is_call_to
from tilewright.ir.dtype import FLOAT32, INT64, DataType
from tilewright.ir.expr import const_value
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.onnx_writer.writer import Writer, name_of, rule
from tilewright.support.errors import UnsupportedError

_MANY = 2**62


def rank_of(item: GraphExpr) -> int:
    """The number of dimensions of a value, which must be known."""
    rank = item.tensor_type.rank
    if rank is None:
        raise UnsupportedError("a value of unknown rank cannot be rearranged in an ONNX model")
    return rank


def wide(writer: Writer, item: GraphExpr, name: str) -> str:
    """Whole numbers as int64."""
    return name if item.tensor_type.dtype is INT64 else str(writer.node("Cast", name, to=writer.element(INT64)))


def as_list(writer: Writer, item: GraphExpr, name: str) -> str:
    """Whole numbers as a list of int64."""
    return str(writer.node("Reshape", wide(writer, item, name), writer.constant([-1], np.int64)))


# Axes


def _order(writer: Writer, call: Call, inputs: Sequence[str]) -> str:
    """The order that puts axes last, in the order in which they are in the data."""
    rank = rank_of(call.args[0])
    axes = as_list(writer, call.args[1], inputs[1])
    count = writer.constant(np.int64(rank))
    places = writer.node("Mod", writer.node("Add", axes, count), count)
    marks = writer.node("Expand", writer.constant([1], np.int64), writer.node("Shape", places))
    chosen = writer.node("ScatterElements", writer.constant(np.zeros(rank, np.int64)), places, marks, axis=0)
    # Those that are not chosen first, each half in its own order.
    keys = writer.node("Add", writer.node("Mul", chosen, count), writer.constant(np.arange(rank, dtype=np.int64)))
    return _sorted_places(writer, keys, rank)


def _sorted_places(writer: Writer, keys: Any, rank: int) -> str:
    return str(writer.node("TopK", keys, writer.constant([rank], np.int64), outputs=2, largest=0)[1])


def _reordered(writer: Writer, data: str, order: str, rank: int) -> str:
    """Dimensions in an order that is data: Transpose knows constant ones alone, so that elements are gathered."""
    shape = writer.node("Shape", data)
    flat = writer.node("Reshape", data, writer.constant([-1], np.int64))
    turned = writer.node("Gather", shape, order)
    one = writer.constant([1], np.int64)
    # The step of each axis is the product of the sizes behind it.
    steps: list[str] = [one]
    for axis in range(rank - 1, 0, -1):
        size = writer.node("Slice", shape, *(writer.constant([end], np.int64) for end in (axis, axis + 1)))
        steps.insert(0, str(writer.node("Mul", steps[0], size)))
    step = writer.node("Gather", writer.node("Concat", *steps, axis=0), order)
    places = ""
    for axis in range(rank):
        bounds = [writer.constant([end], np.int64) for end in (axis, axis + 1)]
        scalar = writer.constant(np.zeros(0, np.int64))
        size = writer.node("Reshape", writer.node("Slice", turned, *bounds), scalar)
        along = writer.node("Range", writer.constant(np.int64(0)), size, writer.constant(np.int64(1)))
        scaled = writer.node("Mul", along, writer.node("Slice", step, *bounds))
        spread = writer.constant(np.array([1] * axis + [-1] + [1] * (rank - axis - 1), np.int64))
        part = str(writer.node("Reshape", scaled, spread))
        places = str(writer.node("Add", places, part)) if places else part
    return str(writer.node("Gather", flat, places))


@rule("axes.to_end", "axes.from_end")
def _axes_moved(writer: Writer, call: Call, inputs: list[str]) -> str:
    rank = rank_of(call.args[0])
    if rank <= 1:
        return str(writer.node("Identity", inputs[0]))
    order = _order(writer, call, inputs)
    if name_of(call) == "axes.from_end":
        order = _sorted_places(writer, order, rank)
    return _reordered(writer, inputs[0], order, rank)


@rule("axes.insert")
def _axes_insert(writer: Writer, call: Call, inputs: list[str]) -> str:
    return str(writer.node("Unsqueeze", inputs[0], as_list(writer, call.args[1], inputs[1])))


@rule("axes.remove")
def _axes_remove(writer: Writer, call: Call, inputs: list[str]) -> str:
    return str(writer.node("Squeeze", inputs[0], as_list(writer, call.args[1], inputs[1])))


# Shapes


@rule("shape.match")
def _match(writer: Writer, call: Call, inputs: list[str]) -> str:
    return str(writer.node("Identity", inputs[0]))


@rule("shape.reshape")
def _reshape(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    shape = as_list(writer, call.args[1], inputs[1])
    return str(writer.node("Reshape", inputs[0], shape, allowzero=int(not own.copy_zeros)))


@rule("shape.broadcast")
def _broadcast(writer: Writer, call: Call, inputs: list[str]) -> str:
    return str(writer.node("Expand", inputs[0], as_list(writer, call.args[1], inputs[1])))


@rule("shape.tile")
def _tile(writer: Writer, call: Call, inputs: list[str]) -> str:
    return str(writer.node("Tile", inputs[0], as_list(writer, call.args[1], inputs[1])))


@rule("shape.slice")
def _slice(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    starts, ends, steps = (as_list(writer, arg, name) for arg, name in zip(call.args[1:4], inputs[1:4], strict=True))
    if len(inputs) > 4:
        axes = as_list(writer, call.args[4], inputs[4])
    else:
        axes = writer.constant(np.asarray(own.axes, np.int64))
    return str(writer.node("Slice", inputs[0], starts, ends, axes, steps))


@rule("shape.pad")
def _pad(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    amounts = as_list(writer, call.args[1], inputs[1])
    value = str(writer.node("Reshape", inputs[2], writer.constant(np.zeros(0, np.int64))))
    if len(inputs) > 3:
        axes = as_list(writer, call.args[3], inputs[3])
    else:
        axes = writer.constant(np.asarray(own.axes, np.int64))
    return str(writer.node("Pad", inputs[0], amounts, value, axes, mode=own.mode))


@rule("shape.range")
def _range(writer: Writer, call: Call, inputs: list[str]) -> str:
    scalar = writer.constant(np.zeros(0, np.int64))
    ends = [writer.node("Reshape", name, scalar) for name in inputs]
    return in_float32(writer, call.tensor_type.dtype, ends, "Range")


def in_float32(writer: Writer, dtype: DataType, inputs: Sequence[str], operation: str, **attributes: Any) -> str:
    """A node that knows no floats of 16 bits, computed in float32."""
    if dtype.name not in ("bfloat16", "float16"):
        return str(writer.node(operation, *inputs, **attributes))
    single = [writer.node("Cast", name, to=writer.element(FLOAT32)) for name in inputs]
    return str(writer.node("Cast", writer.node(operation, *single, **attributes), to=writer.element(dtype)))


@rule("shape.split")
def _split(writer: Writer, call: Call, inputs: list[str]) -> tuple[str, ...]:
    own: Any = call.attributes
    kind: Type | None = call.type
    assert isinstance(kind, TupleType)
    sizes = as_list(writer, call.args[1], inputs[1])
    parts = writer.node("Split", inputs[0], sizes, outputs=len(kind.items), axis=own.axis)
    return parts if isinstance(parts, tuple) else (parts,)


# Results sized by data


@rule("host.rank")
def _rank(writer: Writer, call: Call, inputs: list[str]) -> str:
    return str(writer.node("Size", writer.node("Shape", inputs[0])))


@rule("host.nonzero")
def _nonzero(writer: Writer, call: Call, inputs: list[str]) -> str:
    return str(writer.node("NonZero", inputs[0]))


def _single(writer: Writer, item: GraphExpr, name: str) -> tuple[str, Callable[[str], str]]:
    """What nodes that know no bfloat16 are given in its place, and what makes bfloat16 of their results."""
    dtype = item.tensor_type.dtype
    if dtype.name != "bfloat16":
        return name, lambda result: result
    single = str(writer.node("Cast", name, to=writer.element(FLOAT32)))
    return single, lambda result: str(writer.node("Cast", result, to=writer.element(dtype)))


def _sortable(writer: Writer, item: GraphExpr, name: str) -> tuple[str, Callable[[str], str]]:
    """The same for a node of which runtimes have two types of whole numbers: others become the wider one."""
    dtype = item.tensor_type.dtype
    if not dtype.is_integer or dtype.name in ("int8", "int64", "uint64"):
        return _single(writer, item, name)
    wide = str(writer.node("Cast", name, to=writer.element(INT64)))
    return wide, lambda result: str(writer.node("Cast", result, to=writer.element(dtype)))


@rule("host.compress")
def _compress(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    data, back = _single(writer, call.args[0], inputs[0])
    return back(str(writer.node("Compress", data, inputs[1], axis=own.axis if own.axis >= 0 else None)))


@rule("host.unique")
def _unique(writer: Writer, call: Call, inputs: list[str]) -> tuple[str, ...]:
    own: Any = call.attributes
    axis = own.axis if own.axis >= 0 else None
    data, back = _sortable(writer, call.args[0], inputs[0])
    values, *places = writer.node("Unique", data, outputs=4, axis=axis, sorted=int(own.sorted))
    return (back(values), *places)


@rule("host.topk")
def _topk(writer: Writer, call: Call, inputs: list[str]) -> tuple[str, ...]:
    own: Any = call.attributes
    count = as_list(writer, call.args[1], inputs[1])
    found: tuple[str, ...] = writer.node("TopK", inputs[0], count, outputs=2, axis=own.axis, largest=int(own.largest))
    return found


@rule("host.non_max_suppression")
def _suppression(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    scalars = [writer.node("Reshape", name, writer.constant([1], np.int64)) for name in inputs[2:]]
    scalars[0] = writer.node("Cast", scalars[0], to=writer.element(INT64))
    return str(writer.node("NonMaxSuppression", *inputs[:2], *scalars, center_point_box=int(own.center_point_box)))


@rule("host.mel_weights")
def _mel_weights(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    scalar = writer.constant(np.zeros(0, np.int64))
    ends = [writer.node("Reshape", name, scalar) for name in inputs]
    return str(writer.node("MelWeightMatrix", *ends, output_datatype=writer.element(own.dtype)))


@rule("host.col2im")
def _col2im(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    sizes = [as_list(writer, arg, name) for arg, name in zip(call.args[1:], inputs[1:], strict=True)]
    given: dict[str, Any] = {name: getattr(own, name) or None for name in ("strides", "dilations", "pads")}
    return str(writer.node("Col2Im", inputs[0], *sizes, **given))


@rule("host.resize_weights")
def _resize_weights(writer: Writer, call: Call, inputs: list[str]) -> tuple[str, ...]:
    """What Resize makes of the identity matrix, and of ones with another value outside."""
    own: Any = call.attributes
    old, new, scale, start, end = (
        writer.node("Cast", writer.node("Reshape", name, writer.constant([1], np.int64)), to=writer.element(kind))
        for name, kind in zip(inputs, (INT64, INT64, FLOAT32, FLOAT32, FLOAT32), strict=True)
    )
    one = writer.constant([1], np.float32)
    attributes = {
        "mode": own.mode,
        "coordinate_transformation_mode": own.transformation,
        "nearest_mode": own.nearest if own.mode == "nearest" else None,
        "cubic_coeff_a": own.cubic if own.mode == "cubic" else None,
        "exclude_outside": int(own.exclude_outside),
        "antialias": int(own.antialias),
    }
    region = writer.node("Concat", start, writer.constant([0], np.float32), end, one, axis=0)
    roi = region if own.transformation == "tf_crop_and_resize" else ""
    stretched = writer.node("Floor", writer.node("Mul", writer.node("Cast", old, to=writer.element(FLOAT32)), scale))
    by_scale = writer.node("Equal", writer.node("Cast", stretched, to=writer.element(INT64)), new)
    condition = writer.node("Reshape", by_scale, writer.constant(np.zeros(0, np.int64)))
    kind = TensorType((None, None), FLOAT32)

    def resized(data: str, value: float) -> str:
        """By the scale where that gives the size, else to the size."""
        width = writer.node("Shape", data, start=1, end=2)

        def scaled() -> list[str]:
            scales = writer.node("Concat", scale, one, axis=0)
            return [writer.node("Resize", data, roi, scales, extrapolation_value=value, **attributes)]

        def sized() -> list[str]:
            sizes = writer.node("Concat", new, width, axis=0)
            return [writer.node("Resize", data, roi, "", sizes, extrapolation_value=value, **attributes)]

        branches = {"then_branch": writer.graph((), scaled, [kind]), "else_branch": writer.graph((), sized, [kind])}
        return str(writer.node("If", condition, **branches))

    square = writer.node("Concat", old, old, axis=0)
    identity = writer.node("EyeLike", writer.node("ConstantOfShape", square), dtype=writer.element(FLOAT32))
    ones = writer.node("Expand", one, writer.node("Concat", old, writer.constant([1], np.int64), axis=0))
    outside = writer.node("Less", resized(str(ones), -1.0), writer.constant([0], np.float32))
    return resized(str(identity), 0.0), str(writer.node("Reshape", outside, writer.constant([-1], np.int64)))


# Writing at places


def _beyond(writer: Writer, call: Call, data: str, axis: int) -> str:
    """The data with one place more at the end of an axis, where writes that are left out go."""
    rank = rank_of(call.args[0])
    amounts = [0] * (2 * rank)
    amounts[rank + axis] = 1
    zero = writer.number(0, call.tensor_type.dtype)
    return str(writer.node("Pad", data, writer.constant(np.array(amounts, np.int64)), zero))


def _size(writer: Writer, call: Call, axis: int) -> str:
    shape = call.args[0].tensor_type.shape
    dim = None if shape is None else shape[axis]
    if dim is None:
        raise UnsupportedError("places in a dimension of unknown size cannot be written to an ONNX model")
    return writer.size(as_size(dim))


@rule("scatter")
def _scatter(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    data, places, updates = inputs
    places = wide(writer, call.args[1], places)
    last = writer.constant([-1, 1], np.int64)
    if own.inside:
        return str(
            writer.node("ScatterND", data, writer.node("Reshape", places, last), updates, reduction=own.reduction)
        )
    size = _size(writer, call, 0)
    inside = writer.node(
        "And",
        writer.node("GreaterOrEqual", places, writer.constant(np.int64(0))),
        writer.node("Less", places, size),
    )
    kept = writer.node("Reshape", writer.node("Where", inside, places, size), last)
    written = writer.node("ScatterND", _beyond(writer, call, data, 0), kept, updates, reduction=own.reduction)
    return _without_last(writer, written, 0)


@rule("segment_sum")
def _segment_sum(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    updates, segments = inputs
    given = call.args[0].tensor_type
    if given.static_shape is None:
        raise UnsupportedError("a segment_sum of rows of unknown size cannot be written to an ONNX model")
    # Segments outside the result are added to a row that is cut off again.
    places = wide(writer, call.args[1], segments)
    count, zero = writer.constant(np.int64(own.count)), writer.constant(np.int64(0))
    inside = writer.node("And", writer.node("GreaterOrEqual", places, zero), writer.node("Less", places, count))
    kept = writer.node("Reshape", writer.node("Where", inside, places, count), writer.constant([-1, 1], np.int64))
    zeros = writer.constant(np.zeros((own.count + 1, *given.static_shape[1:]), given.dtype.name))
    return _without_last(writer, str(writer.node("ScatterND", zeros, kept, updates, reduction="add")), 0)


def _without_last(writer: Writer, data: str, axis: int) -> str:
    ends = [writer.constant([number], np.int64) for number in (0, -1, axis)]
    return str(writer.node("Slice", data, *ends))


@rule("scatter_elements")
def _scatter_elements(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    data, indices, updates = inputs
    indices = wide(writer, call.args[1], indices)
    attributes = {"axis": own.axis, "reduction": own.reduction}
    if own.inside:
        return str(writer.node("ScatterElements", data, indices, updates, **attributes))
    size = _size(writer, call, own.axis)
    zero = writer.constant(np.int64(0))
    wrapped = writer.node("Where", writer.node("Less", indices, zero), writer.node("Add", indices, size), indices)
    inside = writer.node("And", writer.node("GreaterOrEqual", wrapped, zero), writer.node("Less", wrapped, size))
    kept = writer.node("Where", inside, wrapped, size)
    written = writer.node("ScatterElements", _beyond(writer, call, data, own.axis), kept, updates, **attributes)
    return _without_last(writer, written, own.axis)


# Ends of a run


@rule("host.require")
def _require(writer: Writer, call: Call, inputs: list[str]) -> str:
    """A run where the condition does not hold ends: there is no second element to gather."""
    place = writer.node("Cast", writer.node("Not", inputs[0]), to=writer.element(INT64))
    return str(writer.node("Gather", writer.constant([True]), place))


@rule("host.fail")
def _fail(writer: Writer, call: Call, inputs: list[str]) -> str:
    """A value that no run can have: a place that is not there, which no optimiser knows beforehand."""
    kind = call.type
    if not isinstance(kind, TensorType):
        raise UnsupportedError("a branch that always fails gives no tensor: it cannot be written to an ONNX model")
    drawn = writer.node("RandomUniform", shape=[1], low=1.0, high=2.0)
    place = writer.node("Cast", drawn, to=writer.element(INT64))
    one = np.array([""], object) if kind.dtype.is_string else np.zeros(1, kind.dtype.numpy())
    failed = writer.node("Gather", writer.constant(one, element=kind.dtype), place)
    known = [const_value(dim) if dim is not None else None for dim in kind.shape or ()]
    if not known:
        return str(writer.node("Reshape", failed, writer.constant(np.zeros(0, np.int64))))
    return str(
        writer.node("Expand", failed, writer.constant([1 if size is None else size for size in known], np.int64))
    )


# Random numbers


@rule("random.key")
def _key(writer: Writer, call: Call, inputs: list[str]) -> str:
    # Nothing reads it: a draw without a seed has no other input.
    return str(writer.constant([0, 0], np.uint32))


@rule("random.uniform", "random.normal")
def _random(writer: Writer, call: Call, inputs: list[str]) -> str:
    own: Any = call.attributes
    key = call.args[0]
    seed: dict[str, Any] = {}
    if isinstance(key, Constant):
        high, low = (int(word) for word in key.data)
        seed = {"seed": float(np.asarray(high << 32 | low, np.uint64).view(np.float64))}
        if not np.isfinite(np.float32(seed["seed"])):
            seed = {"seed": float(low)}
    elif not is_call_to(key, "random.key"):
        raise UnsupportedError("random numbers of a key that is computed cannot be written to an ONNX model")
    like = writer.node("ConstantOfShape", writer.sizes(own.shape))
    if name_of(call) == "random.uniform":
        return str(writer.node("RandomUniformLike", like, low=own.low, high=own.high, **seed))
    return str(writer.node("RandomNormalLike", like, mean=own.mean, scale=own.scale, **seed))
