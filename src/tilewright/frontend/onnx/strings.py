"""Converters of operators on texts. Moves of texts (Reshape, Gather, ...) go through `frontend.core.texts`."""

from __future__ import annotations

import re

from tilewright.frontend.core.builder import dtype_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import STRING
from tilewright.support.errors import UserError


def _texts(node: NodeContext, index: int = 0) -> GraphExpr:
    value = node.input(index)
    if dtype_of(value) is not STRING:
        raise UserError(f"{node.node.op_type} needs texts, its input number {index + 1} is {dtype_of(value)}")
    return value


@converter("StringConcat")
def string_concat(node: NodeContext) -> GraphExpr:
    """Pairs of texts joined."""
    return node.call("text.concat", _texts(node, 0), _texts(node, 1))


@converter("StringSplit")
def string_split(node: NodeContext) -> list[GraphExpr]:
    """The parts of each text between delimiters, and how many there are."""
    delimiter, most = node.text("delimiter", ""), node.integer("maxsplit", -1)
    both = node.call(
        "text.split", _texts(node), delimiter=delimiter, maxsplit=max(most, -1), dims=(node.symbol("parts"),)
    )
    return [node.builder.item(both, at) for at in range(2)]


@converter("RegexFullMatch")
def regex_full_match(node: NodeContext) -> GraphExpr:
    """Whether each text as a whole matches a pattern."""
    pattern = node.text("pattern")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UserError(f"the pattern {pattern!r} is no regular expression: {error}") from error
    return node.call("text.full_match", _texts(node), pattern=pattern)


@converter("StringNormalizer")
def string_normalizer(node: NodeContext) -> GraphExpr:
    """Texts in one case, without stop words."""
    change = node.text("case_change_action", "NONE")
    if change not in ("NONE", "LOWER", "UPPER"):
        raise UserError(f"unknown case_change_action {change!r}", hint="one of NONE, LOWER, UPPER")
    node.ignore("locale")  # Python's letters change their case in the same way everywhere
    return node.call(
        "text.normalize",
        _texts(node),
        case_change_action=change,
        is_case_sensitive=node.flag("is_case_sensitive"),
        stopwords=node.texts("stopwords", ()),
        dims=(node.symbol("count"),),
    )
