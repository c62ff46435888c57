"""Reshapes of products sink below what is computed element by element, which then is part of the product's kernel.

Before:  relu(reshape(matmul(reshape(x, (20, 64)), w), (2, 10, 192)) + bias[192])
After:   reshape(relu(matmul(reshape(x, (20, 64)), w) + bias[192]), (2, 10, 192))

Importers write products of many dimensions as products of matrices. A reshape costs nothing, but kernels end at it: it
is better at the end of what belongs together.
"""

from __future__ import annotations

from math import prod

from tilewright.graph.ir.dimensions import Sizes
from tilewright.graph.ir.expr import Call, Function, GraphExpr
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import FusionKind, Operator, is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.passes.fuse import MAX_GROUP, is_alternate_columns
from tilewright.ir.function import IRModule


def sink_reshapes(module: IRModule) -> IRModule:
    """Move reshapes of products to the end of the operators that their kernels can take in."""
    return map_functions(module, _visit)


def _visit(function: Function) -> Function:
    return apply_rules(function, RULES)


def _is_elementwise(item: GraphExpr) -> bool:
    return isinstance(item, Call) and isinstance(item.callee, Operator) and item.callee.elementwise


def _sink(b: Bindings) -> GraphExpr | None:
    root = b.call("root")
    shape = known_sizes(root)
    if shape and any(known_sizes(item) == shape and _is_product(item, shape) for item in root.args):
        # It belongs to a product of its own shape already. Two products that are reshaped to a third shape would
        # else take turns for ever.
        return None
    for item in root.args:
        if isinstance(item, Call) and is_call_to(item, "reshape") and known_sizes(item) == shape:
            inner = known_sizes(item.args[0])
            if shape and inner and _is_product(item.args[0], inner):
                return _below(root, shape, inner)
    return None


def _is_product(item: GraphExpr, shape: Sizes) -> bool:
    """Whether a value is a product of matrices, or is computed from one in the same kernel (`fuse`, rule 1)."""
    for _ in range(MAX_GROUP):
        if not isinstance(item, Call) or not isinstance(item.callee, Operator):
            return False
        if item.callee.kind is FusionKind.OUT_FUSABLE:
            return True
        below = next((arg for arg in item.args if known_sizes(arg) == shape), None)
        if is_alternate_columns(item):
            below, shape = item.args[0], known_sizes(item.args[0]) or ()
        elif not item.callee.elementwise:
            return False
        if below is None:
            return False
        item = below
    return False


def _below(root: Call, shape: Sizes, inner: Sizes) -> GraphExpr | None:
    """The operator on values of the inner shape, and the reshape after it."""
    args: list[GraphExpr] = []
    for item in root.args:
        sizes = known_sizes(item)
        if sizes is None:
            return None
        if sizes == shape:
            args.append(_reshaped(item, inner))
        elif all(size == 1 for size in sizes[:-1]) and (inner[-1] == shape[-1] or sizes[-1:] in ((), (1,))):
            # One number for all, or one row for all rows: the last axis is the same before and after.
            args.append(make("reshape", item, shape=sizes[-1:]) if len(sizes) > 1 else item)
        elif all(size == 1 for size in sizes[:-1]) and sizes[-1:] == shape[-1:] and (parts := _parts(shape, inner)):
            # One row for all rows, whose axis is taken apart.
            args.append(make("reshape", item, shape=parts))
        else:
            return None
    result = Call(root.callee, tuple(args), root.attributes)
    result.span = root.span
    fill_type(result)
    return make("reshape", result, shape=shape)


def _parts(shape: Sizes, inner: Sizes) -> Sizes:
    """The last axes of the inner shape that the last axis of the outer one is made of; none if it is not."""
    for count in range(1, len(inner) + 1):
        sizes = [size for size in inner[-count:] if isinstance(size, int)]
        if len(sizes) < count or prod(sizes) == shape[-1]:
            return inner[-count:] if len(sizes) == count else ()
    return ()


def _reshaped(item: GraphExpr, shape: Sizes) -> GraphExpr:
    """A value in another shape; what it was a reshape of, where that has this shape."""
    if isinstance(item, Call) and is_call_to(item, "reshape") and known_sizes(item.args[0]) == shape:
        return item.args[0]
    return make("reshape", item, shape=shape)


RULES = (Rule("reshape of a product", P.any("root", where=_is_elementwise), _sink),)
"""All rules, tried in order at each node."""
