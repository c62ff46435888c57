"""Operators that the host does: sequences as loops collect them, and what has no derivative."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.gradient.accumulate import zero_sequence
from tilewright.graph.gradient.control import erased
from tilewright.graph.gradient.expressions import number, zeros_like
from tilewright.graph.gradient.registry import (
    Cotangents,
    blocks_gradient,
    forward_rule,
    linear,
    refuses_gradient,
    reverse_rule,
)
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ops.host import ConcatenateAttributes, SplitAttributes
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


blocks_gradient(
    "the result is not a float",
    *("sequence.length", "optional.has", "host.nonzero", "host.non_max_suppression", "host.require", "host.fail"),
    *("text.concat", "text.concatenate", "text.equal", "text.from_numbers", "text.full_match", "text.lookup"),
    *("text.ngrams", "text.normalize", "text.split", "text.take", "text.to_numbers", "text.transpose", "text.where"),
)
blocks_gradient(
    "random numbers do not depend on what they are drawn for",
    *("random.uniform", "random.normal", "random.categories"),
)
refuses_gradient(
    "its sizes are data",
    *("shape.pad", "shape.slice", "shape.split", "shape.tile", "axes.from_end", "axes.to_end", "host.col2im"),
)
refuses_gradient(
    "its rule is not written",
    *("host.topk", "host.compress", "host.unique", "host.couple", "host.svd", "host.eigh", "host.mel_weights"),
    *("host.resize_weights", "sequence.at", "sequence.erase", "sequence.pairs"),
    *("optional.get", "optional.make"),
)
