"""Traversal: orders, rewriting, substitution."""

from __future__ import annotations

import gc

from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import IntImm, Var
from tilewright.ir.visit import (
    find_all,
    made_of,
    post_order,
    pre_order,
    substitute,
    transform,
    uses_any,
    variables,
    variables_in,
)
from tilewright.tir.buffer import make_buffer

X, Y, Z = Var("x"), Var("y"), Var("z")
EXPR = (X + Y) * (X + 2) + Z


def test_orders_visit_each_object_once():
    assert next(iter(pre_order(EXPR))) is EXPR
    assert list(post_order(EXPR))[-1] is EXPR
    assert len(list(pre_order(EXPR))) == len(list(post_order(EXPR))) == len(set(map(id, pre_order(EXPR))))
    seen: set[int] = set()
    for item in post_order(EXPR):
        assert all(id(child) in seen for child in item.children())
        seen.add(id(item))


def test_deep_expressions_do_not_recurse():
    deep = X
    for _ in range(5000):
        deep = e.Add(deep, Y)
    assert len(list(post_order(deep))) == 5002
    assert variables(deep) == [X, Y]


def test_find_and_variables():
    assert find_all(EXPR, e.Add) == [EXPR, X + Y, X + 2]
    assert variables(EXPR) == [X, Y, Z]
    assert uses_any(EXPR, [Z]) and not uses_any(EXPR, [Var("z")]) and not uses_any(EXPR, [])


def test_expressions_know_their_variables_types_and_functions():
    half, single = DataType.of("float16"), DataType.of("float32")
    value = e.Call("exp", (e.Cast(X, half),), half)
    wide = e.Broadcast(e.Cast(value, single), 4)
    loaded = make_buffer("a", (Y, 8), "float16")[Z, X + 1]
    for expr in (EXPR, value, wide, loaded, IntImm(3), e.Add(X, X)):
        # Twice: found, and kept.
        for _ in range(2):
            assert variables_in(expr) == set(variables(expr))
            values = [item for item in pre_order(expr) if isinstance(item, e.PrimExpr)]
            names = {item.name for item in values if isinstance(item, e.Call)}
            assert made_of(expr) == {item.dtype.element for item in values} | names
    assert made_of(wide) == {INDEX, half, single, "exp"}
    assert made_of(loaded) == {INDEX, half} and variables_in(loaded) == {X, Z}


def test_substitute():
    swapped = substitute(EXPR, {X: Y, Y: X})
    assert swapped is (Y + X) * (Y + 2) + Z
    replaced = substitute(EXPR, {Z: X})
    assert variables(replaced) == [X, Y]
    assert substitute(EXPR, {}) is EXPR
    assert substitute(EXPR, {Var("w"): X}) is EXPR


def test_transform_rewrites_bottom_up_and_once():
    seen = []

    def swap(item):
        if isinstance(item, e.Add):
            seen.append(item)
            return e.Add(item.b, item.a)
        return None

    result = transform(EXPR, swap)
    assert result is e.Add(Z, e.Mul(e.Add(Y, X), e.Add(IntImm(2), X)))
    assert len(seen) == 3
    shared = e.Mul(X + Y, X + Y)
    seen.clear()
    transform(shared, swap)
    assert len(seen) == 1


def test_substitution_leaves_nothing_for_the_garbage_collector():
    """What is left in cycles would live on, and collecting it takes longer than freeing it."""
    substitute(EXPR, {X: Y})
    gc.collect()
    gc.disable()
    try:
        substitute(EXPR, {X: Y})
        assert gc.collect() == 0
    finally:
        gc.enable()
