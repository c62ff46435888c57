"""Products of one value with several constant matrices become one product, of which each takes its columns.

Before:  matmul(x, q), matmul(x, k), matmul(x, v)                three launches that each fill a part of a GPU
After:   y = matmul(x, [q k v]); y[:, :a], y[:, a:b], y[:, b:]   one; slices become part of what reads them

For GPUs only: a CPU is full with one of them, and reads slices of rows less well.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.expr import Call, Constant, Function, GraphExpr
from tilewright.graph.infer import fill_type
from tilewright.graph.op import is_call_to
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.rewrite import make, static_shape
from tilewright.graph.traverse import map_functions, post_order, rewrite
from tilewright.ir.function import IRModule
from tilewright.target import Target


def joint_products(module: IRModule, target: Target) -> IRModule:
    """Join products of one value where the target is a GPU."""
    if target.is_cpu:
        return module
    result = map_functions(module, _joined)
    assert isinstance(result, IRModule)
    return result


def _joined(function: Function) -> Function:
    families: dict[tuple[int, bool], list[Call]] = {}
    # Calls of one scope only: what a branch computes must not move out of it.
    for item in post_order(function, closures=False):
        if isinstance(item, Call) and _is_candidate(item):
            assert isinstance(item.attributes, MatmulAttributes)
            families.setdefault((id(item.args[0]), item.attributes.transpose_b), []).append(item)
    places: dict[int, tuple[list[Call], int]] = {}
    for family in families.values():
        if len(family) > 1:
            places.update({id(call): (family, number) for number, call in enumerate(family)})
    if not places:
        return function
    made: dict[int, GraphExpr] = {}

    def visit(old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
        if item is not old:
            fill_type(item)
            if item.type is None:
                item.type = old.type
        found = places.get(id(old))
        if found is None:
            return None
        assert isinstance(item, Call)
        family, number = found
        if id(family) not in made:
            made[id(family)] = _product(item, family)
        return _columns(made[id(family)], family, number, item)

    changed = rewrite(function, visit)
    assert isinstance(changed, Function)
    return changed


def _is_candidate(call: Call) -> bool:
    if not is_call_to(call, "matmul"):
        return False
    assert isinstance(call.attributes, MatmulAttributes)
    weights = call.args[1]
    if not isinstance(weights, Constant) or weights.data.ndim != 2 or call.attributes.transpose_a:
        return False
    shape = static_shape(call)
    return shape is not None and 0 not in shape


def _matrix(call: Call) -> np.ndarray:
    weights, attributes = call.args[1], call.attributes
    assert isinstance(weights, Constant) and isinstance(attributes, MatmulAttributes)
    return weights.data.T if attributes.transpose_b else weights.data


def _product(item: Call, family: list[Call]) -> GraphExpr:
    first = family[0].args[1]
    assert isinstance(first, Constant)
    weights = Constant(np.concatenate([_matrix(call) for call in family], axis=1), first.dtype)
    weights.span = first.span
    fill_type(weights)
    return make("matmul", item.args[0], weights, span=item.span)


def _columns(product: GraphExpr, family: list[Call], number: int, item: Call) -> GraphExpr:
    widths = [_matrix(call).shape[1] for call in family]
    shape = static_shape(product)
    assert shape is not None
    start = sum(widths[:number])
    return make(
        "slice",
        product,
        begin=(*[0] * (len(shape) - 1), start),
        end=(*shape[:-1], start + widths[number]),
        strides=(1,) * len(shape),
        span=item.span,
    )
