"""Converters of reductions, orderings, products of matrices, and choices by index."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.core.indexing import gather_nd, reverse_sequences
from tilewright.frontend.mxnet.node import Node, converter
from tilewright.graph.ir.dimensions import Size, product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UnsupportedError, UserError


def _axes(node: Node, rank: int) -> tuple[int, ...]:
    """The axes of a reduction; all where none is given."""
    axes = {node.axis(axis, rank) for axis in node.ints("axis", ())}
    if node.flag("exclude"):
        axes = set(range(rank)) - axes
    elif not axes:
        axes = set(range(rank))
    return tuple(sorted(axes))


def _reduced(node: Node, name: str, value: GraphExpr) -> GraphExpr:
    """A reduction, which leaves one dimension at least."""
    axes = _axes(node, rank_of(value))
    keep = node.flag("keepdims")
    result = node.call(name, value, axes=axes, keepdims=keep)
    return result if rank_of(result) else node.b.reshape(result, (1,))


_NAMES = {"sum": "sum", "mean": "mean", "max": "max", "min": "min", "prod": "prod"}
for _name in _NAMES:
    converter(_name, f"{_name}_axis", f"_np_{_name}")(lambda node, name=_name: _reduced(node, name, node.input(0)))  # type: ignore[misc]


@converter("nansum", "nanprod")
def without_nan(node: Node) -> GraphExpr:
    """What is no number does not count."""
    x, b = node.input(0), node.b
    known = b.where(node.call("isnan", x), 0.0 if node.op == "nansum" else 1.0, x)
    return _reduced(node, node.op[3:], known)


@converter("norm", "_npi_norm")
def norm(node: Node) -> GraphExpr:
    """The sum of magnitudes, or the length."""
    x, order = node.input(0), node.integer("ord", 2)
    if order == 1:
        return _reduced(node, "sum", node.call("abs", x))
    if order != 2:
        raise UnsupportedError(f"the norm of order {order}")
    return node.call("sqrt", _reduced(node, "sum", node.call("multiply", x, x)))


@converter("argmax", "argmin")
def place_of_extreme(node: Node) -> GraphExpr:
    """The place of the greatest or the least, as a number of the data's type."""
    x, b = node.input(0), node.b
    if not node.has("axis"):
        x, axis = b.flatten(x), 0
    else:
        axis = node.axis(node.integer("axis"), rank_of(x))
    keep = node.flag("keepdims") or rank_of(x) == 1
    return b.cast(node.call(node.op, x, axis=axis, keepdims=keep), FLOAT32)


@converter("argmax_channel")
def argmax_channel(node: Node) -> GraphExpr:
    """The place of the greatest of each row."""
    return node.b.cast(node.call("argmax", node.input(0), axis=1, keepdims=False), FLOAT32)


def _ordered(node: Node, count: int | None, largest: bool) -> tuple[GraphExpr, GraphExpr, int]:
    x = node.input(0)
    axis_text = node.node.attributes.get("axis", "-1")
    if axis_text == "None":
        x = node.b.flatten(x)
    axis = node.axis(-1 if axis_text == "None" else node.integer("axis", -1), rank_of(x))
    size = size_at(x, axis)
    k = size if count is None or count < 1 else count
    if k > size:
        raise UserError(f"{k} of {size} elements are wanted")
    both = node.call("topk", x, axis=axis, k=k, largest=largest)
    return node.b.item(both, 0), node.b.item(both, 1), axis


@converter("topk")
def topk(node: Node) -> GraphExpr | list[GraphExpr]:
    """The greatest or least elements: their values, their places, both, or where they are."""
    kind = node.text("ret_typ", "indices")
    values, places, axis = _ordered(node, node.integer("k", 1), not node.flag("is_ascend"))
    numbers = node.b.cast(places, node.dtype())
    match kind:
        case "value":
            return values
        case "indices":
            return numbers
        case "both":
            return [values, numbers]
        case "mask":
            x = node.input(0)
            zeros = node.b.filled(0, sizes_of(x), dtype_of(x))
            ones = node.b.filled(1, sizes_of(places), dtype_of(x))
            return node.call("scatter_elements", zeros, places, ones, axis=axis)
    raise UserError(f"topk gives {kind!r}, which is not known")


@converter("sort", "argsort")
def sort(node: Node) -> GraphExpr:
    """All elements in order, or their places."""
    values, places, _ = _ordered(node, None, not node.flag("is_ascend", True))
    return values if node.op == "sort" else node.b.cast(places, node.dtype())


@converter("dot")
def dot(node: Node) -> GraphExpr:
    """The product over the last axis of one and the first of the other."""
    a, c, b = node.input(0), node.input(1), node.b
    if node.flag("transpose_a"):
        a = b.transpose(a, (*range(1, rank_of(a)), 0))
    if node.flag("transpose_b"):
        c = b.transpose(c, (rank_of(c) - 1, *range(rank_of(c) - 1)))
    left, right = sizes_of(a)[:-1], sizes_of(c)[1:]
    rows = b.reshape(a, (product(left), sizes_of(a)[-1]))
    columns = b.reshape(c, (sizes_of(c)[0], product(right)))
    shape: tuple[Size, ...] = (*left, *right)
    return b.reshape(node.call("matmul", rows, columns), shape or (1,))


@converter("batch_dot", "_linalg_gemm2", "linalg_gemm2", "_npi_matmul")
def batch_dot(node: Node) -> GraphExpr:
    """Products of matrices, one by one."""
    flags = {f"transpose_{side}": node.flag(f"transpose_{side}") for side in "ab"}
    result = node.call("matmul", node.input(0), node.input(1), **flags)
    factor = node.number("alpha", 1.0)
    return result if factor == 1 else node.b.multiply(result, factor)


@converter("_linalg_gemm", "linalg_gemm")
def gemm(node: Node) -> GraphExpr:
    """alpha * a b + beta * c."""
    flags = {f"transpose_{side}": node.flag(f"transpose_{side}") for side in "ab"}
    result = node.b.multiply(node.call("matmul", node.input(0), node.input(1), **flags), node.number("alpha", 1.0))
    return node.call("add", result, node.b.multiply(node.input(2), node.number("beta", 1.0)))


def _heads(node: Node, count: int) -> tuple[GraphExpr, list[Size]]:
    """Queries, keys and values that lie among one another, by heads: (steps, batch * heads, count, size)."""
    data, heads = node.input(0), node.integer("heads")
    steps, batch = sizes_of(data)[:2]
    width = size_at(data, 2)
    if heads < 1 or width % (heads * count):
        raise UserError(f"{width} numbers are not {heads} heads of {count} parts")
    shape: list[Size] = [steps, batch * heads, count, width // (heads * count)]
    return node.b.reshape(data, shape), shape


@converter("_contrib_interleaved_matmul_selfatt_qk")
def attention_scores(node: Node) -> GraphExpr:
    """Products of queries with keys, divided by the root of their size."""
    split, (_, _, _, size) = _heads(node, 3)
    query, key = (node.b.transpose(node.b.select(split, 2, at), (1, 0, 2)) for at in (0, 1))
    assert isinstance(size, int)
    return node.call("matmul", node.b.multiply(query, size**-0.5), key, transpose_b=True)


@converter("_contrib_interleaved_matmul_selfatt_valatt")
def attention_values(node: Node) -> GraphExpr:
    """What attention takes of the values."""
    split, (steps, _, _, size) = _heads(node, 3)
    value = node.b.transpose(node.b.select(split, 2, 2), (1, 0, 2))
    result = node.b.transpose(node.call("matmul", node.input(1), value), (1, 0, 2))
    heads = node.integer("heads")
    assert isinstance(size, int)
    return node.b.reshape(result, (steps, sizes_of(node.input(0))[1], heads * size))


# Choices by index


@converter("take")
def take(node: Node) -> GraphExpr:
    """Slices along an axis; indices outside are the nearest, or go round."""
    data, places, b = node.input(0), node.b.cast(node.input(1), INT64), node.b
    axis = node.axis(node.integer("axis", 0), rank_of(data))
    if node.text("mode", "clip") == "wrap":
        places = b.binary("floor_mod", places, sizes_of(data)[axis])
    return node.call("take", data, places, axis=axis, mode="clip")


@converter("batch_take", "choose_element_0index")
def batch_take(node: Node) -> GraphExpr:
    """One element of each row."""
    return _picked(node, node.input(0), node.b.reshape(node.input(1), sizes_of(node.input(0))[:1]), 1)


@converter("pick")
def pick(node: Node) -> GraphExpr:
    """One element along an axis for each place of the others."""
    data, places, b = node.input(0), node.input(1), node.b
    axis = node.axis(node.integer("axis", -1), rank_of(data)) if node.node.attributes.get("axis") != "None" else 0
    rest = [size for at, size in enumerate(sizes_of(data)) if at != axis]
    result = _picked(node, data, b.reshape(places, rest), axis)
    return b.expand_dims(result, (axis,)) if node.flag("keepdims") else result


def _picked(node: Node, data: GraphExpr, places: GraphExpr, axis: int) -> GraphExpr:
    b = node.b
    size = sizes_of(data)[axis]
    whole = b.cast(places, INT64)
    if node.text("mode", "clip") == "wrap":
        whole = b.binary("floor_mod", whole, size)
    else:
        last = b.scalar(0, INT64) if size == 1 else b.subtract(b.operand(size, INT64), b.scalar(1, INT64))
        whole = node.call("minimum", node.call("maximum", whole, b.constant(0, INT64)), last)
    hit = node.call("equal", b.positions(sizes_of(data), axis), b.expand_dims(whole, (axis,)))
    return node.call("sum", b.where(hit, data, 0), axes=(axis,), keepdims=False)


@converter("gather_nd")
def gather(node: Node) -> GraphExpr:
    """Slices at tuples of indices, which are the first axis of the second input."""
    places = node.input(1)
    order = (*range(1, rank_of(places)), 0)
    return gather_nd(node.b, node.input(0), node.b.transpose(node.b.cast(places, INT64), order))


@converter("one_hot", "_npx_one_hot")
def one_hot(node: Node) -> GraphExpr:
    """One value where an index says, another elsewhere, along a new last axis."""
    places, b = node.b.cast(node.input(0), INT64), node.b
    depth = node.integer("depth")
    hit = node.call("equal", b.expand_dims(places, (rank_of(places),)), b.constant(b.count(depth), INT64))
    kind = node.dtype()
    on, off = (b.scalar(node.number(name, default), kind) for name, default in (("on_value", 1.0), ("off_value", 0.0)))
    return node.call("where", hit, on, off)


# Sequences along the first axis


@converter("SequenceMask")
def sequence_mask(node: Node) -> GraphExpr:
    """One value behind the end of each sequence."""
    data, b = node.input(0), node.b
    if not node.flag("use_sequence_length"):
        return data
    axis = node.integer("axis", 0)
    lengths = b.cast(node.input(1), INT64)
    shape: list[Size] = [1] * rank_of(data)
    shape[1 - axis] = sizes_of(lengths)[0]
    inside = node.call("less", b.positions(sizes_of(data), axis), b.reshape(lengths, shape))
    return b.where(inside, data, node.number("value", 0.0))


@converter("SequenceLast")
def sequence_last(node: Node) -> GraphExpr:
    """The last element of each sequence."""
    data, b = node.input(0), node.b
    axis = node.integer("axis", 0)
    if not node.flag("use_sequence_length"):
        return b.select(data, axis, sizes_of(data)[axis] - 1)
    rest = sizes_of(data)
    places = b.subtract(b.cast(node.input(1), INT64), 1)
    shape: list[Size] = [1] * (len(rest) - 1)
    shape[0] = sizes_of(places)[0]
    full = b.broadcast_to(b.reshape(places, shape), [size for at, size in enumerate(rest) if at != axis])
    return _picked(node, data, full, axis)


@converter("SequenceReverse")
def sequence_reverse(node: Node) -> GraphExpr:
    """Each sequence the other way round."""
    data = node.input(0)
    if not node.flag("use_sequence_length"):
        return node.b.flip(data, (0,))
    return reverse_sequences(node.b, data, node.b.cast(node.input(1), INT64), 0, 1)
