"""Layers of Core ML's networks that move elements, read and write at places, and make tensors."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.coreml.layer import Layer, layer
from tilewright.frontend.coreml.operation import Plain
from tilewright.graph.ir.dimensions import Size, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UserError

_SCATTER = ("update", "add", "sub", "mul", "div", "max", "min")


def _ints(values: Sequence[int]) -> list[int]:
    return [int(item) for item in values]


def _wholes(own: Layer, index: int) -> GraphExpr:
    """An input that holds whole numbers, in a row."""
    return own.builder.flatten(own.builder.cast(own.input(index), INT64))


# Reshaping


@layer("flatten")
def flatten(own: Layer) -> GraphExpr:
    """Channels, rows and columns as channels; in the other order, rows first."""
    x = own.x
    rank = rank_of(x)
    if own.params.mode == 1:
        x = own.builder.transpose(x, (*range(rank - 3), rank - 2, rank - 1, rank - 3))
    sizes = sizes_of(x)
    return own.builder.reshape(x, (*sizes[:-3], product(sizes[-3:]), 1, 1))


@layer("reshape")
def reshape(own: Layer) -> GraphExpr:
    """Another shape of (sequence, 1, channels, height, width), read with channels first or last."""
    target = _ints(own.params.targetShape)
    x, sizes = own.x, sizes_of(own.x)
    if len(sizes) != 5 or len(target) not in (3, 4):
        raise UserError(f"a shape of {len(target)} sizes does not fit data of {len(sizes)} dimensions")
    leading: tuple[Size, ...] = (target[0], 1) if len(target) == 4 else sizes[:2]
    channels, height, width = target[-3:]
    if own.params.mode != 1:
        return own.builder.reshape(x, (*leading, channels, height, width))
    rows_first = own.builder.transpose(x, (0, 1, 3, 4, 2))
    shaped = own.builder.reshape(rows_first, (*leading, height, width, channels))
    return own.builder.transpose(shaped, (0, 1, 4, 2, 3))


@layer("permute")
def permute(own: Layer) -> GraphExpr:
    """Sequence, channels, height and width in another order."""
    axes = _ints(own.params.axis) or [0, 1, 2, 3]
    if sorted(axes) != [0, 1, 2, 3] or rank_of(own.x) != 5:
        raise UserError(f"{axes} is no order of sequence, channels, height and width")
    places = [0, 2, 3, 4]
    first, *rest = (places[axis] for axis in axes)
    return own.builder.transpose(own.x, (first, 1, *rest))


@layer("transpose")
def transpose(own: Layer) -> GraphExpr:
    """Dimensions in another order."""
    return own.apply("transpose", x=own.x, perm=_ints(own.params.axes))


@layer("squeeze")
def squeeze(own: Layer) -> GraphExpr:
    """Without dimensions of 1; one is left."""
    axes = None if own.params.squeezeAll else _ints(own.params.axes)
    return own.builder.at_least_1d(own.apply("squeeze", x=own.x, axes=axes))


@layer("expandDims")
def expand_dims(own: Layer) -> GraphExpr:
    """New dimensions of 1."""
    return own.apply("expand_dims", x=own.x, axes=_ints(own.params.axes))


@layer("flattenTo2D")
def flatten_to_2d(own: Layer) -> GraphExpr:
    """Two dimensions."""
    return own.apply("flatten2d", x=own.x, axis=int(own.params.axis))


@layer("reshapeStatic", "rankPreservingReshape")
def reshape_static(own: Layer) -> GraphExpr:
    """Another shape."""
    return own.apply("reshape", x=own.x, shape=_ints(own.params.targetShape))


@layer("reshapeDynamic")
def reshape_dynamic(own: Layer) -> GraphExpr:
    """Another shape, which is a value."""
    return own.apply("reshape", x=own.x, shape=_wholes(own, 1))


@layer("reshapeLike")
def reshape_like(own: Layer) -> GraphExpr:
    """The shape of the second input."""
    return own.builder.reshape(own.x, sizes_of(own.input(1)))


@layer("broadcastToLike")
def broadcast_to_like(own: Layer) -> GraphExpr:
    """Repeated to the shape of the second input."""
    return own.builder.broadcast_to(own.x, sizes_of(own.input(1)))


@layer("broadcastToStatic")
def broadcast_to_static(own: Layer) -> GraphExpr:
    """Repeated to a shape."""
    return own.builder.broadcast_to(own.x, _ints(own.params.targetShape))


@layer("broadcastToDynamic")
def broadcast_to_dynamic(own: Layer) -> GraphExpr:
    """Repeated to a shape, which is a value."""
    ones = own.apply("fill", shape=_wholes(own, 1), value=1.0)
    return own.call("multiply", own.x, own.builder.cast(ones, dtype_of(own.x)))


# Joining and cutting


@layer("concat")
def concat(own: Layer) -> GraphExpr:
    """Along the channels, or along the sequence."""
    return own.apply("concat", values=own.inputs, axis=own.at(-5 if own.params.sequenceConcat else -3))


@layer("concatND")
def concat_nd(own: Layer) -> GraphExpr:
    """Along an axis."""
    p = own.params
    return own.apply("concat", values=own.inputs, axis=int(p.axis), interleave=bool(p.interleave))


@layer("stack")
def stack(own: Layer) -> GraphExpr:
    """Along a new axis."""
    return own.apply("stack", values=own.inputs, axis=int(own.params.axis))


@layer("split")
def split(own: Layer) -> Sequence[GraphExpr]:
    """Equal parts of the channels."""
    return own.apply_all("split", x=own.x, num_splits=int(own.params.nOutputs), axis=own.at(-3))


@layer("splitND")
def split_nd(own: Layer) -> Sequence[GraphExpr]:
    """Parts along an axis."""
    p = own.params
    sizes = _ints(p.splitSizes) or None
    return own.apply_all("split", x=own.x, split_sizes=sizes, num_splits=int(p.numSplits), axis=int(p.axis))


@layer("slice")
def slice_axis(own: Layer) -> GraphExpr:
    """A range of channels, rows or columns."""
    p = own.params
    axis, rank = own.at((-3, -2, -1)[p.axis]), rank_of(own.x)
    begin, end, stride = [0] * rank, [0] * rank, [1] * rank
    begin[axis], end[axis], stride[axis] = int(p.startIndex), int(p.endIndex), int(p.stride) or 1
    others = [at != axis for at in range(rank)]
    return own.apply("slice_by_index", x=own.x, begin=begin, end=end, stride=stride, begin_mask=others, end_mask=others)


def _masks(own: Layer, rank: int) -> dict[str, Plain]:
    p = own.params
    return {
        name: list(values) or [False] * rank
        for name, values in (
            ("begin_mask", p.beginMasks),
            ("end_mask", p.endMasks),
            ("squeeze_mask", p.squeezeMasks),
        )
    }


@layer("sliceStatic")
def slice_static(own: Layer) -> GraphExpr:
    """Ranges along all dimensions."""
    p, rank = own.params, rank_of(own.x)
    result = own.apply(
        "slice_by_index",
        x=own.x,
        begin=_ints(p.beginIds),
        end=_ints(p.endIds),
        stride=_ints(p.strides) or [1] * rank,
        **_masks(own, rank),
    )
    return own.builder.at_least_1d(result)


@layer("sliceDynamic")
def slice_dynamic(own: Layer) -> GraphExpr:
    """Ranges along all dimensions, which are values: begins, then ends, strides and masks as far as they are given."""
    p, rank = own.params, rank_of(own.x)
    names = ("end", "stride", "begin_mask", "end_mask", "squeeze_mask")
    given: dict[str, Plain] = {
        "end": _ints(p.endIds) or [0] * rank,
        "stride": _ints(p.strides) or [1] * rank,
        **_masks(own, rank),
    }
    given |= {name: _wholes(own, at) for at, name in enumerate(names, 2) if at < len(own.inputs)}
    return own.builder.at_least_1d(own.apply("slice_by_index", x=own.x, begin=_wholes(own, 1), **given))


@layer("sliceBySize")
def slice_by_size(own: Layer) -> GraphExpr:
    """So many elements along an axis from a place that is a value."""
    axis, rank = own.at(int(own.params.axis)), rank_of(own.x)
    zeros = own.builder.constant([0] * rank, "int64")
    place = own.builder.reshape(own.builder.cast(own.input(1), INT64), (1,))
    before, after = (own.builder.slice_axis(zeros, 0, *bounds) for bounds in ((0, axis), (axis + 1, rank)))
    begin = own.builder.concatenate([before, place, after], 0)
    size = [int(own.params.size) if at == axis else -1 for at in range(rank)]
    return own.apply("slice_by_size", x=own.x, begin=begin, size=size)


@layer("slidingWindows")
def sliding_windows(own: Layer) -> GraphExpr:
    """Overlapping parts along an axis."""
    p = own.params
    return own.apply("sliding_windows", x=own.x, axis=int(p.axis), size=int(p.windowSize), stride=int(p.step) or 1)


@layer("tile")
def tile(own: Layer) -> GraphExpr:
    """Repeated along each dimension; missing repetitions of the first ones, and missing first dimensions, are 1."""
    reps = _wholes(own, 1) if len(own.inputs) > 1 else own.builder.constant(_ints(own.params.reps), "int64")
    missing = rank_of(own.x) - size_at(reps, 0)
    x = own.builder.expand_dims(own.x, range(max(0, -missing)))
    if missing > 0:
        reps = own.builder.concatenate([own.builder.constant([1] * missing, "int64"), reps], 0)
    return own.apply("tile", x=x, reps=reps)


@layer("reverse")
def reverse(own: Layer) -> GraphExpr:
    """In the other direction along some dimensions."""
    axes = [axis for axis, flag in enumerate(own.params.reverseDim) if flag]
    return own.apply("reverse", x=own.x, axes=axes) if axes else own.x


@layer("reverseSeq")
def reverse_sequence(own: Layer) -> GraphExpr:
    """The first elements of each sequence in reverse."""
    p = own.params
    axes: dict[str, Plain] = {"seq_axis": int(p.sequenceAxis), "batch_axis": int(p.batchAxis)}
    return own.apply("reverse_sequence", x=own.x, lengths=_wholes(own, 1), **axes)


@layer("constantPad")
def constant_pad(own: Layer) -> GraphExpr:
    """A constant around all dimensions, by amounts or up to sizes."""
    p = own.params
    if len(own.inputs) > 1:
        return own.apply("pad", x=own.x, pad=_wholes(own, 1), mode="constant", constant_val=float(p.value))
    amounts = _ints(p.padAmounts)
    if p.padToGivenOutputSizeMode:
        for axis in range(rank_of(own.x)):
            size = size_at(own.x, axis)
            for side in (0, 1):
                amounts[2 * axis + side] = max(0, amounts[2 * axis + side] - size)
    return own.apply("pad", x=own.x, pad=amounts, mode="constant", constant_val=float(p.value))


@layer("matrixBandPart")
def matrix_band_part(own: Layer) -> GraphExpr:
    """A band around the diagonal."""
    return own.apply("band_part", x=own.x, lower=int(own.params.numLower), upper=int(own.params.numUpper))


@layer("lowerTriangular", "upperTriangular")
def triangular(own: Layer) -> GraphExpr:
    """One triangle, from the diagonal number k on."""
    x, k = own.x, int(own.params.k)
    rows = own.builder.positions(sizes_of(x), rank_of(x) - 2)
    distance = own.call("subtract", own.builder.positions(sizes_of(x), rank_of(x) - 1), rows)
    kept = own.builder.compare("less_equal" if own.kind == "lowerTriangular" else "greater_equal", distance, k)
    return own.call("where", kept, x, own.builder.constant_like(0, x))


# Places


@layer("gather")
def gather(own: Layer) -> GraphExpr:
    """Slices along an axis."""
    indices = own.builder.cast(own.input(1), INT64)
    return own.apply("gather", x=own.x, indices=indices, axis=int(own.params.axis))


@layer("gatherND")
def gather_nd(own: Layer) -> GraphExpr:
    """Slices by tuples of indices."""
    return own.apply("gather_nd", x=own.x, indices=own.input(1))


@layer("gatherAlongAxis")
def gather_along_axis(own: Layer) -> GraphExpr:
    """Elements along an axis."""
    return own.apply("gather_along_axis", x=own.x, indices=own.input(1), axis=int(own.params.axis))


@layer("scatter", "scatterND", "scatterAlongAxis")
def scatter(own: Layer) -> GraphExpr:
    """Slices or elements written at indices."""
    kinds = {"scatter": "scatter", "scatterND": "scatter_nd", "scatterAlongAxis": "scatter_along_axis"}
    axis: dict[str, Plain] = {} if own.kind == "scatterND" else {"axis": int(own.params.axis)}
    mode = _SCATTER[own.params.mode]
    return own.apply(kinds[own.kind], data=own.x, indices=own.input(1), updates=own.input(2), mode=mode, **axis)


@layer("whereNonZero")
def where_non_zero(own: Layer) -> GraphExpr:
    """The places of elements other than zero."""
    return own.apply("non_zero", x=own.x)


@layer("whereBroadcastable")
def where(own: Layer) -> GraphExpr:
    """The second input where the first is not zero, else the third."""
    return own.apply("select", cond=own.x, a=own.input(1), b=own.input(2))


@layer("oneHot")
def one_hot(own: Layer) -> GraphExpr:
    """One value where the index is, another elsewhere; indices outside are nowhere."""
    p = own.params
    depth: GraphExpr | int = _wholes(own, 1) if len(own.inputs) > 1 else int(p.oneHotVectorSize)
    indices = own.builder.cast(own.x, INT64)
    if not isinstance(depth, GraphExpr):
        # A negative index counts from the end elsewhere; here it is outside.
        inside = own.builder.compare("greater_equal", indices, 0)
        indices = own.builder.where(inside, indices, depth)
    values: dict[str, Plain] = {"on_value": float(p.onValue), "off_value": float(p.offValue)}
    return own.apply("one_hot", indices=indices, one_hot_vector_size=depth, axis=int(p.axis), **values)


# Tensors that layers make


@layer("loadConstant")
def load_constant(own: Layer) -> GraphExpr:
    """Numbers of the model, as (1, 1, channels, height, width)."""
    shape = _ints(own.params.shape)
    return own.constant(own.weights(own.params.data, shape).reshape(1, 1, *shape))


@layer("loadConstantND")
def load_constant_nd(own: Layer) -> GraphExpr:
    """Numbers of the model."""
    return own.constant(own.weights(own.params.data, _ints(own.params.shape)))


@layer("fillLike")
def fill_like(own: Layer) -> GraphExpr:
    """One value in the shape of the input."""
    return own.builder.filled(float(own.params.value), sizes_of(own.x), FLOAT32)


@layer("fillStatic")
def fill_static(own: Layer) -> GraphExpr:
    """One value in a shape."""
    return own.builder.filled(float(own.params.value), _ints(own.params.targetShape), FLOAT32)


@layer("fillDynamic")
def fill_dynamic(own: Layer) -> GraphExpr:
    """One value in a shape that is a value."""
    return own.apply("fill", shape=_wholes(own, 0), value=float(own.params.value))


@layer("getShape")
def get_shape(own: Layer) -> GraphExpr:
    """The sizes of the input."""
    return own.apply("shape", x=own.x)


@layer("rangeStatic")
def range_static(own: Layer) -> GraphExpr:
    """Numbers from a start before an end."""
    p = own.params
    return own.apply("range_1d", start=float(p.startValue), end=float(p.endValue), step=float(p.stepSizeValue))


@layer("rangeDynamic")
def range_dynamic(own: Layer) -> GraphExpr:
    """Numbers from a start before an end, which are values: the end, the start, the step."""
    p = own.params
    numbers: list[Plain] = [None, float(p.startValue), float(p.stepSizeValue)]
    for at, value in enumerate(own.inputs[:3]):
        numbers[at] = own.builder.cast(own.builder.reshape(value, ()), FLOAT32)
    return own.apply("range_1d", end=numbers[0], start=numbers[1], step=numbers[2])


# Random numbers

_RANDOM = {
    "randomNormal": ("random_normal", {"mean": "mean", "stdDev": "stddev"}),
    "randomUniform": ("random_uniform", {"minVal": "low", "maxVal": "high"}),
    "randomBernoulli": ("random_bernoulli", {"prob": "prob"}),
}


@layer(*(f"{name}{end}" for name in _RANDOM for end in ("Like", "Static", "Dynamic")))
def random(own: Layer) -> GraphExpr:
    """Numbers of a distribution in a shape: that of the input, one of the model, or a value."""
    name = next(name for name in _RANDOM if own.kind.startswith(name))
    kind, fields = _RANDOM[name]
    options: dict[str, Plain] = {key: float(getattr(own.params, field)) for field, key in fields.items()}
    shape: Plain
    if own.kind.endswith("Static"):
        shape = _ints(own.params.outputShape)
    elif own.kind.endswith("Like"):
        shape = own.builder.shape_tensor(sizes_of(own.x))
    else:
        shape = _wholes(own, 0)
    return own.apply(kind, shape=shape, seed=int(own.params.seed) or -1, **options)


@layer("categoricalDistribution")
def categorical_distribution(own: Layer) -> GraphExpr:
    """Classes drawn by their probabilities."""
    p = own.params
    x = own.x
    if p.isLogits and p.temperature not in (0.0, 1.0):
        x = own.apply("mul", x=x, y=1 / float(p.temperature))
    mode = "logits" if p.isLogits else "probs"
    return own.apply("random_categorical", x=x, mode=mode, size=int(p.numSamples) or 1, seed=int(p.seed) or -1)
