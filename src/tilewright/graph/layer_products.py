"""The layers of a model by their multiplications, and those that together hardly count."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from math import prod

from tilewright.graph.ir.expr import Call, Function, GraphExpr
from tilewright.graph.ir.op import FusionKind, Operator
from tilewright.graph.ir.rewrite import static_shape
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.ops.winograd import KERNEL, WinogradAttributes


def products_of(function: Function) -> int:
    """Multiplications of a function's layers, as if each took weights; 0 of those whose sizes are open."""
    return sum(map(layer_products, post_order(function)))


def layer_products(item: GraphExpr) -> int:
    """Multiplications of one layer; 0 of what is none."""
    if not isinstance(item, Call) or not isinstance(item.callee, Operator):
        return 0
    if item.callee.kind <= FusionKind.REDUCTION or len(item.args) < 2:
        return 0
    weights, result = static_shape(item.args[1]), static_shape(item)
    if isinstance(item.attributes, WinogradAttributes):
        tile = item.attributes.tile
        return prod(result) * weights[2] * (tile + KERNEL - 1) ** 2 // tile**2 if weights and result else 0
    # Each of as many columns as the weights have is summed over all else of them.
    return prod(result) * prod(weights[:-1]) if weights and result else 0


def most_of_little(costs: Iterable[float], whole: float) -> float:
    """The cost up to which all layers together cost no more than `whole`; equal ones count together."""
    left, most = whole, 0.0
    for cost, equal in groupby(sorted(costs)):
        left -= cost * len(list(equal))
        if left < 0:
            break
        most = cost
    return most
