"""Operators that the host does: sequences as loops collect them, and what has no derivative."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.gradient.accumulate import zero_sequence
from tilewright.graph.gradient.control import erased
from tilewright.graph.gradient.expressions import (
    cast,
    compare,
    number,
    pad,
    reshape,
    sizes_of,
    where,
    zeros_like,
)
from tilewright.graph.gradient.registry import (
    Cotangents,
    blocks_gradient,
    forward_rule,
    linear,
    refuses_gradient,
    reverse_rule,
)
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.host import CompressAttributes, ConcatenateAttributes, SplitAttributes
from tilewright.graph.ops.symbolic import StackAttributes
from tilewright.ir.dtype import INT64
from tilewright.ir.types import Type
from tilewright.support.errors import UserError


def _at(sequence: GraphExpr, position: int, kind: Type | None) -> GraphExpr:
    return make("sequence.at", sequence, number(position, INT64), result=erased(kind))


@reverse_rule("sequence.make")
def sequence_make(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The cotangent of an item is an item of the cotangent."""
    return [_at(cotangent, place, arg.type) for place, arg in enumerate(call.args)]


@forward_rule("sequence.make")
def sequence_make_forward(call: Call, tangents: Sequence[GraphExpr | None]) -> GraphExpr:
    """The sequence of the tangents."""
    items = [zeros_like(arg) if given is None else given for arg, given in zip(call.args, tangents, strict=True)]
    return make("sequence.make", *items, result=call.type)


@reverse_rule("sequence.insert")
def sequence_insert(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The item of the cotangent, and the cotangent without it."""
    if len(call.args) == 2:
        return [lambda: make("sequence.erase", cotangent), lambda: _at(cotangent, -1, call.args[1].type)]
    position = call.args[2]
    return [
        lambda: make("sequence.erase", cotangent, position),
        lambda: make("sequence.at", cotangent, position, result=erased(call.args[1].type)),
        None,
    ]


@forward_rule("sequence.insert")
def sequence_insert_forward(call: Call, tangents: Sequence[GraphExpr | None]) -> GraphExpr:
    """The tangent with one item more."""
    before, item = tangents[0], tangents[1]
    if before is None:
        before = zero_sequence(call.args[0])
    return make(
        "sequence.insert", before, zeros_like(call.args[1]) if item is None else item, *call.args[2:], result=call.type
    )


@linear("sequence.stack")
def sequence_stack(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The slices of the cotangent."""
    assert isinstance(call.attributes, StackAttributes)
    return [_slices(call, cotangent, call.attributes.axis), None]


@linear("sequence.concatenate")
def sequence_concatenate(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The slices of the cotangent, where items lie along a new axis."""
    assert isinstance(call.attributes, ConcatenateAttributes)
    if not call.attributes.new_axis:
        raise UserError(
            "the gradient of items that are joined along an axis they have: their sizes are not known",
            where=None if call.span is None else str(call.span),
            hint="stack them along a new axis",
        )
    return [_slices(call, cotangent, call.attributes.axis)]


def _slices(call: Call, cotangent: GraphExpr, axis: int) -> GraphExpr:
    return make("sequence.split", cotangent, axis=axis, keepdims=False, result=call.args[0].type)


@linear("sequence.split")
def sequence_split(call: Call, cotangent: GraphExpr) -> Cotangents:
    """The slices together again."""
    assert isinstance(call.attributes, SplitAttributes)
    if len(call.args) > 1 or call.attributes.keepdims:
        raise UserError(
            "the gradient of a tensor that is split to a sequence of parts that are not single slices",
            where=None if call.span is None else str(call.span),
        )
    kind = erased(call.args[0].type)
    return [make("sequence.concatenate", cotangent, axis=call.attributes.axis, new_axis=True, result=kind)]


@linear("host.compress")
def compress(call: Call, cotangent: GraphExpr) -> Cotangents:
    """Each slice that was kept gets its own; the others get zeros."""
    assert isinstance(call.attributes, CompressAttributes)
    data, condition = call.args
    sizes, axis = sizes_of(data), max(call.attributes.axis, 0)
    if call.attributes.axis < 0:
        sizes = (dimensions.product(sizes),)
    (count,) = sizes_of(condition)
    missing = dimensions.subtract(sizes[axis], count)
    kept = pad(cast(condition, INT64), (0,), (missing,))
    before = make("cumsum", kept, axis=0, exclusive=True)
    # One slice of zeros behind the others: there may be none.
    ends = tuple(1 if at == axis else 0 for at in range(len(sizes)))
    longer = pad(cotangent, (0,) * len(sizes), ends)
    found = make("take", longer, before, axis=axis, mode="clip")
    flags = reshape(compare("greater", kept, 0), [size if at == axis else 1 for at, size in enumerate(sizes)])
    return [reshape(where(flags, found, 0), sizes_of(data)), None]


blocks_gradient(
    "the result is not a float",
    *("sequence.length", "optional.has", "host.nonzero", "host.non_max_suppression", "host.require", "host.fail"),
    "host.exchanged",
    *("text.concat", "text.concatenate", "text.equal", "text.from_numbers", "text.full_match", "text.lookup"),
    *("text.ngrams", "text.normalize", "text.split", "text.take", "text.to_numbers", "text.transpose", "text.where"),
)
blocks_gradient(
    "random numbers do not depend on what they are drawn for",
    *("random.bits", "random.fold_in", "random.key", "random.uniform", "random.normal"),
)
refuses_gradient(
    "its sizes are data",
    *("shape.pad", "shape.slice", "shape.split", "shape.tile", "axes.from_end", "axes.to_end", "host.col2im"),
)
refuses_gradient(
    "its rule is not written",
    *("host.topk", "host.unique", "host.couple", "host.eig", "host.mel_weights"),
    *("host.cholesky", "host.lu", "host.solve_triangular", "host.reflections", "host.reflect"),
    *("host.resize_weights", "sequence.at", "sequence.erase", "sequence.pairs"),
    *("optional.get", "optional.make"),
)
