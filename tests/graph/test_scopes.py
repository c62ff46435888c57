"""Scopes: a node belongs to the innermost one that holds all its uses."""

from __future__ import annotations

from tests.graph.helpers import op, var
from tilewright.graph.ir.expr import If
from tilewright.graph.ir.scopes import find_scopes, place
from tilewright.graph.ir.traverse import post_order


def test_nodes_stand_where_all_their_uses_are():
    c, d, x = var("c", dtype="bool"), var("d", dtype="bool"), var("x", 4)
    everywhere, twice, once = op("exp", x), op("tanh", x), op("nn.relu", x)
    inner = If(d, op("add", twice, once), op("add", twice, everywhere))
    outer = If(c, inner, op("negative", everywhere))
    scopes = find_scopes(post_order(outer))
    first, second = scopes.inside(outer, 1), scopes.inside(outer, 2)
    deepest = scopes.inside(inner, 1)
    assert scopes.scope(outer) is scopes.scope(everywhere) is scopes.scope(x) is scopes.outermost
    assert scopes.scope(inner) is scopes.scope(twice) is scopes.scope(d) is first
    assert scopes.scope(once) is deepest and (deepest.owner, deepest.position, deepest.depth) == (inner, 1, 2)
    assert list(deepest.around()) == [first, scopes.outermost] and list(second.around()) == [scopes.outermost]


def test_what_a_node_needs_may_be_said_otherwise():
    """The same nodes, but for a condition that counts as part of the second branch."""
    c, x = var("c", dtype="bool"), var("x", 4)
    branch = If(c, op("exp", x), op("tanh", x))
    order = post_order(branch)

    def needs(item):
        if item is branch:
            return [(branch.condition, 2), (branch.then_value, None), (branch.else_value, 2)]
        return [(part, None) for part in getattr(item, "args", ())]

    scopes = place(order, needs)
    assert scopes.scope(branch.then_value) is scopes.scope(x) is scopes.outermost
    assert scopes.scope(branch.else_value) is scopes.scope(c) is scopes.inside(branch, 2)
