"""Converters of operators on texts, of which the host does what there is."""

from __future__ import annotations

import re

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.registry import converter
from tilewright.graph.ir.dimensions import as_dims
from tilewright.graph.ir.expr import Constant, GraphExpr
from tilewright.support.errors import UnsupportedError


@converter("StringToNumber")
def to_number(node: NodeContext) -> GraphExpr:
    """Texts read as numbers."""
    return node.call("text.to_numbers", node.input(0), dtype=node.dtype("out_type", 1))


@converter("AsString")
def as_string(node: NodeContext) -> GraphExpr:
    """Whole numbers written out."""
    data = node.input(0)
    if not dtype_of(data).is_integer or node.integer("width", -1) > 0:
        raise UnsupportedError(f"AsString of {dtype_of(data)}, or of a given width")
    return node.call("text.from_numbers", data, dtype=dtype_of(data))


@converter("StringJoin")
def join(node: NodeContext) -> GraphExpr:
    """Texts of several tensors joined, with a text between them."""
    first, *others = [node.input(at) for at in range(len(node.values))]
    separator = node.text("separator")
    for other in others:
        if separator:
            first = node.call("text.concat", first, node.builder.constant(np.array(separator, object), "string"))
        first = node.call("text.concat", first, other)
    return first


@converter("StringLower", "StringUpper")
def change_case(node: NodeContext) -> GraphExpr:
    """Texts in one case."""
    data = node.input(0)
    if rank_of(data) != 1:
        raise UnsupportedError(f"{node.operator} of texts of {rank_of(data)} dimensions", hint="reshape them to a list")
    action = node.operator.removeprefix("String").upper()
    return node.call("text.normalize", data, dims=as_dims(sizes_of(data)), case_change_action=action)


@converter("StaticRegexFullMatch", "RegexFullMatch")
def full_match(node: NodeContext) -> GraphExpr:
    """Whether each whole text matches a pattern."""
    if node.operator == "StaticRegexFullMatch":
        pattern = node.text("pattern")
    else:
        known = node.input(1)
        if not isinstance(known, Constant):
            raise UnsupportedError("RegexFullMatch of a pattern that is computed")
        pattern = str(known.data.item())
    try:
        re.compile(pattern)
    except re.error as error:
        raise UnsupportedError(f"the pattern {pattern!r}: {error}") from error
    return node.call("text.full_match", node.input(0), pattern=pattern)
