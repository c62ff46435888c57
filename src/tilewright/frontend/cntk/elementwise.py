"""CNTK's operators on elements, products, reductions and shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.cntk.context import Operator, Value, operator
from tilewright.frontend.cntk.dictionary import FREE, INFERRED, TYPES, Axis
from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.graph.ir.dimensions import Size, divide_exactly, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError

_PLAIN = "Sigmoid Tanh Exp Log Sqrt Floor Abs Reciprocal Sin Cos Tan Sinh Cosh Asin Acos Atan Asinh Atanh"
_UNARY = {name: name.lower() for name in _PLAIN.split()} | {
    "Negate": "negative",
    "StableSigmoid": "sigmoid",
    "ReLU": "nn.relu",
}
_SAME = ("Dropout", "Pass", "NoOp", "StopGradient", "StraightThrough")
_BINARY = {"Plus": "add", "Minus": "subtract", "ElementTimes": "multiply", "Pow": "power"}
_COMPARISONS = {
    "Equal": "equal",
    "NotEqual": "not_equal",
    "Less": "less",
    "LessEqual": "less_equal",
    "Greater": "greater",
    "GreaterEqual": "greater_equal",
}


@operator(*_UNARY)
def unary(op: Operator) -> Value:
    """A function of each element."""
    return op.x.with_data(op.call(_UNARY[op.kind], op.x.data))


@operator(*_SAME)
def same(op: Operator) -> Value:
    """What changes nothing when a model is evaluated."""
    return op.x


@operator("ELU")
def elu(op: Operator) -> Value:
    """x, or alpha * (exp(x) - 1) where x is negative."""
    return op.x.with_data(op.call("nn.elu", op.x.data, alpha=float(op.attribute("alpha", 1.0))))


@operator(*_BINARY)
def binary(op: Operator) -> Value:
    """Two inputs that broadcast."""
    (a, b), like = op.aligned(op.inputs[:2])
    return like.with_data(op.call(_BINARY[op.kind], a, b))


@operator(*_COMPARISONS)
def comparison(op: Operator) -> Value:
    """1 where a comparison holds, else 0."""
    (a, b), like = op.aligned(op.inputs[:2])
    return like.with_data(op.builder.cast(op.call(_COMPARISONS[op.kind], a, b), dtype_of(a)))


@operator("LogPlus")
def log_plus(op: Operator) -> Value:
    """log(exp(a) + exp(b))."""
    (a, b), like = op.aligned(op.inputs[:2])
    distance = op.call("negative", op.call("abs", op.call("subtract", a, b)))
    return like.with_data(op.call("add", op.call("maximum", a, b), op.call("log1p", op.call("exp", distance))))


@operator("Select")
def select(op: Operator) -> Value:
    """The second input where the first is not 0, else the third."""
    (condition, a, b), like = op.aligned(op.inputs[:3])
    return like.with_data(op.call("where", op.builder.truth(condition), a, b))


@operator("Clip")
def clip(op: Operator) -> Value:
    """Between the second and the third input."""
    (x, low, high), like = op.aligned(op.inputs[:3])
    return like.with_data(op.call("minimum", op.call("maximum", x, low), high))


@operator("Cast")
def cast(op: Operator) -> Value:
    """Converted to a type."""
    number = int(op.attribute("newDataType"))
    if number not in TYPES:
        raise UserError(f"the data type number {number} is not known")
    return op.x.with_data(op.builder.cast(op.x.data, TYPES[number]))


@operator("ConstantOp")
def constant_like(op: Operator) -> Value:
    """One value in the shape of the input."""
    value = float(op.attribute("fillValue", 0.0))
    return op.x.with_data(op.builder.filled(value, sizes_of(op.x.data), dtype_of(op.x.data)))


@operator("EyeLikeOp")
def eye_like(op: Operator) -> Value:
    """Ones on the diagonal of the shape of the input."""
    return op.x.with_data(op.onnx("EyeLike", op.x.data))


# Softmax and its kin


@operator("Softmax", "LogSoftmax", "Hardmax")
def softmax(op: Operator) -> Value:
    """Along an axis, or over all dimensions of a sample."""
    x = op.x
    name = op.kind
    if op.has("axis"):
        axis = x.dynamic + op.axis(op.attribute("axis"), x.rank)
        return x.with_data(op.onnx(name, x.data, axis=axis))
    flat = op.builder.reshape(x.data, (*x.leading, product(x.shape)))
    result = op.onnx(name, flat, axis=x.dynamic)
    return x.with_data(op.builder.reshape(result, sizes_of(x.data)))


@operator("SquaredError", "CrossEntropyWithSoftmax", "ClassificationError", "CosDistance", "Logistic")
def measured(op: Operator) -> Value:
    """How far two inputs are from each other, a number a sample."""
    (a, b), like = op.aligned(op.inputs[:2])
    axes = tuple(range(like.dynamic, rank_of(a)))
    if not axes:
        raise UserError(f"{op.kind} of numbers without dimensions")

    def total(value: GraphExpr) -> GraphExpr:
        return op.builder.reduce("sum", value, axes, False)

    match op.kind:
        case "SquaredError":
            apart = op.call("subtract", a, b)
            result = total(op.call("multiply", apart, apart))
        case "CosDistance":
            norms = op.call("multiply", total(op.call("multiply", a, a)), total(op.call("multiply", b, b)))
            result = op.call("divide", total(op.call("multiply", a, b)), op.call("sqrt", norms))
        case "Logistic":
            near = op.call("multiply", a, op.call("log", b))
            far = op.call("multiply", op.builder.subtract(1.0, a), op.call("log", op.builder.subtract(1.0, b)))
            result = op.call("negative", total(op.call("add", near, far)))
        case "CrossEntropyWithSoftmax":
            last = (like.rank or len(axes)) + like.dynamic - 1
            result = op.call("negative", total(op.call("multiply", b, op.onnx("LogSoftmax", a, axis=last))))
        case _:
            best = [op.call("argmax", value, axis=axes[-1]) for value in (a, b)]
            result = op.builder.cast(op.call("not_equal", best[0], best[1]), dtype_of(a))
    shape = sizes_of(result)[: like.dynamic]
    return like.with_data(op.builder.reshape(result, shape))


# Products


@operator("Times")
def times(op: Operator) -> Value:
    """The product of the second input with the first, as CNTK's Python writes `times(x, W)`.

    The last dimensions of the second input meet the first ones of the first; `outputRank` of its dimensions are left.
    """
    weight, x = op.inputs[:2]
    kept = int(op.attribute("outputRank", 1))
    met = weight.rank - kept
    if not 0 <= met <= x.rank:
        raise UserError(f"a product over {met} dimensions of {x.rank}")
    outer, inner = x.shape[: x.rank - met], product(weight.shape[:met])
    rows = x.with_data(op.builder.reshape(x.data, (*x.leading, product(outer), product(x.shape[x.rank - met :]))))
    table = weight.with_data(op.builder.reshape(weight.data, (*weight.leading, inner, product(weight.shape[met:]))))
    (a, b), like = op.aligned([rows, table])
    result = op.call("matmul", a, b)
    shape = (*sizes_of(result)[: like.dynamic], *outer, *weight.shape[met:])
    return like.with_data(op.builder.reshape(result, shape))


@operator("TransposeTimes")
def transpose_times(op: Operator) -> Value:
    """The product with the transposed first input, a matrix or a row."""
    weight, x = op.inputs[:2]
    if weight.rank not in (1, 2) or x.rank not in (1, 2):
        raise UnsupportedError(f"TransposeTimes of {weight.rank} and {x.rank} dimensions")
    rows = x if x.rank == 2 else x.with_data(op.builder.expand_dims(x.data, (x.dynamic,)))
    table = weight if weight.rank == 2 else weight.with_data(op.builder.expand_dims(weight.data, (weight.dynamic,)))
    (a, b), like = op.aligned([rows, table])
    result = op.call("matmul", a, b, transpose_b=True)
    if x.rank == 1:
        shape = sizes_of(result)
        result = op.builder.reshape(result, (*shape[: like.dynamic], shape[-1]))
    return like.with_data(result)


# Reductions

_REDUCTIONS = {"Sum": "sum", "Mean": "mean", "Max": "max", "Min": "min", "Prod": "prod"}


@operator("ReduceElements")
def reduce_elements(op: Operator) -> Value:
    """Over an axis, several, or all dimensions of a sample, which stay as 1 unless the model says otherwise."""
    x = op.x
    axes = op.attribute("axisVec", []) or [op.attribute("axis")]
    keep = bool(op.attribute("reductionKeepDimensions", True))
    if any(isinstance(axis, Axis) and axis.is_everything for axis in axes):
        return Value(_reduced(op, x.data, tuple(range(rank_of(x.data))), False))
    if any(isinstance(axis, Axis) and axis.is_all_static for axis in axes):
        places = tuple(range(x.dynamic, rank_of(x.data)))
    else:
        places = tuple(sorted(x.dynamic + op.axis(axis, x.rank) for axis in axes))
    return x.with_data(_reduced(op, x.data, places, keep))


def _reduced(op: Operator, data: GraphExpr, places: tuple[int, ...], keep: bool) -> GraphExpr:
    name = str(op.attribute("reductionOpName", "Sum"))
    if name in _REDUCTIONS:
        return op.builder.reduce(_REDUCTIONS[name], data, places, keep)
    if name == "LogSum":
        return op.onnx("ReduceLogSumExp", data, op.builder.constant(np.array(places), INT64), keepdims=keep)
    if name in ("Argmax", "Argmin") and len(places) == 1:
        found = op.call(name.lower(), data, axis=places[0], keepdims=keep)
        return op.builder.cast(found, dtype_of(data))
    raise UserError(f"the reduction {name!r} is not known")


@operator("SumAll")
def sum_all(op: Operator) -> Value:
    """The sum of everything."""
    return Value(op.builder.reduce("sum", op.x.data, tuple(range(rank_of(op.x.data))), False))


# Shapes


@operator("Reshape")
def reshape(op: Operator) -> Value:
    """Some dimensions, or all, in another shape, of which one may follow from the others."""
    x = op.x
    given = [int(size) for size in reversed(op.attribute("newShape", ()))]
    begin, end = op.attribute("beginAxis", Axis(0, "", False)), op.attribute("endAxis", Axis(2**31 - 4, "", False))
    first = begin.number if begin.number >= 0 else begin.number + x.rank
    last = x.rank if end.is_end else end.number if end.number > 0 else end.number + x.rank
    # Numbers of axes count from the fastest dimension, which is the last here.
    low, high = x.rank - last, x.rank - first
    if not 0 <= low <= high <= x.rank:
        raise UserError(f"dimensions {first} to {last} of {x.rank}")
    replaced = product(x.shape[low:high])
    target: list[Size] = []
    for size in given:
        if size not in (INFERRED, FREE):
            target.append(size)
            continue
        rest = divide_exactly(replaced, product([item for item in given if item not in (INFERRED, FREE)]))
        if rest is None:
            raise UserError(f"the shape {given} does not fit")
        target.append(rest)
    shape = (*x.leading, *x.shape[:low], *target, *x.shape[high:])
    return x.with_data(op.builder.reshape(x.data, shape))


@operator("TransposeAxes")
def transpose_axes(op: Operator) -> Value:
    """Two dimensions exchanged, or all in another order."""
    x = op.x
    order = list(range(x.rank))
    if op.has("axisVec"):
        places = [op.axis(axis, x.rank) for axis in op.attribute("axisVec")]
        order = places[::-1]
    else:
        first, second = (op.axis(op.attribute(name), x.rank) for name in ("axis1", "axis2"))
        order[first], order[second] = order[second], order[first]
    if sorted(order) != list(range(x.rank)):
        raise UserError(f"{order} is no order of {x.rank} dimensions")
    return x.with_data(op.builder.transpose(x.data, (*range(x.dynamic), *(x.dynamic + at for at in order))))


@operator("Slice")
def slice_axes(op: Operator) -> Value:
    """Ranges along dimensions; an end of 0 is the last."""
    x = op.x
    if op.has("axisVec"):
        axes, begins, ends = (op.attribute(name) for name in ("axisVec", "beginIndexVec", "endIndexVec"))
        strides = op.attribute("sliceStridesVec", [1] * len(axes))
    else:
        axes, begins, ends = [op.attribute("axis")], [op.attribute("beginIndex", 0)], [op.attribute("endIndex", 0)]
        strides = [op.attribute("sliceStrides", 1)]
    places = [x.dynamic + op.axis(axis, x.rank) for axis in axes]
    last = [int(end) if int(end) != 0 else 1 << 62 for end in ends]
    parts = [op.builder.constant(np.array(item, np.int64), INT64) for item in (begins, last, places, strides)]
    return x.with_data(op.onnx("Slice", x.data, *parts))


@operator("Splice")
def splice(op: Operator) -> Value:
    """One after the other along a dimension."""
    rank = max(item.rank for item in op.inputs)
    axis = op.attribute("axis")
    number = axis.number if axis.number >= 0 else axis.number + rank
    if number >= rank:
        rank = number + 1
    widened = [
        item.with_data(op.builder.reshape(item.data, (*item.leading, *(1,) * (rank - item.rank), *item.shape)))
        for item in op.inputs
    ]
    tensors, like = op.aligned(widened)
    place = like.dynamic + rank - 1 - number
    leading = [_largest(column) for column in zip(*(sizes_of(item)[:place] for item in tensors), strict=True)]
    trailing = [_largest(column) for column in zip(*(sizes_of(item)[place + 1 :] for item in tensors), strict=True)]
    full = [op.builder.broadcast_to(item, (*leading, sizes_of(item)[place], *trailing)) for item in tensors]
    return like.with_data(op.builder.concatenate(full, place))


def _largest(sizes: Sequence[Size]) -> Size:
    """The size that others broadcast to."""
    return next((size for size in sizes if size != 1), 1)


@operator("Squeeze")
def squeeze(op: Operator) -> Value:
    """Without dimensions of 1: those named, or all."""
    x = op.x
    axes = op.attribute("axisVec", [])
    places = {op.axis(axis, x.rank) for axis in axes} or {at for at, size in enumerate(x.shape) if size == 1}
    return x.with_data(
        op.builder.reshape(x.data, (*x.leading, *(size for at, size in enumerate(x.shape) if at not in places)))
    )


@operator("Pad")
def pad(op: Operator) -> Value:
    """A constant, or mirrored data with or without its edge, around each dimension."""
    x = op.x
    head, foot = ([int(item) for item in reversed(op.attribute(name))] for name in ("paddingHead", "paddingFoot"))
    modes = {0: "constant", 1: "reflect", 2: "symmetric"}
    mode = modes.get(int(op.attribute("paddingMode", 0)))
    if mode is None or len(head) != x.rank or len(foot) != x.rank:
        raise UserError(f"padding of {len(head)} dimensions of {x.rank}")
    before, after = (0,) * x.dynamic + tuple(head), (0,) * x.dynamic + tuple(foot)
    if mode == "symmetric":
        return x.with_data(_symmetric(op, x.data, before, after))
    value = float(op.attribute("paddingConstantValue", 0.0))
    return x.with_data(op.call("pad", x.data, before=before, after=after, mode=mode, value=value))


def _symmetric(op: Operator, data: GraphExpr, before: tuple[int, ...], after: tuple[int, ...]) -> GraphExpr:
    """Mirrored with the edge."""
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if low or high:
            places = np.pad(np.arange(size_at(data, axis)), (low, high), "symmetric")
            data = op.call("take", data, op.builder.constant(places, INT64), axis=axis)
    return data


@operator("OneHot")
def one_hot(op: Operator) -> Value:
    """Ones where the index is, along a new dimension."""
    x, count = op.x, int(op.attribute("numClass"))
    axis = op.attribute("onehotAxis", Axis(0, "", False))
    place = x.dynamic + op.axis(axis, x.rank + 1)
    values = op.builder.constant(np.array([0.0, 1.0]), dtype_of(x.data))
    indices = op.builder.cast(x.data, INT64)
    return x.with_data(op.onnx("OneHot", indices, op.builder.constant(count, INT64), values, axis=place))


@operator("Gather")
def gather(op: Operator) -> Value:
    """Slices of the second input by the indices in the first."""
    indices, table = op.inputs[:2]
    if table.dynamic:
        raise UnsupportedError("Gather from a value that differs from sample to sample")
    axis = op.axis(op.attribute("axis"), table.rank) if op.has("axis") else 0
    taken = op.onnx("Gather", table.data, op.builder.cast(indices.data, INT64), axis=axis)
    if axis and indices.dynamic:
        # What stands before the axis comes behind the samples.
        inner = rank_of(indices.data)
        order = [*range(axis, axis + indices.dynamic), *range(axis), *range(axis + indices.dynamic, axis + inner)]
        taken = op.builder.transpose(taken, [*order, *range(axis + inner, rank_of(taken))])
    return indices.with_data(taken)


@operator("TopK")
def top_k(op: Operator) -> list[Value]:
    """The greatest elements along a dimension, and where they are."""
    x = op.x
    axis = x.dynamic + op.axis(op.attribute("axis"), x.rank)
    count = op.builder.constant(np.array([int(op.attribute("numItems"))]), INT64)
    values, places = op.onnx.several("TopK", 2, x.data, count, axis=axis)
    return [x.with_data(values), x.with_data(op.builder.cast(places, dtype_of(x.data)))]


@operator("Crop")
def crop(op: Operator) -> Value:
    """The first input cut to the height and width of the second, from an offset."""
    x, like = op.inputs[:2]
    if not op.has("offset"):
        raise UnsupportedError("Crop whose offsets follow from the network", hint="give them when the model is made")
    across, down = (int(item) for item in op.attribute("offset"))
    data = x.data
    for axis, offset in ((-2, down), (-1, across)):
        size = like.shape[axis]
        place = rank_of(data) + axis
        end = size + offset if isinstance(size, int) else size
        if not isinstance(end, int):
            raise UnsupportedError("Crop to a size that only a run knows")
        data = op.builder.slice_axis(data, place, offset, end)
    return x.with_data(data)


@operator("RandomDistribution")
def random(op: Operator) -> Value:
    """Numbers drawn from a distribution."""
    raise UnsupportedError("random numbers of CNTK", hint="evaluate the model without noise")
