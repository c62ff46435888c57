"""Operations of Core ML that read and write at places that are data, choose, order and count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.indexing import gather_nd
from tilewright.frontend.core.randomness import draw_key
from tilewright.frontend.coreml.operation import Operation, operation
from tilewright.frontend.coreml.types import named_dtype
from tilewright.graph.ir.dimensions import Size, multiply
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT32, INT64, DataType
from tilewright.ir.expr import Var as Symbol
from tilewright.support.errors import UnsupportedError, UserError

_MODES = {"update": "none", "add": "add", "mul": "mul", "max": "max", "min": "min"}


@operation("gather")
def gather(op: Operation) -> GraphExpr:
    """Slices along an axis; behind batch dimensions, each batch by its own indices."""
    x, indices = op.value(), op.whole("indices")
    axis, batch = op.axis("axis", rank_of(x), 0), op.integer("batch_dims", 0)
    if not batch:
        return op.onnx("Gather", x, indices, axis=axis)
    if not 0 < batch <= min(axis, rank_of(indices)):
        raise UserError(f"{batch} batch dimensions do not fit axis {axis}")
    # The axis comes behind the batch, slices are chosen there, and what stood before it goes back.
    between = list(range(batch, axis))
    order = [*range(batch), axis, *between, *range(axis + 1, rank_of(x))]
    taken = gather_nd(
        op.builder, op.builder.transpose(x, order), op.builder.expand_dims(indices, (rank_of(indices),)), batch
    )
    inner = rank_of(indices) - batch
    back = [*range(batch), *(batch + inner + at for at in range(len(between))), *range(batch, batch + inner)]
    return op.builder.transpose(taken, [*back, *range(len(back), rank_of(taken))])


@operation("gather_along_axis")
def gather_along_axis(op: Operation) -> GraphExpr:
    """Elements along an axis, one for each index."""
    axis = op.axis("axis", rank_of(op.value()), 0)
    return op.onnx("GatherElements", op.value(), op.whole("indices"), axis=axis)


@operation("gather_nd")
def gather_tuples(op: Operation) -> GraphExpr:
    """Slices chosen by tuples of indices."""
    return gather_nd(op.builder, op.value(), op.whole("indices"), op.integer("batch_dims", 0))


def _reduction(op: Operation) -> tuple[str, GraphExpr]:
    """How updates are joined to the data, and the updates."""
    mode, updates = op.text("mode", "add"), op.builder.cast(op.value("updates"), dtype_of(op.value("data")))
    if mode == "sub":
        return "add", op.call("negative", updates)
    if mode == "div":
        return "mul", op.call("reciprocal", updates)
    if mode not in _MODES:
        raise UserError(f"the mode {mode!r} of {op.kind} is not known")
    return _MODES[mode], updates


@operation("scatter_nd")
def scatter_nd(op: Operation) -> GraphExpr:
    """Slices written at tuples of indices."""
    reduction, updates = _reduction(op)
    return op.onnx("ScatterND", op.value("data"), op.whole("indices"), updates, reduction=reduction)


@operation("scatter_along_axis")
def scatter_along_axis(op: Operation) -> GraphExpr:
    """Elements written along an axis, one for each index."""
    data = op.value("data")
    reduction, updates = _reduction(op)
    axis = op.axis("axis", rank_of(data), 0)
    return op.onnx("ScatterElements", data, op.whole("indices"), updates, axis=axis, reduction=reduction)


@operation("scatter")
def scatter(op: Operation) -> GraphExpr:
    """Slices along an axis written at indices."""
    data, indices = op.value("data"), op.whole("indices")
    axis, rank = op.axis("axis", rank_of(data), 0), rank_of(data)
    reduction, updates = _reduction(op)
    if rank_of(indices) != 1:
        raise UserError(f"indices of scatter must be a list, they have {rank_of(indices)} dimensions")
    order = [axis, *(at for at in range(rank) if at != axis)]
    places = op.builder.reshape(indices, (*sizes_of(indices), 1))
    turned = [op.builder.transpose(value, order) for value in (data, updates)]
    written = op.onnx("ScatterND", turned[0], places, turned[1], reduction=reduction)
    back = [order.index(at) for at in range(rank)]
    return op.builder.transpose(written, back)


@operation("one_hot")
def one_hot(op: Operation) -> GraphExpr:
    """One value where the index is, another elsewhere."""
    on, off = op.optional("on_value"), op.optional("off_value")
    parts = [
        op.builder.constant(default, "int32") if value is None else op.builder.reshape(value, ())
        for value, default in ((on, 1), (off, 0))
    ]
    parts[1] = op.builder.cast(parts[1], dtype_of(parts[0]))
    depth = op.builder.reshape(op.whole("one_hot_vector_size"), ())
    values = op.builder.concatenate([op.builder.reshape(parts[at], (1,)) for at in (1, 0)], 0)
    return op.onnx("OneHot", op.whole("indices"), depth, values, axis=op.integer("axis", -1))


@operation("non_zero")
def non_zero(op: Operation) -> GraphExpr:
    """The places of elements other than zero, one row a place."""
    found = op.onnx("NonZero", op.value())
    return op.builder.cast(op.builder.transpose(found, (1, 0)), INT32)


# Order


@operation("topk")
def topk(op: Operation) -> Sequence[GraphExpr]:
    """The greatest or least elements along an axis, and their places."""
    x = op.value()
    axis, k = op.axis("axis", rank_of(x), -1), op.integer("k", 1)
    count = op.ints_of((size_at(x, axis) if k == -1 else k,))
    largest = not op.flag("ascending", False)
    values, places = op.onnx.several("TopK", 2, x, count, axis=axis, largest=largest)
    if not op.flag("return_indices", True):
        return [values]
    return [values, op.builder.cast(places, op.text("output_indices_dtype", "int32"))]


@operation("argsort")
def argsort(op: Operation) -> GraphExpr:
    """The places of elements in order along an axis."""
    x = op.value()
    axis = op.axis("axis", rank_of(x), -1)
    count = op.ints_of((size_at(x, axis),))
    _, places = op.onnx.several("TopK", 2, x, count, axis=axis, largest=not op.flag("ascending", False))
    return op.builder.cast(places, INT32)


@operation("non_maximum_suppression")
def non_maximum_suppression(op: Operation) -> Sequence[GraphExpr]:
    """Boxes by falling score without those that overlap one taken before, as many as are asked for.

    Places beyond those that are found hold zeros, and -1 as the index.
    """
    b = op.builder
    boxes, scores = b.cast(op.value("boxes"), "float32"), b.cast(op.value("scores"), "float32")
    batch, most, kind = size_at(boxes, 0), op.integer("max_boxes"), dtype_of(op.value("boxes"))
    found = _kept_boxes(op, boxes, scores, b.constant(most, INT64))
    count = sizes_of(found)[0]
    images, places = (b.reshape(b.slice_axis(found, 1, at, at + 1), (count,)) for at in (0, 2))
    numbers = b.constant(b.count(batch), INT64)
    is_of = op.call("equal", b.reshape(images, (1, count)), b.reshape(numbers, (batch, 1)))
    counts = b.reduce("sum", b.cast(is_of, INT64), (1,))
    starts = op.call("cumsum", counts, axis=0, exclusive=True, reverse=False)
    rank = op.call("subtract", b.arange(count), op.call("take", starts, images, axis=0, mode="clip"))
    slots = b.add(b.multiply(images, most), rank)
    table = op.call("scatter", b.filled(-1, (batch * most, 1), INT64), slots, b.reshape(places, (count, 1)))
    indices = b.reshape(table, (batch, most))
    return [
        b.cast(_chosen(op, boxes, indices), kind),
        b.cast(_chosen(op, scores, indices), kind),
        b.cast(indices, INT32),
        b.cast(counts, INT32),
    ]


def _kept_boxes(op: Operation, boxes: GraphExpr, scores: GraphExpr, most: GraphExpr) -> GraphExpr:
    """Rows (image, 0, box) of boxes by falling score, without those that overlap one taken before."""
    b = op.builder
    best = b.reduce("max", scores, (2,))
    apart = _apart(op, boxes, scores) if op.flag("per_class_suppression", False) else boxes
    given = [most, b.cast(b.reshape(op.value("iou_threshold"), ()), "float32")]
    if op.has("score_threshold"):
        given.append(b.cast(b.reshape(op.value("score_threshold"), ()), "float32"))
    return op.onnx("NonMaxSuppression", apart, b.expand_dims(best, (1,)), *given, center_point_box=1)


@operation("suppressed_places")
def suppressed_places(op: Operation) -> GraphExpr:
    """The boxes of one image that are kept, as many as there are."""
    b = op.builder
    boxes, scores = b.cast(op.value("boxes"), "float32"), b.cast(op.value("scores"), "float32")
    found = _kept_boxes(op, boxes, scores, b.constant(np.iinfo(np.int64).max, INT64))
    return b.reshape(b.slice_axis(found, 1, 2, 3), sizes_of(found)[:1])


def _apart(op: Operation, boxes: GraphExpr, scores: GraphExpr) -> GraphExpr:
    """Boxes moved away from those of other classes, so that they do not overlap."""
    b = op.builder
    kinds = b.cast(op.call("argmax", scores, axis=2, keepdims=True), "float32")
    reach = b.add(b.reduce("max", op.call("abs", boxes), (0, 1, 2)), 1.0)
    shift = op.call("multiply", kinds, b.multiply(reach, 4.0))
    rest = b.filled(0, (*sizes_of(boxes)[:2], 3), dtype_of(boxes))
    return op.call("add", boxes, b.concatenate([shift, rest], 2))


def _chosen(op: Operation, rows: GraphExpr, indices: GraphExpr) -> GraphExpr:
    """The rows of each image that indices name; zeros for negative ones."""
    b = op.builder
    inside = op.call("maximum", indices, b.constant(0, INT64))
    taken = gather_nd(b, rows, b.expand_dims(inside, (2,)), 1)
    kept = b.compare("greater_equal", b.expand_dims(indices, (2,)), 0)
    return op.call("where", kept, taken, b.constant_like(0, taken))


# Lists of a fixed length, which are tensors


@operation("make_list")
def make_list(op: Operation) -> GraphExpr:
    """A list of zeros."""
    if op.flag("dynamic_length", True):
        raise UnsupportedError(
            "a list that grows while the model runs", hint="convert the model with a list of a fixed length"
        )
    shape = op.ints("elem_shape", ())
    length = op.sizes("init_length") if op.has("init_length") else (1,)
    if length is None:
        raise UnsupportedError("a list whose length is computed", hint="convert the model with a known length")
    return op.builder.filled(0, (*length, *shape), _list_dtype(op))


def _list_dtype(op: Operation) -> DataType:
    return named_dtype(op.text("dtype", "fp32"))


@operation("list_length")
def list_length(op: Operation) -> GraphExpr:
    """How many items a list has."""
    sizes = op.builder.shape_tensor(sizes_of(op.value("ls"))[:1])
    return op.builder.cast(op.builder.reshape(sizes, ()), INT32)


@operation("list_read")
def list_read(op: Operation) -> GraphExpr:
    """One item."""
    return op.onnx("Gather", op.value("ls"), op.builder.reshape(op.whole("index"), ()), axis=0)


@operation("list_gather")
def list_gather(op: Operation) -> GraphExpr:
    """Several items, one after the other."""
    return op.onnx("Gather", op.value("ls"), op.whole("indices"), axis=0)


@operation("list_write")
def list_write(op: Operation) -> GraphExpr:
    """A list with one item replaced."""
    items = op.value("ls")
    place = op.builder.reshape(op.whole("index"), (1, 1))
    value = op.builder.expand_dims(op.builder.cast(op.value("value"), dtype_of(items)), (0,))
    return op.onnx("ScatterND", items, place, value)


@operation("list_scatter")
def list_scatter(op: Operation) -> GraphExpr:
    """A list with several items replaced."""
    items, indices = op.value("ls"), op.whole("indices")
    places = op.builder.reshape(indices, (*sizes_of(indices), 1))
    return op.onnx("ScatterND", items, places, op.builder.cast(op.value("value"), dtype_of(items)))


# Random numbers


def _shape(op: Operation) -> tuple[Size, ...]:
    sizes = op.sizes("shape")
    if sizes is not None:
        return sizes
    # Sizes that are data are given names by a tensor that has them.
    count = size_at(op.value("shape"), 0)
    named = op.call(
        "shape.broadcast",
        op.builder.constant(0.0, "float32"),
        op.whole("shape"),
        dims=tuple(Symbol(f"{op.name}_{axis}") for axis in range(count)),
    )
    return sizes_of(named)


def _drawn(op: Operation, name: str, **options: float) -> GraphExpr:
    shape, seed = _shape(op), op.integer("seed", -1)
    return op.call(name, draw_key(op.builder, None if seed < 0 else float(seed)), shape=tuple(shape), **options)


@operation("random_normal")
def random_normal(op: Operation) -> GraphExpr:
    """Numbers of a normal distribution."""
    drawn = _drawn(op, "random.normal", mean=op.number("mean", 0.0), scale=op.number("stddev", 1.0))
    return op.builder.cast(drawn, op.output or "float32")


@operation("random_uniform")
def random_uniform(op: Operation) -> GraphExpr:
    """Numbers between two bounds."""
    drawn = _drawn(op, "random.uniform", low=op.number("low", 0.0), high=op.number("high", 1.0))
    return op.builder.cast(drawn, op.output or "float32")


@operation("random_bernoulli")
def random_bernoulli(op: Operation) -> GraphExpr:
    """1 with a probability, else 0."""
    drawn = op.builder.compare("less", _drawn(op, "random.uniform"), op.number("prob", 0.5))
    return op.builder.cast(drawn, op.output or "float32")


@operation("random_categorical")
def random_categorical(op: Operation) -> GraphExpr:
    """Classes drawn by their probabilities, or by the logarithms of these."""
    x = op.builder.cast(op.value(), "float32")
    logits = op.call("log", x) if op.text("mode", "logits") == "probs" else x
    outer = sizes_of(logits)[:-1]
    count = op.integer("size", 1)
    rows: Size = 1
    for size in outer:
        rows = multiply(rows, size)
    flat = op.builder.reshape(logits, (rows, sizes_of(logits)[-1]))
    seed = op.integer("seed", -1)
    drawn = op.onnx("Multinomial", flat, sample_size=count, **({} if seed < 0 else {"seed": float(seed)}))
    return op.builder.cast(op.builder.reshape(drawn, (*outer, count)), op.output or "float32")
