"""Leaves out the checks of data: what a user says is good is not looked at.

Before:  take(table, checked(ids, check_values(ids)))
After:   take(table, ids)

What relied on a check then looks itself that it stays inside the data.
"""

from __future__ import annotations

from tilewright.graph.ir.expr import Call, Function, GraphExpr
from tilewright.graph.ir.infer import keep_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ir.traverse import map_functions, rewrite
from tilewright.graph.ops.indexing import TakeAttributes
from tilewright.graph.ops.scatter import ScatterAttributes, ScatterElementsAttributes, SegmentSumAttributes
from tilewright.ir.function import IRModule


def drop_checks(module: IRModule) -> IRModule:
    """The module without `checked`; the checks themselves are then dead code."""
    return map_functions(module, _without)


def _without(function: Function) -> Function:
    result = rewrite(function, _visit)
    assert isinstance(result, Function)
    return result


def _visit(old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
    keep_type(old, item)
    if not isinstance(item, Call):
        return None
    if is_call_to(item, "checked"):
        return item.args[0]
    attributes = item.attributes
    if isinstance(attributes, TakeAttributes) and attributes.mode == "inside":
        return make("take", *item.args, axis=attributes.axis, mode="clip", span=item.span)
    if isinstance(attributes, ScatterAttributes) and attributes.inside:
        return make("scatter", *item.args, reduction=attributes.reduction, span=item.span)
    if isinstance(attributes, SegmentSumAttributes) and attributes.inside:
        return make("segment_sum", *item.args, count=attributes.count, span=item.span)
    if isinstance(attributes, ScatterElementsAttributes) and attributes.inside:
        options = {"axis": attributes.axis, "reduction": attributes.reduction}
        return make("scatter_elements", *item.args, **options, span=item.span)
    return None
