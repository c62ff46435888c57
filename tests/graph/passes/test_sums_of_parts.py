"""Sums of padded parts and of thin products: which are joined, and that the meaning stays."""

from __future__ import annotations

import numpy as np

from tests.graph.helpers import function, inputs_for, op, var
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, GraphExpr, Tuple, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.passes.sums_of_parts import sums_of_parts
from tilewright.ir.function import IRModule


def joined(params: list[Var], body: GraphExpr) -> list[str]:
    """The operators of a program after the pass, whose results are checked."""
    before = infer_types(IRModule([function(params, body)]))
    after = sums_of_parts(before)
    given = inputs_for(function(params, body))
    got, want = (evaluate(module, *given) for module in (after, before))
    for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return [item.callee.name for item in post_order(after["main"]) if isinstance(item, Call)]


def pads(parts: list[GraphExpr], sizes: list[int], axis: int, rank: int) -> list[GraphExpr]:
    made, begin = [], 0
    for part, size in zip(parts, sizes, strict=True):
        before, after = [0] * rank, [0] * rank
        before[axis], after[axis] = begin, sum(sizes) - begin - size
        made.append(op("pad", part, before=tuple(before), after=tuple(after)))
        begin += size
    return made


def total(terms: list[GraphExpr]) -> GraphExpr:
    result = terms[0]
    for term in terms[1:]:
        result = op("add", result, term)
    return result


def test_parts_in_any_order_with_other_terms() -> None:
    sizes = [2, 1, 3]
    parts = [var(f"x{n}", 4, size) for n, size in enumerate(sizes)]
    other = var("y", 4, 6)
    a, b, c = pads(list(parts), sizes, 1, 2)
    assert joined([*parts, other], op("add", op("add", c, other), op("add", a, b))) == ["concatenate", "add"]


def test_parts_that_overlap_or_leave_gaps_stay() -> None:
    x, y = var("x", 2, 3), var("y", 2, 3)
    for before, after in ((1, 2), (3, 1)):
        shape = (5, 3) if before == 1 else (6, 3)
        first = op("pad", x, before=(0, 0), after=(shape[0] - 2, 0))
        second = op("pad", y, before=(before, 0), after=(shape[0] - 2 - before, 0))
        assert after >= 0 and joined([x, y], op("add", first, second)) == ["pad", "pad", "add"]
    ones = op("pad", y, before=(2, 0), after=(0, 0), value=1.0)
    assert "pad" in joined([x, y], op("add", op("pad", x, before=(0, 0), after=(2, 0)), ones))
    both = op("pad", x, before=(0, 1), after=(2, 0))
    assert "pad" in joined([x, y], op("add", both, op("pad", y, before=(2, 1), after=(0, 0))))


def test_thin_products_in_all_forms() -> None:
    for transpose_a in (False, True):
        for transpose_b in (False, True):
            params: list[Var] = [var("v", 32, 24)]
            terms: list[GraphExpr] = [params[0]]
            for n, depth in enumerate((1, 2, 1)):
                a = var(f"a{n}", *((depth, 32) if transpose_a else (32, depth)))
                b = var(f"b{n}", *((24, depth) if transpose_b else (depth, 24)))
                params += [a, b]
                terms.append(op("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b))
            names = joined(params, total(terms))
            assert sorted(names) == ["add", "concatenate", "concatenate", "matmul"]


def test_thick_products_and_those_with_other_readers_stay() -> None:
    thick = [var(f"x{n}", 8, 8) for n in range(4)]
    products = [op("matmul", thick[0], thick[1]), op("matmul", thick[2], thick[3])]
    assert joined(thick, total(list(products))).count("matmul") == 2
    thin = [var(f"x{n}", *shape) for n, shape in enumerate([(16, 1), (1, 16)] * 2)]
    first, second = op("matmul", thin[0], thin[1]), op("matmul", thin[2], thin[3])
    assert joined(thin, Tuple((op("add", first, second), op("tanh", first)))).count("matmul") == 2


def test_long_sums() -> None:
    """A term for each of many steps: nothing recurses."""
    count = 2000
    x = var("x", 1, 2)
    parts = [op("add", x, op("tanh", x)) for _ in range(count)]
    assert joined([x], total(pads(list(parts), [1] * count, 0, 2))).count("concatenate") == 1
